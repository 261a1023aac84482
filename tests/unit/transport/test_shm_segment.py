"""Segments: what is made, what is mapped, and what is refused with a reason."""

import fcntl
import mmap
import os
import platform
import sys

import pytest

from ftcomm.config import platforms
from ftcomm.errors import ConfigError
from ftcomm.transport.shm_segment import (
    NoSharedMemory,
    make_segment,
    map_segment,
    require_shared_memory,
)
from tests.helpers.descriptors import open_descriptors

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="no memfd_create on this system"
)
SIZE = 3 * mmap.PAGESIZE


def test_both_ends_see_the_same_memory_which_has_no_name_and_a_fixed_size() -> None:
    fd = make_segment(SIZE)
    one, other = (map_segment(fd, SIZE) for _ in range(2))
    one[-1:] = b"!"
    assert other[-2:] == b"\0!"
    for size in (0, SIZE + 1):  # a peer that could would kill this process
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    assert os.fstat(fd).st_nlink == 0
    assert os.fstat(fd).st_blocks * 512 >= SIZE, "all of its memory is there from the start"
    assert not os.get_inheritable(fd)
    os.close(fd)


def unsealed(size: int = SIZE) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    return fd


def sealed(size: int) -> int:
    fd = unsealed(size)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (unsealed, "its size is not sealed"),
        (lambda: sealed(SIZE - 1), "mapping a segment failed"),
        (lambda: sealed(0), "mapping a segment failed"),
        (lambda: sealed(SIZE + 1), f"it has {SIZE + 1} bytes instead of {SIZE}"),
        (lambda: os.open(os.devnull, os.O_RDWR), "mapping a segment failed"),
        (lambda: os.memfd_create("x"), "not sealed"),
    ],
    ids=["unsealed", "short", "empty", "of-another-layout", "device", "unsealable"],
)
def test_what_is_no_segment_is_refused_with_its_reason(make, complaint) -> None:
    before = open_descriptors()
    fd = make()
    with pytest.raises(NoSharedMemory, match=complaint):
        map_segment(fd, SIZE)
    os.close(fd)
    assert open_descriptors() == before


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
        make_segment(SIZE)


def test_a_rank_whose_processor_reorders_refuses_what_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fd = make_segment(SIZE)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(NoSharedMemory, match="aarch64"):
        map_segment(fd, SIZE)
    os.close(fd)
