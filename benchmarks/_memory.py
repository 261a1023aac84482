"""What this machine can do at best: memory copied and added, bytes through the loopback."""

import socket
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np

NBYTES = 64 << 20  # far above the caches
TIMES = 5
CHUNK = 1 << 20


def copied_per_s() -> float:
    """Bytes of one array copied into another, a second."""
    source, target = np.ones(NBYTES, np.uint8), np.zeros(NBYTES, np.uint8)
    return NBYTES / _median(lambda: np.copyto(target, source))


def added_per_s() -> float:
    """Bytes of one float32 operand added into another, a second."""
    one, other = np.ones(NBYTES // 4, np.float32), np.ones(NBYTES // 4, np.float32)
    return NBYTES / _median(lambda: np.add(one, other, out=other))


def looped_per_s() -> float:
    """Bytes through one TCP connection of the loopback, a second; two threads at its ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        return NBYTES / _median(lambda: _through(near, far))


def _through(near: socket.socket, far: socket.socket) -> None:
    data, room = memoryview(bytearray(NBYTES)), memoryview(bytearray(CHUNK))
    sender = threading.Thread(target=near.sendall, args=(data,))
    sender.start()
    left = NBYTES
    while left:
        left -= far.recv_into(room[: min(left, CHUNK)])
    sender.join()


def _median(action: Callable[[], object]) -> float:
    action()
    found = []
    for _ in range(TIMES):
        began = time.perf_counter()
        action()
        found.append(time.perf_counter() - began)
    return statistics.median(found)
