"""Segments: what is made, what is taken, and what is refused with a reason."""

import fcntl
import mmap
import os
import platform
import sys
from pathlib import Path

import pytest

from ftcomm.config import platforms
from ftcomm.errors import ConfigError, ProtocolError
from ftcomm.transport.shm_layout import (
    HEAD_BYTES,
    MAX_RING_BYTES,
    MIN_RING_BYTES,
    RING_BYTES,
    pack_head,
    segment_bytes,
    unpack_head,
    words_of,
)
from ftcomm.transport.shm_segment import (
    NoSharedMemory,
    make_segment,
    require_shared_memory,
    take_segment,
)

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="no memfd_create on this system"
)
NONCE = b"0123456789abcdef"


def test_both_ends_see_the_same_memory_which_has_no_name_and_a_fixed_size() -> None:
    made = make_segment(NONCE)
    fd = os.dup(made.fd)
    taken = take_segment(os.dup(fd), NONCE)
    taken.answer = b"fedcba9876543210"
    assert (made.answer, taken.ring_bytes, made.side, taken.side) == (
        b"fedcba9876543210",
        RING_BYTES,
        0,
        1,
    )
    for size in (0, segment_bytes(RING_BYTES) + 1):  # a peer that could would kill this process
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    assert os.fstat(fd).st_nlink == 0
    assert not os.get_inheritable(made.fd)
    os.close(fd)
    made.close()
    taken.close()


def test_all_of_its_memory_is_there_from_the_start() -> None:
    made = make_segment(NONCE)
    assert os.fstat(made.fd).st_blocks * 512 >= segment_bytes(RING_BYTES)
    made.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def unsealed(head: bytes = b"", size: int = segment_bytes(MIN_RING_BYTES)) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, head[:size], 0)
    return fd


def sealed(head: bytes, size: int = segment_bytes(MIN_RING_BYTES)) -> int:
    fd = unsealed(head, size)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


HEAD = pack_head(MIN_RING_BYTES, NONCE)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: unsealed(HEAD), "its size is not sealed"),
        (lambda: sealed(b"\0" * 48), "no shared segment of this version"),
        (lambda: sealed(pack_head(MIN_RING_BYTES, b"another")), "another shared segment"),
        (lambda: sealed(HEAD, segment_bytes(MIN_RING_BYTES) - 1), "its rings have 4096"),
        (lambda: sealed(HEAD, 100), "of no use"),
        (lambda: sealed(b"", 0), "of no use"),
        (lambda: os.open(os.devnull, os.O_RDWR), "of no use"),
        (lambda: os.memfd_create("x"), "not sealed"),
    ],
    ids=["unsealed", "zeros", "another", "short", "page", "empty", "device", "unsealable"],
)
def test_what_is_no_segment_is_refused_with_its_reason_and_closed(make, complaint) -> None:
    fd = make()
    with pytest.raises(NoSharedMemory, match=complaint):
        take_segment(fd, NONCE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("ring_bytes", [0, 1, MIN_RING_BYTES // 2, 5000, 2 * MAX_RING_BYTES])
def test_rings_of_an_odd_size_are_refused(ring_bytes: int) -> None:
    head = pack_head(ring_bytes, NONCE)
    with pytest.raises(ProtocolError, match=f"rings of {ring_bytes} bytes"):
        unpack_head(head, segment_bytes(ring_bytes), NONCE)
    with pytest.raises(ProtocolError, match="of 47 bytes"):
        unpack_head(HEAD[:47], HEAD_BYTES, NONCE)


def test_each_word_has_one_writer_and_writers_are_two_cache_lines_apart() -> None:
    dialler, listener = words_of(0), words_of(1)
    assert listener._replace(writes=0) == (*dialler[4:8], *dialler[:4], 0)
    own, theirs = set(dialler[:4]), set(dialler[4:8])
    assert len(own | theirs) == 8
    assert min(abs(one - other) for one in own for other in theirs) * 8 >= 120
    assert 8 * min(own | theirs) >= len(HEAD)
    assert 8 * max(own | theirs) < HEAD_BYTES


def _no_room(fd: int, offset: int, size: int) -> None:
    raise OSError(28, "No space left on device")


def _no_seals(fd: int, command: int, *argument: int) -> int:
    raise OSError(22, "Invalid argument")


def _no_map(*_: object) -> None:
    raise OSError(12, "Cannot allocate memory")


@pytest.mark.parametrize(
    ("where", "name", "value", "reason"),
    [
        (platform, "machine", lambda: "aarch64", "processors of type aarch64 may reorder"),
        (sys, "maxsize", 2**31 - 1, "may reorder"),
        (os, "posix_fallocate", _no_room, "No space left"),
        (fcntl, "fcntl", _no_seals, "Invalid argument"),
        (mmap, "mmap", _no_map, "Cannot allocate memory"),
    ],
)
def test_a_machine_that_cannot_says_why_and_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, where, name: str, value, reason: str
) -> None:
    before = open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(where, name, value)
        with pytest.raises(NoSharedMemory, match=reason):
            make_segment(NONCE)
        with pytest.raises(ConfigError, match=f"transport is shm, .*{reason}"):
            require_shared_memory()
    assert open_descriptors() == before
    require_shared_memory()


def test_an_interpreter_without_memfd_is_no_error_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert (
        platforms.why_no_shared_memory() == f"this interpreter has no memfd_create ({sys.platform})"
    )
    with pytest.raises(NoSharedMemory, match="no memfd_create"):
        make_segment(NONCE)


def test_a_listener_whose_processor_reorders_refuses_what_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fd = sealed(HEAD)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(NoSharedMemory, match="aarch64"):
        take_segment(fd, NONCE)
