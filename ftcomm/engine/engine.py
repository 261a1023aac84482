"""Engine: takes a rank's calls through failures, on the caller's thread.

Every call is one loop: ask the core what to do at this position; serve the log, wait, or execute;
say that it is complete, or find that the epoch was revoked meanwhile and ask again.  Serve beats
execute; the input is never written; the result is logged before anything is returned.  Calls that
are more than that have a loop of their own in `runs/`.
"""

from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.config.deadline import Limit, QueuedLimit, overdue
from ftcomm.control.hub import Deadline, Hub
from ftcomm.control.thread import ControlThread
from ftcomm.engine.locked_machine import LockedMachine
from ftcomm.engine.message_port import MessagePort
from ftcomm.engine.persistent_request import PersistentRequest, persistent
from ftcomm.engine.runs.checkpoint import CheckpointRuns
from ftcomm.engine.runs.closing import Closing
from ftcomm.engine.runs.contributed import ContributedRuns
from ftcomm.engine.runs.cut_check import CutCheck
from ftcomm.engine.runs.input_check import is_same_input, other_input_error
from ftcomm.engine.runs.replay_check import ReplayCheck
from ftcomm.errors import ClosedError, CollectiveTimeoutError, FtcommError, LogLimitError
from ftcomm.execution.data_plane import DataPlane, Turn
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import (
    Kind,
    is_compatible,
    is_contributed,
    is_copied,
    signature_text,
)
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import FatalFound, Leaving
from ftcomm.recovery.machine import Checkpoint, NextStep, WorkerState
from ftcomm.recovery.recent_calls import Called
from ftcomm.requests.builder import Group
from ftcomm.requests.request import (
    AnyRequest,
    CheckpointPayload,
    CollectiveSpec,
    DeferredInput,
    OpenBroadcast,
    Request,
)
from ftcomm.state.layout import Packed

P = ParamSpec("P")
R = TypeVar("R")


def _no_fault(_: str) -> None:
    """Nothing happens at any point: no faults are planned for this process."""


