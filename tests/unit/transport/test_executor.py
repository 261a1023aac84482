"""The executor over real sockets gives the bits of the in-memory run."""

import functools
import socket

import numpy as np
import pytest
import ranks_in_threads as harness

from ftcomm.collectives.op_argument import reduction
from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.schedules.allgather import doubling_allgather, ring_allgather
from ftcomm.collectives.schedules.binomial_tree import binomial_broadcast
from ftcomm.collectives.schedules.pipelined_chain import chain_broadcast
from ftcomm.collectives.schedules.recursive_doubling import barrier, doubling_allreduce
from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.collectives.schedules.schedule import REDUCE_SEGMENT_BYTES
from ftcomm.execution.executor import SMALL_BYTES
from ftcomm.execution.transfers import Outgoing
from ftcomm.testing.in_memory import run_in_memory

COUNTS = [
    0,
    1,
    7,
    SMALL_BYTES // 4,
    SMALL_BYTES // 4 + 1,
    3 * REDUCE_SEGMENT_BYTES // 4 + 3,
    700_001,
]


def floats(n: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(count)
    sources = [rng.standard_normal(count).astype("f4") for _ in range(n)]
    for rank, sendbuf in enumerate(sources):
        sendbuf.view(np.uint32)[3::17] = 0x7FC00000 + rank
        sendbuf.flags.writeable = False  # a write to the user's input would raise
    return sources


def run_group(ranks, schedules, sources, reducer=None):
    return harness.together(
        *(
            functools.partial(rank.run, schedule, sendbuf, reducer)
            for rank, schedule, sendbuf in zip(ranks, schedules, sources, strict=True)
        )
    )


def assert_same_bits(results, wanted):
    for result, reference in zip(results, wanted, strict=True):
        assert isinstance(result, np.ndarray), result
        assert result.tobytes() == reference.tobytes()


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("build", [ring_allreduce, doubling_allreduce])
def test_allreduce_has_the_bits_of_the_reference(n, build):
    reducer = make_reducer("sum", np.dtype("f4"))
    with harness.group(n) as ranks:
        for count in COUNTS:
            sources = floats(n, count)
            schedules = [build(n, rank, count) for rank in range(n)]
            wanted = run_in_memory(schedules, sources, reducer)
            assert_same_bits(run_group(ranks, schedules, sources, reducer), wanted)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_allgather_broadcast_and_barrier_move_what_they_should(n):
    with harness.group(n) as ranks:
        for count in COUNTS:
            sources = floats(n, count)
            gather = [ring_allgather(n, rank, count) for rank in range(n)]
            assert_same_bits(run_group(ranks, gather, sources), run_in_memory(gather, sources))
            cast = [binomial_broadcast(n, rank, count, n - 1) for rank in range(n)]
            assert_same_bits(run_group(ranks, cast, sources), [sources[n - 1]] * n)
            chain = [chain_broadcast(n, rank, count, 1, 4) for rank in range(n)]
            assert_same_bits(run_group(ranks, chain, sources), [sources[1]] * n)
        fences = [barrier(n, rank) for rank in range(n)]
        assert all(len(recvbuf) == 0 for recvbuf in run_group(ranks, fences, floats(n, 0)))


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_an_allgather_sends_on_what_was_copied_before_the_first_step(n):
    with harness.group(n) as ranks:
        for count in COUNTS:
            sources = floats(n, count)
            schedules = [doubling_allgather(n, rank, count) for rank in range(n)]
            wanted = [np.concatenate(sources)] * n
            assert_same_bits(run_group(ranks, schedules, sources), wanted)


@pytest.mark.parametrize(
    ("make_pair", "buffer_bytes"), [(socket.socketpair, 4096), (harness.tcp_pair, 65536)]
)
def test_tcp_links_and_small_kernel_buffers_change_nothing(make_pair, buffer_bytes):
    reducer = make_reducer("mean", np.dtype("f4"))
    with harness.group(3, make_pair, buffer_bytes=buffer_bytes) as ranks:
        for build in (ring_allreduce, doubling_allreduce):
            for count in (5, SMALL_BYTES // 4, 200_000):
                sources = floats(3, count)
                schedules = [build(3, rank, count) for rank in range(3)]
                wanted = run_in_memory(schedules, sources, reducer)
                assert_same_bits(run_group(ranks, schedules, sources, reducer), wanted)


def test_a_group_of_one_copies_and_finishes():
    with harness.group(1) as (alone,):
        sendbuf = np.array([5, 0], np.int32)
        recvbuf = alone.run(ring_allreduce(1, 0, 2), sendbuf, make_reducer("lor", sendbuf.dtype))
        assert recvbuf.tolist() == [1, 0]
        assert sendbuf.tolist() == [5, 0]


def test_a_broadcast_may_use_one_buffer_for_source_and_work():
    with harness.group(2) as (root, leaf):
        buffer = np.arange(70_000.0)
        schedules = [binomial_broadcast(2, rank, len(buffer), 0) for rank in range(2)]
        target = np.zeros(len(buffer))
        results = harness.together(
            lambda: root.run(schedules[0], buffer, recvbuf=buffer),
            lambda: leaf.run(schedules[1], target, recvbuf=target),
        )
        assert_same_bits(results, [np.arange(70_000.0)] * 2)


@pytest.mark.parametrize("count", [40, 80_000])
def test_a_function_sees_whole_arrays_in_rank_order(count):
    def decimal(accumulator, operand):
        assert accumulator.shape == operand.shape == (2, count // 2)
        return accumulator * 10 + operand

    dtype = np.dtype("i8")
    reducer = make_reducer(
        reduction(decimal, name="decimal", elementwise=False, commutative=False),
        dtype,
        shape=(2, count // 2),
    )
    with harness.group(2) as ranks:
        schedules = [doubling_allreduce(2, rank, count) for rank in range(2)]
        sources = [np.full(count, rank + 1) for rank in range(2)]
        assert_same_bits(run_group(ranks, schedules, sources, reducer), [np.full(count, 12)] * 2)


def test_the_users_floating_point_settings_stop_nobody():
    reducer = make_reducer("sum", np.dtype("f4"))
    with harness.group(2) as ranks, np.errstate(all="raise"):
        sources = [np.full(4, np.float32(3e38))] * 2
        ranks_schedules = [doubling_allreduce(2, rank, 4) for rank in range(2)]

        def run(rank):
            with np.errstate(all="raise"):
                return ranks[rank].run(ranks_schedules[rank], sources[rank], reducer)

        results = harness.together(lambda: run(0), lambda: run(1))
        assert_same_bits(results, [np.full(4, np.float32(np.inf))] * 2)


@pytest.mark.parametrize("build", [ring_allreduce, doubling_allreduce, ring_allgather])
@pytest.mark.parametrize("count", [0, 1, 3, 100_000])
def test_probes_fire_once_in_the_middle_of_every_transfer_and_change_no_bit(build, count):
    reducer = make_reducer("sum", np.dtype("f4"))
    calls = [[], []]
    with harness.group(2) as ranks:
        for rank in ranks:
            rank.executor.probe = lambda *what, seen=calls[rank.rank]: seen.append(what)
        sources = floats(2, count)
        schedules = [build(2, rank, count) for rank in range(2)]
        wanted = run_in_memory(schedules, sources, reducer)
        assert_same_bits(run_group(ranks, schedules, sources, reducer), wanted)
    for schedule, seen in zip(schedules, calls, strict=True):
        points = [(point, step.tag) for step in schedule.steps for point in
                  ("half_sent", "half_received")]  # fmt: skip
        assert sorted(seen) == sorted(points)


def test_a_probe_at_half_sent_is_called_with_half_a_frame_in_the_kernel():
    near, far = socket.socketpair()
    with near, far:
        link = harness.SocketLink(near, 1)
        sent_so_far = []
        payload = bytes(range(100))
        outgoing = Outgoing(
            link,
            memoryview(harness.frame(payload))[:104],
            memoryview(payload),
            probe=lambda point, step: sent_so_far.append((point, step, len(far.recv(1000)))),
            step=4,
        )
        while not outgoing.done:
            outgoing.advance()
        assert sent_so_far == [("half_sent", 4, 104 + 50)]
        assert len(far.recv(1000)) == 50


def test_frames_may_be_cut_at_any_byte():
    """A proxy hands the peer's two frames over in two pieces, cut at every offset in turn."""
    reducer = make_reducer("sum", np.dtype("f4"))
    sources = floats(2, 6)
    schedules = [ring_allreduce(2, rank, 6) for rank in range(2)]
    wanted = run_in_memory(schedules, sources, reducer)
    frame_bytes = 104 + 12
    with harness.group(1) as (left,), harness.group(1) as (right,):
        sockets = [socket.socketpair() for _ in range(2)]
        left.links[1] = harness.SocketLink(sockets[0][0], 1)
        right.links[0] = harness.SocketLink(sockets[1][0], 0)
        (_, by_left), (_, by_right) = sockets

        def proxy(cut):
            for _ in range(2):
                by_right.sendall(by_left.recv(frame_bytes, socket.MSG_WAITALL))
                whole = by_right.recv(frame_bytes, socket.MSG_WAITALL)
                by_left.sendall(whole[:cut])
                by_left.sendall(whole[cut:])

        for cut in range(1, frame_bytes):
            for probe in (None, lambda point, step: None):
                left.executor.probe = probe
                results = harness.together(
                    lambda: left.run(schedules[0], sources[0], reducer),
                    lambda: right.run(schedules[1], sources[1], reducer),
                    functools.partial(proxy, cut),
                )
                assert_same_bits(results[:2], wanted)
        by_left.close()
        by_right.close()


def test_step_base_separates_two_schedules_of_one_call():
    with harness.group(2) as ranks:
        fences = [barrier(2, rank) for rank in range(2)]
        outcomes = harness.together(
            lambda: ranks[0].run(fences[0], np.zeros(0), step_base=10),
            lambda: ranks[1].run(fences[1], np.zeros(0), step_base=11),
        )
        assert {str(outcome) for outcome in outcomes} == {
            f"link to rank {1 - rank} lost: frame of step {12 - rank} with 0 bytes, "
            f"expected step {11 + rank} with 0"
            for rank in range(2)
        }


def test_a_blocked_thread_says_whom_it_waits_for_and_forgets_it_afterwards():
    with harness.group(2) as (left, right):

        def wait_then_join():
            while left.executor.progress.peers != (1,):
                pass
            since = left.executor.progress.since
            right.run(barrier(2, 1), np.zeros(0))
            return since

        outcomes = harness.together(lambda: left.run(barrier(2, 0), np.zeros(0)), wait_then_join)
        assert outcomes[1] > 0
        assert left.executor.progress.peers == ()
