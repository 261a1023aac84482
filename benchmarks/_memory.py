"""Limits of this machine: memory copied and added, bytes through the loopback."""

import os
import socket
import statistics
import time
from collections.abc import Callable

import numpy as np

NBYTES = 64 << 20  # far above the caches
TIMES = 5
CHUNK = 1 << 20


def memory_bytes() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def copied_per_s() -> float:
    """Bytes of one array copied into another, a second."""
    source, target = np.ones(NBYTES, np.uint8), np.zeros(NBYTES, np.uint8)
    return NBYTES / _median(lambda: np.copyto(target, source))


def added_per_s() -> float:
    """Bytes of one float32 operand added into another, a second."""
    one, other = np.ones(NBYTES // 4, np.float32), np.ones(NBYTES // 4, np.float32)
    return NBYTES / _median(lambda: np.add(one, other, out=other))


def looped_per_s() -> float:
    """Bytes through one TCP connection of the loopback, a second; two processes at its ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    sender = os.fork()
    if sender == 0:
        far.close()
        _send_when_asked(near)
        os._exit(0)
    near.close()
    with far:
        speed = NBYTES / _median(lambda: _receive(far))
    os.waitpid(sender, 0)
    return speed


def _send_when_asked(sock: socket.socket) -> None:
    """One load for each byte that comes, until the end."""
    load = np.ones(NBYTES, np.uint8).data  # written to, so that its pages are there
    while sock.recv(1):
        sock.sendall(load)


def _receive(sock: socket.socket) -> None:
    room = memoryview(bytearray(CHUNK))
    sock.sendall(b"?")
    left = NBYTES
    while left:
        left -= sock.recv_into(room[: min(left, CHUNK)])


def _median(action: Callable[[], object]) -> float:
    action()
    found = []
    for _ in range(TIMES):
        began = time.perf_counter()
        action()
        found.append(time.perf_counter() - began)
    return statistics.median(found)
