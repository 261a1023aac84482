"""Every algorithm, every group size: same bits as the definition, no deadlock, full dataflow."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcomm.collectives import selection
from ftcomm.collectives.op_argument import reduction
from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.schedules import direct as direct_schedule
from ftcomm.collectives.schedules.allgather import (
    doubling_allgather,
    ring_allgather,
    ring_allgatherv,
)
from ftcomm.collectives.schedules.binomial_tree import binomial_broadcast
from ftcomm.collectives.schedules.direct import (
    DIRECT_BYTES,
    DIRECT_RANKS,
    direct_allreduce,
    line_bounds,
)
from ftcomm.collectives.schedules.pairwise_exchange import pairwise_exchange, shift
from ftcomm.collectives.schedules.pipelined_chain import (
    MOST_SEGMENTS,
    SEGMENT_BYTES,
    chain_broadcast,
    segments_of,
)
from ftcomm.collectives.schedules.recursive_doubling import barrier, doubling_allreduce
from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.collectives.schedules.schedule import (
    REDUCE_SEGMENT_BYTES,
    Reduce,
    Schedule,
    block_bounds,
)
from ftcomm.collectives.selection import (
    CHAIN_BYTES,
    DOUBLING_ALLGATHER_BYTES,
    RING_BLOCK_BYTES,
    schedule_for,
)
from ftcomm.protocol.signature import Algorithm, Kind
from ftcomm.testing.in_memory import DeadlockError, run_in_memory
from tests.helpers.reference import (
    expected_doubling,
    expected_fold,
    expected_ring,
    knowledge,
)

# All sizes to 64; `make test` takes the small ones and those beside powers of two.
SIZES = (*range(1, 18), 31, 32, 33, 63, 64)
each_size = pytest.mark.parametrize(
    "sizes",
    [SIZES, pytest.param(sorted({*range(1, 65)} - {*SIZES}), marks=pytest.mark.slow)],
    ids=["some", "others"],
)
ALGORITHMS = {
    Algorithm.RING: (ring_allreduce, expected_ring),
    Algorithm.RECURSIVE_DOUBLING: (doubling_allreduce, expected_doubling),
}


def counts_for(n: int) -> list[int]:
    if n > 20:  # what many ranks add is ranks; the counts were seen with fewer
        return [0, n + 1]
    return sorted({0, 1, 2, n - 1, n, n + 1, 3 * n + 1, 97})


def roots_of(n: int) -> set[int]:
    return {0, n // 2, n - 1} if n <= 20 else {n // 2}


def awkward_floats(n: int, count: int, dtype: str = "float32") -> list[np.ndarray]:
    """Sums of these depend on their order, and NaN payloads on the operand order."""
    rng = np.random.default_rng(n * 1009 + count)
    sources = [(rng.standard_normal(count) * 1e3).astype(dtype) for _ in range(n)]
    for rank, sendbuf in enumerate(sources):
        sendbuf[rank % 5 :: 7] = -0.0
        sendbuf[rank % 3 :: 11] = np.inf
        if sendbuf.dtype == np.float32:
            sendbuf.view(np.uint32)[count % 5 :: 13] = 0x7FC00000 + rank + (rank % 2 << 31)
    return sources


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()


@each_size
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("rendezvous", [False, True])
def test_every_rank_gets_the_bits_of_the_definition(algorithm, rendezvous, sizes):
    build, expected = ALGORITHMS[algorithm]
    reducer = make_reducer("sum", np.dtype("float32"))
    for n in sizes:
        for count in counts_for(n):
            sources = awkward_floats(n, count)
            schedules = [build(n, rank, count) for rank in range(n)]
            results = run_in_memory(schedules, sources, reducer, rendezvous=rendezvous)
            wanted = expected(sources, reducer)
            assert all(same_bits(result, wanted) for result in results), (n, count)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_blocks_of_many_cells_keep_the_canonical_order(algorithm, n):
    build, expected = ALGORITHMS[algorithm]
    reducer = make_reducer("max", np.dtype("float32"))
    count = 3 * REDUCE_SEGMENT_BYTES // 4 + 5
    sources = awkward_floats(n, count)
    results = run_in_memory([build(n, r, count) for r in range(n)], sources, reducer)
    wanted = expected(sources, reducer)
    assert all(same_bits(result, wanted) for result in results)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_nans_of_every_rank_give_one_nan_also_in_blocks_of_one_element(algorithm, dtype, op):
    """numpy takes another path for one element in place, which only some ranks would take."""
    build, expected = ALGORITHMS[algorithm]
    reducer = make_reducer(op, np.dtype(dtype))
    for n, count in itertools.product(range(2, 10), range(1, 10)):
        patterns = [np.uint32(0x7FC00001 + rank + (rank % 2 << 31)) for rank in range(n)]
        width = np.dtype(dtype).itemsize // 4
        sources = [np.full(count * width, pattern).view(dtype) for pattern in patterns]
        results = run_in_memory([build(n, r, count) for r in range(n)], sources, reducer)
        wanted = expected(sources, reducer)
        assert all(same_bits(result, wanted) for result in results), (n, count)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("max", "bool"),
        ("sum", "int8"),
        ("prod", "uint16"),
        ("min", "float16"),
        ("mean", "float64"),
        ("mean", "complex64"),
        ("prod", "complex128"),
        ("bxor", "uint64"),
        ("land", "int32"),
        ("lor", "bool"),
    ],
)
def test_operations_and_dtypes_agree_with_the_definition(algorithm, op, dtype):
    build, expected = ALGORITHMS[algorithm]
    reducer = make_reducer(op, np.dtype(dtype))
    for n in (1, 2, 3, 6):
        rng = np.random.default_rng(n)
        sources = [rng.integers(0, 100, 41).astype(dtype) for _ in range(n)]
        results = run_in_memory([build(n, r, 41) for r in range(n)], sources, reducer)
        wanted = expected(sources, reducer)
        assert all(same_bits(result, wanted) for result in results)


def test_a_function_that_needs_whole_arrays_sees_them_in_rank_order():
    def first_wins(accumulator: np.ndarray, operand: np.ndarray) -> np.ndarray:
        assert accumulator.shape == operand.shape == (4, 2)
        return accumulator * 10 + operand  # associative only digit by digit: order is visible

    reducer = make_reducer(
        reduction(first_wins, name="first", elementwise=False, commutative=False),
        np.dtype("int64"),
        shape=(4, 2),
    )
    sources = [np.full(8, rank + 1, np.int64) for rank in range(2)]
    schedules = [doubling_allreduce(2, rank, 8) for rank in range(2)]
    results = run_in_memory(schedules, sources, reducer)
    assert [result.tolist() for result in results] == [[12] * 8] * 2


OPERATIONS = [
    (op, dtype)
    for op, dtypes in {
        "sum": ("int16", "float16", "float32", "complex64"),
        "prod": ("uint8", "float64", "complex128"),
        "mean": ("float16", "float64"),
        "min": ("int64", "float32"),
        "max": ("uint32", "float16"),
        "bxor": ("bool", "int8"),
        "land": ("uint64",),
        "lor": ("int32", "bool"),
    }.items()
    for dtype in dtypes
]


@settings(max_examples=60)
@given(data=st.data(), n=st.integers(1, 64), count=st.integers(0, 150))
def test_any_bits_give_the_bits_of_the_definition(data, n, count):
    """Infinities and NaN of all payloads among them, since the operands are any bits at all."""
    build, expected = ALGORITHMS[data.draw(st.sampled_from(list(ALGORITHMS)))]
    op, dtype = data.draw(st.sampled_from(OPERATIONS))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    kind = np.dtype(dtype)
    raw = rng.integers(0, 2 if dtype == "bool" else 256, (n, count * kind.itemsize), np.uint8)
    sources = list(raw.view(kind)) if count else [np.empty(0, kind)] * n
    reducer = make_reducer(op, kind)
    rendezvous = data.draw(st.booleans())
    schedules = [build(n, rank, count) for rank in range(n)]
    with np.errstate(all="ignore"):
        results = run_in_memory(schedules, sources, reducer, rendezvous=rendezvous)
        wanted = expected(sources, reducer)
    assert all(same_bits(result, wanted) for result in results)


@each_size
@pytest.mark.parametrize("rendezvous", [False, True])
def test_allgather_and_broadcast_move_every_block_to_its_place(rendezvous, sizes):
    for n in sizes:
        for count in (0, 1, 5):
            sources = [np.arange(count) + 100 * rank for rank in range(n)]
            schedules = [ring_allgather(n, rank, count) for rank in range(n)]
            wanted = np.concatenate(sources)
            results = run_in_memory(schedules, sources, rendezvous=rendezvous)
            assert all(same_bits(result, wanted) for result in results)
            for root in roots_of(n):
                schedules = [binomial_broadcast(n, rank, count, root) for rank in range(n)]
                results = run_in_memory(schedules, sources, rendezvous=rendezvous)
                assert all(same_bits(result, sources[root]) for result in results)


@each_size
@pytest.mark.parametrize("rendezvous", [False, True])
def test_a_chain_passes_every_segment_on_to_its_end(rendezvous, sizes):
    segment = SEGMENT_BYTES // 8
    for n, count in itertools.product(sizes, (0, 1, segment + 1)):
        sources = [np.arange(count) + 100 * rank for rank in range(n)]
        for root in roots_of(n):
            schedules = [chain_broadcast(n, rank, count, root, 8) for rank in range(n)]
            results = run_in_memory(schedules, sources, rendezvous=rendezvous)
            assert all(same_bits(result, sources[root]) for result in results)
    for count in (2 * segment, 5 * segment + 3):
        sendbuf = np.arange(count)
        schedules = [chain_broadcast(5, rank, count, 3, 8) for rank in range(5)]
        results = run_in_memory(schedules, [sendbuf] * 5, rendezvous=rendezvous)
        assert all(same_bits(result, sendbuf) for result in results)


def test_a_chain_sends_the_bytes_once_from_each_rank_in_the_steps_that_it_promises():
    n, count = 5, 3 * SEGMENT_BYTES
    schedules = [chain_broadcast(n, rank, count, 0, 1) for rank in range(n)]
    sent = [sum(step.send_hi - step.send_lo for step in one.steps) for one in schedules]
    assert sent == [count] * (n - 1) + [0]
    assert max(step.tag for one in schedules for step in one.steps) + 1 == n - 2 + 3
    assert [segments_of(size) for size in (0, SEGMENT_BYTES, SEGMENT_BYTES + 1, 1 << 40)] == [
        1,
        1,
        2,
        MOST_SEGMENTS,
    ]


@each_size
@pytest.mark.parametrize("rendezvous", [False, True])
@pytest.mark.parametrize("gathered", [0, 1 << 30], ids=["in blocks", "gathered"])
def test_a_direct_exchange_over_links_folds_in_rank_order(gathered, rendezvous, sizes, monkeypatch):
    monkeypatch.setattr(direct_schedule, "GATHERED_BYTES", gathered)
    for n in set(sizes) - {1}:
        for count in (*counts_for(n), 16 * n + 3):
            for op in ("sum", "mean")[: 1 if n > 20 else 2]:
                reducer = make_reducer(op, np.dtype(np.float32))
                sources = awkward_floats(n, count)
                schedules = [direct_allreduce(n, rank, count, 4) for rank in range(n)]
                results = run_in_memory(schedules, sources, reducer, rendezvous=rendezvous)
                wanted = expected_fold(sources, reducer)
                assert all(same_bits(result, wanted) for result in results), (n, count)


@pytest.mark.parametrize("itemsize", [1, 4, 16])
def test_blocks_end_at_whole_lines_and_what_is_behind_the_last_one_is_not_alone(itemsize):
    line = 64 // itemsize
    for count, parts in itertools.product((0, 1, line, line + 1, 3 * line - 1, 1000), (1, 2, 3, 7)):
        bounds = line_bounds(count, parts, itemsize)
        assert (bounds[0], bounds[-1], len(bounds)) == (0, count, parts + 1)
        blocks = [hi - lo for lo, hi in itertools.pairwise(bounds) if hi > lo]
        assert all(block >= min(line, count) for block in blocks)
        assert all(bound % line == 0 or bound == count for bound in bounds)


def test_a_direct_allgather_or_barrier_is_chosen_within_a_host():
    def choose(kind, nbytes, wish=Algorithm.AUTO, hosts=(0, 0, 0), **more):
        return selection.choose_algorithm(kind, len(hosts), nbytes, wish, grouping=hosts, **more)

    for kind in (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.BARRIER):
        assert choose(kind, DIRECT_BYTES) is Algorithm.DIRECT
        assert schedule_for(kind, 3, 0, 2, 4, grouping=(0,) * 3).algorithm is Algorithm.DIRECT
        assert choose(kind, 0, hosts=(0,) * 65) is not Algorithm.DIRECT
    for kind in (Kind.ALLGATHER, Kind.BARRIER):
        assert choose(kind, DIRECT_BYTES + 1) is not Algorithm.DIRECT
        assert choose(kind, 8, hosts=(0, 0, 1)) is not Algorithm.DIRECT
    assert choose(Kind.BROADCAST, 8) is Algorithm.TREE


@pytest.mark.parametrize("rendezvous", [False, True])
def test_a_doubling_allgather_moves_every_block_to_its_place(rendezvous):
    for n, count in itertools.product((1, 2, 4, 8, 16), (0, 1, 5)):
        sources = [np.arange(count) + 100 * rank for rank in range(n)]
        schedules = [doubling_allgather(n, rank, count) for rank in range(n)]
        results = run_in_memory(schedules, sources, rendezvous=rendezvous)
        assert all(same_bits(result, np.concatenate(sources)) for result in results)
        assert {len(one.steps) for one in schedules} == {n.bit_length() - 1}
        sent = {sum(step.send_hi - step.send_lo for step in one.steps) for one in schedules}
        assert sent == {(n - 1) * count}
        assert knowledge(schedules) == [set(range(n))] * n


def test_a_small_allgather_doubles_and_a_large_one_goes_around():
    limit = DOUBLING_ALLGATHER_BYTES
    for n, nbytes, algorithm in (
        (4, limit // 4, Algorithm.RECURSIVE_DOUBLING),
        (4, limit // 4 + 1, Algorithm.RING),
        (6, 8, Algorithm.RING),
        (8, 8, Algorithm.RECURSIVE_DOUBLING),
    ):
        schedule = schedule_for(Kind.ALLGATHER, n, 0, nbytes, 1)
        assert schedule.algorithm is algorithm


def test_allgatherv_takes_blocks_of_any_lengths():
    for n in (1, 2, 3, 5, 8):
        counts = [(3 * rank) % 4 for rank in range(n)]
        sources = [np.full(counts[rank], rank) for rank in range(n)]
        schedules = [ring_allgatherv(n, rank, counts) for rank in range(n)]
        wanted = np.concatenate(sources)
        results = run_in_memory(schedules, sources, rendezvous=True)
        assert all(same_bits(result, wanted) for result in results)


@each_size
@pytest.mark.parametrize("rendezvous", [False, True])
def test_shift_moves_every_block_so_many_places_along_the_order(rendezvous, sizes):
    for n in sizes:
        order = tuple((7 * index + 3) % n for index in range(n)) if n % 7 else tuple(range(n))
        counts = [(3 * rank) % 5 for rank in range(n)]
        sources = [np.full(counts[rank], rank) for rank in range(n)]
        for distance in range(1, n):
            schedules = [shift(order, rank, distance, counts) for rank in range(n)]
            results = run_in_memory(schedules, sources, rendezvous=rendezvous)
            senders = {order[(i + distance) % n]: order[i] for i in range(n)}
            assert all(same_bits(results[rank], sources[senders[rank]]) for rank in range(n))


@each_size
def test_every_synchronising_kind_has_a_path_from_every_rank_to_every_rank(sizes):
    for n in sizes:
        everyone = [set(range(n))] * n
        assert knowledge([barrier(n, rank) for rank in range(n)]) == everyone
        for count in counts_for(n):
            for kind in (Kind.ALLREDUCE, Kind.ALLGATHER):
                for algorithm in (Algorithm.AUTO, *selection._ALLOWED.get(kind, ())):
                    assert selection.synchronising(kind)
                    schedules = [
                        selection.schedule_for(kind, n, rank, count, 4, algorithm=algorithm)
                        for rank in range(n)
                    ]
                    assert knowledge(schedules) == everyone, (kind, algorithm, n, count)


def test_broadcast_tells_its_root_nothing_and_is_not_called_synchronising():
    assert not selection.synchronising(Kind.BROADCAST)
    for n in SIZES:
        root = n // 2
        for schedules in (
            [binomial_broadcast(n, rank, 3, root) for rank in range(n)],
            [chain_broadcast(n, rank, 3, root, 8) for rank in range(n)],
        ):
            known = knowledge(schedules)
            assert known[root] == {root}
            assert all(root in ranks for ranks in known)


def test_schedules_that_do_not_fit_together_are_called_a_deadlock():
    schedules = [binomial_broadcast(2, 0, 1, 0), binomial_broadcast(2, 1, 1, 1)]
    with pytest.raises(DeadlockError):
        run_in_memory(schedules, [np.zeros(1)] * 2, rendezvous=True)
    with pytest.raises(DeadlockError, match="no rank receives"):
        run_in_memory(schedules, [np.zeros(1)] * 2)


def test_ring_sends_the_bytes_that_its_module_promises():
    n, count = 5, 100
    for rank in range(n):
        steps = ring_allreduce(n, rank, count).steps
        assert len(steps) == 2 * (n - 1)
        assert sum(step.send_hi - step.send_lo for step in steps) == 2 * (n - 1) * count // n


def test_blocks_cover_everything_and_differ_by_one_at_most():
    for count in range(40):
        for parts in range(1, 12):
            bounds = block_bounds(count, parts)
            lengths = [hi - lo for lo, hi in itertools.pairwise(bounds)]
            assert bounds[0] == 0
            assert bounds[-1] == count
            assert max(lengths) - min(lengths) <= 1


def test_the_constants_decide_by_bytes_and_a_wish_overrides_it():
    pick, alone = selection.choose_algorithm, DIRECT_RANKS + 1
    ring, chain = RING_BLOCK_BYTES * alone, CHAIN_BYTES * 3
    for choice, wanted in (
        (pick(Kind.ALLREDUCE, 1, 8), Algorithm.RECURSIVE_DOUBLING),
        (pick(Kind.ALLREDUCE, 2, 1 << 40), Algorithm.DIRECT),
        (pick(Kind.ALLREDUCE, alone - 1, 8), Algorithm.DIRECT),
        (pick(Kind.ALLREDUCE, alone, ring - 1), Algorithm.RECURSIVE_DOUBLING),
        (pick(Kind.ALLREDUCE, alone, ring), Algorithm.RING),
        (pick(Kind.ALLREDUCE, alone, ring, whole=True), Algorithm.RECURSIVE_DOUBLING),
        (pick(Kind.ALLREDUCE, 2, 8, Algorithm.RING), Algorithm.RING),
        (pick(Kind.BROADCAST, 3, chain - 1), Algorithm.TREE),
        (pick(Kind.BROADCAST, 3, chain), Algorithm.CHAIN),
        (pick(Kind.BROADCAST, 2, chain), Algorithm.TREE),
    ):
        assert choice is wanted
    with pytest.raises(ValueError, match="tree does not fit this allreduce"):
        pick(Kind.ALLREDUCE, 2, 8, Algorithm.TREE)
    with pytest.raises(ValueError, match="ring does not fit"):
        pick(Kind.ALLREDUCE, 2, 8, Algorithm.RING, whole=True)


def test_a_schedule_is_made_once_and_knows_its_peers():
    one = selection.schedule_for(Kind.BARRIER, 4, 1, 0, 1)
    assert selection.schedule_for(Kind.BARRIER, 4, 1, 0, 1) is one
    assert one.peers == (0, 3)


def test_tables_digest_changes_with_the_tables(monkeypatch):
    before = selection.tables_digest()
    assert len(before) == 32
    monkeypatch.setattr(selection, "CHAIN_BYTES", 1)
    assert selection.tables_digest() != before


@pytest.mark.parametrize("rendezvous", [False, True])
def test_pairwise_exchange_brings_each_rank_its_block_of_every_other(rendezvous: bool) -> None:
    for n, count in itertools.product(range(1, 17), (0, 1, 3)):
        sources = [np.arange(n * count) + 1000 * rank for rank in range(n)]
        schedules = [pairwise_exchange(n, rank, count) for rank in range(n)]
        results = run_in_memory(schedules, sources, None, rendezvous=rendezvous)
        for rank, result in enumerate(results):
            blocks = [source[rank * count : (rank + 1) * count] for source in sources]
            assert np.array_equal(result, np.concatenate(blocks))


def test_pairwise_exchange_sends_each_byte_once_and_never_two_ranks_to_one() -> None:
    schedules = [pairwise_exchange(5, rank, 2) for rank in range(5)]
    sent = [step.send_hi - step.send_lo for schedule in schedules for step in schedule.steps]
    assert sum(sent) == 5 * 4 * 2
    for at_once in zip(*(schedule.steps for schedule in schedules), strict=True):
        assert sorted(step.send_to for step in at_once) == list(range(5))


@pytest.mark.parametrize("make", [doubling_allreduce, ring_allreduce])
@pytest.mark.parametrize("n", range(1, 10))
def test_a_function_is_not_called_for_an_empty_block(
    make: Callable[[int, int, int], Schedule], n: int
) -> None:
    for count in range(n + 1):
        steps = [step for rank in range(n) for step in make(n, rank, count).steps]
        empty = [step for step in steps if step.recv_lo == step.recv_hi]
        assert {step.reduce for step in empty} <= {Reduce.NONE}
