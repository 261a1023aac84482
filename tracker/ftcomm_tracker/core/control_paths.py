"""Control paths: from which machine each worker has called, and who cannot dial its address. Pure.

A worker that reached the tracker by loopback listens there too, and no other machine can dial it.
Names of hosts prove nothing here: containers of one machine have several, cloned machines one.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from ftcomm.config.ip_addresses import is_loopback
from ftcomm.protocol.messages import Hello


@dataclass(frozen=True, slots=True)
class ControlPath:
    """Both ends of a worker's connection, as the tracker sees them.

    Attributes:
        peer: address of the worker's end.
        tracker: address and port of the tracker's end, in one text.
        is_local: the worker is on the tracker's machine.
    """

    peer: str
    tracker: str
    is_local: bool

    @property
    def machine(self) -> str:
        """Address of the worker's machine, empty for the tracker's own."""
        return "" if self.is_local else self.peer


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A worker that advertises loopback, and one on another machine.

    Attributes:
        conn: connection of the former.
        cause: both, and what to do, in words.
    """

    conn: int
    cause: str


@dataclass(slots=True)
class ControlPaths:
    """The connections of workers whose paths are known, by number."""

    _by_conn: dict[int, tuple[Hello, ControlPath]] = field(default_factory=dict)
    _by_machine: dict[str, set[int]] = field(default_factory=dict)
    _loopback: set[int] = field(default_factory=set)  # those that advertise it

    def note(self, conn: int, hello: Hello, path: ControlPath | None) -> None:
        """A worker has said hello."""
        if path is None:
            return
        self._by_conn[conn] = hello, path
        self._by_machine.setdefault(path.machine, set()).add(conn)
        if is_loopback(hello.address):
            self._loopback.add(conn)

    def forget(self, conn: int) -> None:
        """A connection has ended."""
        if conn in self._by_conn:
            _, path = self._by_conn.pop(conn)
            self._loopback.discard(conn)
            self._by_machine[path.machine].discard(conn)
            if not self._by_machine[path.machine]:
                del self._by_machine[path.machine]

    def unreachable(self, conn: int, among: Collection[int]) -> Unreachable | None:
        """Return the first pair of `conn` and a connection `among` others that cannot dial."""
        if conn not in self._by_conn:
            return None
        hello, path = self._by_conn[conn]
        for other in self._candidates(conn, path.machine):
            # a process of the same worker is about to be fenced
            if other in among and self._by_conn[other][0].worker_id != hello.worker_id:
                pair = (conn, other) if conn in self._loopback else (other, conn)
                return Unreachable(pair[0], self._cause(*pair))
        return None

    def _candidates(self, conn: int, machine: str) -> Iterator[int]:
        """Connections from other machines, of which one end of the pair advertises loopback."""
        if conn not in self._loopback:
            yield from (c for c in self._loopback if c not in self._by_machine[machine])
            return
        for other, conns in self._by_machine.items():
            if other != machine:
                yield from conns

    def _cause(self, conn: int, caller: int) -> str:
        (hello, path), (other, its_path) = self._by_conn[conn], self._by_conn[caller]
        remedy = "set its FTCOMM_BIND, or FTCOMM_ADVERTISE, to an address that others can dial"
        if is_loopback(path.peer):  # else it dialled another address, and its settings say loopback
            anew = f"start worker {hello.worker_id} with FTCOMM_TRACKER={its_path.tracker}"
            remedy = f"{anew}, or {remedy}"
        return (
            f"worker {hello.worker_id} on {hello.host} advertises loopback ({hello.address}) to"
            f" worker {other.worker_id}, which comes from another machine or network"
            f" ({other.host}, {its_path.peer}): {remedy}"
        )
