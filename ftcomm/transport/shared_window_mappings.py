"""Mappings of a shared window by rank: a lock on one byte for each, held while it is mapped.

The kernel ends a lock with the last descriptor of its owner's, and a mapping has one of its own. So
a lock outlives nothing that looks into the memory: it goes when the process dies, however that
ends, and a forked child keeps it.  Process numbers would not do: they differ between containers.
"""

import os
import struct
import sys

if sys.platform == "linux":
    import fcntl

    _LOCK = struct.Struct("@hhqqi0q")  # struct flock of 64 bits: type, whence, start, length, owner

    def reopened(fd: int) -> int:
        """A descriptor of the same memory with locks of its own; -1 where there can be none."""
        try:
            return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # no /proc
            return -1

    def lock(fd: int, byte: int) -> bool:
        """Take the lock of a byte; False if that cannot be."""
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
        except OSError:
            return False
        return True

    def is_locked(fd: int, byte: int) -> bool:
        """Tell whether another descriptor locks a byte; True if that cannot be determined."""
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        try:
            found = _LOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
        except OSError:
            return True
        return bool(found[0] != fcntl.F_UNLCK)

else:

    def reopened(fd: int) -> int:
        """There is no such memory on this system."""
        del fd
        return -1

    def lock(fd: int, byte: int) -> bool:
        """Return False: this system has no such locks."""
        del fd, byte
        return False

    def is_locked(fd: int, byte: int) -> bool:
        """Return True: this system cannot tell."""
        del fd, byte
        return True
