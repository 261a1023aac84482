"""A link of several connections is one stream of bytes each way, wherever the bytes travel."""

import functools
import os
import random
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import ranks_in_threads as harness
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.schedules.recursive_doubling import doubling_allreduce
from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.testing.in_memory import run_in_memory
from ftcomm.transport import striped_link
from ftcomm.transport.interruptions import Interrupted, LinkLost
from ftcomm.transport.socket_link import SocketLink
from ftcomm.transport.striped_link import STRIPE_BYTES, StripedLink

STRIPE = 1000  # in tests that count bytes
Socks = list[socket.socket]
SUM = make_reducer("sum", np.dtype("f4"))


@contextmanager
def one_end(
    streams: int, stripe: int = STRIPE
) -> Iterator[tuple[StripedLink, list[socket.socket]]]:
    """A link, and the plain sockets at its peer's end."""
    near, far = zip(*(socket.socketpair() for _ in range(streams)), strict=True)
    for sock in far:
        sock.setblocking(False)
    with mock.patch.object(striped_link, "STRIPE_BYTES", stripe):
        link = StripedLink([SocketLink(sock, 1, buffer_bytes=4096) for sock in near])
        try:
            yield link, list(far)
        finally:
            link.close()
            for sock in far:
                sock.close()


def layout(data: bytes, streams: int, stripe: int = STRIPE) -> list[bytes]:
    """List the first bytes of a link by the connection that carries them."""
    stripes = [data[at : at + stripe] for at in range(0, len(data), stripe)]
    return [b"".join(stripes[stream::streams]) for stream in range(streams)]


def arrived(sock: socket.socket) -> bytes:
    data = b""
    while True:
        try:
            piece = sock.recv(1 << 16)
        except BlockingIOError:
            return data
        if not piece:
            return data
        data += piece


def offer(link: StripedLink, *buffers: bytes) -> int:
    try:
        return link.sendmsg(buffers, (), 0)
    except BlockingIOError:
        return 0


def taken(link: StripedLink, buffer: memoryview) -> int:
    try:
        return link.recv_into(buffer)
    except BlockingIOError:
        return 0


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 9000)), max_size=6),
    st.integers(1, 5),
    st.integers(100, 3000),
    st.randoms(use_true_random=False),
)
def test_messages_of_any_size_come_out_as_they_went_in(
    sizes: list[tuple[int, int]], streams: int, stripe: int, rng: random.Random
) -> None:
    """Both ends take what there is room for, in pieces of any size, and never all at once."""
    waiting = [(rng.randbytes(head), rng.randbytes(body)) for head, body in sizes]
    wanted = b"".join(head + body for head, body in waiting)
    with one_end(streams, stripe) as (near, socks):
        far = StripedLink([SocketLink(sock, 0) for sock in socks])
        got, buffer = bytearray(), bytearray(1 << 14)
        while len(got) < len(wanted):
            if waiting and rng.random() < 0.5:
                head, body = waiting[0]
                sent = offer(near, head, body)
                rest = (head[sent:], body[max(sent - len(head), 0) :])
                waiting[:1] = [rest] if any(rest) else []
            else:
                got += buffer[: taken(far, memoryview(buffer)[: rng.randint(1, len(buffer))])]
    assert got == wanted


@pytest.mark.parametrize("streams", [1, 2, 3, 16])
def test_the_place_of_a_byte_follows_from_its_number_alone(streams: int) -> None:
    data = os.urandom(20 * STRIPE + 123)
    with one_end(streams) as (link, far):
        carried, at = [b""] * streams, 0
        while at < len(data):
            at += offer(link, data[at : at + 7], data[at + 7 : at + 5000])
            carried = [old + arrived(sock) for old, sock in zip(carried, far, strict=True)]
    assert carried == layout(data, streams)


def test_a_full_connection_is_waited_for_though_others_have_room() -> None:
    """The peer reads in order: what went elsewhere would be taken for other bytes."""
    data = bytes(range(250)) * 4000
    with one_end(3, stripe=100_000) as (link, far):
        at = 0
        while sent := offer(link, data[at:]):
            at += sent
        assert 0 < at < 100_000
        ((fd, mask),) = link.poll_for(reading=False, writing=True)
        poll = select.poll()
        poll.register(fd, mask)
        assert poll.poll(0) == []
        taken = arrived(far[0])
        assert poll.poll(0) == [(fd, select.POLLOUT)]
        assert offer(link, data[at:])
        assert [arrived(far[stream]) for stream in (1, 2)] == [b"", b""]
        assert data.startswith(taken)


