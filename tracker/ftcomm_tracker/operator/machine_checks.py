"""Facts of this machine that `ftcomm-tracker doctor` judges without a tracker."""

import contextlib
import ctypes
import ipaddress
import socket
import sys

_FAR = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))  # for documents, RFC 5737
_TIMEX_BYTES = 512  # twice what Linux has; zeros ask, and change nothing
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


def reachable_addresses() -> list[str]:
    """Addresses of this machine that others may reach: no loopback, each once."""
    found = []
    for far, family in _FAR:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((far, 9))  # sends nothing: the system chooses the way
                found.append(str(sock.getsockname()[0]))
        except OSError:  # no way
            continue
    try:
        entries = socket.getaddrinfo(socket.gethostname(), None)
    except OSError:  # the name has no address
        entries = []
    found += [str(entry[4][0]) for entry in entries]
    usable = [
        each for each in found if not ipaddress.ip_address(each.partition("%")[0]).is_loopback
    ]
    return list(dict.fromkeys(usable))


def is_clock_synchronised() -> bool | None:
    """True if a time service keeps this machine's clock; None where the system does not say."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
            return None if state < 0 else state != _UNSYNCHRONISED
    return None
