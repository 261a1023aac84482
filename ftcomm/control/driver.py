"""Driver: feeds the recovery core with what happens and carries out its effects, under trio.

All methods but `post`, `act` and `request_links` are for the control thread.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import trio

from ftcomm.config.job_settings import JobSettings
from ftcomm.config.memory_limits import memory_limit
from ftcomm.control.background import BackgroundError, run_in_background
from ftcomm.control.durable_tasks import DurableTasks
from ftcomm.control.hub import Hub
from ftcomm.control.messages.direct_receive import DirectReceive
from ftcomm.errors import FtcommError
from ftcomm.protocol.checksum_records import xxh3_digest
from ftcomm.protocol.messages import Leaves, Plan, Revoke, WorkerMessage
from ftcomm.recovery.events import (
    AskForMessages,
    CloseLinks,
    DescribeState,
    Discard,
    Effect,
    Event,
    FetchCopies,
    FetchParts,
    Hangup,
    MessagesWanted,
    PackVersion,
    Received,
    Redial,
    ResultFetched,
    SendControl,
    StartFetch,
    StartPrefetch,
    StartRestore,
    Wake,
    WriteVersion,
)
from ftcomm.recovery.machine import MachineLimits, WorkerState
from ftcomm.recovery.messages.message_exchange import MessageArrived
from ftcomm.recovery.states import state_in_words
from ftcomm.state.layout import Packed
from ftcomm.state.leaf_digests import leaves_of
from ftcomm.transport.shm_segment import require_shared_memory

# Messages that wait for a slow tracker. A worker has a handful in flight; more means that the
# tracker does not read, and the connection is given up and made anew.
OUTBOX_MESSAGES = 256
FetchOrder = StartFetch | StartPrefetch | FetchParts | FetchCopies | AskForMessages


class EpochScopes:
    """Cancel scopes of dials, fetches and serving. For the control thread alone."""

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()

    def __len__(self) -> int:
        return len(self._scopes)

    @contextlib.contextmanager
    def opened(self) -> Iterator[trio.CancelScope]:
        """Run the body until the epoch's links are closed, or it has ended by itself."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    def cancel(self) -> None:
        """End all that runs now."""
        for scope in list(self._scopes):
            scope.cancel()


class UserNews:
    """For the tasks of the control thread; the user's threads call `note` alone.

    A call for which nobody waits costs the user's thread one look.
    """

    def __init__(self, run_soon: Callable[[Callable[[], object]], None]) -> None:
        """`run_soon` runs a function on the control thread."""
        self._run_soon = run_soon
        self._watchers = 0
        self._event = trio.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator["UserNews"]:
        """While inside, `note` is heard."""
        self._watchers += 1
        try:
            yield self
        finally:
            self._watchers -= 1

    def next(self) -> trio.Event:
        """The event of what comes next; take it before looking for what has come."""
        return self._event

    def note(self) -> None:
        """On a thread of the user's: it has logged something."""
        if self._watchers:
            self._run_soon(self.tell)

    def tell(self) -> None:
        """On the control thread: wake who waits."""
        event, self._event = self._event, trio.Event()
        event.set()


