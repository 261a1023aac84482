"""MessageExchange: this rank's messages, through failures (rule R21).

The sender logs a message when it is sent, and is done.  The receiver asks its source for all that
it lacks, once in an epoch: it says how far each stream has arrived, and the digest of that.  The
source sends what follows, as it is sent, until the epoch ends, and so also in later versions.  So a
link that was lost costs nothing: the next plan lets the receiver ask again.

A source may commit a version before its receiver does.  What comes of the next version is held
ahead until the receiver is there.

A receiver that was restarted has nothing, and gets all messages of the version again.  A sender
that was restarted sends them anew.  It logs them, and only what its receivers lack leaves this
rank.  What they have must be what it sends now: digests are compared when the log has come as far.

A checkpoint is a cut: all that was sent has been taken.  Each rank adds up the weights of the
streams that it has sent, up to their ends, and takes off those of the streams that it has taken, as
far as it has; over all ranks the sum must be 0.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, assert_never

from ftcomm.protocol.field_types import MAX_TAGS
from ftcomm.recovery.call_progress import CallProgress
from ftcomm.recovery.epoch_view import EpochView
from ftcomm.recovery.events import (
    AskForMessages,
    Effect,
    FatalFound,
    LinkDown,
    MessagesClaimed,
    MessagesLost,
    MessagesWanted,
)
from ftcomm.recovery.messages.inbox import Inbox, Taker
from ftcomm.recovery.messages.names import MODULUS, Mark, StreamKey, Total
from ftcomm.recovery.messages.sent_log import SentLog, SentMessage
from ftcomm.recovery.states import Completion, WorkerState
from ftcomm.recovery.tracker_contact import TrackerContact

Marks = Mapping[bytes, Mark]  # by tag


class MessageArrived(NamedTuple):
    """Message `number` of a stream of `source` to this rank has arrived whole."""

    epoch: int
    source: int
    version: int
    tag: bytes
    number: int
    digest: bytes
    value: Any
    nbytes: int = 0


class Cursor(NamedTuple):
    """This rank's messages to a receiver that has asked, as far as they were sent."""

    version: int
    numbers: Mapping[bytes, int]  # of each tag, how many of that version it had when it asked
    at: int = 0  # entries of the log that were sent, or that it does not need


class MessageHold:
    """Times at which no message may be sent or taken, since others count on a balance.

    For the holder of the machine's lock.  A new version begins without a hold.
    """

    def __init__(self, view: EpochView, progress: CallProgress) -> None:
        self._view, self._progress = view, progress
        self._cut_in: int | None = None  # a version
        self._reported_in: int | None = None
        self._threads_in: int | None = None

    @property
    def is_on(self) -> bool:
        """True while messages are held up."""
        return self._progress.position.version in (self._cut_in, self._reported_in)

    @property
    def may_change(self) -> bool:
        """True while threads of this process may send and receive before a checkpoint's cut.

        Nobody has committed that checkpoint then, and a plan may not: messages that are on their
        way would be lost with its version.
        """
        version = self._progress.position.version
        return version == self._threads_in and version != self._cut_in

    def note_threads(self, *, others: bool) -> None:
        """This rank has come to a checkpoint or close; `others` may send and receive meanwhile."""
        self._threads_in = self._progress.position.version if others else None

    def begin_cut(self) -> None:
        """All ranks have come to a checkpoint or close, and exchange their balances."""
        self._cut_in = self._progress.position.version

    def end_cut(self) -> None:
        """This rank's call is over, be it by an error."""
        self._cut_in = self._threads_in = None

    def report(self) -> None:
        """The tracker hears the balance, and its plan may commit the tentative version."""
        self._reported_in = self._progress.position.version

    def take_plan(self) -> None:
        """A plan is here: messages go on.

        Others may have completed a cut that this rank has yet to replay.  Then they do not.
        """
        if self._progress.position >= self._view.frontier:
            self._cut_in = self._reported_in = None


