"""A port for a process that is started later: nobody else gets it by chance in the meantime."""

import random
import socket
from pathlib import Path

FIRST = 10_000  # below it are those of well-known services
LAST = 65_535
TRIES = 100
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_RANGE = (32_768, 60_999)


def unused_port(host: str) -> int:
    """Return a port on which nobody listens at `host`.

    It is none that the kernel gives to outgoing connections and to who asks for any port: it would
    give a port that is free for now to the next who asks.

    Raises:
        OSError: all that were tried are in use.
    """
    low, high = _kernel_range()
    others = [*range(FIRST, low), *range(max(high + 1, FIRST), LAST + 1)]
    ports = others or list(range(FIRST, LAST + 1))
    for _ in range(TRIES):
        port: int = random.SystemRandom().choice(ports)
        if _is_free(host, port):
            return port
    raise OSError(f"{TRIES} ports of {host} are in use")


def _kernel_range() -> tuple[int, int]:
    try:
        low, high = map(int, _RANGE_FILE.read_text().split())
    except (OSError, ValueError):  # not Linux, or hidden
        return _USUAL_RANGE
    return low, high


def _is_free(host: str, port: int) -> bool:
    try:
        with socket.create_server((host, port)):
            return True
    except OSError:
        return False
