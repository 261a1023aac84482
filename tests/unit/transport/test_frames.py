"""Direct exchanges over sockets: compiled, in Python, and in groups of both."""

import functools
import os
import signal
import socket
import struct
import threading

import numpy as np
import pytest
import ranks_in_threads as harness
from hypothesis import given
from hypothesis import strategies as st

from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.schedules import direct
from ftcomm.collectives.schedules.direct import direct_allreduce
from ftcomm.core import exchange_of_frames
from ftcomm.execution.frames import FRAME, ROWS, Frames
from ftcomm.protocol.frame_header import HEADER_BYTES
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.testing.in_memory import run_in_memory
from ftcomm.transport.interruptions import Interrupted, LinkLost, SignatureMismatch

pytest.importorskip("ftcomm.core._core", reason="no C compiler built the core")

SUM = make_reducer("sum", np.dtype("f4"))
OTHER = Signature(Kind.BARRIER).encode()
SIZES = [32, 120_000]  # elements: below and above what the kernel's buffers hold here
BUFFER_BYTES = 4096


def in_python(rank: harness.Rank) -> None:
    """Have a rank make the steps one by one."""
    rank.executor._frames_of = lambda *_: ()


def noise(rank: int, count: int) -> np.ndarray:
    """Random bits: NaN with payloads, denormals, all."""
    rng = np.random.default_rng([rank, count])
    sendbuf = rng.integers(0, 1 << 32, count, np.uint32).view("f4")
    sendbuf.flags.writeable = False  # a write to the user's input would raise
    return sendbuf


def allreduce(ranks, count, times=1):
    """Results of so many calls at all ranks, and what they should be."""
    n = len(ranks)
    schedules = [direct_allreduce(n, rank, count, 4) for rank in range(n)]
    sources = [noise(rank, count) for rank in range(n)]
    calls = list(zip(ranks, schedules, sources, strict=True))
    results = []
    for _ in range(times):  # from the second one on with the frames of the first
        results += harness.together(
            *(functools.partial(rank.run, one, given, SUM) for rank, one, given in calls)
        )
    return results, run_in_memory(schedules, sources, SUM) * times


def assert_same_bits(results, wanted):
    for result, reference in zip(results, wanted, strict=True):
        assert isinstance(result, np.ndarray), result
        assert result.tobytes() == reference.tobytes()


@pytest.mark.parametrize("pure", [(), (0,), (1, 2), (0, 1, 2, 3)], ids=str)  # ranks in Python
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("gathered", [0, 1 << 30], ids=["in blocks", "whole"])
def test_each_kind_of_rank_gives_the_bits_of_the_fold(n, pure, gathered, monkeypatch):
    monkeypatch.setattr(direct, "GATHERED_BYTES", gathered)
    monkeypatch.setattr(direct, "PIECE_BYTES", 4096)
    for make_pair, buffer_bytes in ((socket.socketpair, BUFFER_BYTES), (harness.tcp_pair, None)):
        with harness.group(n, make_pair, buffer_bytes=buffer_bytes) as ranks:
            for rank in ranks:
                if rank.rank in pure:
                    in_python(rank)
            for count in (0, 1, 17, 3 * 1024 + 5, 20_001):
                assert_same_bits(*allreduce(ranks, count, times=2))


@given(count=st.integers(0, 5000), piece=st.sampled_from([64, 320, 4096]), pure=st.booleans())
def test_where_it_is_cut_never_shows(count, piece, pure):
    with pytest.MonkeyPatch.context() as patch, harness.group(3) as ranks:
        patch.setattr(direct, "GATHERED_BYTES", 0)
        patch.setattr(direct, "PIECE_BYTES", piece)
        if pure:
            in_python(ranks[1])
        results, _ = allreduce(ranks, count)
        wanted = np.empty(count, "f4")
        with np.errstate(all="ignore"):
            SUM.fold(np.stack([noise(rank, count) for rank in range(3)]), wanted)
        assert_same_bits(results, [wanted] * 3)


def test_links_that_are_no_plain_sockets_take_steps_in_python(monkeypatch):
    monkeypatch.setattr(direct, "GATHERED_BYTES", 0)
    with harness.group(2, streams=2) as ranks:
        assert_same_bits(*allreduce(ranks, 1000))
        assert list(ranks[0].executor._frames.values()) == [()]


@pytest.fixture
def peer_of_one(monkeypatch):
    """A rank 0 of two, and the plain socket at its peer's end."""
    monkeypatch.setattr(direct, "GATHERED_BYTES", 0)
    with harness.group(1) as (rank,):
        near, far = harness.tcp_pair()
        rank.links[1] = harness.SocketLink(near, 1, buffer_bytes=BUFFER_BYTES)
        with far:
            yield rank, far


def run(rank, count):
    sendbuf = np.ones(count, "f4")
    try:
        return rank.run(direct_allreduce(2, 0, count, 4), sendbuf, SUM)
    finally:
        assert (sendbuf == 1).all(), "the input was written to"
        assert rank.executor.progress.peers == ()


