"""Clients that are no workers: port scans, silence and garbage on the listeners of a job."""

import contextlib
import socket
from pathlib import Path
from typing import Self

SILENT = 70  # more than may be unauthenticated at once (rule R9)
SCANS = 20
GARBAGE = (
    b"GET / HTTP/1.1\r\nHost: tracker\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)),  # how TLS begins
    b"\xff" * 4096,
    bytes(4096),
    b"\n",
)
_LISTENING = "0A"  # a socket's state in /proc/net/tcp
Address = tuple[str, int]


class UnauthenticatedPeers:
    """Their connections; silent ones stay open until the block is left."""

    def __init__(self) -> None:
        self._silent = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._silent.close()

    def visit(self, address: Address) -> None:
        """Scan the port, talk nonsense to it, and leave more silent connections than it takes."""
        for words in (*GARBAGE, *(b"",) * SCANS):
            with socket.create_connection(address) as sock, contextlib.suppress(OSError):
                sock.sendall(words)
        for _ in range(SILENT):
            self._silent.enter_context(socket.create_connection(address))


def listeners_of(pid: int) -> list[Address]:
    """The IPv4 addresses on which a process listens."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            inodes.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return [_address(row[1]) for row in rows if row[3] == _LISTENING and row[9] in inodes]


def _address(text: str) -> Address:
    host, _, port = text.partition(":")
    return socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)
