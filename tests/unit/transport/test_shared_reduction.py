"""An allreduce in shared window gives the bits of the in-memory run, in one place for all ranks."""

import functools

import numpy as np
import pytest
import ranks_in_threads as harness

from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.schedules.allgather import ring_allgather
from ftcomm.collectives.schedules.halving_doubling import halving_allreduce
from ftcomm.collectives.schedules.recursive_doubling import doubling_allreduce
from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.execution.executor import SMALL_BYTES
from ftcomm.execution.shared_reduction import (
    ResultSlots,
    _Run,
    scratch_elements,
)
from ftcomm.execution.shared_results import suits_shared_window
from ftcomm.testing.in_memory import run_in_memory

pytestmark = harness.needs_shared_memory
SHAPES = [(ring_allreduce, n) for n in (2, 3, 4, 5)] + [(halving_allreduce, n) for n in (2, 4, 8)]
LINKS = {"sockets": {}, "shared-memory": {"ring_bytes": 1 << 16}}
ROOM = 1 << 25
SUM = make_reducer("sum", np.dtype("f4"))


def operands(n: int, count: int, dtype: str = "f4") -> list[np.ndarray]:
    """Those that nobody may write to; floats with NaNs, by whose payload their rank is known."""
    rng = np.random.default_rng(count)
    sources = [(100 * rng.standard_normal(count)).astype(dtype) for _ in range(n)]
    for rank, sendbuf in enumerate(sources):
        if sendbuf.dtype.kind == "f":
            quiet = np.array(np.nan, dtype).view(f"u{sendbuf.itemsize}")
            sendbuf.view(quiet.dtype)[3 + rank :: 17] = quiet + quiet.dtype.type(rank)
        sendbuf.flags.writeable = False
    return sources


def least(n: int, itemsize: int) -> int:
    """Elements of the smallest call that suits shared window."""
    return n * (SMALL_BYTES // itemsize + 1)


def run_group(ranks, memories, schedules, sources, reducer=SUM, call=harness.CALL):
    return harness.together(
        *(
            functools.partial(
                rank.run_in_shared_window, memory, schedule, sendbuf, reducer, call=call
            )
            for rank, memory, schedule, sendbuf in zip(
                ranks, memories, schedules, sources, strict=True
            )
        )
    )


def assert_same_bits(results, wanted):
    for result, reference in zip(results, wanted, strict=True):
        assert isinstance(result, np.ndarray), result
        assert (result.dtype, result.tobytes()) == (reference.dtype, reference.tobytes())


def offsets(results, memories):
    """Offset of the result in each rank's mapping; None if it is elsewhere."""
    places = []
    for result, memory in zip(results, memories, strict=True):
        whole = np.frombuffer(memory._map, np.uint8)
        at = result.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        places.append(at if 0 <= at < len(whole) else None)
    return places


def assert_one_place(results, memories):
    (place,) = set(offsets(results, memories))
    assert place >= memories[0]._layout.data_at
    for memory in memories:
        memory._map[place] ^= 0xFF
        assert len({result.view(np.uint8)[0] for result in results}) == 1
        memory._map[place] ^= 0xFF


def flags(memories):
    for memory in memories:
        memory.release()
    return memories[0]._map[memories[0]._layout.flags(0)]


# --- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize(("build", "n"), SHAPES)
def test_all_ranks_have_the_bits_of_the_reference_in_one_place(build, n, links):
    memories = harness.shared_window(n, ROOM)
    with harness.group(n, **LINKS[links]) as ranks:
        for count in (least(n, 4), least(n, 4) + 1, least(n, 4) + n - 1, n * 150_000 + 1):
            sources = operands(n, count)
            schedules = [build(n, rank, count) for rank in range(n)]
            wanted = run_in_memory(schedules, sources, SUM)
            results = run_group(ranks, memories, schedules, sources)
            assert_same_bits(results, wanted)
            assert_one_place(results, memories)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        *(("sum", dtype) for dtype in ("f2", "f8", "i8")),
        *(("mean", dtype) for dtype in ("f2", "f4", "f8")),
        *(("max", dtype) for dtype in ("f2", "f4", "f8", "i8")),
    ],
)
@pytest.mark.parametrize(("build", "n"), [(ring_allreduce, 4), (halving_allreduce, 4)])
def test_every_operation_and_dtype_has_the_bits_of_the_reference(build, n, op, dtype):
    count = least(n, np.dtype(dtype).itemsize) + 3
    sources = operands(n, count, dtype)
    reducer = make_reducer(op, np.dtype(dtype))
    schedules = [build(n, rank, count) for rank in range(n)]
    memories = harness.shared_window(n, ROOM)
    with harness.group(n) as ranks:
        results = run_group(ranks, memories, schedules, sources, reducer)
    assert_same_bits(results, run_in_memory(schedules, sources, reducer))
    assert_one_place(results, memories)


