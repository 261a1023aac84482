"""Detection of silent links: tables by hand, and every schedule with every pair cut."""

import itertools
from collections.abc import Iterator

import pytest

from ftcomm.collectives.schedules.allgather import ring_allgather
from ftcomm.collectives.schedules.binomial_tree import binomial_broadcast
from ftcomm.collectives.schedules.direct import DIRECT_BYTES, two_level_allreduce
from ftcomm.collectives.schedules.pairwise_exchange import shift
from ftcomm.collectives.schedules.pipelined_chain import SEGMENT_BYTES, chain_broadcast
from ftcomm.collectives.schedules.recursive_doubling import barrier, doubling_allreduce
from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.collectives.schedules.schedule import NOBODY, Schedule
from ftcomm_tracker.core.silent_links import RankProgress, pair_of, starving_pairs
from tests.unit.tracker.roster_scenario import at

HERE, NEXT = at(0, 4), at(0, 5)
COMPUTES = RankProgress(HERE)


@pytest.mark.parametrize(
    ("stands", "pairs"),
    [
        pytest.param({}, (), id="nobody stands"),
        pytest.param({0: RankProgress(HERE, 1, (1,)), 1: COMPUTES}, (), id="the other computes"),
        pytest.param({0: RankProgress(HERE, 1, (1,))}, (), id="the other moves"),
        pytest.param(
            {0: RankProgress(HERE, 1, (1,)), 1: RankProgress(HERE, 1, (0,))},
            ((0, 1),),
            id="both in one step",
        ),
        pytest.param(
            {0: RankProgress(HERE, 2, (1,)), 1: RankProgress(HERE, 1, (2,)), 2: COMPUTES},
            (),
            id="a chain that ends at one who computes",
        ),
        pytest.param(
            {
                0: RankProgress(HERE, 3, (2,)),
                1: RankProgress(HERE, 1, (0,)),
                2: RankProgress(HERE, 2, (1,)),
            },
            ((0, 1),),
            id="a ring waits for one link: who is farthest behind names it",
        ),
        pytest.param(
            {0: RankProgress(NEXT), 1: RankProgress(HERE, 0, (0,))},
            ((0, 1),),
            id="the root is ahead and computes",
        ),
        pytest.param(
            {0: RankProgress(NEXT, -1, (2,)), 1: RankProgress(HERE, 0, (0,)), 2: COMPUTES},
            ((0, 1),),
            id="one link is at fault while another rank computes",
        ),
        pytest.param(
            {0: RankProgress(HERE, -1, (1,)), 1: RankProgress(HERE, -1, (0,))},
            ((0, 1),),
            id="a connection that is never made",
        ),
        pytest.param(
            {0: RankProgress(HERE, -1, (1,)), 1: COMPUTES},
            (),
            id="a connection to one who has not come yet",
        ),
        pytest.param(
            {
                0: RankProgress(HERE, 1, (1,)),
                1: RankProgress(HERE, 1, (0,)),
                2: RankProgress(HERE, 1, (3,)),
                3: RankProgress(HERE, 1, (2,)),
            },
            ((0, 1), (2, 3)),
            id="two links at once",
        ),
    ],
)
def test_the_links_at_fault(
    stands: dict[int, RankProgress], pairs: tuple[tuple[int, int], ...]
) -> None:
    assert starving_pairs(stands) == pairs


def all_schedules(n: int) -> Iterator[list[Schedule]]:
    ranks = range(n)
    yield [doubling_allreduce(n, rank, 5) for rank in ranks]
    yield [ring_allreduce(n, rank, 5) for rank in ranks]
    for grouping in ((*range(n - 1), 0), tuple(rank % 2 for rank in ranks)) if n > 2 else ():
        for count in (5, DIRECT_BYTES):
            yield [two_level_allreduce(grouping, rank, count, 4) for rank in ranks]
    yield [ring_allgather(n, rank, 2) for rank in ranks]
    yield [barrier(n, rank) for rank in ranks]
    for distance in range(1, n):
        yield [shift(tuple(ranks), rank, distance, (1,) * n) for rank in ranks]
    for root in ranks:
        yield [binomial_broadcast(n, rank, 5, root) for rank in ranks]
        yield [chain_broadcast(n, rank, 3 * SEGMENT_BYTES, root, 1) for rank in ranks]


def stands_with_a_silent_link(
    schedules: list[Schedule], silent: tuple[int, int], slow: int | None
) -> dict[int, RankProgress]:
    """Run until nothing moves; sends never block.  `slow` has not entered the call."""
    arrived: set[tuple[int, int, int]] = set()  # sender, receiver, tag
    steps = {rank: list(schedule.all_steps) for rank, schedule in enumerate(schedules)}
    sent: set[tuple[int, int]] = set()
    moving = True
    while moving:
        moving = False
        for rank, left in steps.items():
            while left and rank != slow:
                step = left[0]
                if step.send_to != NOBODY and (rank, step.tag) not in sent:
                    sent.add((rank, step.tag))
                    moving = True
                    if pair_of(rank, step.send_to) != silent:
                        arrived.add((rank, step.send_to, step.tag))
                if step.recv_from != NOBODY and (step.recv_from, rank, step.tag) not in arrived:
                    break
                left.pop(0)
                moving = True
    return {
        rank: RankProgress(HERE, left[0].tag, (left[0].recv_from,)) if left else RankProgress(NEXT)
        for rank, left in steps.items()
        if rank != slow
    } | ({} if slow is None else {slow: COMPUTES})


@pytest.mark.parametrize("n", range(2, 10))
def test_in_every_schedule_the_silent_link_is_named_and_no_other(n: int) -> None:
    for schedules, silent in itertools.product(
        all_schedules(n), itertools.combinations(range(n), 2)
    ):
        stands = stands_with_a_silent_link(schedules, silent, None)
        used = any(silent[1] in s.peers for s in (schedules[silent[0]],))
        assert starving_pairs(stands) == ((silent,) if used else ())


@pytest.mark.parametrize("n", range(2, 7))
def test_while_a_rank_computes_no_healthy_link_is_blamed(n: int) -> None:
    for schedules, silent in itertools.product(
        all_schedules(n), itertools.combinations(range(n), 2)
    ):
        for slow in range(n):
            stands = stands_with_a_silent_link(schedules, silent, slow)
            assert starving_pairs(stands) in ((), (silent,))


@pytest.mark.parametrize("n", range(1, 34))
def test_steps_are_numbered_upwards_on_every_rank(n: int) -> None:
    """Check that a rank in a later step has sent its earlier steps' data, as `silence` assumes."""
    for schedules in all_schedules(n):
        for schedule in schedules:
            tags = [step.tag for step in schedule.all_steps]
            assert tags == sorted(set(tags))
