"""CutCheck: at a checkpoint and at the close, all messages that were sent have been received (R21).

Each rank brings the balance of its messages, 8 bytes.  Over all ranks they add up to 0, or a
message is open: then a second exchange finds out whose, and one rank ends the job.
"""

from collections.abc import Iterable

from ftcomm.config.plurals import counted
from ftcomm.control.hub import Hub
from ftcomm.control.thread import ControlThread
from ftcomm.engine.locked_machine import LockedMachine
from ftcomm.errors import CollectiveMismatchError, JobLostError
from ftcomm.execution.data_plane import DataPlane, Turn
from ftcomm.execution.header_check import CallHeader
from ftcomm.protocol.frame_header import make_suffix
from ftcomm.recovery.events import FatalFound
from ftcomm.recovery.messages.names import MODULUS, TOTAL_BYTES, Total

BALANCE_BYTES = 8
_NUMBER_BYTES = 8
_ITEM_BYTES = _NUMBER_BYTES + TOTAL_BYTES
_STAGE = 1  # behind the exchange of balances


class CutCheck:
    """The check of one communicator."""

    def __init__(
        self, hub: Hub, control: ControlThread, plane: DataPlane, machine: LockedMachine
    ) -> None:
        self._hub, self._control, self._plane, self._machine = hub, control, plane, machine
        self._core = hub.core

    def balance(self) -> bytes:
        """This rank's part of the exchange."""
        with self._hub.lock:
            return self._core.messages.balance.to_bytes(BALANCE_BYTES, "little")

    @staticmethod
    def is_level(balances: Iterable[bytes]) -> bool:
        """All that was sent has been received."""
        return sum(int.from_bytes(each, "little") for each in balances) % MODULUS == 0

    def accuse(self, what: str, signature: bytes, site: str, turn: Turn) -> None:
        """Find the ranks between which a message is open, and end the job; all ranks call this."""
        size, rank = self._core.contact.world_size, self._core.view.rank
        with self._hub.lock:
            totals = [self._core.messages.totals(peer) for peer in range(size)]
        mine = b"".join(_packed(sent) + _packed(taken) for sent, taken in totals)
        header = CallHeader(*turn, make_suffix(signature, site))
        rows = self._plane.gather_digests_at(_STAGE, mine, header)
        if rows is None:
            return
        open_pair = _first_open([_unpacked(row) for row in rows])
        if open_pair is not None and open_pair.source == rank:
            self._control.driver.act(self._found(open_pair, what, site))
        view, epoch = self._core.view, turn[0]
        self._machine.wait_for(lambda: view.epoch != epoch or view.is_frozen)

    def _found(self, pair: "_OpenPair", what: str, site: str) -> FatalFound:
        with self._hub.lock:
            sent_at = self._core.messages.site_of(pair.destination, pair.taken)
        start = f"at {what} ({site}) rank {pair.destination} has received "
        source = f"from rank {pair.source} since the last checkpoint"
        if pair.sent > pair.taken:
            text = (
                f"{start}{pair.taken} of the {counted(pair.sent, 'message')} {source};"
                f" the first missing one was sent at {sent_at}: receive it before"
            )
            return FatalFound(CollectiveMismatchError.__name__, text)
        text = (
            f"{start}{counted(pair.taken, 'message')} {source}, and rank {pair.source} has sent"
            f" {pair.sent}: after its restart it has sent others than before"
        )
        return FatalFound(JobLostError.__name__, text)


class _OpenPair:
    """Two ranks, and how many messages one has sent and the other has received."""

    def __init__(self, source: int, destination: int, sent: int, taken: int) -> None:
        self.source, self.destination, self.sent, self.taken = source, destination, sent, taken


def _first_open(rows: list[list[tuple[Total, Total]]]) -> _OpenPair | None:
    """The first pair, in the order of ranks, whose totals differ; all ranks find the same one."""
    for source, row in enumerate(rows):
        for destination, (sent, _) in enumerate(row):
            taken = rows[destination][source][1]
            if sent != taken:
                return _OpenPair(source, destination, sent.number, taken.number)
    return None


def _packed(total: Total) -> bytes:
    return total.number.to_bytes(_NUMBER_BYTES, "little") + total.digest


def _unpacked(row: bytes) -> list[tuple[Total, Total]]:
    """By peer, what was sent to it and what was taken of it."""
    totals = [
        Total(int.from_bytes(row[at : at + _NUMBER_BYTES], "little"), item[_NUMBER_BYTES:])
        for at in range(0, len(row), _ITEM_BYTES)
        for item in [row[at : at + _ITEM_BYTES]]
    ]
    return list(zip(totals[::2], totals[1::2], strict=True))