class Driver:
    """The control thread's view of one communicator."""

    def __init__(self, hub: Hub, nursery: trio.Nursery) -> None:
        self.hub = hub
        self.nursery = nursery
        # Set, and replaced, whenever the core's state or epoch may have changed, and when the
        # segment of the epoch is decided.
        self.changed = trio.Event()
        self.hung_up = trio.Event()  # set when this process has no more part in the job
        self.epoch_scopes = EpochScopes()  # of the tasks that the end of the epoch's links ends
        # Numbers for attempts to dial links of several connections.
        self.attempts = itertools.count(1)
        self.outbox: trio.MemorySendChannel[WorkerMessage] | None = None
        self.cut_control: trio.CancelScope | None = None
        self.fetches: trio.MemorySendChannel[FetchOrder] | None = None
        self.dials: trio.MemorySendChannel[tuple[int, int]] | None = None
        self._unwritten = 0
        self._stop_reason = ""
        self._settings_of = ""  # the job, of this attempt, whose settings have been taken
        self._all_written = trio.Event()
        self._durable = DurableTasks(self)
        self._token = trio.lowlevel.current_trio_token()
        # What tasks wait for that serve parts of calls.
        self.contributions = UserNews(self.run_soon)
        self.message_news = UserNews(self.run_soon)  # what tasks wait for that send messages
        self.taken_news = UserNews(self.run_soon)  # what tasks wait for that have read far ahead

    # --- from any thread ----------------------------------------------------------------------

    def post(self, event: Event) -> None:
        """Have the control thread handle `event`."""
        self._soon(self.apply, event)

    def act(self, event: Event) -> None:
        """Change the core now, on the user's thread; its effects follow on the control thread."""
        with self.hub.lock:
            effects = self.hub.core.handle(event, now=time.monotonic())
        self._soon(self.perform, effects)

    def send(self, message: WorkerMessage) -> None:
        """Have a message sent that changes nothing here."""
        effects: list[Effect] = [SendControl(message)]
        self._soon(self.perform, effects)

    def request_links(self, epoch: int, ranks: Iterable[int]) -> None:
        """Have links to `ranks` dialled; they appear in the hub, or a suspicion does."""
        for rank in ranks:
            self._soon(self._queue_dial, epoch, rank)

    def run_soon(self, function: Callable[[], object]) -> None:
        """Run `function` on the control thread."""
        self._soon(function)

    def _soon(self, function: Callable[..., object], *arguments: object) -> None:
        # A control thread that has failed has left its error in the core, for the next look; as it
        # ends, the socket by which it is woken is closed first.
        with contextlib.suppress(trio.RunFinishedError, OSError):
            self._token.run_sync_soon(function, *arguments)

    # --- the control thread -------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Handle one event and carry out what follows."""
        core = self.hub.core
        before = (core.view.epoch, core.view.state)
        with self.hub.lock:
            effects = core.handle(event, now=time.monotonic())
            self._record()
        if isinstance(event, Received):
            self._note_message(event, before[0])
        elif isinstance(event, ResultFetched):
            self.hub.recovered.fetched += 1
        if (core.view.epoch, core.view.state) != before:
            self._note_change(before[1])
        self.perform(effects)

    def fail(self, error: FtcommError) -> None:
        """Nothing can go on here; the user's next call raises `error`."""
        with self.hub.lock:
            effects = self.hub.core.fail(error)
            self._record()
        self._note_change(None)
        self.perform(effects)

    def _record(self) -> None:
        """Under the lock: the user's thread has not gone on yet."""
        if self.hub.recorder is not None:
            self.hub.recorder.note(self.hub.core)

    def perform(self, effects: list[Effect]) -> None:
        """Carry out effects in order."""
        for effect in effects:
            match effect:
                case SendControl(message):
                    self._send(message)
                case CloseLinks():
                    self._close_links()
                case (
                    StartFetch() | StartPrefetch() | FetchParts() | FetchCopies() | AskForMessages()
                ) if self.fetches is not None:
                    self.fetches.send_nowait(effect)
                case Wake():
                    self.hub.wake.set()
                    self.hub.let_messages_move()
                    self.hub.receives.look(lambda source: self.apply(MessagesWanted(source)))
                case Discard(values):
                    with self.hub.lock:
                        for value in values:
                            self.hub.pool.give(value)
                case Hangup():
                    self.hung_up.set()
                case Redial():
                    self.cut()
                case DescribeState(version, value):
                    self.nursery.start_soon(self._describe, version, value)
                case PackVersion() | WriteVersion() | StartRestore():
                    self._durable.start(effect)

    def arrived(self, message: MessageArrived, direct: DirectReceive | None) -> None:
        """From any thread: a message has come; serve who waits for it, on this thread.

        `direct` is of the thread that reads the link for itself, None where none does.
        """
        if direct is not None:
            if self.hub.receives.hand_over(message, direct):
                return
            if direct.is_filling:
                message = message._replace(value=direct.own(message.value))
        with self.hub.lock:
            is_new = self.hub.core.messages.arrive(message)
        if is_new:
            self.hub.receives.arrived(message.source, message.tag)

    def cut(self) -> None:
        """End the control connection; the next address is dialled."""
        if self.cut_control is not None:
            self.cut_control.cancel()

    async def _describe(self, version: int, state: Packed) -> None:
        """Look at all of `state` on another thread, then say what is in it."""
        try:
            leaves = await run_in_background(leaves_of, state, abandon_on_cancel=True)
        except (BackgroundError, FtcommError, OSError) as error:  # the user's `from_state` runs
            self.hub.log.warning("the state cannot be described: %s", error, exc_info=error)
            return  # the tracker decides without it, after a while
        self._send(Leaves(version, leaves))

    def set_address(self, address: str, port: int) -> None:
        """Set the address at which others reach this worker, known once the listener is bound."""
        core = self.hub.core
        core.contact.identity = replace(core.contact.identity, address=address, port=port)

    def opened(self, outbox: trio.MemorySendChannel[WorkerMessage]) -> None:
        """A control connection is there; what was queued for an older one is gone with it."""
        self.outbox = outbox
        self._unwritten = 0

    def closed(self) -> None:
        """The control connection is gone, and what was queued for it: nobody may wait for that."""
        self.outbox = self.cut_control = None
        self._unwritten = 0
        self._all_written.set()

    def note_written(self) -> None:
        """The writer has given one more message to the kernel."""
        self._unwritten -= 1
        if not self._unwritten:
            self._all_written.set()

    async def flushed(self) -> None:
        """Return when everything queued for the tracker has been given to the kernel."""
        while self.outbox is not None and self._unwritten:
            self._all_written = trio.Event()
            await self._all_written.wait()

    def _send(self, message: WorkerMessage) -> None:
        if self.outbox is None:
            return  # not attached: what matters is repeated in the next hello
        try:
            self.outbox.send_nowait(message)
            self._unwritten += 1
        except (trio.WouldBlock, trio.BrokenResourceError):
            self.cut()

    def _close_links(self) -> None:
        self.hub.retire_links()
        self.epoch_scopes.cancel()

    def _queue_dial(self, epoch: int, rank: int) -> None:
        if self.dials is not None:
            self.dials.send_nowait((epoch, rank))

    def _note_message(self, event: Received, epoch_before: int) -> None:
        core, message = self.hub.core, event.message
        if core.contact.job_id != self._settings_of:
            self._take_settings()
        if isinstance(message, Revoke):
            self._stop_reason = message.reason
        if isinstance(message, Plan) and core.view.epoch == message.epoch != epoch_before:
            self.hub.planned_at = self.hub.caught_up_at = time.monotonic()
            self.hub.recovered.epochs += 1

    def _take_settings(self) -> None:
        """The job's settings hold from the welcome on, before any plan."""
        core = self.hub.core
        self._settings_of = core.contact.job_id
        self.hub.settings = settings = JobSettings.from_wire(core.contact.settings)
        self.hub.digest = None if settings.checksum == "none" else xxh3_digest
        self.hub.pool.keep_within(min(settings.log_limit, memory_limit() // 2))
        if settings.transport == "shm":
            require_shared_memory()
        limits = MachineLimits(
            detect_within=settings.detect_within,
            replicas=settings.replicas,
            local_replicas=settings.local_replicas,
            tracker_timeout=self.hub.options.tracker_timeout,
            reattach_within=settings.reattach_within,
            keep_by_all=settings.by_all_limit,
        )
        core.contact.set_limits(limits)

    def _note_change(self, state_before: WorkerState | None) -> None:
        core = self.hub.core
        if state_before is WorkerState.CATCHING_UP and core.view.state is WorkerState.RUNNING:
            self.hub.caught_up_at = time.monotonic()
        self.hub.refresh_log_context()
        self.hub.log.info("%s", state_in_words(core.view.state, self._stop_reason, core.view.error))
        self.wake_tasks()

    def wake_tasks(self) -> None:
        """Have the tasks that wait for `changed` look again."""
        self.changed.set()
        self.changed = trio.Event()
