"""CutCheck: at a checkpoint and at the close, all messages that were sent have been received (R21).

Each rank brings the balance of its messages, 8 bytes.  Over all ranks they add up to 0, or a
message is open: then another exchange finds out whose, and one rank ends the job.

A balance counts only while nothing changes it.  Threads beside the one that makes the call may send
and receive until all ranks have come, since one of them may wait for such a message before it
comes.  So where a process has such threads all ranks exchange balances a second time, behind that,
and hold messages up until the call is over.
"""

import itertools
import struct
import threading
from collections.abc import Sequence

from ftcomm.config.plurals import counted
from ftcomm.control.background import BACKGROUND, RESERVE
from ftcomm.control.hub import Hub
from ftcomm.control.thread import ControlThread
from ftcomm.engine.locked_machine import LockedMachine
from ftcomm.engine.message_port import MessagePort
from ftcomm.errors import CollectiveMismatchError, JobLostError
from ftcomm.execution.data_plane import HELD_STAGE, TOTALS_STAGE, DataPlane
from ftcomm.execution.header_check import CallHeader
from ftcomm.protocol.signature import USUAL_CAUSE
from ftcomm.recovery.events import FatalFound
from ftcomm.recovery.messages.names import MODULUS, TOTAL_BYTES, Total

OPENING = struct.Struct("<Q?")  # a balance, and whether it may change
_BALANCE = struct.Struct("<Q")
_TOTAL = struct.Struct(f"<Q{TOTAL_BYTES}s")
# The library's, which send no messages.
_OWN_THREADS = ("ftcomm-control", "ftcomm-engine", BACKGROUND, RESERVE)


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

    def begin(self) -> None:
        """A checkpoint or close begins: note whether others than this thread send and receive.

        To be called before the tentative version can be reported, and followed by `end`.
        """
        others = _has_other_threads()
        with self._hub.lock:
            self._core.messages.hold.note_threads(others=others)

    def end(self) -> None:
        """The call is over: messages that were held up for it go on."""
        self._messages.end_cut()

    def opening(self, epoch: int) -> tuple[int, bool]:
        """This rank's part of the first exchange: its balance, and whether that may change.

        A signal's handler may have started a thread since `begin`.
        """
        others = _has_other_threads()
        with self._hub.lock:
            if others and self._core.view.allows_completion(epoch):  # else it is reported as noted
                self._core.messages.hold.note_threads(others=True)
            return self._core.messages.balance, self._core.messages.hold.may_change

    def is_level(
        self,
        what: str,
        site: str,
        balances: Sequence[int],
        changing: Sequence[bool],
        header: CallHeader,
    ) -> bool:
        """Tell whether no message is open, by the openings of all ranks.

        Returns:
            False if the core must be asked again; where a message is open, the job is over then.
        """
        final = self._held_balances(header) if any(changing) else balances
        if final is None:
            return False
        if sum(final) % MODULUS == 0:
            return True
        self._accuse(what, site, header)
        return False

    def _held_balances(self, header: CallHeader) -> list[int] | None:
        """Hold messages up, and exchange the balances, which stay as they are."""
        with self._hub.lock:
            if not self._core.view.allows_completion(header.epoch):
                return None  # the report has said how it was: others may not count on this balance
            self._core.messages.hold.begin_cut()
            balance = _BALANCE.pack(self._core.messages.balance)
        rows = self._plane.gather(balance, header, stage=HELD_STAGE)
        return None if rows is None else [balance for (balance,) in _BALANCE.iter_unpack(rows)]

    def _accuse(self, what: str, site: str, header: CallHeader) -> None:
        """Find the ranks between which a message is open, and end the job; all ranks call this."""
        size, rank = self._core.contact.world_size, self._core.view.rank
        with self._hub.lock:
            totals = [total for peer in range(size) for total in self._core.messages.totals(peer)]
        mine = b"".join(_TOTAL.pack(*total) for total in totals)
        rows = self._plane.gather(mine, header, stage=TOTALS_STAGE)
        if rows is None:
            return
        open_pair = _first_open(size, [Total(*each) for each in _TOTAL.iter_unpack(rows)])
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
                text += f"; rank {pair.source}, restarted, may have sent others; {USUAL_CAUSE}"
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
        contact, committed = self._core.contact, self._core.archive.committed
        is_later = contact.incarnation > 1 or contact.identity.spare
        return is_later and (committed is None or not committed.digest)


class _OpenPair:
    """Two ranks, and how many messages one has sent and the other has received."""

    def __init__(self, source: int, destination: int, sent: int, taken: int) -> None:
        self.source, self.destination, self.sent, self.taken = source, destination, sent, taken


def _first_open(size: int, totals: Sequence[Total]) -> _OpenPair:
    """The first pair, in the order of ranks, whose totals differ; all ranks find the same one.

    `totals` has, for each rank and peer, what was sent to the peer and what was taken of it.
    """
    for source, destination in itertools.product(range(size), repeat=2):
        sent = totals[2 * (source * size + destination)]
        taken = totals[2 * (destination * size + source) + 1]
        if sent != taken:
            return _OpenPair(source, destination, sent.number, taken.number)
    raise AssertionError("balances that do not add up are of totals that differ")


def _has_other_threads() -> bool:
    own = threading.current_thread()
    return any(t is not own and t.name not in _OWN_THREADS for t in threading.enumerate())
