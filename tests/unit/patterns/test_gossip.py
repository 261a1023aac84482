"""Gossip: who exchanges with whom, and what comes out."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import ftcomm
from ftcomm.patterns import Gossip
from ftcomm.patterns.gossip import partner_of
from ftcomm.testing import local_group

Array = np.ndarray[Any, Any]


@given(world_size=some.integers(1, 40), key=some.text(max_size=8))
def test_ranks_are_paired_and_one_at_most_is_left_over(world_size: int, key: str) -> None:
    partners = [partner_of(rank, world_size, key) for rank in range(world_size)]
    paired = {rank: other for rank, other in enumerate(partners) if other is not None}
    assert all(paired[other] == rank != other for rank, other in paired.items())
    assert len(paired) == world_size - world_size % 2


def test_partners_are_the_same_on_every_machine() -> None:
    """Of another order, a job that mixes releases of Python or numpy would wait for ever."""
    partners = [[partner_of(rank, 5, f"7 0 {step}") for rank in range(5)] for step in range(3)]
    assert partners == [[2, 3, 0, 1, None], [3, 2, 1, 0, None], [2, 3, 0, 1, None]]


def test_every_rank_meets_every_other_soon() -> None:
    met = {(rank, partner_of(rank, 6, f"7 0 {step}")) for rank in range(6) for step in range(40)}
    assert len(met) == 6 * 5


def test_two_partners_have_the_mean_and_a_rank_alone_its_own() -> None:
    def job(comm: ftcomm.Communicator) -> Any:
        gossip = Gossip(comm, seed=3)
        comm.load_checkpoint()
        weights = [np.full(3, 10.0**comm.rank), np.full((2, 2), float(comm.rank), np.float32)]
        with gossip.exchange(weights) as partner:
            seen = [x.copy() for x in weights]
        comm.checkpoint(None)
        return partner, seen, weights

    with local_group(3) as group:
        found = group.run(job)
    partners = [partner for partner, _, _ in found]
    assert partners == [partner_of(rank, 3, "3 0 0") for rank in range(3)]
    assert sum(partner is None for partner in partners) == 1
    for rank, (partner, seen, weights) in enumerate(found):
        assert (seen[0][0], seen[1][0, 0]) == (10.0**rank, rank)  # not while the body runs
        other = rank if partner is None else partner
        assert weights[0].tolist() == [(10.0**rank + 10.0**other) / 2] * 3
        assert weights[1].tolist() == [[(rank + other) / 2] * 2] * 2
        assert weights[1].dtype == np.float32


def test_partners_follow_from_the_version_and_its_steps() -> None:
    """So a rank that was restarted at a checkpoint meets the same ones again."""

    def job(comm: ftcomm.Communicator) -> list[int | None]:
        gossip = Gossip(comm)
        comm.load_checkpoint()
        met, weights = [], [np.zeros(1)]
        for _ in range(2):
            for _ in range(4):
                with gossip.exchange(weights) as partner:
                    met.append(partner)
            comm.checkpoint(None)
        return met

    with local_group(4) as group:
        found = group.run(job)
    keys = [f"7 {version} {step}" for version in range(2) for step in range(4)]
    assert found == [[partner_of(rank, 4, key) for key in keys] for rank in range(4)]


def test_weights_of_another_shape_are_refused_by_the_receiver() -> None:
    def job(comm: ftcomm.Communicator) -> None:
        gossip = Gossip(comm)
        comm.load_checkpoint()
        with gossip.exchange([np.zeros(2 + comm.rank)]):
            pass

    with local_group(2) as group, pytest.raises(ValueError, match=r"sent float64\[[23]\], and"):
        group.run(job)


def test_seeds_are_compared() -> None:
    with (
        local_group(2) as group,
        pytest.raises(ftcomm.CollectiveMismatchError, match=r"they differ in tag: [01] and [01]"),
    ):
        group.run(lambda comm: Gossip(comm, seed=comm.rank))


def test_gossip_begins_in_the_prelude_and_exchanges_behind_it() -> None:
    with ftcomm.init("none") as comm:
        gossip = Gossip(comm)
        with (
            pytest.raises(ValueError, match=r"must come after load_checkpoint\(\)"),
            gossip.exchange([np.zeros(1)]),
        ):
            pass
        comm.load_checkpoint()
        with gossip.exchange([np.zeros(1)]) as partner:
            assert partner is None
        with (
            pytest.raises(TypeError, match="Gossip: arrays of int64 have no mean"),
            gossip.exchange([np.zeros(1), np.zeros(1, int)]),
        ):
            pass
        with pytest.raises(ValueError, match=r"make Gossip\(\) before load_checkpoint\(\)"):
            Gossip(comm)
        with pytest.raises(TypeError):
            Gossip(comm, seed=0.5)  # type: ignore[arg-type]  # that is what is tested
