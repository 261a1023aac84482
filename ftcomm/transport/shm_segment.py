"""Segments: memory of two processes that nothing on the file system names.

Made by memfd_create, so it needs no /dev/shm and goes with its last user, however that one ends.
Its size is sealed: a peer that made it smaller would kill this process at the next byte.
"""

import contextlib
import mmap
import os
import sys

from ftcomm.config.platforms import why_no_shared_memory
from ftcomm.errors import ConfigError, ProtocolError
from ftcomm.transport.shm_layout import (
    HEAD_BYTES,
    NONCE_BYTES,
    RING_BYTES,
    answer_part,
    pack_head,
    segment_bytes,
    unpack_head,
)

_NOEXEC_SEAL = 8  # MFD_NOEXEC_SEAL, which some systems demand since Linux 6.3


class NoSharedMemory(Exception):  # noqa: N818 - a reason, not an error: sockets do as well
    """Error that explains why this process and a peer cannot share memory."""


class Segment:
    """One mapped segment, of one link in one epoch; never used again.

    Attributes:
        map: its bytes, shared with the peer.
        ring_bytes: of each of its rings.
        side: 0 for who made it, 1 for who was given it.
    """

    __slots__ = ("_fd", "map", "ring_bytes", "side")

    def __init__(self, fd: int, ring_bytes: int, side: int) -> None:
        self.ring_bytes = ring_bytes
        self.side = side
        self.map = mmap.mmap(fd, segment_bytes(ring_bytes))
        self._fd = fd

    @property
    def fd(self) -> int:
        """The descriptor to give to the peer, until `forget_fd`."""
        return self._fd

    @property
    def answer(self) -> bytes:
        """Nonce of the listener, which shows that it sees this memory."""
        return self.map[answer_part()]

    @answer.setter
    def answer(self, nonce: bytes) -> None:
        self.map[answer_part()] = nonce

    def forget_fd(self) -> None:
        """Close the descriptor; the mapping stays."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Give the memory back; what still looks into it keeps it until it is gone too."""
        self.forget_fd()
        with contextlib.suppress(BufferError):
            self.map.close()


def require_shared_memory() -> None:
    """Return if this process can make a segment.

    Raises:
        ConfigError: it cannot, and the job's transport asks for it.
    """
    try:
        make_segment(bytes(NONCE_BYTES)).close()
    except NoSharedMemory as error:
        raise ConfigError(
            f"the job's transport is shm, and this worker cannot share memory: {error}",
            remedy="start the tracker with --transport auto",
        ) from error


def make_segment(nonce: bytes, ring_bytes: int = RING_BYTES) -> Segment:
    """A new segment with all its memory.

    Raises:
        NoSharedMemory: this machine has none to share.
    """
    lacking = why_no_shared_memory()
    if lacking is not None:
        raise NoSharedMemory(lacking)
    try:
        fd = sealed_memfd(segment_bytes(ring_bytes))
    except OSError as error:
        raise NoSharedMemory(f"making a segment failed: {error}") from error
    segment = _mapped(fd, ring_bytes, 0)
    head = pack_head(ring_bytes, nonce)
    segment.map[: len(head)] = head
    return segment


def take_segment(fd: int, nonce: bytes) -> Segment:
    """The segment behind a peer's descriptor, which this takes over.

    Raises:
        NoSharedMemory: it cannot be used here; the text says why.
    """
    with contextlib.ExitStack() as unless_mapped:
        unless_mapped.callback(os.close, fd)
        lacking = why_no_shared_memory()
        if lacking is not None:
            raise NoSharedMemory(lacking)
        try:
            must_be_sealed(fd)
            nbytes = os.fstat(fd).st_size
            with mmap.mmap(fd, HEAD_BYTES) as head:
                ring_bytes = unpack_head(head[:], nbytes, nonce)
        except (OSError, ValueError, ProtocolError) as error:  # ValueError: smaller than its map
            raise NoSharedMemory(f"the peer's segment is of no use: {error}") from error
        unless_mapped.pop_all()
    segment = _mapped(fd, ring_bytes, 1)
    segment.forget_fd()
    return segment


def _mapped(fd: int, ring_bytes: int, side: int) -> Segment:
    try:
        return Segment(fd, ring_bytes, side)
    except OSError as error:
        os.close(fd)
        raise NoSharedMemory(f"mapping a segment failed: {error}") from error


if sys.platform == "linux":
    import fcntl

    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

    def sealed_memfd(nbytes: int, *, at_once: bool = True) -> int:
        """Memory whose size nobody can change; all of it is there `at_once`, or nothing is."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            fd = os.memfd_create("ftcomm", flags | _NOEXEC_SEAL)
        except OSError:  # an older system does not know the flag
            fd = os.memfd_create("ftcomm", flags)
        try:
            if at_once:  # at the first touch only a signal could say that there is no room
                os.posix_fallocate(fd, 0, nbytes)
            else:
                os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError:
            os.close(fd)
            raise
        return fd

    def must_be_sealed(fd: int) -> None:
        """Raise if somebody could change the size of what is behind a descriptor."""
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if seals & _SEALS != _SEALS:
            raise ProtocolError(f"its size is not sealed ({seals:#x})")

else:

    def sealed_memfd(nbytes: int, *, at_once: bool = True) -> int:
        """There is none on this system."""
        raise NoSharedMemory(f"no {nbytes} bytes to share on {sys.platform}, {at_once=}")

    def must_be_sealed(fd: int) -> None:
        """There is nothing to seal."""
        raise NoSharedMemory(f"descriptor {fd} cannot be sealed on {sys.platform}")
