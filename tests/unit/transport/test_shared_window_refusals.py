"""Refusals of invalid shared windows and places, each with a reason."""

import fcntl
import mmap
import os
import platform
import sys
from collections.abc import Callable

import pytest
import ranks_in_threads as harness

from ftcomm.errors import ProtocolError
from ftcomm.protocol.position import Position
from ftcomm.transport.shared_window import SharedWindow, create_shared_window, receive_shared_window
from ftcomm.transport.shared_window_allocator import PAGE, Allocation
from ftcomm.transport.shared_window_layout import (
    MAX_RANKS,
    ROWS,
    WindowLayout,
    pack_placed,
    pack_window_head,
    placed_part,
    unpack_placed,
    unpack_window_head,
)
from ftcomm.transport.shm_segment import NoSharedMemory, sealed_memfd

pytestmark = harness.needs_shared_memory
NONCE = harness.NONCE
HERE = Position(0, 2, 5)
LAYOUT = WindowLayout(2, 8 * PAGE)
HEAD = pack_window_head(LAYOUT, NONCE)


@pytest.fixture
def pair() -> list[SharedWindow]:
    return harness.shared_window(LAYOUT.ranks, LAYOUT.nbytes)


def unsealed(head: bytes = HEAD, size: int = LAYOUT.total) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, head[:size], 0)
    return fd


def sealed(head: bytes = HEAD, size: int = LAYOUT.total) -> int:
    fd = sealed_memfd(size, at_once=False)
    os.pwrite(fd, head[:size], 0)
    return fd


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (unsealed, "its size is not sealed"),
        (lambda: sealed(b""), r"it begins with b'\\x00"),
        (lambda: sealed(b"FTCOMMc9" + HEAD[8:]), "no shared window of this version"),
        (lambda: sealed(pack_window_head(LAYOUT, b"m" * 16)), "other shared window"),
        (lambda: sealed(pack_window_head(WindowLayout(3, LAYOUT.nbytes), NONCE)), "for 3 ranks"),
        (lambda: sealed(pack_window_head(WindowLayout(2, 7 * PAGE), NONCE)), "and 28672 bytes"),
        (
            lambda: sealed(pack_window_head(WindowLayout(2, 5), NONCE), LAYOUT.data_at + 5),
            "and 5 bytes",
        ),
        (
            lambda: sealed(pack_window_head(WindowLayout(2, 0), NONCE), LAYOUT.data_at),
            "and 0 bytes",
        ),
        (lambda: sealed(size=LAYOUT.total - 1), "for 2 ranks"),
        (lambda: sealed(size=LAYOUT.total + PAGE), "for 2 ranks"),
        (lambda: sealed(size=100), "of no use"),
        (lambda: sealed(size=0), "of no use"),
        (lambda: os.open(os.devnull, os.O_RDWR), "of no use"),
        (lambda: os.memfd_create("x"), "not sealed"),
    ],
    ids=[
        *("unsealed", "zeros", "version", "nonce", "ranks", "bytes", "odd", "none", "short"),
        *("long", "page", "empty", "device", "unsealable"),
    ],
)
def test_what_is_no_shared_window_is_refused_with_its_reason_and_closed(
    no_collector: None, make: Callable[[], int], complaint: str
) -> None:
    before = harness.open_descriptors()
    with pytest.raises(NoSharedMemory, match=complaint):
        receive_shared_window(make(), 2, rank=1, epoch=1, nonce=NONCE)
    assert harness.open_descriptors() == before


def test_the_head_that_is_refused_in_so_many_ways_is_taken_as_it_is(no_collector: None) -> None:
    before = harness.open_descriptors()
    taken = receive_shared_window(sealed(), 2, rank=1, epoch=4, nonce=NONCE)
    assert (taken.epoch, taken.nonce, taken.fd) == (4, NONCE, -1)
    del taken
    assert harness.open_descriptors() == before
    assert unpack_window_head(HEAD, LAYOUT.total, 2, NONCE) == LAYOUT
    with pytest.raises(ProtocolError, match="of 39 bytes"):
        unpack_window_head(HEAD[:39], LAYOUT.total, 2, NONCE)


