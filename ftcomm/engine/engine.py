"""Engine: takes a rank's calls through failures, on the caller's thread.

Every call is one loop: ask the core what to do at this position; serve the log, wait, or execute;
say that it is complete, or find that the epoch was revoked meanwhile and ask again.  Serve beats
execute; the input is never written; the result is logged before anything is returned.
"""

import time
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.config.deadline import Limit, QueuedLimit, overdue
from ftcomm.control.hub import Deadline, Hub
from ftcomm.control.thread import ControlThread
from ftcomm.engine.contributed_runs import ContributedRuns
from ftcomm.engine.cut_check import BALANCE_BYTES, CutCheck
from ftcomm.engine.input_check import is_same_input, other_input_error
from ftcomm.engine.locked_machine import Answer, LockedMachine
from ftcomm.engine.mark_clock import MarkClock
from ftcomm.engine.message_port import MessagePort
from ftcomm.engine.persistent_request import PersistentRequest, persistent
from ftcomm.errors import ClosedError, CollectiveTimeoutError, FtcommError, LogLimitError
from ftcomm.execution.data_plane import DataPlane, Turn
from ftcomm.memory.pool import EMPTY, Array, LoggedResult
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import (
    Kind,
    is_compatible,
    is_contributed,
    is_copied,
    signature_text,
)
from ftcomm.recovery.events import FatalFound, Leaving, MismatchSeen, OwnCloseDone
from ftcomm.recovery.machine import Checkpoint, NextStep, WorkerState
from ftcomm.recovery.recent_calls import NO_CALL, Called
from ftcomm.recovery.result_log import LogEntry
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