def test_nobody_may_write_to_a_result_that_others_have_too():
    memories = harness.shared_window(2, ROOM)
    count = least(2, 4)
    schedules = [ring_allreduce(2, rank, count) for rank in range(2)]
    with harness.group(2) as ranks:
        for result in run_group(ranks, memories, schedules, operands(2, count)):
            for view in (result, result[:], result.view(np.uint8)):
                with pytest.raises(ValueError, match="WRITEABLE"):
                    view.flags.writeable = True
                with pytest.raises(ValueError, match="read-only"):
                    view[0] = 1


def _one_has_not_joined():
    memories = harness.shared_window(3, ROOM, join=False)
    for memory in memories[:2]:
        memory.join()
    return memories


@pytest.mark.parametrize(
    "share", [_one_has_not_joined, lambda: harness.shared_window(3, 4096)], ids=["apart", "no-room"]
)
@pytest.mark.parametrize("links", LINKS)
def test_without_a_place_in_common_every_rank_has_one_of_its_own(share, links):
    memories, count = share(), least(3, 4) + 2
    sources = operands(3, count)
    schedules = [ring_allreduce(3, rank, count) for rank in range(3)]
    reducer = make_reducer("mean", np.dtype("f4"))
    with harness.group(3, **LINKS[links]) as ranks:
        results = run_group(ranks, memories, schedules, sources, reducer)
    assert_same_bits(results, run_in_memory(schedules, sources, reducer))
    assert offsets(results, memories) == [None] * 3
    results[0][0] = 5
    assert results[1][0] != 5 != results[2][0]


@pytest.mark.parametrize(("build", "n"), [(ring_allreduce, 3), (halving_allreduce, 4)])
def test_places_are_used_again_and_what_is_held_stays_as_it_is(build, n):
    count, kept, seen = least(n, 4) + 1, [], []
    memories = harness.shared_window(n, 3 * (4 * count + 4096))
    schedules = [build(n, rank, count) for rank in range(n)]
    with harness.group(n) as ranks:
        for seqno in range(7):
            call = harness.CALL._replace(position=harness.POSITION._replace(seqno=seqno))
            flags(memories)
            sources = [sendbuf + np.float32(seqno) for sendbuf in operands(n, count)]
            wanted = run_in_memory(schedules, sources, SUM)
            results = run_group(ranks, memories, schedules, sources, call=call)
            seen += {*offsets(results, memories)}
            kept = [*kept[-1:], (results, wanted)]
            for older, bits in kept:
                assert_same_bits(older, bits)
            del results, older
    assert len(seen) == 7
    assert None not in seen
    assert len(set(seen)) == 3


def test_a_result_that_one_rank_holds_is_kept_from_all():
    memories, count = harness.shared_window(2, ROOM), least(2, 4)
    schedules = [halving_allreduce(2, rank, count) for rank in range(2)]
    with harness.group(2) as ranks:
        first = run_group(ranks, memories, schedules, operands(2, count))
        held, bits = first[1][7:9], first[1][7:9].tobytes()
        first.clear()
        ones = [np.ones(count, "f4")] * 2
        second = run_group(ranks, memories, schedules, ones)
    assert held.tobytes() == bits
    assert second[0].tolist() == [2] * count