class DistributedEngine:
    """An engine of a group under a tracker; used by one thread."""

    def __init__(self, hub: Hub, control: ControlThread) -> None:
        self._hub = hub
        self._core = hub.core
        self._view = hub.core.view
        self._progress = hub.core.progress
        self._control = control
        self._fault: Callable[[str], None] = _no_fault if hub.faults is None else hub.fault
        self._plane = plane = DataPlane(hub, control)
        self._machine = machine = LockedMachine(hub, control)
        messages = MessagePort(hub, control)
        cut = CutCheck(hub, control, plane, machine, messages)
        self._contributed = ContributedRuns(hub, control, plane, machine, self.condemn)
        self._check = ReplayCheck(hub, plane)
        self._checkpoints = CheckpointRuns(hub, plane, machine, cut, self._fault)
        self._closing = Closing(hub, control, plane, machine, cut)
        self.recovered = hub.recovered
        self.unasked = hub.core.log.unasked
        self.messages: MessagePort | None = messages

    # --- what a request depends on --------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's place; it never changes."""
        return self._view.rank

    @property
    def world_size(self) -> int:
        """Number of places."""
        return self._core.contact.world_size

    @property
    def group(self) -> Group:
        """The group as requests depend on it."""
        core, settings = self._core, self._hub.settings
        return Group(
            rank=core.view.rank,
            world_size=core.contact.world_size,
            grouping=core.view.grouping,
            algorithm=settings.algorithm,
        )

    @property
    def epoch(self) -> int:
        """The epoch whose plan is in force."""
        return self._view.epoch

    @property
    def position(self) -> Position:
        """The collective that this worker will complete next."""
        return self._progress.position

    @property
    def incarnation(self) -> int:
        """This process's number among those of its worker, from 1."""
        return self._core.contact.incarnation

    @property
    def is_replaying(self) -> bool:
        """True while the next call is served and not executed."""
        return self._progress.position < self._view.frontier

    @property
    def error(self) -> FtcommError | None:
        """Error that ended this communicator; None while it runs."""
        return self._view.error

    @property
    def log_limit(self) -> int:
        """Bytes of results that the job allows between two checkpoints."""
        return self._hub.settings.log_limit

    @property
    def call_deadline(self) -> float | None:
        """Seconds that a call may take where its caller says nothing else; None is no limit."""
        return self._hub.settings.call_deadline or None

    @property
    def watches_states(self) -> bool:
        """True if writes to the content of a lazy checkpoint must be detected."""
        return self._hub.settings.watches_states

    def lend(self, count: int, dtype: AnyDtype) -> Array:
        """Memory for a result that the user gets; taken back when the user has released it."""
        with self._hub.lock:
            return self._hub.pool.lend(count, dtype)

    @property
    def replicas(self) -> int:
        """Copies of each stable result."""
        return self._hub.settings.replicas

    def report_log(self, nbytes: Callable[[], int]) -> None:
        """Tell the tracker, with each heartbeat, how much the log holds."""
        self._hub.log_bytes = nbytes

    def report_queue(self, earliest: Callable[[], QueuedLimit | None]) -> None:
        """Have the control thread ask, with each heartbeat, which queued limit passes first."""
        self._hub.queued_limit = earliest

    # --- calls --------------------------------------------------------------------------------

    def wait_until_member(self) -> None:
        """Return when this worker has a rank and everything that the plan gave it.

        Raises:
            FtcommError: refused, or the tracker could not be reached.
        """
        self._machine.wait_for(lambda: self._view.state is WorkerState.RUNNING)
        self._fault("ranked")

    def within(
        self,
        limit: Limit | None,
        call: AnyRequest,
        body: Callable[P, R],
        /,
        *arguments: P.args,
        **rest: P.kwargs,
    ) -> R:
        """Run `body`, which is `call`; if it takes longer than `limit`, the job ends for all."""
        if limit is None:
            return body(*arguments, **rest)
        if limit.is_past:  # the control thread looks now and then, and might come too late
            self._expire(limit, call)
        hub = self._hub
        hub.deadline = Deadline(self._progress.position, limit)
        try:
            return body(*arguments, **rest)
        finally:
            hub.deadline = None

    def _expire(self, limit: Limit, call: AnyRequest) -> NoReturn:
        """End the job for all: the time of `call` is over, and it has its turn only now."""
        waited = "it was waiting for its turn behind earlier calls"
        words = overdue(self.rank, signature_text(call.known), call.site, limit.seconds, waited)
        self.end_by(CollectiveTimeoutError(words))

    def persistent(self, form: CollectiveSpec) -> PersistentRequest | None:
        """Calls of `form` in few steps; None where each has something to do in between."""
        return persistent(self._hub, self._plane, form, self._machine.complete)

    def run(self, request: AnyRequest) -> LoggedResult:
        """One collective, served or executed; the log owns what is returned."""
        if isinstance(request, Request):
            stored = self._entered(self._run, request)
        elif isinstance(request, DeferredInput):
            stored = self._entered(self._run_deferred, request)
        else:
            stored = self._entered(self._run_open, request)
        self._fault("done")
        return stored

    def _entered(self, body: Callable[P, R], /, *arguments: P.args, **rest: P.kwargs) -> R:
        self._fault("enter")
        try:
            return body(*arguments, **rest)
        except BaseException as error:
            self._plane.cut_short(error)
            raise

    def _run(self, call: Request) -> LoggedResult:
        form, begin = call.form, self._progress.begin
        if form.contributed is not None:
            return self._contributed.run(call)
        while True:
            answer, turn = self._machine.ask(begin, form.signature, form.site)
            if answer is NextStep.EXECUTE:
                stored = self._execute(call, turn)
                if stored is not None and self._kept(call, turn[0], stored):
                    return stored
            elif isinstance(answer, LogEntry):
                logged: LoggedResult = answer.value
                if self._replayed(call, answer):
                    return logged
            else:
                self._hub.sleep()

    def _execute(self, call: Request, turn: Turn) -> LoggedResult | None:
        try:
            return self._plane.execute(call, turn)
        except LogLimitError as error:  # others may not know yet, and could not go on without us
            self.condemn(error)
            return None

    def _kept(self, call: Request, epoch: int, stored: LoggedResult) -> bool:
        """Log what was executed in `epoch`; False if that epoch was revoked."""
        if call.check is not None:
            call.check(stored)
        entry = LogEntry(call.form.signature, stored, stored.flat.nbytes)
        synchronising = call.form.kind is not Kind.BROADCAST or call.flush
        return self._machine.complete(epoch, entry, synchronising)

    def _replayed(self, call: Request, entry: LogEntry) -> bool:
        """Pass the call with the log's result; False: ask the core again."""
        form, rank = call.form, self.rank
        if call.check is not None and entry.signature == form.signature:
            call.check(entry.value)
        if not is_same_input(call, entry.signature, entry.value, rank):
            self.condemn(other_input_error(call, rank, self.position))
            return False
        return self._check.matches(entry, (form.signature,)) and self._machine.replay()

    # --- calls whose input or whose signature is not known yet ------------------------------------

    def _run_deferred(self, deferred: DeferredInput) -> LoggedResult:
        """Make the input only if the call is executed.

        While this rank waits for its turn the signature in flight is empty: it is not known.
        """
        return self._served_or_due(deferred) or self._run(deferred.make())

    def _served_or_due(self, lazy: DeferredInput) -> LoggedResult | None:
        """Return the logged result of a lazy call; None when the input is needed."""
        while True:
            answer, _ = self._machine.ask(self._progress.begin, b"", lazy.site)
            if answer is NextStep.EXECUTE:
                return None
            if isinstance(answer, LogEntry):
                if is_contributed(answer.signature):  # it needs this rank's input again
                    return None
                if not self._may_be(lazy, answer):  # of another call, it may have no result
                    continue
                stored = self._contributed.logged(answer)
                if stored is not None and self._replayed_lazy(answer, lazy, stored):
                    return stored
            else:
                self._hub.sleep()

    def _run_open(self, opened: OpenBroadcast) -> LoggedResult:
        while True:
            answer, turn = self._machine.ask(self._progress.begin, opened.known, opened.site)
            if answer is NextStep.EXECUTE:
                signature = self._plane.learn(opened, turn)
                if signature is not None:
                    call = opened.make(signature)
                    stored = self._execute(call, turn)
                    if stored is not None and self._kept(call, turn[0], stored):
                        return stored
            elif isinstance(answer, LogEntry):
                logged: LoggedResult = answer.value
                if self._may_be(opened, answer) and self._replayed_lazy(answer, opened, logged):
                    return logged
            else:
                self._hub.sleep()

    def _may_be(self, lazy: DeferredInput | OpenBroadcast, entry: LogEntry) -> bool:
        """Tell whether the log's call may be this one; if not, accuse this rank."""
        if is_compatible(lazy.known, entry.signature):
            return True
        with self._hub.lock:
            self._progress.call = Called(lazy.known, lazy.site)  # for the error about the two
        return self._check.matches(entry, (lazy.known,))

    def _replayed_lazy(
        self, entry: LogEntry, lazy: DeferredInput | OpenBroadcast, stored: LoggedResult
    ) -> bool:
        """Pass the call with the log's result `stored`; False: ask the core again."""
        lazy.check(stored)
        if is_copied(entry.signature):
            return self._machine.replay_copied()
        return self._machine.replay()

    # --- checkpoints and the close ----------------------------------------------------------------

    def checkpoint(self, saving: CheckpointPayload, form: CollectiveSpec) -> int:
        """Commit a checkpoint, and return its version."""
        self._fault("enter")
        return self._checkpoints.checkpoint(saving, form)

    @property
    def has_store(self) -> bool:
        """True if checkpoints are written to a store."""
        return self._checkpoints.has_store

    @property
    def known_version(self) -> int | None:
        """The version that load_checkpoint would give now, None if that is not known yet."""
        return self._checkpoints.known_version

    def local_state(self, version: int) -> Packed | None:
        """This rank's own local state of the loaded `version`; None if that has none."""
        return self._checkpoints.local_state(version)

    def load(self, raw: Packed, form: CollectiveSpec) -> Checkpoint:
        """load_checkpoint: served below the frontier, else executed by all."""
        checkpoint = self._entered(self._checkpoints.load, raw, form)
        self._fault("done")
        return checkpoint

    def close(self, call: Request) -> None:
        """The closing collective, then serve others until all have closed (rule R8)."""
        self._entered(self._closing.close, call.form)
        self._fault("done")
        self._closing.serve_until_all_have_closed(call.form.site)

    # --- the end --------------------------------------------------------------------------------

    def leave(self, reason: str, site: str = "") -> None:
        """An exception left the user's block: say so, so that nobody waits for a deadline."""
        self._control.driver.act(Leaving(reason, site))

    def condemn(self, error: FtcommError) -> None:
        """Have the tracker raise `error` on all ranks, this one included."""
        self._control.driver.act(FatalFound(type(error).__name__, error.cause))

    def abort(self) -> None:
        """Have the call that another thread runs here raise `ClosedError`."""
        self._control.fail_from_outside(ClosedError("the communicator was left during this call"))

    def end_by(self, error: FtcommError) -> NoReturn:
        """`condemn`, and raise the fatal decision here."""
        self.condemn(error)
        self._machine.wait_for(lambda: False)
        raise error

    def stop(self) -> None:
        """End the control thread and close every socket of this process."""
        self._hub.end_messages(ClosedError("the communicator ended before this message came"))
        self._control.stop()
        self._hub.close()
