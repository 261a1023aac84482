"""A frame's header that is read ahead, judged, and given again to who runs the call."""

import contextlib
import socket
from dataclasses import replace

import pytest

from ftcomm.execution.executor import Executor
from ftcomm.execution.header_check import CallHeader, announced_signature
from ftcomm.protocol.frame_header import HEADER_BYTES, FrameHeader, pack_header
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.transport.interruptions import Interrupted, LinkLost, SignatureMismatch
from ftcomm.transport.pushback_link import UnreadLink
from ftcomm.transport.socket_link import SocketLink
from ftcomm.transport.waker import Waker

AT = Position(0, 1, 2)
OPEN = Signature(Kind.BROADCAST, root=0)
ARRAY = replace(OPEN, dtype=12, count=6, ndim=2, dims=(2, 3, 0, 0))
CALL = CallHeader(4, AT, pack_header(FrameHeader(4, AT, 0, 0, OPEN.encode(), "mine.py:1"))[32:])


def frame(signature: Signature, position: Position = AT, epoch: int = 4) -> bytes:
    return pack_header(FrameHeader(epoch, position, 0, 48, signature.encode(), "theirs.py:7"))


def test_what_was_read_ahead_comes_first_and_then_what_arrives() -> None:
    mine, theirs = socket.socketpair()
    with theirs, contextlib.closing(Waker()) as waker:
        mine.setblocking(False)
        link = SocketLink(mine, 3)
        theirs.sendall(frame(ARRAY) + b"payload")
        head = Executor(waker).read_ahead(link)
        unread, got = UnreadLink(link, head), bytearray(HEADER_BYTES + 7)
        assert (head, unread.rank, unread.kind) == (frame(ARRAY), 3, link.kind)
        assert unread.poll_for(reading=True, writing=False) == ()
        at = 0
        while at < len(got):
            at += unread.recv_into(memoryview(got)[at : at + 10])
        assert bytes(got) == frame(ARRAY) + b"payload"
        waiting = link.poll_for(reading=True, writing=False)
        assert list(unread.poll_for(reading=True, writing=False)) == list(waiting) != []
        unread.close()


def test_reading_ahead_ends_with_the_epoch() -> None:
    mine, theirs = socket.socketpair()
    with theirs, contextlib.closing(Waker()) as waker:
        mine.setblocking(False)
        link = SocketLink(mine, 3)
        waker.set()
        with pytest.raises(Interrupted):
            Executor(waker).read_ahead(link)
        link.close()


def test_a_header_tells_the_whole_signature() -> None:
    assert announced_signature(frame(ARRAY), 3, CALL) == ARRAY.encode()


@pytest.mark.parametrize(
    "raw",
    [
        frame(replace(ARRAY, root=1)),
        frame(replace(ARRAY, kind=Kind.ALLGATHER)),
        frame(ARRAY, Position(0, 1, 3)),
        frame(replace(ARRAY, ndim=5)),
        frame(replace(ARRAY, count=7)),
    ],
    ids=["root", "kind", "position", "dimensions", "folded"],
)
def test_what_does_not_fit_is_a_mismatch_that_names_the_other_side(raw: bytes) -> None:
    with pytest.raises(SignatureMismatch) as seen:
        announced_signature(raw, 3, CALL)
    assert (seen.value.rank, seen.value.site) == (3, "theirs.py:7")


@pytest.mark.parametrize("raw", [frame(ARRAY, epoch=5), bytes(HEADER_BYTES)])
def test_another_epoch_or_no_header_costs_the_link(raw: bytes) -> None:
    with pytest.raises(LinkLost):
        announced_signature(raw, 3, CALL)
