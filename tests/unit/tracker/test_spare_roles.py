"""Roles of processes that are started while a group forms: as many spares as there are to be."""

import itertools

import pytest

from ftcomm_tracker.launcher.spare_roles import StartedRoles

WORKERS, SPARES = ("0", "1"), ("s0", "s1")
IDS = WORKERS + SPARES


def of_the_attempt_before(seated: tuple[str, ...]) -> StartedRoles:
    """The processes of an attempt in which `seated` had the ranks; they still run."""
    roles = StartedRoles(SPARES)
    for worker_id in IDS:
        # A spare that has taken a rank was started as a spare.
        roles.begin(worker_id, spare=worker_id in SPARES or worker_id not in seated)
    return roles


def spares_of(roles: StartedRoles) -> int:
    """Number of the processes that run and were started as spares."""
    return sum(roles._is_spare.values())


def spares_after(
    seated: tuple[str, ...], order: tuple[str, ...], old: int, ends: tuple[str, ...]
) -> int:
    """Start `order` again, its first `old` before the new attempt is there; count the spares.

    Those in `ends` have ended before the first of them starts, the others just before their own.
    """
    roles = of_the_attempt_before(seated)
    for worker_id in ends:
        roles.end(worker_id)
    for number, worker_id in enumerate(order):
        roles.end(worker_id)
        formed = number < old
        spare = worker_id not in seated if formed else roles.while_forming(worker_id)
        roles.begin(worker_id, spare=spare)
    return spares_of(roles)


@pytest.mark.parametrize("seated", list(itertools.combinations(IDS, len(WORKERS))))
def test_whatever_the_order_of_their_starts_as_many_are_spares_as_are_to_be(
    seated: tuple[str, ...],
) -> None:
    """A process that had a rank is started again; one that waited may be, or comes as it is."""
    others = [worker_id for worker_id in IDS if worker_id not in seated]
    found = {
        spares_after(seated, order, old, ends)
        for count in range(len(others) + 1)
        for again in itertools.combinations(others, count)
        for order in itertools.permutations((*seated, *again))
        for old in range(len(order) + 1)
        for ends in ((), order, seated)
    }
    assert found == {len(SPARES)}


def test_the_first_processes_have_the_roles_of_their_ids() -> None:
    for order in itertools.permutations(IDS):
        roles = StartedRoles(SPARES)
        for worker_id in order:
            spare = roles.while_forming(worker_id)
            roles.begin(worker_id, spare=spare)
            assert spare == (worker_id in SPARES)
