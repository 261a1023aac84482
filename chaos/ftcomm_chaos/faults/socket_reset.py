"""Resets connections of a running process from outside, without its help and without a proxy.

The process's own sockets are borrowed (``pidfd_getfd``) and disconnected.  The right to do so is
that of a debugger: the same user, where the system lets one trace what is not one's child, or root.
"""

import contextlib
import ctypes
import errno
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ftcomm_chaos.faults.processes import open_pidfd

_PIDFD_GETFD = 438  # the number of the system call, the same on all processors that Linux runs on
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
Address = tuple[str, int]


def missing() -> str:
    """Name what this machine lacks for duplicating another process's sockets; empty if nothing."""
    if _LIBC is None:
        return "needs Linux (pidfd_getfd)"
    near, far = socket.socketpair()
    with near, far:
        try:
            _borrow(open_pidfd(os.getpid()), near.fileno()).close()
        except OSError as error:
            return f"cannot borrow a socket of another process (pidfd_getfd): {error.strerror}"
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if os.geteuid() != 0 and scope.exists() and scope.read_text().strip() != "0":
        return f"may not borrow sockets of processes that are not children ({scope} is not 0)"
    return ""


def connections(pid: int) -> list[tuple[Address, Address]]:
    """The two ends of a process's established TCP connections, its own first.

    Raises:
        OSError: as `reset`.
    """
    return [ends for _, ends in _connections(pid)]


def reset(pid: int, wanted: Callable[[Address, Address], bool]) -> list[tuple[Address, Address]]:
    """End a process's established TCP connections for which ``wanted(own, other)`` says so.

    Returns:
        The two ends of each.

    Raises:
        OSError: the process has ended, or its sockets may not be borrowed.
    """
    found = []
    for sock, ends in _connections(pid):
        if wanted(*ends):
            _disconnect(sock)
            found.append(ends)
    return found


def _connections(pid: int) -> Iterator[tuple[socket.socket, tuple[Address, Address]]]:
    """Each established TCP connection, which is open until the next one, and its two ends."""
    for sock in _sockets_of(pid):
        with sock:
            ends = _ends(sock)
            if ends is not None:
                yield sock, ends


def _sockets_of(pid: int) -> Iterator[socket.socket]:
    pidfd = open_pidfd(pid)
    try:
        for entry in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda path: int(path.name)):
            with contextlib.suppress(FileNotFoundError):
                if entry.readlink().name.startswith("socket:"):
                    with contextlib.suppress(OSError):  # closed since
                        yield _borrow(pidfd, int(entry.name))
    finally:
        os.close(pidfd)


def _ends(sock: socket.socket) -> tuple[Address, Address] | None:
    """Both ends of an established TCP connection, None for any other socket."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        return None
    try:
        return sock.getsockname()[:2], sock.getpeername()[:2]
    except OSError:  # a listener, or not connected
        return None


def _disconnect(sock: socket.socket) -> None:
    """RST for both ends, by connect() to nowhere; the owner's descriptor stays valid."""
    assert _LIBC is not None
    nowhere = (socket.AF_UNSPEC).to_bytes(2, sys.byteorder) + bytes(14)
    if _LIBC.connect(sock.fileno(), nowhere, len(nowhere)):
        number = ctypes.get_errno()
        if number != errno.ENOTCONN:
            raise OSError(number, os.strerror(number))


def _borrow(pidfd: int, number: int) -> socket.socket:
    assert _LIBC is not None
    borrowed = _LIBC.syscall(_PIDFD_GETFD, pidfd, number, 0)
    if borrowed < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return socket.socket(fileno=borrowed)
