"""Ends of a run when a peer dies, sends wrong data, or the control thread interrupts."""

import os
import socket
import struct

import numpy as np
import pytest
import ranks_in_threads as harness

from ftcomm.collectives.op_argument import reduction
from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.schedules.allgather import ring_allgather
from ftcomm.collectives.schedules.binomial_tree import binomial_broadcast
from ftcomm.collectives.schedules.recursive_doubling import doubling_allreduce
from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.execution.executor import Executor
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.transport.interruptions import Interrupted, LinkLost, SignatureMismatch
from ftcomm.transport.socket_link import SocketLink
from ftcomm.transport.waker import Waker

SIZES = [2, 2_000_000]  # elements: below and above what the kernel's buffers hold
SUM = make_reducer("sum", np.dtype("f4"))


@pytest.fixture
def peer_of_one():
    """A rank 0 of two, and the plain socket at its peer's end."""
    with harness.group(1) as (rank,):
        near, far = harness.tcp_pair()
        rank.links[1] = SocketLink(near, 1)
        with far:
            yield rank, far


def run(rank, count, probe=None, build=doubling_allreduce):
    rank.executor.probe = probe
    sendbuf = np.ones(count, "f4")
    try:
        return rank.run(build(2, 0, count), sendbuf, SUM)
    finally:
        assert (sendbuf == 1).all(), "the input was written to"


@pytest.mark.parametrize("count", SIZES)
def test_an_interrupt_ends_a_blocked_run_and_stays_set(peer_of_one, count):
    rank, _ = peer_of_one

    def interrupt():
        while rank.executor.progress.peers != (1,):
            pass
        rank.waker.set()

    outcome, _ = harness.together(lambda: run(rank, count), interrupt)
    assert isinstance(outcome, Interrupted)
    assert rank.waker.is_set
    assert rank.executor.progress.peers == ()
    with pytest.raises(Interrupted):
        run(rank, count)


def test_a_link_that_this_side_shut_down_is_an_interrupt_not_a_suspicion(peer_of_one):
    rank, _ = peer_of_one

    def stop():
        while rank.executor.progress.peers != (1,):
            pass
        rank.waker.set()
        rank.links[1].shutdown()
        rank.links[1].shutdown()

    outcome, _ = harness.together(lambda: run(rank, 8), stop)
    assert isinstance(outcome, Interrupted)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("said", [b"", harness.frame()[:50], harness.frame()[:50] + b"x"])
def test_an_end_of_the_stream_anywhere_is_a_lost_link(peer_of_one, count, said):
    rank, far = peer_of_one
    far.sendall(said[:50])
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(LinkLost, match="closed the connection") as caught:
        run(rank, count)
    assert caught.value.rank == 1


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("probed", [False, True])
def test_an_end_of_the_stream_inside_a_payload_is_a_lost_link(peer_of_one, count, probed):
    rank, far = peer_of_one
    far.sendall(harness.frame(length=4 * count) + b"1234567")
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(LinkLost, match="closed the connection"):
        run(rank, count, (lambda point, step: None) if probed else None)


@pytest.mark.parametrize("count", SIZES)
def test_a_reset_is_a_lost_link(peer_of_one, count):
    rank, far = peer_of_one

    def reset():
        while rank.executor.progress.peers != (1,):
            pass
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()

    outcome, _ = harness.together(lambda: run(rank, count), reset)
    assert isinstance(outcome, LinkLost)
    assert outcome.rank == 1
    assert "ing failed" in outcome.cause or "closed" in outcome.cause


def _run_for_ever(rank, schedule, sendbuf):
    while True:  # the first small send may still reach the kernel's buffer
        rank.run(schedule, sendbuf)


def test_sending_to_a_dead_peer_is_a_lost_link_and_no_signal(peer_of_one):
    rank, far = peer_of_one
    far.close()
    for count in SIZES:
        schedule = binomial_broadcast(2, 0, count, 0)
        sendbuf = np.ones(count, "f4")
        with pytest.raises(LinkLost, match="sending failed"):
            _run_for_ever(rank, schedule, sendbuf)