def test_each_direction_is_polled_where_its_turn_is() -> None:
    with one_end(2) as (link, far):
        before = link.poll_for(reading=True, writing=True)
        assert offer(link, bytes(STRIPE + 1)) == STRIPE
        (receiving, sending) = link.poll_for(reading=True, writing=True)
        far[0].send(b"x")
        poll = select.poll()
        poll.register(receiving[0], receiving[1])
        poll.register(sending[0], sending[1])
        assert sorted(poll.poll(0)) == sorted([receiving, sending])
    assert (before[0][0], receiving[0]) == (before[1][0], before[0][0])
    assert sending[0] != receiving[0]


@pytest.mark.parametrize("dtype", ["u1", "f2", "f8", "c16", "?"])
def test_elements_of_any_kind_are_counted_in_bytes(dtype: str) -> None:
    block = np.arange(300).astype(dtype)
    with one_end(2, stripe=90) as (link, far):
        assert link.sendmsg((b"head", block.data), (), 0) == 90
        assert link.sendmsg((memoryview(b""), block[:1].data), (), 0) == block.itemsize
        expected = [b"head" + block.tobytes()[:86], block[:1].tobytes()]
        assert [arrived(sock) for sock in far] == expected


def test_nothing_sent_and_nothing_arrived_move_no_turn() -> None:
    with one_end(2) as (link, far):
        buffer = bytearray(10)
        with pytest.raises(BlockingIOError):
            link.recv_into(buffer)
        far[0].send(b"ab")
        assert (link.recv_into(buffer), buffer[:2]) == (2, b"ab")


@pytest.mark.parametrize("end", ["shutdown", "reset", "close"])
def test_what_ends_a_link_ends_all_its_connections(end: str) -> None:
    with one_end(3) as (link, far):
        getattr(link, end)()
        getattr(link, "close" if end == "close" else "shutdown")()  # any number of times
        assert [arrived(sock) for sock in far] == [b""] * 3
        for sock in far:
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                sock.send(b"x")


# --- under the executor ---------------------------------------------------------------------------


def floats(n: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(count)
    return [rng.standard_normal(count).astype("f4") for _ in range(n)]


@pytest.mark.parametrize("streams", [2, 3])
@pytest.mark.parametrize("buffer_bytes", [None, 32 * 1024])
@pytest.mark.parametrize("build", [ring_allreduce, doubling_allreduce])
def test_collectives_have_the_bits_of_one_connection(streams, buffer_bytes, build) -> None:
    counts = [0, 1, STRIPE_BYTES // 8, STRIPE_BYTES // 4, 700_001, 3]
    with harness.group(3, harness.tcp_pair, buffer_bytes, streams) as ranks:
        for count in counts:
            sources = floats(3, count)
            schedules = [build(3, rank, count) for rank in range(3)]
            wanted = run_in_memory(schedules, sources, SUM)
            results = harness.together(
                *(
                    functools.partial(rank.run, schedule, sendbuf, SUM)
                    for rank, schedule, sendbuf in zip(ranks, schedules, sources, strict=True)
                )
            )
            assert [recvbuf.tobytes() for recvbuf in results] == [
                recvbuf.tobytes() for recvbuf in wanted
            ]


@pytest.mark.parametrize("end", ["shutdown_one", "shutdown", "reset"])
def test_one_connection_that_ends_within_a_transfer_is_a_lost_link(end: str) -> None:
    count = 4_000_000
    schedules = [ring_allreduce(2, rank, count) for rank in range(2)]
    with harness.group(2, harness.tcp_pair, streams=3) as ranks:
        ranks[0].executor.probe = lambda point, step: (
            getattr(ranks[0].links[1], end)() if (point, step) == ("half_sent", 0) else None
        )
        outcomes = harness.together(
            *(
                functools.partial(rank.run, schedule, sendbuf, SUM)
                for rank, schedule, sendbuf in zip(ranks, schedules, floats(2, count), strict=True)
            )
        )
    assert [type(outcome) for outcome in outcomes] == [LinkLost] * 2
    assert [outcome.rank for outcome in outcomes] == [1, 0]


def test_a_revoked_epoch_ends_a_transfer_on_several_connections() -> None:
    """The control thread sets the waker and shuts the link down, from its own thread."""
    schedule = ring_allreduce(2, 0, 4_000_000)
    with harness.group(2, streams=3) as (left, _):

        def revoke() -> None:
            while not left.executor.progress.peers:
                pass
            left.waker.set()
            left.links[1].shutdown()

        sendbuf = floats(1, 4_000_000)[0]
        outcomes = harness.together(lambda: left.run(schedule, sendbuf, SUM), revoke)
    assert isinstance(outcomes[0], Interrupted)