MARKED, NOT_MARKED = b"\x01", b"\x00"  # rank 0's byte in a checkpoint's exchange
LENGTH_BYTES = 8  # of a local state, beside the digest

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
        self._plane = DataPlane(hub, control)
        self._machine = LockedMachine(hub, control)
        self._contributed = ContributedRuns(hub, control, self._plane, self._machine, self.condemn)
        self._fault: Callable[[str], None] = _no_fault if hub.faults is None else hub.fault
        self._clock = MarkClock(hub)
        self.recovered = hub.recovered
        self.messages: MessagePort | None = MessagePort(hub, control)
        self._cut = CutCheck(hub, control, self._plane, self._machine)

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
            table=settings.table,
            pythons=lambda: tuple(member.python for member in core.view.members),
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
    def keeps_results(self) -> bool:
        """The job's setting ``replay`` is on: what a call returns is in the log too."""
        return self._hub.settings.keeps_results

    @property
    def watches_states(self) -> bool:
        """True if writes to the content of a lazy checkpoint must be detected."""
        return self._hub.options.debug is not None

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
        """Run `body`, which is `call`; if it takes longer than `limit`, the job ends for all.

        Args:
            limit: None for no limit.
            call: for the words of the error.
            body: what runs.
            arguments: of `body`.
            rest: likewise.
        """
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
            return self._entered(self._run, request)
        if isinstance(request, DeferredInput):
            return self._entered(self._run_deferred, request)
        return self._entered(self._run_open, request)

    def _run_deferred(self, deferred: DeferredInput) -> LoggedResult:
        """Make the input only if the call is executed.

        While this rank waits for its turn the signature in flight is empty: it is not known.
        """
        return self._served_or_due(deferred) or self._run(deferred.make())

    def _run_open(self, opened: OpenBroadcast) -> LoggedResult:
        while True:
            answer, turn = self._machine.ask(self._progress.begin, opened.known, opened.site)
            if answer is NextStep.EXECUTE:
                signature = self._plane.learn(opened, turn)
                if signature is not None:
                    call = opened.make(signature)
                    stored = self._execute(call, turn)
                    if stored is not None and self._kept(call, turn[0], stored):
                        return self._done(stored)
            elif isinstance(answer, LogEntry):
                if self._serve_lazy(answer, opened, answer.value):
                    return self._done(answer.value)
            else:
                self._hub.sleep()

    def _entered(self, body: Callable[..., R], *arguments: object) -> R:
        self._fault("enter")
        try:
            return body(*arguments)
        except BaseException as error:
            self._plane.cut_short(error)
            raise

    def _served_or_due(self, lazy: DeferredInput) -> LoggedResult | None:
        """Return the logged result of a lazy call; None when the input is needed."""
        while True:
            answer, _ = self._machine.ask(self._progress.begin, b"", lazy.site)
            if answer is NextStep.EXECUTE:
                return None
            if isinstance(answer, LogEntry):
                if is_contributed(answer.signature):  # it needs this rank's input again
                    return None
                stored = self._contributed.logged(answer)
                if stored is not None and self._serve_lazy(answer, lazy, stored):
                    return self._done(stored)
            else:
                self._hub.sleep()

    def _serve_lazy(
        self, entry: LogEntry, lazy: DeferredInput | OpenBroadcast, stored: LoggedResult
    ) -> bool:
        if not is_compatible(lazy.known, entry.signature):
            with self._hub.lock:
                self._progress.call = Called(lazy.known, lazy.site)  # for the error about the two
            return self._serve(entry, lazy.known, self._machine.replay)
        lazy.check(stored)
        if is_copied(entry.signature):
            return self._machine.replay_copied()
        return self._machine.replay()

    def _run(self, call: Request) -> LoggedResult:
        form, core = call.form, self._core
        if form.contributed is not None:
            return self._done(self._contributed.run(call))
        while True:
            answer, turn = self._machine.ask(core.progress.begin, form.signature, form.site)
            if answer is NextStep.EXECUTE:
                stored = self._execute(call, turn)
                if stored is not None and self._kept(call, turn[0], stored):
                    return self._done(stored)
            elif isinstance(answer, LogEntry):
                if call.check is not None and answer.signature == form.signature:
                    call.check(answer.value)
                if not is_same_input(call, answer.signature, answer.value, self.rank):
                    self.condemn(other_input_error(call, self.rank, self.position))
                elif self._serve(answer, form.signature, self._machine.replay):
                    return self._done(answer.value)
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

    def _serve(self, entry: LogEntry, signature: bytes, replay: Callable[[], bool]) -> bool:
        """The result exists: it must be of the same collective (rule R7, in replay)."""
        if entry.signature != signature:
            # an earlier incarnation of this rank, or the others without it, ran something else here
            view = self._view
            self._plane.accuse(MismatchSeen(view.epoch, view.rank, entry.signature, ""))
            return False
        return replay()

    def _done(self, stored: LoggedResult) -> LoggedResult:
        self._fault("done")
        return stored

    def checkpoint(self, saving: CheckpointPayload, signature: bytes, site: str) -> int:
        """Two-phase checkpoint: own copy, digests compared, local states copied, then commit."""
        self._fault("enter")
        with self._hub.lock:
            version = self._progress.offer_checkpoint(saving.state, saving.digest, saving.local)
        self._fault("saved")
        self._commit(version, saving, signature, site)
        assert self.messages is not None, "a group of one has another engine"
        self.messages.begin_version()
        if self.has_store:
            self._await_store(version, saving, Called(signature, site))
        self._plane.shared_window.next_version()
        self._fault("committed")
        return version

    def _commit(self, version: int, saving: CheckpointPayload, signature: bytes, site: str) -> None:
        """Return when `version` is committed: by this rank's own collective, or by a plan."""
        while True:
            answer, turn = self._machine.ask(self._begin_checkpoint, version, signature, site)
            if answer is None:  # a plan has committed it meanwhile
                return
            if answer is NextStep.EXECUTE:
                mark = self._agree(saving, signature, site, turn)
                if mark is not None and self._machine.complete_checkpoint(turn[0], mark):
                    return
            elif isinstance(answer, LogEntry):  # others ran a collective here: not one program
                self._serve(answer, signature, self._machine.replay)
            else:
                self._hub.sleep()

    def _begin_checkpoint(self, version: int, signature: bytes, site: str) -> Answer:
        if self._view.error is None and self._progress.position.version >= version:
            return None
        return self._progress.begin(signature, site)

    def _agree(
        self, saving: CheckpointPayload, signature: bytes, site: str, turn: Turn
    ) -> bool | None:
        """Phase one: every rank holds the tentative version, the same one, and local states.

        Returns:
            whether rank 0 marks it to be written to the store; None if the core must be asked.
        """
        digest, local = saving.digest, saving.local
        length = b"" if local is None else len(local).to_bytes(LENGTH_BYTES, "little")
        mine = digest + length + self._cut.balance() + self._mark(saving)
        answers = self._plane.gather_digests(mine, signature, site, turn)
        if answers is None:
            return None
        digests = [answer[: len(digest)] for answer in answers]
        different = [rank for rank, theirs in enumerate(digests) if theirs != digest]
        if not different:
            end = len(digest) + len(length)
            lengths = [int.from_bytes(answer[len(digest) : end], "little") for answer in answers]
            behind = end + BALANCE_BYTES
            if not self._cut.is_level(answer[end:behind] for answer in answers):
                self._cut.accuse("checkpoint()", signature, site, turn)
                return None
            if local is not None and not self._plane.copy_locals(
                local, lengths, signature, site, turn
            ):
                return None
            return answers[0][behind:] == MARKED
        self._plane.accuse(MismatchSeen(turn[0], different[0], signature, site, states=True))
        return None

    def _mark(self, saving: CheckpointPayload) -> bytes:
        """Rank 0's byte: this version is to be written to the store. Empty without a store."""
        if not self.has_store:
            return b""
        with self._hub.lock:
            is_idle = self._core.durables.is_idle
        version = self._progress.position.version + 1
        is_due = self._clock.is_due(version, time.monotonic(), is_idle=is_idle)
        return MARKED if saving.durable or is_due else NOT_MARKED

    @property
    def has_store(self) -> bool:
        """True if checkpoints are written to a store."""
        return bool(self._hub.settings.checkpoint)

    def _await_store(self, version: int, saving: CheckpointPayload, call: Called) -> None:
        """Wait until the store's readers need nothing more that the user may write to.

        That is the state of an older lazy version, until it is packed.  With ``durable=True``, wait
        for the record too.
        """
        durables = self._core.durables
        self._machine.wait_for(lambda: not durables.must_pack(version - 1))
        if saving.durable:
            with self._hub.lock:
                durables.await_record(version, call, time.monotonic())
            try:
                self._machine.wait_for(lambda: not durables.awaits_record)
            finally:  # Ctrl-C too: heartbeats say no more that this rank waits
                durables.awaited_by = NO_CALL

    @property
    def known_version(self) -> int | None:
        """The version that load_checkpoint would give now, None if that is not known yet."""
        with self._hub.lock:
            return self._view.known_version

    def local_state(self, version: int) -> Packed | None:
        """This rank's own local state of the loaded `version`; None if that has none."""
        with self._hub.lock:
            local: Packed | None = self._core.checkpoints.locals.get(version, self._view.rank)
            return local

    def load(self, raw: Packed, signature: bytes, site: str) -> Checkpoint:
        """load_checkpoint: served below the frontier, else executed by all."""
        checkpoint = self._entered(self._load, raw, signature, site)
        self._fault("done")
        return checkpoint

    def _load(self, raw: Packed, signature: bytes, site: str) -> Checkpoint:
        while True:
            answer, turn = self._machine.ask(self._progress.begin_load, signature, site)
            if isinstance(answer, Checkpoint):
                if self._machine.replay_load(answer):
                    return answer
            elif isinstance(answer, LogEntry):
                self._serve(answer, signature, self._machine.replay)
            elif answer is NextStep.EXECUTE:
                value = self._plane.broadcast_default(raw, signature, site, turn)
                if value is not None and self._machine.complete_load(turn[0], value):
                    return Checkpoint(0, value)
            else:
                self._hub.sleep()

    def close(self, call: Request) -> None:
        """The closing collective, then serve others until all have closed (rule R8)."""
        self._entered(self._close, call)
        self._fault("done")
        self._renew_deadline(call.form.site)
        self._control.driver.act(OwnCloseDone())
        self._machine.wait_for(lambda: self._view.state is WorkerState.FINISHED)

    def _renew_deadline(self, site: str) -> None:
        """The close is complete, and its deadline holds on while others are served."""
        deadline = self._hub.deadline
        if deadline is not None:
            position = self._progress.position
            self._hub.deadline = deadline._replace(position=position, closed_at=site)

    def _close(self, call: Request) -> None:
        form = call.form
        while not self._progress.closed:
            answer, turn = self._machine.ask(self._progress.begin, form.signature, form.site)
            if answer is NextStep.EXECUTE:
                if self._is_a_cut(form, turn):
                    self._machine.complete_close(turn[0], LogEntry(form.signature, EMPTY))
            elif isinstance(answer, LogEntry):
                self._serve(answer, form.signature, self._machine.replay_close)
            else:
                self._hub.sleep()

    def _is_a_cut(self, form: CollectiveSpec, turn: Turn) -> bool:
        """Every rank has entered the close, and no message is on its way; False: ask the core."""
        mine = self._cut.balance()
        balances = self._plane.gather_digests(mine, form.signature, form.site, turn)
        if balances is None:
            return False
        if not self._cut.is_level(balances):
            self._cut.accuse("close()", form.signature, form.site, turn)
            return False
        return True

    def leave(self, reason: str) -> None:
        """An exception left the user's block: say so, so that nobody waits for a deadline."""
        self._control.driver.act(Leaving(reason))

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
        self._hub.receives.end(ClosedError("the communicator ended before this message came"))
        self._control.stop()
        self._hub.close()
