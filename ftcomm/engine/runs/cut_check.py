"""CutCheck: at a checkpoint and at the close, all messages that were sent have been received (R21).

Each rank brings the balance of its messages, 8 bytes.  Over all ranks they add up to 0, or a
message is open: then another exchange finds out whose, and one rank ends the job.

A balance counts only while nothing changes it.  Threads beside the one that makes the call may send
and receive until all ranks have come, since one of them may wait for such a message before it
comes.  So where a process has such threads all ranks exchange balances a second time, behind that,
and hold messages up until the call is over.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ftcomm.config.plurals import counted
from ftcomm.control.hub import Hub
from ftcomm.control.thread import ControlThread
from ftcomm.engine.locked_machine import LockedMachine
from ftcomm.engine.message_port import MessagePort
from ftcomm.engine.runs.input_check import USUAL_CAUSE
from ftcomm.errors import CollectiveMismatchError, JobLostError
from ftcomm.execution.data_plane import HELD_STAGE, TOTALS_STAGE, DataPlane, Turn
from ftcomm.execution.header_check import CallHeader
from ftcomm.protocol.frame_header import make_suffix
from ftcomm.recovery.events import FatalFound
from ftcomm.recovery.messages.names import MODULUS, TOTAL_BYTES, Total

_BALANCE_BYTES = 8
OPENING_BYTES = _BALANCE_BYTES + 1  # a balance, and whether it may change
_MAY_CHANGE, _STAYS = b"\x01", b"\x00"
_NUMBER_BYTES = 8
_ITEM_BYTES = _NUMBER_BYTES + TOTAL_BYTES
_OWN_THREADS = ("ftcomm-control", "ftcomm-engine")  # the library's, which send no messages


class CutCheck:
    """The check of one communicator."""

    def __init__(
        self,
        hub: Hub,
        control: ControlThread,
        plane: DataPlane,
        machine: LockedMachine,
        messages: MessagePort,
    ) -> None:
        self._hub, self._control, self._plane, self._machine = hub, control, plane, machine
        self._messages = messages
        self._core = hub.core

    @contextmanager
    def taken(self) -> Iterator[None]:
        """A cut is taken inside; messages that were held up for it go on behind."""
        try:
            yield
        finally:
            self._messages.end_cut()

    def note_threads(self) -> None:
        """Under the lock: note whether others than this thread may send and receive from now on."""
        self._core.messages.hold.note_threads(others=_has_other_threads())

    def opening(self, turn: Turn) -> bytes:
        """This rank's part of the first exchange of a call, in its `turn`."""
        with self._hub.lock:
            may_change = _has_other_threads()
            if self._core.view.allows_completion(turn[0]):  # else it is reported what was noted
                self._core.messages.hold.note_threads(others=may_change)
            return self._balance() + (_MAY_CHANGE if may_change else _STAYS)

    def _balance(self) -> bytes:
        return self._core.messages.balance.to_bytes(_BALANCE_BYTES, "little")

    def is_level(
        self, what: str, openings: Sequence[bytes], signature: bytes, site: str, turn: Turn
    ) -> bool:
        """Tell whether no message is open.

        Returns:
            False if the core must be asked again; where a message is open, the job is over then.
        """
        header = CallHeader(*turn, make_suffix(signature, site))
        balances: Sequence[bytes] | None = [opening[:_BALANCE_BYTES] for opening in openings]
        if any(opening[_BALANCE_BYTES:] == _MAY_CHANGE for opening in openings):
            balances = self._held_balances(header)
        if balances is None:
            return False
        if sum(int.from_bytes(each, "little") for each in balances) % MODULUS == 0:
            return True
        self._accuse(what, site, header)
        return False

    def _held_balances(self, header: CallHeader) -> list[bytes] | None:
        """Hold messages up, and exchange the balances, which stay as they are."""
        with self._hub.lock:
            if not self._core.view.allows_completion(header.epoch):
                return None  # the report has said how it was: others may not count on this balance
            self._core.messages.hold.begin_cut()
            balance = self._balance()
        return self._plane.gather_digests_at(HELD_STAGE, balance, header)

    def _accuse(self, what: str, site: str, header: CallHeader) -> None:
        """Find the ranks between which a message is open, and end the job; all ranks call this."""
        size, rank = self._core.contact.world_size, self._core.view.rank
        with self._hub.lock:
            totals = [self._core.messages.totals(peer) for peer in range(size)]
        mine = b"".join(_packed(sent) + _packed(taken) for sent, taken in totals)
        rows = self._plane.gather_digests_at(TOTALS_STAGE, mine, header)
        if rows is None:
            return
        open_pair = _first_open([_unpacked(row) for row in rows])
        if open_pair.source == rank:
            self._control.driver.act(self._found(open_pair, what, site))
        view, epoch = self._core.view, header.epoch
        self._machine.wait_for(lambda: view.epoch != epoch or view.is_frozen)

    def _found(self, pair: "_OpenPair", what: str, site: str) -> FatalFound:
        with self._hub.lock:
            sent_at = self._core.messages.site_of(pair.destination, pair.taken)
        start = f"at {what} ({site}) rank {pair.destination} has received "
        source = f"from rank {pair.source} since the last checkpoint"
        if pair.sent > pair.taken:
            text = (
                f"{start}{pair.taken} of {counted(pair.sent, 'message')} {source};"
                f" the first missing one was sent at {sent_at}"
            )
            if self._was_restarted():
                text += f"; rank {pair.source} was restarted, and may have sent others{USUAL_CAUSE}"
            else:
                text += ": receive it before"
            return FatalFound(CollectiveMismatchError.__name__, text)
        text = (
            f"{start}{counted(pair.taken, 'message')} {source}, and rank {pair.source} has sent"
            f" {pair.sent}: after its restart it has sent others than before"
        )
        return FatalFound(JobLostError.__name__, text)

    def _was_restarted(self) -> bool:
        """True if an earlier process of this rank was in this version: this one has loaded it."""
        contact, committed = self._core.contact, self._core.checkpoints.committed
        is_later = contact.incarnation > 1 or contact.identity.spare
        return is_later and (committed is None or not committed.digest)


class _OpenPair:
    """Two ranks, and how many messages one has sent and the other has received."""

    def __init__(self, source: int, destination: int, sent: int, taken: int) -> None:
        self.source, self.destination, self.sent, self.taken = source, destination, sent, taken


def _first_open(rows: list[list[tuple[Total, Total]]]) -> _OpenPair:
    """The first pair, in the order of ranks, whose totals differ; all ranks find the same one."""
    for source, row in enumerate(rows):
        for destination, (sent, _) in enumerate(row):
            taken = rows[destination][source][1]
            if sent != taken:
                return _OpenPair(source, destination, sent.number, taken.number)
    raise AssertionError("balances that do not add up are of totals that differ")


def _has_other_threads() -> bool:
    """Tell whether anything in this process may send or receive while its caller does not."""
    own = threading.current_thread()
    return any(t is not own and t.name not in _OWN_THREADS for t in threading.enumerate())


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
