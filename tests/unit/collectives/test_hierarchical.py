"""Every grouping: same bits as the definition, full dataflow, few bytes between hosts."""

import itertools

import numpy as np
import pytest

from ftcomm.collectives.bfloat16 import (
    bfloat16_reducer,
    round_to_bfloat16,
    widen_bfloat16,
)
from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.schedules.hierarchical import (
    chain_by_hosts,
    hierarchical_allreduce,
    hierarchical_broadcast,
    shares_allreduce,
    tree_allreduce,
)
from ftcomm.collectives.schedules.hierarchical_allgather import hierarchical_allgatherv
from ftcomm.collectives.schedules.pipelined_chain import SEGMENT_BYTES
from ftcomm.collectives.schedules.schedule import (
    NOBODY,
    REDUCE_SEGMENT_BYTES,
    Reduce,
    Schedule,
)
from ftcomm.collectives.selection import allgatherv_schedule, choose_algorithm, schedule_for
from ftcomm.execution.data_plane import STAGE
from ftcomm.protocol.field_types import MAX_WORLD_SIZE
from ftcomm.protocol.host_groups import Grouping, grouping_of, is_hierarchical, members_of
from ftcomm.protocol.signature import Algorithm, Kind
from ftcomm.testing.in_memory import run_in_memory
from tests.helpers.hierarchical_reference import expected_shares, expected_tree
from tests.helpers.reference import knowledge
from tests.unit.collectives.test_schedules import awkward_floats, same_bits

FORMS = {"shares": (shares_allreduce, expected_shares), "tree": (tree_allreduce, expected_tree)}


def small_groupings(up_to: int) -> list[Grouping]:
    """Every grouping of so many ranks in which a host has several, and another has some."""
    found = set()
    for size in range(3, up_to + 1):
        for hosts in itertools.product("abcd", repeat=size):
            found.add(grouping_of(hosts))
    return sorted(grouping for grouping in found if 1 < len(set(grouping)) < len(grouping))


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