OTHER = Signature(Kind.BARRIER).encode()


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(
    ("header", "position", "signature"),
    [
        ({"signature": OTHER}, harness.POSITION, OTHER),
        ({"position": Position(0, 2, 4)}, Position(0, 2, 4), harness.SIGNATURE),
        ({"position": Position(0, 3, 0), "signature": OTHER}, Position(0, 3, 0), OTHER),
    ],
)
def test_another_collective_is_a_mismatch_that_names_it(
    peer_of_one, count, header, position, signature
):
    rank, far = peer_of_one
    far.sendall(harness.frame(site="other.py:7", **header))
    with pytest.raises(SignatureMismatch) as caught:
        run(rank, count)
    found = caught.value
    assert (found.rank, found.position, found.signature, found.site) == (
        1,
        position,
        signature,
        "other.py:7",
    )


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (b"GET / HTTP/1.1\r\n".ljust(104), "data frame begins with"),
        (harness.frame(epoch=4), "frame of epoch 4 in epoch 3"),
        (harness.frame(step=9), "frame of step 9 with 0 bytes"),
        (harness.frame(length=3), "frame of step 1 with 3 bytes"),
        (harness.frame(length=2**60), "claims"),
    ],
)
def test_a_frame_that_fits_nothing_is_a_lost_link(peer_of_one, count, raw, cause):
    rank, far = peer_of_one
    far.sendall(raw)
    with pytest.raises(LinkLost, match=cause):
        run(rank, count)


def test_a_different_call_site_is_no_difference(peer_of_one):
    rank, far = peer_of_one
    payload = np.full(2, 2, "f4").tobytes()
    far.sendall(harness.frame(payload, site="else.py:1"))
    assert run(rank, 2).tolist() == [3.0, 3.0]


def test_a_mismatch_is_seen_before_a_byte_of_payload_lands_in_work(peer_of_one):
    rank, far = peer_of_one
    recvbuf = np.zeros(2 * 100_000, "f4")
    payload = np.full(100_000, 7, "f4").tobytes()

    def lie():
        far.sendall(harness.frame(payload, signature=OTHER, step=0))

    def gather():
        rank.run(ring_allgather(2, 0, 100_000), np.ones(100_000, "f4"), recvbuf=recvbuf)

    outcome, _ = harness.together(lambda: _then_close(gather, rank), lie)
    assert isinstance(outcome, SignatureMismatch)
    assert not recvbuf[100_000:].any()  # before it there is its own block


def _then_close(call, rank):
    try:
        return call()
    finally:
        rank.links[1].shutdown()


def test_an_exception_of_a_users_function_passes_through(peer_of_one):
    rank, far = peer_of_one

    def fails(accumulator, operand):
        raise KeyError("mine")

    far.sendall(harness.frame(bytes(8)))
    reducer = make_reducer(reduction(fails, name="fails"), np.dtype("f4"))
    with pytest.raises(KeyError, match="mine"):
        rank.run(doubling_allreduce(2, 0, 2), np.ones(2, "f4"), reducer)


def test_a_ring_survives_two_mismatching_neighbours_by_naming_one():
    with harness.group(3) as ranks:
        sendbuf = np.ones(9, "f4")
        odd = harness.CALL._replace(suffix=OTHER + bytes(24))
        calls = [harness.CALL, odd, harness.CALL]

        def one(rank):
            try:
                return ranks[rank].run(ring_allreduce(3, rank, 9), sendbuf, SUM, call=calls[rank])
            finally:
                for link in ranks[rank].links.values():
                    link.shutdown()

        outcomes = harness.together(*(lambda rank=rank: one(rank) for rank in range(3)))
        assert any(isinstance(outcome, SignatureMismatch) for outcome in outcomes)
        assert not any(isinstance(outcome, np.ndarray) for outcome in outcomes)


def test_a_waker_is_readable_while_set_and_forgets_on_clear():
    waker = Waker()
    for _ in range(2):
        waker.set()
        waker.set()
        assert waker.is_set
        waker.clear()
        assert not waker.is_set
        with pytest.raises(BlockingIOError):
            os.eventfd_read(waker.fd)
    waker.close()
    waker.close()


def test_an_executor_keeps_no_array_of_the_caller():
    with harness.group(1) as (alone,):
        alone.run(ring_allreduce(1, 0, 2), np.ones(2, "f4"), SUM)
        held = [value for value in vars(alone.executor).values() if isinstance(value, np.ndarray)]
        assert isinstance(alone.executor, Executor)
        assert not any(array.dtype == np.float32 for array in held)