def _refuse(*_: object) -> None:
    raise OSError(12, "Cannot allocate memory")


def _no_seals(fd: int, command: int, *argument: int) -> int:
    raise OSError(22, "Invalid argument")


class Unpopulated(mmap.mmap):
    """Of a system that does not know how to populate."""

    def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
        raise OSError(22, "Invalid argument")


@pytest.mark.parametrize(
    ("where", "name", "value", "reason"),
    [
        (platform, "machine", lambda: "aarch64", "processors of type aarch64 may reorder"),
        (sys, "maxsize", 2**31 - 1, "may reorder"),
        (os, "ftruncate", _refuse, "making shared window failed: .*Cannot allocate"),
        (fcntl, "fcntl", _no_seals, "making shared window failed: .*Invalid argument"),
        (mmap, "mmap", _refuse, "mapping shared window failed: .*Cannot allocate"),
        (mmap, "mmap", Unpopulated, "mapping shared window failed: .*Invalid argument"),
    ],
)
def test_a_machine_that_cannot_says_why_and_keeps_nothing(
    no_collector: None,
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    name: str,
    value: object,
    reason: str,
) -> None:
    before = harness.open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(where, name, value)
        with pytest.raises(NoSharedMemory, match=reason):
            create_shared_window(2, PAGE, epoch=1, nonce=NONCE)
    assert harness.open_descriptors() == before


def test_a_map_that_fails_at_a_taker_is_refused_and_keeps_nothing(
    no_collector: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fd, before = sealed(), harness.open_descriptors()
    monkeypatch.setattr(mmap, "mmap", _refuse)
    with pytest.raises(NoSharedMemory, match=r"of no use: .*Cannot allocate"):
        receive_shared_window(fd, 2, rank=1, epoch=1, nonce=NONCE)
    assert harness.open_descriptors() == before - 1


def test_there_is_none_for_more_ranks_than_the_head_has_room_for() -> None:
    made = create_shared_window(MAX_RANKS, PAGE, epoch=1, nonce=NONCE)
    made.forget_fd()
    with pytest.raises(NoSharedMemory, match=f"257 ranks, at most {MAX_RANKS}"):
        create_shared_window(MAX_RANKS + 1, PAGE, epoch=1, nonce=NONCE)


@pytest.mark.parametrize(
    ("position", "allocation", "nbytes", "complaint"),
    [
        (HERE._replace(seqno=4), Allocation(0, PAGE, 0), PAGE, "has a place for"),
        (HERE._replace(branch=1), Allocation(0, PAGE, 0), PAGE, "has a place for"),
        (HERE, Allocation(0, PAGE, 0), PAGE - 1, "has a place for 4095 bytes"),
        (HERE, Allocation(1, PAGE, 0), PAGE, "placed at 1 in row 0"),
        (HERE, Allocation(LAYOUT.nbytes, PAGE, 0), PAGE, "placed at 32768"),
        (HERE, Allocation(2**64 - PAGE, PAGE, 0), PAGE, "placed at 18446744073709547520"),
        (HERE, Allocation(0, PAGE, ROWS), PAGE, f"in row {ROWS}"),
    ],
    ids=["position", "branch", "size", "odd", "behind", "far", "row"],
)
def test_a_place_that_contradicts_what_was_said_is_refused(
    pair: list[SharedWindow],
    position: Position,
    allocation: Allocation,
    nbytes: int,
    complaint: str,
) -> None:
    pair[0]._map[placed_part()] = pack_placed(position, allocation, nbytes)
    with pytest.raises(ProtocolError, match=complaint):
        pair[1].placed(HERE, PAGE)


def test_the_last_page_and_the_last_row_are_no_contradiction() -> None:
    last = Allocation(LAYOUT.nbytes - PAGE, PAGE, ROWS - 1)
    assert unpack_placed(pack_placed(HERE, last, PAGE), LAYOUT, HERE, PAGE) == last


def test_before_anything_was_placed_there_is_no_place(pair: list[SharedWindow]) -> None:
    with pytest.raises(ProtocolError, match="has a place for 0 bytes"):
        pair[1].placed(HERE, PAGE)
