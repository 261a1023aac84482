"""Schedules that give each rank a result of its own: results, steps, bytes and dataflow."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcomm.collectives import contributed_selection as selection
from ftcomm.collectives.reductions import Array, make_reducer
from ftcomm.collectives.schedules.pairwise_exchange import pairwise_exchange_v
from ftcomm.collectives.schedules.reduce_scatter import ring_reduce_scatter
from ftcomm.collectives.schedules.rooted import direct_gather, direct_scatter, reduce_to_root
from ftcomm.collectives.schedules.schedule import Reduce, Schedule, block_bounds
from ftcomm.protocol.signature import Kind
from ftcomm.testing.in_memory import run_in_memory
from tests.helpers.reference import expected_ring_blocks, knowledge

SIZES = range(1, 18)
SUM = make_reducer("sum", np.dtype("f4"))


def uneven(n: int, seed: int = 0) -> tuple[int, ...]:
    """Lengths of n blocks, of which some are empty."""
    return tuple((5 * rank + seed) % 4 for rank in range(n))


def offsets(counts: Sequence[int]) -> tuple[int, ...]:
    return (0, *itertools.accumulate(counts))


def own_blocks(results: Sequence[Array], bounds: Sequence[int]) -> list[Array]:
    return [result[bounds[rank] : bounds[rank + 1]] for rank, result in enumerate(results)]


def floats(n: int, count: int) -> list[Array]:
    """Sums of these depend on their order."""
    scale = 10.0 ** np.arange(n)[:, None]
    return list((np.random.default_rng(n).standard_normal((n, count)) * scale).astype("f4"))


def same_bits(left: Sequence[Array], right: Sequence[Array]) -> bool:
    return [one.tobytes() for one in left] == [one.tobytes() for one in right]


def sent_by(schedules: Sequence[Schedule]) -> list[int]:
    return [sum(step.send_hi - step.send_lo for step in each.steps) for each in schedules]


def steps_of(schedules: Sequence[Schedule]) -> list[int]:
    return [len(each.steps) for each in schedules]


# --- reduce-scatter -------------------------------------------------------------------------------


@pytest.mark.parametrize("rendezvous", [False, True])
def test_each_rank_gets_its_block_with_the_bits_of_the_definition(rendezvous: bool) -> None:
    for n, lengths in itertools.product(SIZES, ("uneven", "empty", "even")):
        counts = {"uneven": uneven(n), "empty": (0,) * n, "even": (7,) * n}[lengths]
        bounds = offsets(counts)
        sources = floats(n, bounds[-1])
        schedules = [ring_reduce_scatter(n, rank, bounds) for rank in range(n)]
        results = run_in_memory(schedules, sources, SUM, rendezvous=rendezvous)
        wanted = expected_ring_blocks(sources, bounds, SUM)
        assert same_bits(own_blocks(results, bounds), wanted), counts
        exact = np.sum(np.array(sources, "f8"), axis=0)
        assert np.allclose(np.concatenate(wanted), exact, rtol=1e-5, atol=10.0**n * 1e-6)


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=9),
    op=st.sampled_from(["sum", "max", "bxor"]),
    rendezvous=st.booleans(),
)
def test_blocks_of_any_lengths_are_what_numpy_reduces(
    lengths: list[int], op: str, rendezvous: bool
) -> None:
    n, bounds = len(lengths), offsets(lengths)
    sources = list(np.random.default_rng(bounds[-1]).integers(-99, 99, (n, bounds[-1])))
    reducer = make_reducer(op, np.dtype("i8"))
    schedules = [ring_reduce_scatter(n, rank, bounds) for rank in range(n)]
    results = run_in_memory(schedules, sources, reducer, rendezvous=rendezvous)
    ufunc = {"sum": np.add, "max": np.maximum, "bxor": np.bitwise_xor}[op]
    assert np.array_equal(
        np.concatenate(own_blocks(results, bounds)), ufunc.reduce(np.array(sources), axis=0)
    )


def test_reduce_scatter_has_the_steps_and_bytes_that_its_module_promises() -> None:
    for n in SIZES:
        bounds = block_bounds(6 * n, n)
        ring = [ring_reduce_scatter(n, rank, bounds) for rank in range(n)]
        assert steps_of(ring) == [n - 1] * n
        assert sent_by(ring) == [6 * (n - 1)] * n


def test_a_block_without_elements_is_not_reduced() -> None:
    """A user's function would be called without an element."""
    schedules = [ring_reduce_scatter(4, rank, (0, 0, 2, 2, 2)) for rank in range(4)]
    steps = [step for schedule in schedules for step in schedule.steps]
    assert {step.reduce for step in steps if step.recv_lo == step.recv_hi} == {Reduce.NONE}
    assert any(step.reduce is not Reduce.NONE for step in steps)


# --- exchange, gather, scatter, reduce ------------------------------------------------------------