def gathered(count: int) -> bytes:
    """The first frame of rank 1, with its part of rank 0's block."""
    (step,) = direct_allreduce(2, 1, count, 4).rounds[0].gather.steps
    return harness.frame(bytes(4 * (step.send_hi - step.send_lo)), step=0)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("has_gathered", [False, True], ids=["gather", "spread"])
def test_an_interrupt_ends_a_blocked_run_in_every_phase(peer_of_one, count, has_gathered):
    rank, far = peer_of_one
    drained = threading.Thread(target=_drain, args=(far,), daemon=True)
    if has_gathered:
        drained.start()
        far.sendall(gathered(count))
    outcome, _ = harness.together(
        lambda: run(rank, count), harness.when_it_waits(rank, rank.waker.set)
    )
    assert isinstance(outcome, Interrupted)
    with pytest.raises(Interrupted):
        run(rank, count)
    rank.links[1].shutdown()
    if has_gathered:
        drained.join()


def _drain(sock):
    while sock.recv(1 << 16):
        pass


@pytest.mark.parametrize("count", SIZES)
def test_an_end_of_the_stream_anywhere_is_a_lost_link(peer_of_one, count):
    rank, far = peer_of_one
    said = gathered(count)
    far.sendall(said[:50] if count == 32 else said[:1000])
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(LinkLost, match="rank 1 lost: the peer closed the connection"):
        run(rank, count)
    assert rank.executor._frames == {}, "frames that stopped anywhere are not used again"


@pytest.mark.parametrize("count", SIZES)
def test_a_reset_is_a_lost_link(peer_of_one, count):
    rank, far = peer_of_one

    def reset():
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()

    outcome, _ = harness.together(lambda: run(rank, count), harness.when_it_waits(rank, reset))
    assert isinstance(outcome, LinkLost)
    assert "ing failed: [Errno" in outcome.cause


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(
    ("header", "found", "text"),
    [
        ({"signature": OTHER, "step": 0}, SignatureMismatch, "another collective"),
        ({"position": Position(0, 2, 4), "step": 0}, SignatureMismatch, "another collective"),
        ({"epoch": 4, "step": 0}, LinkLost, "frame of epoch 4 in epoch 3"),
        ({"step": 9}, LinkLost, "frame of step 9"),
        ({"step": 0, "length": 3}, LinkLost, "with 3 bytes, expected step 0"),
    ],
)
def test_another_header_is_told_from_its_bytes(peer_of_one, count, header, found, text):
    rank, far = peer_of_one
    far.sendall(harness.frame(**{"length": len(gathered(count)) - HEADER_BYTES, **header}))
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(found, match=text) as caught:
        run(rank, count)
    assert caught.value.rank == 1


def test_a_different_call_site_is_no_difference(peer_of_one):
    rank, far = peer_of_one
    far.sendall(gathered(2).replace(b"train.py:12", b"other.py:34"))
    far.sendall(harness.frame(step=3))
    assert run(rank, 2).tolist() == [1.0, 1.0]


def test_ctrl_c_ends_a_wait(peer_of_one):
    rank, _ = peer_of_one
    interrupt = harness.when_it_waits(rank, lambda: os.kill(os.getpid(), signal.SIGINT))
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(rank, 2)
    thread.join()
    assert rank.executor._frames == {}


def test_a_wait_names_the_ranks_of_the_first_step_that_is_not_over():
    with harness.group(3) as ranks:
        links = ranks[0].links
        frames = Frames([(direct_allreduce(3, 0, 90, 4).rounds[0].gather, ROWS)], links, 4)
        tag, masks, peers = frames.awaited()
        assert (tag, peers, set(masks)) == (0, (1, 2), {links[1].fd, links[2].fd})
        done = frames.table["rank"] == 2
        frames.table["moved"][done] = HEADER_BYTES + frames.table["nbytes"][done]
        tag, masks, peers = frames.awaited()
        assert (tag, peers, set(masks)) == (0, (1,), {links[1].fd})


@pytest.mark.parametrize(
    "change",
    [
        {"at": -1},
        {"at": 9},
        {"nbytes": -1},
        {"nbytes": 1 << 62},
        {"moved": -1},
        {"moved": 1 << 40},
        {"buffer": 3},
        {"buffer": -1},
        {"receives": 1, "buffer": 0},
        {"after": 0},
    ],
    ids=str,
)
def test_a_frame_outside_of_its_buffer_is_refused(change):
    exchange = exchange_of_frames()
    table = np.zeros(1, FRAME)
    table["fd"], table["after"], table["nbytes"], table["at"] = -1, -1, 8, 0
    for name, value in change.items():
        table[name] = value
    buffers = [bytearray(16) for _ in range(3)]
    with pytest.raises(ValueError, match="frame 0 lies outside"):
        exchange(table, bytearray(HEADER_BYTES), *buffers, 1)
    with pytest.raises(ValueError, match="are no frames"):
        exchange(bytearray(7), bytearray(HEADER_BYTES), *buffers, 1)
