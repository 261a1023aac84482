"""Segments: memory of the processes of a host that nothing on the file system names.

Made by memfd_create, so it needs no /dev/shm and goes with its last user, however that one ends.
Its size is sealed: a peer that made it smaller would kill this process at the next byte.
"""

import mmap
import os
import sys

from ftcomm.config.platforms import why_no_shared_memory
from ftcomm.errors import ConfigError

_NOEXEC_SEAL = 8  # MFD_NOEXEC_SEAL, which some systems demand since Linux 6.3


class NoSharedMemory(Exception):  # noqa: N818 - a reason, not an error: sockets do as well
    """Error that explains why this process cannot share memory."""


def require_shared_memory() -> None:
    """Return if this process can make a segment.

    Raises:
        ConfigError: it cannot, and the job's transport asks for it.
    """
    try:
        fd = make_segment(mmap.PAGESIZE)
        try:
            map_segment(fd, mmap.PAGESIZE)
        finally:
            os.close(fd)
    except NoSharedMemory as error:
        raise ConfigError(
            f"the job's transport is shm, and this worker cannot share memory: {error}",
            remedy="start the tracker with --transport auto",
        ) from error


def make_segment(nbytes: int) -> int:
    """The descriptor of a new segment with all its memory.

    Raises:
        NoSharedMemory: this machine has none to share.
    """
    lacking = why_no_shared_memory()
    if lacking is not None:
        raise NoSharedMemory(lacking)
    try:
        return _sealed_memfd(nbytes)
    except OSError as error:
        raise NoSharedMemory(f"making a segment failed: {error}") from error


def map_segment(fd: int, nbytes: int) -> mmap.mmap:
    """The memory behind a descriptor, which stays open.

    Raises:
        NoSharedMemory: it cannot be used here; the text says why.
    """
    lacking = why_no_shared_memory()
    if lacking is not None:
        raise NoSharedMemory(lacking)
    try:
        _must_be_sealed(fd)
        _must_have(fd, nbytes)
        return mmap.mmap(fd, nbytes)
    except (OSError, ValueError) as error:
        raise NoSharedMemory(f"mapping a segment failed: {error}") from error


def _must_have(fd: int, nbytes: int) -> None:
    """Raise ValueError unless the segment is of this layout's size."""
    found = os.fstat(fd).st_size
    if found != nbytes:
        raise ValueError(f"it has {found} bytes instead of {nbytes}")


if sys.platform == "linux":
    import fcntl

    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

    def _sealed_memfd(nbytes: int) -> int:
        """Memory whose size nobody can change, and all of it is there."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            fd = os.memfd_create("ftcomm", flags | _NOEXEC_SEAL)
        except OSError:  # an older system does not know the flag
            fd = os.memfd_create("ftcomm", flags)
        try:
            # At the first touch only a signal could say that there is no room.
            os.posix_fallocate(fd, 0, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _must_be_sealed(fd: int) -> None:
        """Raise ValueError if somebody could change the size of what is behind a descriptor."""
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if seals & _SEALS != _SEALS:
            raise ValueError(f"its size is not sealed ({seals:#x})")

else:

    def _sealed_memfd(nbytes: int) -> int:
        """There is none on this system."""
        raise NoSharedMemory(f"no {nbytes} bytes to share on {sys.platform}")

    def _must_be_sealed(fd: int) -> None:
        """There is nothing to seal."""
        raise NoSharedMemory(f"descriptor {fd} cannot be sealed on {sys.platform}")
