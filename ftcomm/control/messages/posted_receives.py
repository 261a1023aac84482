"""PostedReceives: the receives of this rank that wait for a message.

Those of one stream are served in the order in which they were posted.  A message is taken under the
machine's lock, by the thread that posts where it is here already, else by the one that reads it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.config.deadline import Limit, overdue
from ftcomm.control.changes import Changes
from ftcomm.control.messages.direct_receive import DirectReceive, bytes_in
from ftcomm.errors import FtcommError
from ftcomm.memory.message_value import MessageValue
from ftcomm.memory.pool import Array
from ftcomm.protocol.message_head import MessageHead
from ftcomm.recovery.machine import Completion, WorkerMachine
from ftcomm.recovery.messages.message_exchange import MessageArrived

StreamName = tuple[int, bytes]  # source and tag


@dataclass(slots=True, eq=False)
class PostedReceive:
    """One receive, or one probe, which leaves the message where it is."""

    source: int  # the rank that sends
    tag: bytes  # of the message, as it travels
    what: str  # the call in the user's words
    site: str  # the user's line
    limit: Limit | None  # of the call's time; None for no limit
    # Told the message before it is taken; raises where it does not fit.
    check: Callable[[MessageValue], None]
    # Told the message or the error, under no lock; once, or again where Ctrl-C has cut that short.
    done: Callable[[MessageValue | None, BaseException | None], None]
    # Monotonic time at which a thread began to wait for it, set before it is posted; None where
    # none does.
    since: float | None = None
    # Where the user wants the message, if it can be received there: contiguous.
    out: Array | None = None
    is_probe: bool = False  # the message stays


# A receive that ends, and what it is told.
_Ended = tuple[PostedReceive, MessageValue | None, BaseException | None]


class PostedReceives:
    """All of one communicator; any thread may post."""

    def __init__(self, core: WorkerMachine, lock: threading.Lock) -> None:
        """`lock` guards `core`, and this."""
        self._core, self._lock = core, lock
        self._streams: dict[StreamName, deque[PostedReceive]] = {}
        self._error: FtcommError | None = None
        self._ends = Changes(lock)
        # Called when a message was taken, or is waited for.
        self.on_taken: Callable[[], None] = _nothing

    def post(self, receive: PostedReceive) -> bool:
        """Have `receive` done when its message is here.

        Returns:
            True if its source may have to be asked: the caller says `MessagesWanted`.
        """
        stream, ended = (receive.source, receive.tag), list[_Ended]()
        try:
            with self._lock:
                waiting = self._streams.get(stream)
                if waiting is None:
                    self._streams[stream] = deque([receive])
                else:
                    waiting.append(receive)
                self._serve(stream, ended)
                asks = stream in self._streams and self._core.messages.must_ask(receive.source)
            self._tell(ended)
        except BaseException:
            self._tell(ended)
            raise
        self.on_taken()
        return asks

    def arrived(self, source: int, tag: bytes) -> None:
        """A message has come: serve who waits for it, on this thread."""
        stream, ended = (source, tag), list[_Ended]()
        try:
            with self._lock:
                if stream in self._streams:
                    self._serve(stream, ended)
            self._tell(ended)
        except BaseException:  # Ctrl-C: other threads of this rank may wait for these
            self._tell(ended)
            raise

    def may_bypass(self, source: int, tag: bytes) -> bool:
        """True if the next message of a stream is for who does not post: nobody has before it.

        The first of a stream is not: it has to be held.
        """
        messages = self._core.messages
        with self._lock:
            return (
                (source, tag) not in self._streams
                and not messages.must_ask(source)
                and messages.next_number(source, tag) > 1
            )

    def hand_over(self, arrived: MessageArrived, direct: DirectReceive) -> bool:
        """Give a message to the thread that reads it for itself; False if it has to arrive."""
        source, tag, value = arrived.source, arrived.tag, arrived.value
        if (source, tag) != (direct.source, direct.tag):
            return False
        has_taken = False
        with self._lock:
            if direct.fits(value) and (source, tag) not in self._streams:
                has_taken = self._core.messages.pass_on(arrived, direct, time.monotonic())
        if has_taken:
            direct.value = value
        direct.is_over = True  # one way or the other: the thread reads no further
        return has_taken

    def look(self, ask: Callable[[int], None]) -> None:
        """Something has changed: serve whom it allows, and `ask` sources not asked yet."""
        if not (self._streams or self._ends.is_awaited):
            return
        self._serve_all()
        with self._lock:
            sources = {source for source, _ in self._streams}
            wanted = [s for s in sorted(sources) if self._core.messages.must_ask(s)]
        for source in wanted:
            ask(source)

    def _tell(self, ended: list[_Ended]) -> None:
        """Tell all of them; to be called again where Ctrl-C has cut it short."""
        if not ended:
            return
        try:
            while ended:
                receive, value, error = ended[0]
                receive.done(value, error)
                del ended[0]
        except Exception:  # no thread for its callbacks, say: once more would fail again
            del ended[0]
            self._tell(ended)
            raise
        self.on_taken()

    def _serve_all(self) -> None:
        ended: list[_Ended] = []
        try:
            with self._lock:
                if self._has_error():
                    self._ends.notify_all()
                for stream in list(self._streams):
                    self._serve(stream, ended)
            self._tell(ended)
        except BaseException:
            self._tell(ended)
            raise

    def _serve(self, stream: StreamName, ended: list[_Ended]) -> None:
        """Under the lock: add the receives of a stream that end now, which has some, to `ended`.

        Nothing is called between the two steps: Ctrl-C leaves each receive in one of the two.
        """
        waiting = self._streams[stream]
        while (end := self._end_of(waiting[0])) is not None:
            del waiting[0]
            ended += [end]
            if not waiting:
                del self._streams[stream]
                return

    def _end_of(self, receive: PostedReceive) -> _Ended | None:
        messages, error = self._core.messages, self._core.view.error or self._error
        if error is not None:
            return receive, None, error
        value: MessageValue | None = messages.waiting(receive.source, receive.tag)
        if value is None:
            return None
        try:
            receive.check(value)
        except Exception as mistake:  # noqa: BLE001 - the user's: the message stays for another one
            return receive, None, mistake
        if receive.is_probe:
            return receive, value, None
        outcome, _ = messages.receive(receive.source, receive.tag, time.monotonic())
        return (receive, value, None) if outcome is Completion.DONE else None

    def await_end(self) -> FtcommError:
        """Return the error of the job, which is about to end."""
        self._ends.wait_for(self._has_error)
        error = self._core.view.error or self._error
        assert error is not None, "it has ended"
        return error

    def _has_error(self) -> bool:
        return self._error is not None or self._core.view.error is not None

    def end(self, error: FtcommError) -> None:
        """The communicator has ended: each receive raises `error`."""
        with self._lock:
            self._error = error
        self._serve_all()

    @property
    def has_ended(self) -> bool:
        """True behind `end`."""
        return self._error is not None

    # --- for the control thread -----------------------------------------------------------------

    def may_read(self, source: int, limit: int) -> bool:
        """True where more of `source` may be read: little is held, or somebody waits for it."""
        with self._lock:
            is_waited_for = any(waited == source for waited, _ in self._streams)
            return is_waited_for or self._core.messages.held(source) < limit

    def place_for(self, source: int, head: MessageHead, dtype: AnyDtype) -> Array | None:
        """The user's own memory for a message of which the head has come; None for any other.

        It must be waited for, and be the next of its stream.
        """
        fields, messages = head.fields, self._core.messages
        tag, shape = fields.tag, fields.shape
        with self._lock:
            waiting = self._streams.get((source, tag))
            if not waiting or messages.next_number(source, tag) != head.number:
                return None
            if fields.version != self._core.progress.position.version:
                return None
            out = waiting[0].out
            if out is None or out.dtype != dtype or out.shape != shape:
                return None
            if not out.flags.writeable:  # the user has changed that meanwhile: `done` is told
                return None
            return bytes_in(out)

    def first_pending(self) -> PostedReceive | None:
        """A receive for which no thread waits, as of a handle or a task; None if there is none.

        One of a thread says by itself when it is done, and goes on over a checkpoint.
        """
        with self._lock:
            posted = (one for waiting in self._streams.values() for one in waiting)
            return next((one for one in posted if one.since is None), None)

    def longest_awaited(self) -> PostedReceive | None:
        """The receive for which a thread has waited longest; None where none waits."""
        with self._lock:
            posted = [one for waiting in self._streams.values() for one in waiting]
        awaited = [one for one in posted if one.since is not None]
        return min(awaited, key=lambda one: one.since or 0.0, default=None)

    def overdue(self) -> str | None:
        """The words for a receive that has waited too long; None where none has."""
        with self._lock:
            rank = self._core.view.rank
            for receive in (one for waiting in self._streams.values() for one in waiting):
                limit = receive.limit
                if limit is not None and limit.is_past:
                    waited = f"it was waiting for a message of rank {receive.source}"
                    return overdue(rank, receive.what, receive.site, limit.seconds, waited)
        return None


def _nothing() -> None:
    """Nobody reads ahead."""