SOME = [
    *small_groupings(4),
    *(one for one in large_groupings() if len(one) < 20),
    large_groupings()[4],
]
OTHERS = [one for one in (*small_groupings(5), *large_groupings()) if one not in SOME]
each_grouping = pytest.mark.parametrize(
    "groupings", [SOME, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["some", "others"]
)


@each_grouping
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rendezvous", [False, True])
def test_every_rank_gets_the_bits_of_the_definition(
    form: str, rendezvous: bool, groupings: list[Grouping]
) -> None:
    build, expected = FORMS[form]
    reducer = make_reducer("sum", np.dtype("float32"))
    for grouping in groupings:
        n = len(grouping)
        for count in (0, 1, n - 1, 3 * n + 1, 97):
            sources = awkward_floats(n, count)
            schedules = [build(grouping, rank, count) for rank in range(n)]
            results = run_in_memory(schedules, sources, reducer, rendezvous=rendezvous)
            wanted = expected(sources, reducer, members_of(grouping))
            assert all(same_bits(result, wanted) for result in results), (grouping, count)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("grouping", [(0, 0, 1), (0, 1, 0, 1), (0, 0, 0, 1, 1)])
@pytest.mark.parametrize("op", ["max", "mean"])
def test_blocks_of_many_cells_keep_the_canonical_order(
    form: str, grouping: Grouping, op: str
) -> None:
    build, expected = FORMS[form]
    reducer = make_reducer(op, np.dtype("float32"))
    n, count = len(grouping), 7 * REDUCE_SEGMENT_BYTES // 4 + 5
    sources = awkward_floats(n, count)
    results = run_in_memory([build(grouping, r, count) for r in range(n)], sources, reducer)
    wanted = expected(sources, reducer, members_of(grouping))
    assert all(same_bits(result, wanted) for result in results)


@each_grouping
@pytest.mark.parametrize("rendezvous", [False, True])
def test_broadcast_and_allgather_move_every_block_to_its_place(
    rendezvous: bool, groupings: list[Grouping]
) -> None:
    for grouping in groupings:
        n = len(grouping)
        counts = [(3 * rank) % 5 for rank in range(n)]
        sources = [np.full(counts[rank], rank) for rank in range(n)]
        wanted = np.concatenate(sources)
        schedules = [hierarchical_allgatherv(grouping, rank, counts) for rank in range(n)]
        results = run_in_memory(schedules, sources, rendezvous=rendezvous)
        assert all(same_bits(result, wanted) for result in results), grouping
        for root in {0, n // 2, n - 1}:
            sources = [np.full(5, rank) for rank in range(n)]
            schedules = [hierarchical_broadcast(grouping, rank, 5, root) for rank in range(n)]
            results = run_in_memory(schedules, sources, rendezvous=rendezvous)
            assert all(same_bits(result, sources[root]) for result in results), (grouping, root)
            schedules = [
                chain_by_hosts(grouping, rank, 5, root, SEGMENT_BYTES) for rank in range(n)
            ]
            results = run_in_memory(schedules, sources, rendezvous=rendezvous)
            assert all(same_bits(result, sources[root]) for result in results), (grouping, root)


@each_grouping
def test_synchronising_kinds_have_a_path_from_every_rank_to_every_rank(
    groupings: list[Grouping],
) -> None:
    for grouping in groupings:
        n = len(grouping)
        everyone = [set(range(n))] * n
        for count in (0, 1, n + 1):
            for build, _ in FORMS.values():
                assert knowledge([build(grouping, rank, count) for rank in range(n)]) == everyone
            counts = [count] * n
            gathers = [hierarchical_allgatherv(grouping, rank, counts) for rank in range(n)]
            assert knowledge(gathers) == everyone


@each_grouping
def test_steps_are_numbered_upwards_on_every_rank(groupings: list[Grouping]) -> None:
    """Check that step numbers rise on every rank, as comparisons of progress need (rule R12)."""
    for grouping in groupings:
        n = len(grouping)
        for rank in range(n):
            for schedule in (
                shares_allreduce(grouping, rank, n),
                tree_allreduce(grouping, rank, n),
                hierarchical_broadcast(grouping, rank, n, n // 2),
                chain_by_hosts(grouping, rank, n, n // 2, SEGMENT_BYTES),
                hierarchical_allgatherv(grouping, rank, [1] * n),
            ):
                tags = [step.tag for step in schedule.steps]
                assert all(one < other for one, other in itertools.pairwise(tags)), grouping


def test_no_rank_has_more_steps_between_hosts_than_in_a_ring_of_all() -> None:
    for grouping in filter(is_hierarchical, [*small_groupings(6), *large_groupings()]):
        n = len(grouping)
        for rank in range(n):
            gather = hierarchical_allgatherv(grouping, rank, [1] * n)
            assert steps_between_hosts(grouping, gather) <= n - 1
            shares = shares_allreduce(grouping, rank, n)
            assert steps_between_hosts(grouping, shares) <= 2 * (n - 1)


def steps_between_hosts(grouping: Grouping, schedule: Schedule) -> int:
    host = grouping[schedule.rank]
    peers = [step.send_to for step in schedule.steps if step.send_to >= 0]
    return sum(grouping[peer] != host for peer in peers)


def test_steps_of_the_largest_groups_stay_within_what_tells_stages_apart() -> None:
    size = MAX_WORLD_SIZE
    halves = (*(0,) * (size // 2), *(1,) * (size // 2))
    dealt_out = tuple(range(32)) * (size // 32)
    for grouping in (halves, dealt_out, (*(0,) * (size - 1), 1)):
        assert is_hierarchical(grouping)
        for schedule in (
            shares_allreduce(grouping, size - 1, size),
            hierarchical_allgatherv(grouping, size - 1, [1] * size),
        ):
            assert schedule.steps[-1].tag < STAGE


def sent_by_host(grouping: Grouping, schedules: list[Schedule]) -> list[int]:
    """Elements that leave each host."""
    sent = [0] * len(set(grouping))
    for rank, schedule in enumerate(schedules):
        for step in schedule.steps:
            if step.send_to >= 0 and grouping[step.send_to] != grouping[rank]:
                sent[grouping[rank]] += step.send_hi - step.send_lo
    return sent


@pytest.mark.parametrize("grouping", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1, 1, 2, 0)])
def test_no_more_leaves_a_host_than_the_module_promises(grouping: Grouping) -> None:
    n, hosts, count = len(grouping), len(set(grouping)), 840
    by_shares = [shares_allreduce(grouping, rank, count) for rank in range(n)]
    assert max(sent_by_host(grouping, by_shares)) == 2 * (hosts - 1) * count // hosts
    gathers = [hierarchical_allgatherv(grouping, rank, [count] * n) for rank in range(n)]
    others = [count * (n - len(group)) for group in members_of(grouping)]
    assert sum(sent_by_host(grouping, gathers)) == sum(others)
    broadcasts = [hierarchical_broadcast(grouping, rank, count, 1) for rank in range(n)]
    assert sum(sent_by_host(grouping, broadcasts)) == count * (hosts - 1)
    chains = [chain_by_hosts(grouping, rank, count, 1, 1 << 20) for rank in range(n)]
    assert sum(sent_by_host(grouping, chains)) == count * (hosts - 1)
    assert max(sent_by_host(grouping, chains)) == count


def test_every_rank_of_a_host_drives_as_much_of_the_network_as_the_others() -> None:
    grouping = (0, 0, 0, 0, 1, 1, 1, 1)
    for rank in range(8):
        sent = [0] * 8
        alone = shares_allreduce(grouping, rank, 800)
        for step in alone.steps:
            if step.send_to >= 0 and grouping[step.send_to] != grouping[rank]:
                sent[rank] += step.send_hi - step.send_lo
        assert sum(sent) == 200


TWO_AND_TWO: Grouping = (0, 0, 1, 1)
DEALT_OUT: Grouping = (0, 1, 0, 1)


def chosen(
    grouping: Grouping, nbytes: int, wish: Algorithm = Algorithm.AUTO, *, whole: bool = False
) -> Algorithm:
    size = len(grouping)
    return choose_algorithm(Kind.ALLREDUCE, size, nbytes, wish, whole=whole, grouping=grouping)


def test_the_hierarchy_is_taken_where_it_saves_bytes_or_steps_between_hosts() -> None:
    assert chosen(TWO_AND_TWO, 8) is Algorithm.RECURSIVE_DOUBLING
    assert chosen(TWO_AND_TWO, 1 << 14) is Algorithm.HIERARCHICAL
    assert chosen(DEALT_OUT, 8) is Algorithm.HIERARCHICAL
    assert chosen(DEALT_OUT, 1 << 20, Algorithm.RING) is Algorithm.RING
    assert chosen(DEALT_OUT, 1 << 20, whole=True) is Algorithm.RECURSIVE_DOUBLING


@pytest.mark.parametrize("flat", [(), (0, 0, 0), (0, 1, 2), (0, 1, 2, 3, 3)])
def test_where_it_means_nothing_a_wish_for_it_is_a_wish_for_the_table(flat: Grouping) -> None:
    for nbytes in (8, 1 << 22):
        assert chosen(flat, nbytes, Algorithm.HIERARCHICAL) is chosen(flat, nbytes)


def test_whole_arrays_in_rank_order_refuse_it_wherever_they_run() -> None:
    for grouping in (TWO_AND_TWO, (0, 0, 0, 0)):
        with pytest.raises(ValueError, match="hierarchical does not fit this allreduce"):
            chosen(grouping, 8, Algorithm.HIERARCHICAL, whole=True)


def test_few_bytes_go_by_a_tree_and_many_by_shares() -> None:
    few, many = (hierarchical_allreduce(TWO_AND_TWO, 3, count, 4).peers for count in (100, 1 << 20))
    assert (few, many) == ((2,), (1, 2))


def test_a_broadcast_of_much_is_a_chain_that_goes_by_hosts() -> None:
    """From the root 1 through its own host, then to the other one, through 2 and on to 3."""
    much = [
        schedule_for(Kind.BROADCAST, 4, rank, 1 << 26, 1, root=1, grouping=DEALT_OUT)
        for rank in range(4)
    ]
    assert {schedule.algorithm for schedule in much} == {Algorithm.CHAIN}
    sends = [{step.send_to for step in schedule.steps} - {NOBODY} for schedule in much]
    assert sends == [{2}, {3}, set(), {0}]


def test_every_kind_that_has_a_hierarchy_takes_it() -> None:
    def of(kind: Kind, root: int = -1) -> Schedule:
        return schedule_for(kind, 4, 0, 3, 8, root=root, grouping=TWO_AND_TWO)

    kinds = [of(Kind.ALLGATHER), of(Kind.BROADCAST, 1), of(Kind.BARRIER)]
    hierarchical, flat = Algorithm.HIERARCHICAL, Algorithm.RECURSIVE_DOUBLING
    assert [schedule.algorithm for schedule in kinds] == [hierarchical, hierarchical, flat]
    ragged = allgatherv_schedule(4, 0, (1, 0, 2, 3), TWO_AND_TWO)
    assert ragged.algorithm is Algorithm.HIERARCHICAL


@pytest.mark.parametrize("grouping", [(0, 0, 0, 1, 1, 2), (0, 1, 2, 0, 1), (0, 0, 0, 0, 0, 1)])
def test_bfloat16_is_as_far_off_as_its_module_says_at_most(grouping: Grouping) -> None:
    n, hosts = len(grouping), len(set(grouping))
    largest = max(len(group) for group in members_of(grouping))
    additions = {
        "shares": largest - 1 + hosts - 1,
        "tree": (largest - 1).bit_length() + (hosts - 1).bit_length(),
    }
    rng = np.random.default_rng(n)
    exact = [rng.uniform(0.0, 1.0, 300).astype(np.float32) for _ in range(n)]
    sources = [np.empty(300, np.uint16) for _ in range(n)]
    for x, bits in zip(exact, sources, strict=True):
        round_to_bfloat16(x, bits)
    reducer = bfloat16_reducer("sum")
    total = np.sum(exact, axis=0, dtype=np.float64)
    for form, (build, expected) in FORMS.items():
        results = run_in_memory([build(grouping, r, 300) for r in range(n)], sources, reducer)
        wanted = expected(sources, reducer, members_of(grouping))
        assert all(same_bits(result, wanted) for result in results)
        got = np.empty(300, np.float32)
        widen_bfloat16(wanted, got)
        bound = (1 + 2**-8) ** (1 + additions[form]) - 1
        assert np.all(np.abs(got - total) <= bound * total), form


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("grouping", [(0, 1, 0, 1), (0, 0, 1, 1, 1), (0, 0, 0, 1)])
def test_a_function_is_not_called_for_an_empty_block(form: str, grouping: Grouping) -> None:
    make, _ = FORMS[form]
    for count in range(len(grouping)):
        schedules = (make(grouping, rank, count) for rank in range(len(grouping)))
        steps = [step for schedule in schedules for step in schedule.steps]
        empty = [step for step in steps if step.recv_lo == step.recv_hi]
        assert {step.reduce for step in empty} <= {Reduce.NONE}
