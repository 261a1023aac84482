"""Every grouping: same bits as the definition, full dataflow, few bytes between hosts."""

import functools
import itertools

import numpy as np
import pytest

from ftcomm.collectives.op_argument import reduction
from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.schedules import direct
from ftcomm.collectives.schedules.direct import DIRECT_BYTES, DIRECT_RANKS, two_level_allreduce
from ftcomm.collectives.schedules.schedule import NOBODY, Schedule
from ftcomm.collectives.selection import (
    CHAIN_BYTES,
    allgatherv_schedule,
    choose_algorithm,
    schedule_for,
)
from ftcomm.protocol.host_groups import Grouping, grouping_of, has_two_levels, members_of
from ftcomm.protocol.signature import Algorithm, Kind
from ftcomm.testing.in_memory import run_in_memory
from tests.helpers.reference import expected_fold, knowledge
from tests.unit.collectives.test_schedules import awkward_floats, same_bits


def small_groupings(up_to: int) -> list[Grouping]:
    """Every grouping of so many ranks in which a host has several, and another has some."""
    found = set()
    for size in range(3, up_to + 1):
        for hosts in itertools.product("abcd", repeat=size):
            found.add(grouping_of(hosts))
    return sorted(filter(has_two_levels, found))


def large_groupings() -> list[Grouping]:
    """Neighbours on a host, ranks dealt out, unequal hosts, hosts by chance; up to 64 ranks."""
    rng = np.random.default_rng(5)
    found = [
        (0,) * 8 + (1,) * 8,
        tuple(range(4)) * 4,
        (0,) * 13 + (1,) + (2,) * 3,
        tuple(range(32)) * 2,
        (0,) * 32 + (1,) * 32,
        (*(0,) * 63, 1),
        (*range(63), 0),
    ]
    chance = [rng.integers(0, hosts, size) for size in (17, 64) for hosts in (2, 3, 7)]
    return found + [grouping_of([str(host) for host in hosts]) for hosts in chance]