@settings(max_examples=60)
@given(data=st.data(), n=st.integers(1, 9), rendezvous=st.booleans())
def test_pairwise_exchange_v_moves_blocks_of_any_lengths(
    data: st.DataObject, n: int, rendezvous: bool
) -> None:
    row = st.lists(st.integers(0, 6), min_size=n, max_size=n)
    table = data.draw(st.lists(row, min_size=n, max_size=n))
    blocks = [[np.full(length, 100 * a + b) for b, length in enumerate(table[a])] for a in range(n)]
    columns = list(zip(*table, strict=True))
    schedules = [pairwise_exchange_v(n, rank, table[rank], columns[rank]) for rank in range(n)]
    sources = [np.concatenate(row) for row in blocks]
    results = run_in_memory(schedules, sources, rendezvous=rendezvous)
    assert all(
        np.array_equal(results[rank], np.concatenate([row[rank] for row in blocks]))
        for rank in range(n)
    )
    assert steps_of(schedules) == [n - 1] * n
    assert sent_by(schedules) == [sum(table[rank]) - table[rank][rank] for rank in range(n)]
    assert {each.kind for each in schedules} == {Kind.ALLTOALLV}


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=9),
    data=st.data(),
    rendezvous=st.booleans(),
)
def test_gather_and_scatter_are_each_others_reverse(
    counts: list[int], data: st.DataObject, rendezvous: bool
) -> None:
    n = len(counts)
    root = data.draw(st.integers(0, n - 1))
    parts = [np.full(count, rank) for rank, count in enumerate(counts)]
    whole, nothing = np.concatenate(parts), np.empty(0, int)
    gather = [direct_gather(n, rank, counts, root) for rank in range(n)]
    gathered = run_in_memory(gather, parts, rendezvous=rendezvous)
    assert [result.tolist() for result in gathered] == [
        whole.tolist() if rank == root else [] for rank in range(n)
    ]
    scatter = [direct_scatter(n, rank, counts, root) for rank in range(n)]
    sources = [whole if rank == root else nothing for rank in range(n)]
    scattered = run_in_memory(scatter, sources, rendezvous=rendezvous)
    assert [result.tolist() for result in scattered] == [part.tolist() for part in parts]


def test_rooted_kinds_have_the_steps_and_bytes_that_their_module_promises() -> None:
    for n, place in itertools.product(SIZES, (0.0, 0.5, 1.0)):
        root = int(place * (n - 1))
        counts = uneven(n, seed=root)
        others = [1] * n
        others[root] = n - 1
        gather = [direct_gather(n, rank, counts, root) for rank in range(n)]
        scatter = [direct_scatter(n, rank, counts, root) for rank in range(n)]
        assert steps_of(gather) == steps_of(scatter) == others
        assert sent_by(gather) == [counts[r] if r != root else 0 for r in range(n)]
        assert sent_by(scatter) == [
            sum(counts) - counts[root] if r == root else 0 for r in range(n)
        ]
        reduce = [reduce_to_root(n, rank, 6 * n, root) for rank in range(n)]
        assert sent_by(reduce) == [
            6 * (n if r != root else n - 1) if n > 1 else 0 for r in range(n)
        ]
        tags = {step.tag for each in reduce for step in each.steps}
        assert tags == set(range(2 * (n - 1)))


@pytest.mark.parametrize("rendezvous", [False, True])
def test_reduce_gives_the_root_the_ring_reduce_scatters_blocks(rendezvous: bool) -> None:
    for n, count in itertools.product(SIZES, (0, 1, 5, 40)):
        root = n // 2
        sources = floats(n, count)
        schedules = [reduce_to_root(n, rank, count, root) for rank in range(n)]
        results = run_in_memory(schedules, sources, SUM, rendezvous=rendezvous)
        wanted = expected_ring_blocks(sources, block_bounds(count, n), SUM)
        assert results[root].tobytes() == np.concatenate(wanted).tobytes()


def test_who_hears_of_whom() -> None:
    """The kinds in which not everyone does are synchronised by the exchange of digests."""
    for n in SIZES:
        everyone, root, counts = set(range(n)), n // 2, uneven(n)
        bounds = offsets(counts)
        of_all = [everyone] * n
        assert knowledge([ring_reduce_scatter(n, r, bounds) for r in range(n)]) == of_all
        assert knowledge([pairwise_exchange_v(n, r, counts, counts) for r in range(n)]) == of_all
        assert knowledge([reduce_to_root(n, r, 3, root) for r in range(n)]) == of_all
        gather = knowledge([direct_gather(n, r, counts, root) for r in range(n)])
        assert gather == [everyone if r == root else {r} for r in range(n)]
        scatter = knowledge([direct_scatter(n, r, counts, root) for r in range(n)])
        assert scatter == [{r, root} for r in range(n)]


# --- selection ------------------------------------------------------------------------------------


def test_the_schedules_of_a_shape_are_made_once() -> None:
    makers = [
        (selection.reduce_scatter_schedule, (4, 1, (0, 1, 2, 3, 4)), Kind.REDUCE_SCATTER),
        (selection.alltoallv_schedule, (2, 1, (1, 2), (3, 2)), Kind.ALLTOALLV),
        (selection.gatherv_schedule, (2, 1, (1, 2), 0), Kind.GATHERV),
        (selection.scatterv_schedule, (2, 1, (1, 2), 0), Kind.SCATTERV),
        (selection.reduce_schedule, (2, 1, 5, 0), Kind.REDUCE),
    ]
    for make, arguments, kind in makers:
        one = make(*arguments)
        assert make(*arguments) is one
        assert (one.kind, one.rank) == (kind, 1)