class MessageExchange:
    """Messages of one worker. All methods are for the holder of the machine's lock.

    The user's thread sends and takes.  The control thread claims and reads the log for others.
    """

    def __init__(self, view: EpochView, contact: TrackerContact, progress: CallProgress) -> None:
        self._view, self._contact, self._progress = view, contact, progress
        self.sent, self._inbox = SentLog(), Inbox()
        self._ahead = Inbox()  # of the next version
        self._version = 0
        self._asked: set[int] = set()  # sources, since the last plan
        self._waits_since: dict[int, float] = {}
        self._early: dict[int, tuple[int, Marks]] = {}  # claims of a version yet to come here
        self._released: list[Any] = []
        self.hold = MessageHold(view, progress)  # whether messages are held up

    def _turn(self) -> None:
        """Begin the version that the position is in: what belongs to an older one is not needed."""
        version = self._progress.position.version
        if version != self._version:
            self._released += self.sent.commit()
            self._inbox = self._ahead if version == self._version + 1 else Inbox()
            self._ahead = Inbox()
            self._waits_since.clear()
            self._version = version
            early, self._early = self._early, {}
            for destination, (claimed, marks) in early.items():
                self._claim(destination, claimed, marks)

    def take_released(self) -> list[Any]:
        """Values of messages that nobody needs any more, for their memory to be used again."""
        self._turn()
        released, self._released = self._released, []
        return released

    @property
    def balance(self) -> int:
        """Of this version: what was sent, less what was taken. Over all ranks it is 0 at a cut."""
        self._turn()
        return (self.sent.weight - self._inbox.weight) % MODULUS

    def totals(self, peer: int) -> tuple[Total, Total]:
        """Of this version: all that was sent to `peer`, and all that was taken of it."""
        self._turn()
        return self.sent.total(peer), self._inbox.total(peer)

    def site_of(self, destination: int, index: int) -> str:
        """The line that sent a message, by its place among those to `destination`."""
        return self.sent.site_of(destination, index)

    def handle(
        self, event: MessagesWanted | MessagesClaimed | MessagesLost, now: float
    ) -> list[Effect] | FatalFound | LinkDown:
        """Ask for messages, or compare what others have of this rank's.

        Returns:
            what the driver must do, or what this rank has found.
        """
        match event:
            case MessagesWanted(source):
                self._turn()
                self._waits_since.setdefault(source, now)
                return self._ask(source)
            case MessagesClaimed(epoch, destination, version, marks):
                if epoch != self._view.epoch:
                    return []
                return self._claim(destination, version, dict(marks)) or []
            case MessagesLost(epoch, source, cause):
                is_needed = epoch == self._view.epoch and source in self._asked
                return LinkDown(epoch, source, cause) if is_needed else []
            case _:
                assert_never(event)

    # --- sending --------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes that the log of this version holds."""
        self._turn()
        return self.sent.nbytes

    def nbytes_with(self, destination: int, tag: bytes, nbytes: int) -> int | None:
        """Bytes that it would hold with one more message, of `nbytes`.

        Returns:
            None where that would have one tag more than a rank may send to another.
        """
        self._turn()
        if not self.sent.has_room_for((self._view.rank, destination, tag), MAX_TAGS):
            return None
        return self.sent.nbytes + nbytes

    def send(
        self, destination: int, tag: bytes, digest: bytes, value: Any, site: str, nbytes: int = 0
    ) -> FatalFound | None:
        """Log a message that counts with `nbytes`; the control thread sends it to who asks.

        Its `value` may be None: see `SentMessage.keep`.

        Returns:
            the job's end, where an earlier process of this rank has sent something else.
        """
        self._turn()
        self.sent.nbytes += nbytes
        stream = (self._view.rank, destination, tag)
        is_same = self.sent.add(stream, digest, value, site)
        return None if is_same else self._differs(stream)

    def _differs(self, stream: StreamKey) -> FatalFound:
        _, destination, _ = stream
        newest = self.sent.newest(stream)
        number, site = (0, "") if newest is None else (newest.number, newest.site)
        # digests are running: it may be an earlier one of these
        which = "the first message" if number == 1 else f"one of the first {number} messages"
        cause = (
            f"rank {self._view.rank} sent other bytes to rank {destination} at {site} than"
            f" before its restart ({which} of this tag since checkpoint {self._version}):"
            " make the script compute the same again"
        )
        return FatalFound("JobLostError", cause)

    # --- for others -----------------------------------------------------------------------------

    def _claim(self, destination: int, version: int, marks: Marks) -> FatalFound | None:
        """Take a receiver's word for what it has of this rank's messages.

        Returns:
            the job's end, where that is not what this rank has sent.
        """
        self._turn()
        if version > self._version:  # this rank was restarted, and has yet to load
            self._early[destination] = version, marks
        if version != self._version:
            return None
        for tag, mark in marks.items():
            stream = (self._view.rank, destination, tag)
            if not self.sent.claim(stream, mark):
                return self._differs(stream)
        return None

    def following(
        self, destination: int, cursor: Cursor, count: int
    ) -> tuple[Cursor, list[SentMessage]]:
        """Messages that come next, and how far that is; see `SentLog.behind`."""
        self._turn()
        version, numbers, at = cursor = _in_version(cursor, self._version)
        if version != self._version:
            return cursor, []
        at, found = self.sent.behind(destination, at, numbers, count)
        return Cursor(version, numbers, at), found

    def newest_behind(self, destination: int, cursor: Cursor) -> tuple[Cursor, SentMessage] | None:
        """The newest message, and how far that is, if it comes next; see `SentLog`."""
        self._turn()
        version, numbers, at = _in_version(cursor, self._version)
        if version != self._version:
            return None
        message = self.sent.newest_behind(destination, at, numbers)
        return None if message is None else (Cursor(version, numbers, at + 1), message)

    # --- receiving ------------------------------------------------------------------------------

    def _ask(self, source: int) -> list[Effect]:
        """Ask `source` for all messages that this rank lacks, unless it was asked in this epoch."""
        view = self._view
        if source in self._asked or not view.is_live or not view.members[source].present:
            return []
        self._asked.add(source)
        marks = self._inbox.marks(source)
        return [AskForMessages(view.epoch, source, self._version, marks)]

    def ask_again(self) -> list[Effect]:
        """A plan is in force: ask all whose messages have come here, also if no more are wanted.

        A source that was restarted hears what it must send again, while its script can be blamed.
        Receives that wait ask for themselves.
        """
        self._ahead = Inbox()  # first: nobody was given it, and its source may send something else
        self._turn()
        self._asked = set()
        orders: list[Effect] = []
        for source in sorted(self._inbox.sources()):
            orders += self._ask(source)
        return orders

    def arrive(self, arrived: MessageArrived) -> bool:
        """Hold a message that has come; False if it cannot be taken now, or not any more."""
        self._turn()
        view, version = self._view, arrived.version
        if arrived.epoch != view.epoch or not view.is_live:
            return False
        stream = (arrived.source, view.rank, arrived.tag)
        content = arrived.number, arrived.digest, arrived.value, arrived.nbytes
        if version == self._version + 1:
            self._ahead.put(stream, *content)
        return version == self._version and self._inbox.put(stream, *content)

    def pass_on(self, arrived: MessageArrived, taker: Taker, now: float) -> bool:
        """Take a message that has come for `taker`; False, and nothing is changed, if it may not.

        It need not be held then.  `arrive` and `receive` would do the same in two steps.
        """
        self._turn()
        view, source = self._view, arrived.source
        if arrived.epoch != view.epoch or not view.is_live or arrived.version != self._version:
            return False
        if now > self._contact.confirm_after or self.hold.is_on:
            return False
        stream = (source, view.rank, arrived.tag)
        if not self._inbox.pass_on(stream, arrived.number, arrived.digest, taker):
            return False
        self._waits_since.pop(source, None)
        return True

    def held(self, source: int) -> int:
        """Bytes of `source` that have arrived and were not taken."""
        self._turn()
        return self._inbox.held(source) + self._ahead.held(source)

    def must_ask(self, source: int) -> bool:
        """True where `MessagesWanted` of this source may have something to do."""
        self._turn()
        return source not in self._asked

    def next_number(self, source: int, tag: bytes) -> int:
        """Number of a stream's next message in this version; 0 where one waits to be taken."""
        self._turn()
        return self._inbox.next_number((source, self._view.rank, tag))

    def waiting(self, source: int, tag: bytes) -> Any | None:
        """The next message of a stream, which is left there; None where it has not come."""
        self._turn()
        return self._inbox.first((source, self._view.rank, tag))

    def receive(self, source: int, tag: bytes, now: float) -> tuple[Completion | None, Any]:
        """The next message of a stream.

        Returns:
            None and nothing where it has not come; else how it is completed, and its content.
        """
        self._turn()
        stream = (source, self._view.rank, tag)
        if not self._inbox.has(stream):
            return None, None
        state = self._view.state
        if state in (WorkerState.DETACHED, WorkerState.STOPPED, WorkerState.FAILED):
            return None, None
        if now > self._contact.confirm_after or self.hold.is_on:
            return Completion.CONFIRM_FIRST, None
        self._waits_since.pop(source, None)
        return Completion.DONE, self._inbox.take(stream)

    def lost_source(self, now: float) -> FatalFound | None:
        """The error for a source that has closed and stays away: nobody sends its messages again.

        It is awaited from when it is away: before that, its messages were to come.
        """
        latest = now - self._contact.limits.reattach_within
        for rank, away in self._view.absent_since.items():
            since = self._waits_since.get(rank)
            if since is not None and max(away, since) <= latest:
                member = self._view.members[rank]
                cause = (
                    f"rank {member.rank} (worker {member.worker_id}) has closed and is gone, and"
                    f" with it its messages to rank {self._view.rank}"
                )
                return FatalFound("JobLostError", cause)
        return None


def _in_version(cursor: Cursor, version: int) -> Cursor:
    """The cursor at its source: of a version that began since, nothing has left yet."""
    return cursor if cursor.version >= version else Cursor(version, {})