SOME = [*small_groupings(4), *(one for one in large_groupings() if len(one) < 20)]
OTHERS = [one for one in (*small_groupings(5), *large_groupings()) if one not in SOME]
each_grouping = pytest.mark.parametrize(
    "groupings", [SOME, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["some", "others"]
)
BLOCKS = DIRECT_BYTES // 4 + 1  # elements of float32 that are cut into blocks


def allreduces(grouping: Grouping, count: int, itemsize: int = 4) -> list[Schedule]:
    return [two_level_allreduce(grouping, rank, count, itemsize) for rank in range(len(grouping))]


@each_grouping
@pytest.mark.parametrize("gathered", [0, 1 << 30], ids=["in blocks", "gathered"])
@pytest.mark.parametrize("rendezvous", [False, True])
def test_every_rank_gets_the_bits_of_the_definition(
    groupings: list[Grouping], gathered: int, rendezvous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "GATHERED_BYTES", gathered)
    reducer = make_reducer("mean", np.dtype("float32"))
    for grouping in groupings:
        n = len(grouping)
        for count in (0, 1, 97, BLOCKS, BLOCKS + 3 * n + 1):
            sources = awkward_floats(n, count)
            results = run_in_memory(
                allreduces(grouping, count), sources, reducer, rendezvous=rendezvous
            )
            wanted = expected_fold(sources, reducer, members_of(grouping))
            assert all(same_bits(result, wanted) for result in results), (grouping, count)


@pytest.mark.parametrize("grouping", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 2, 2, 1, 1)])
@pytest.mark.parametrize("count", [3, DIRECT_BYTES])
def test_a_function_of_whole_arrays_sees_them_in_rank_order(grouping: Grouping, count: int) -> None:
    def joined(accumulator: np.ndarray, operand: np.ndarray) -> np.ndarray:
        assert accumulator.shape == operand.shape == (count,)
        a, b, c, d = *(accumulator // 1000, accumulator % 1000), operand // 1000, operand % 1000
        return a * c % 997 * 1000 + (a * d + b) % 997  # maps x -> a x + b, one after the other

    op = reduction(joined, name="joined", elementwise=False, commutative=False)
    reducer = make_reducer(op, np.dtype("int64"), shape=(count,))
    n = len(grouping)
    sources = [np.full(count, (rank + 2) * 1000 + rank + 1) for rank in range(n)]
    schedules = [
        schedule_for(Kind.ALLREDUCE, n, rank, count, 8, whole=True, grouping=grouping)
        for rank in range(n)
    ]
    wanted = functools.reduce(joined, sources)
    assert all(same_bits(one, wanted) for one in run_in_memory(schedules, sources, reducer))


@each_grouping
def test_synchronising_kinds_have_a_path_from_every_rank_to_every_rank(
    groupings: list[Grouping],
) -> None:
    for grouping in groupings:
        n = len(grouping)
        everyone = [set(range(n))] * n
        for count in (0, 1, BLOCKS):
            assert knowledge(allreduces(grouping, count)) == everyone
            gathers = [allgatherv_schedule(n, r, (count,) * n, grouping) for r in range(n)]
            assert knowledge(gathers) == everyone


@each_grouping
def test_steps_are_numbered_upwards_on_every_rank(groupings: list[Grouping]) -> None:
    """Check that step numbers rise on every rank, as comparisons of progress need (rule R12)."""
    for grouping, count in itertools.product(groupings, (1, BLOCKS, 1 << 24)):
        for schedule in allreduces(grouping, count):
            tags = [step.tag for step in schedule.all_steps]
            assert all(one < other for one, other in itertools.pairwise(tags)), grouping


@each_grouping
@pytest.mark.parametrize("rendezvous", [False, True])
def test_broadcast_and_allgather_move_every_block_to_its_place(
    rendezvous: bool, groupings: list[Grouping]
) -> None:
    for grouping in groupings:
        n = len(grouping)
        counts = tuple((3 * rank) % 5 for rank in range(n))
        sources = [np.full(counts[rank], rank) for rank in range(n)]
        gathers = [allgatherv_schedule(n, rank, counts, grouping) for rank in range(n)]
        results = run_in_memory(gathers, sources, rendezvous=rendezvous)
        assert all(same_bits(result, np.concatenate(sources)) for result in results), grouping
        for root, itemsize in itertools.product({0, n // 2, n - 1}, (8, CHAIN_BYTES * n)):
            sources = [np.full(5, rank) for rank in range(n)]
            schedules = [
                schedule_for(Kind.BROADCAST, n, r, 5, itemsize, root=root, grouping=grouping)
                for r in range(n)
            ]
            results = run_in_memory(schedules, sources, rendezvous=rendezvous)
            assert all(same_bits(result, sources[root]) for result in results), (grouping, root)


def sent_to_others(grouping: Grouping, schedule: Schedule) -> int:
    """Elements that the rank sends to other hosts."""
    steps = [step for step in schedule.all_steps if step.send_to != NOBODY]
    away = [step for step in steps if grouping[step.send_to] != grouping[schedule.rank]]
    return sum(step.send_hi - step.send_lo for step in away)


def sent_by_host(grouping: Grouping, schedules: list[Schedule]) -> list[int]:
    sent = [sent_to_others(grouping, schedule) for schedule in schedules]
    return [sum(sent[rank] for rank in members) for members in members_of(grouping)]


@pytest.mark.parametrize("grouping", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1, 1, 2, 0)])
def test_no_more_leaves_a_host_than_two_levels_need(grouping: Grouping) -> None:
    n, hosts, count = len(grouping), len(set(grouping)), 3 << 18
    assert max(sent_by_host(grouping, allreduces(grouping, count))) == (
        2 * (hosts - 1) * count // hosts
    )
    gathers = [allgatherv_schedule(n, rank, (count,) * n, grouping) for rank in range(n)]
    assert sum(sent_by_host(grouping, gathers)) == hosts * (n - 1) * count
    chains = [
        schedule_for(Kind.BROADCAST, n, r, CHAIN_BYTES * n, 1, root=1, grouping=grouping)
        for r in range(n)
    ]
    assert sum(sent_by_host(grouping, chains)) == CHAIN_BYTES * n * (hosts - 1)


def test_ranks_of_hosts_that_are_alike_send_alike() -> None:
    for grouping in ((0, 0, 0, 0, 1, 1, 1, 1), (0, 1) * 4):
        sent = [sent_to_others(grouping, one) for one in allreduces(grouping, 1 << 20)]
        assert sent == [1 << 18] * 8


def chosen(
    grouping: Grouping, nbytes: int, wish: Algorithm = Algorithm.AUTO, *, whole: bool = False
) -> Algorithm:
    size = len(grouping)
    return choose_algorithm(Kind.ALLREDUCE, size, nbytes, wish, whole=whole, grouping=grouping)


def test_two_levels_are_taken_while_each_has_few_enough() -> None:
    most = DIRECT_RANKS
    for grouping in ((0, 0, 1), (0, 1, 0, 1), (*range(most),) * 3, (0,) * most + (1,) * most):
        assert chosen(grouping, 1 << 30) is Algorithm.DIRECT
        assert schedule_for(Kind.ALLREDUCE, len(grouping), 0, 3, 4, grouping=grouping).levels
    for grouping in ((*range(most + 1), 0), (*(0,) * (most + 1), 1)):
        assert chosen(grouping, 8) is Algorithm.RECURSIVE_DOUBLING
    assert chosen((0, 0, 1), 1 << 20, Algorithm.RING) is Algorithm.RING
    assert chosen((0, 0, 1), DIRECT_BYTES, whole=True) is Algorithm.DIRECT
    assert chosen((0, 0, 1), DIRECT_BYTES + 1, whole=True) is Algorithm.RECURSIVE_DOUBLING


def test_little_goes_by_one_rank_of_each_host_and_much_by_all() -> None:
    few, many = ([one.peers for one in allreduces((0, 0, 1, 1), count)] for count in (100, BLOCKS))
    assert few == [(1, 2), (0,), (0, 3), (2,)]
    assert many == [(1, 2), (0, 3), (0, 3), (1, 2)]


def test_a_chain_goes_host_by_host() -> None:
    """From the root 1 through its own host, then to the other one, through 2 and on to 3."""
    much = [
        schedule_for(Kind.BROADCAST, 4, rank, 1 << 26, 1, root=1, grouping=(0, 1, 0, 1))
        for rank in range(4)
    ]
    assert {schedule.algorithm for schedule in much} == {Algorithm.CHAIN}
    sends = [{step.send_to for step in schedule.steps} - {NOBODY} for schedule in much]
    assert sends == [{2}, {3}, set(), {0}]