def test_a_dropped_result_is_released_at_once_not_when_somebody_collects(no_collector):
    memories, count = harness.shared_window(2, ROOM), least(2, 4)
    schedules = [ring_allreduce(2, rank, count) for rank in range(2)]
    with harness.group(2) as ranks:
        results = run_group(ranks, memories, schedules, operands(2, count))
    assert flags(memories) == b"\1\1"
    results.clear()
    assert flags(memories) == b"\0\0"


@pytest.mark.parametrize("room", [ROOM, 4096])
@pytest.mark.parametrize(("build", "n"), [(ring_allreduce, 3), (halving_allreduce, 4)])
def test_probes_fire_once_in_the_middle_of_every_transfer_and_change_no_bit(build, n, room):
    calls = [[] for _ in range(n)]
    memories, count = harness.shared_window(n, room), least(n, 4) + 1
    sources = operands(n, count)
    schedules = [build(n, rank, count) for rank in range(n)]
    with harness.group(n) as ranks:
        for rank in ranks:
            rank.executor.probe = lambda *what, seen=calls[rank.rank]: seen.append(what)
        results = run_group(ranks, memories, schedules, sources)
    assert_same_bits(results, run_in_memory(schedules, sources, SUM))
    for schedule, seen in zip(schedules, calls, strict=True):
        points = [(point, step.tag) for step in schedule.steps for point in
                  ("half_sent", "half_received")]  # fmt: skip
        assert sorted(seen) == sorted(points)


# --- schedules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "n", "suits"),
    [
        *((ring_allreduce, n, n > 1) for n in range(1, 17)),
        *((halving_allreduce, n, n in (2, 4, 8, 16)) for n in range(1, 17)),
        *((doubling_allreduce, n, False) for n in (2, 4)),
        *((ring_allgather, n, False) for n in (2, 4)),
    ],
)
def test_which_schedules_suit(build, n, suits):
    enough, itemsize = least(n, 4), 4
    for rank in range(n):
        assert suits_shared_window(build(n, rank, enough), itemsize) is suits
        assert not suits_shared_window(build(n, rank, enough - 1), itemsize)
        assert not suits_shared_window(build(n, rank, enough), itemsize - 1)


SUITABLE = [(ring_allreduce, n) for n in range(2, 17)]
SUITABLE += [(halving_allreduce, n) for n in (2, 4, 8, 16)]


@pytest.mark.parametrize(("build", "n"), SUITABLE)
def test_the_blocks_that_ranks_end_with_are_disjoint_and_all_there_is(build, n):
    for count in (n, n + 1, 3 * n - 1, 1000):
        schedules = [build(n, rank, count) for rank in range(n)]
        last = sorted(
            (step.recv_lo, step.recv_hi)
            for schedule in schedules
            for step in schedule.steps[len(schedule.steps) // 2 - 1 :][:1]
        )
        assert [lo for lo, _ in last] == [0, *(hi for _, hi in last[:-1])]
        assert last[-1][1] == count


@pytest.mark.parametrize(("build", "n"), SUITABLE)
def test_scratch_is_enough_and_never_both_sent_and_written(build, n):
    for count in (n, n + 1, 3 * n - 1, 1000):
        for rank in range(n):
            schedule = build(n, rank, count)
            scratch = np.empty(scratch_elements(schedule), "f4")
            places = ResultSlots(None, None, scratch)
            run = _Run(schedule, harness.CALL, np.empty(count, "f4"), places)
            for index, step in enumerate(schedule.steps[: run.last]):
                kept = run.keep(index, step)
                assert len(kept) == step.recv_hi - step.recv_lo
                assert not np.shares_memory(kept, run.sends(step))
                assert np.shares_memory(kept, scratch)
                run.partial, run.partial_lo = kept, step.recv_lo
            assert len(run.sends(schedule.steps[run.last])) > 0


@pytest.mark.parametrize(
    ("build", "n", "blocks"),
    [
        (ring_allreduce, 2, 0),
        (ring_allreduce, 3, 1),
        (ring_allreduce, 4, 2),
        (ring_allreduce, 9, 2),
        (halving_allreduce, 2, 0),
        (halving_allreduce, 8, 4),
    ],
)
def test_scratch_is_no_larger_than_what_is_on_its_way(build, n, blocks):
    assert scratch_elements(build(n, 0, 7 * n)) == 7 * blocks
