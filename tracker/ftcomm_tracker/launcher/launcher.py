"""The launcher: starts workers and starts again those that die, for `run` and `supervise` alike.

`run` gives it all workers and the tracker in its own process; `supervise` gives it one worker and
a tracker that it asks over the network (`remote`).

Everything runs in the main thread, because the kernel ties a worker's lifetime to the *thread* that
created it (see `children`).  Decisions about restarts are `restarts.RestartPolicy`; whether the
job is over, and how, is the tracker's word alone.
"""

import math
import platform
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

import trio

from ftcomm.config.backoff import RESTART_BACKOFF
from ftcomm.config.environment import note_of_launcher
from ftcomm.config.plurals import counted
from ftcomm.diagnostics import os_errors
from ftcomm.errors import (
    ConfigError,
    FencedError,
    FtcommError,
    JobFinishedError,
    RolledBackError,
    ScriptFailedError,
    exit_code_of,
)
from ftcomm_tracker.core.events import Died, GivenUp, LivenessAsserted, Supervised
from ftcomm_tracker.core.reporting.live_line import StepRate, position_text
from ftcomm_tracker.launcher.console import Console
from ftcomm_tracker.launcher.job import Job
from ftcomm_tracker.launcher.process_ends import (
    end_departed,
    note_joined,
    own_status,
    script_error,
)
from ftcomm_tracker.launcher.processes.child_process import (
    Child,
    can_hand_on_input,
    interpreter_hint,
    start_child,
)
from ftcomm_tracker.launcher.processes.departure import GRACE_S, STARTING
from ftcomm_tracker.launcher.processes.oom_counter import MemoryKills
from ftcomm_tracker.launcher.processes.remaining import leave_remaining
from ftcomm_tracker.launcher.processes.script_errors import EqualTracebacks
from ftcomm_tracker.launcher.restart_policy import (
    MAX_LAST_LINE,
    PLACE_TAKEN,
    Decision,
    Finished,
    GiveUp,
    NoRestart,
    RestartAfter,
    RestartLimits,
    RestartPolicy,
    cause_of,
    describe,
    describe_exit,
    is_killed,
)
from ftcomm_tracker.launcher.signals import end_signals, unless_ignored, user_signals
from ftcomm_tracker.launcher.spare_roles import StartedRoles
from ftcomm_tracker.launcher.worker_output import forward_output

STRAGGLERS_AFTER_S = 2.0  # a worker that is in a call, or calls soon, ends within that
STATUS_PERIOD_S = 0.25
GATHER_S = 1.0  # between the ends of workers that fail by the same error at one call
# A fenced process's place was taken by another that has ended well if the job has; a worker that
# came after the end had nothing to do.
_GOOD = (0, FencedError.exit_code, JobFinishedError.exit_code)
LOOKS_PER_DETECT_WITHIN = 5
MISSED = ", and the process that took its place has ended"
REPLACED = ", and is a spare from now on"


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Command to run, and the limits on its restarts.

    Attributes:
        workers: ids.
        spares: ids of the workers that are started beside them and have no place at first.
        command: of every worker.
        restarts: limits on those of one worker.
        keeps_places: nobody else starts these workers. If a process takes the place of one, its
            end is waited for, and the worker is started again.
        grace_s: for workers to end: by themselves when the job has failed, then between SIGTERM and
            SIGKILL.
    """

    workers: tuple[str, ...]
    command: tuple[str, ...]
    restarts: RestartLimits = field(default_factory=RestartLimits)
    spares: tuple[str, ...] = ()
    keeps_places: bool = False
    grace_s: float = GRACE_S


def _is_alone(options: LaunchOptions) -> bool:
    return len(options.workers + options.spares) == 1


def has_formed(options: LaunchOptions, job: Job) -> bool:
    """True if workers have ranks; not before the first plan of an attempt."""
    return any(map(job.has_rank, options.workers + options.spares))


def is_spare(options: LaunchOptions, job: Job, worker_id: str) -> bool:
    """True if the group is complete without this worker."""
    if not options.spares:  # others may have started some
        return job.standing_of(worker_id, 0).is_spare
    if job.has_rank(worker_id):
        return False
    return worker_id in options.spares or has_formed(options, job)


def _begins_as_spare(options: LaunchOptions, job: Job, roles: StartedRoles, worker_id: str) -> bool:
    """True if the next process of this worker is not to be counted when the group forms."""
    if options.spares and not has_formed(options, job):
        spare = roles.while_forming(worker_id)
    else:
        spare = is_spare(options, job, worker_id)
    roles.begin(worker_id, spare=spare)
    return spare


def _is_told_otherwise(
    options: LaunchOptions, job: Job, child: Child, status: int, decision: Decision
) -> bool:
    """True if a recovery, the job's end or the script's traceback says what this exit means."""
    match decision:
        case GiveUp():
            return not is_spare(options, job, child.worker_id)
        case RestartAfter():
            if status == RolledBackError.exit_code:
                return True
            has_lost = job.had_rank(child.worker_id, child.process.pid)
            if has_lost is None:  # it has not joined: its rank waits for it, if it has one
                has_lost = job.has_rank(child.worker_id)
            return options.keeps_places and (has_lost or child.traceback.is_whole)
        case _:
            return False


def _tell_pid(
    options: LaunchOptions, job: Job, environment: Mapping[str, str], worker_id: str, pid: int
) -> None:
    """Say which process is the worker's: while it has not said hello, nobody else can.

    Not of a spare: the group waits for whom a launcher has started.
    """
    if worker_id not in options.spares:
        host = environment.get("FTCOMM_HOST") or platform.node()[:64] or "localhost"
        job.post(Supervised(worker_id, host, pid, 0.0))


def _is_told(options: LaunchOptions, job: Job, child: Child) -> bool:
    """True of a spare, and where the script's error has ended the job, and the child's is shown."""
    ended_by = "" if job.outcome is None else job.outcome.error
    by_script = ended_by == ScriptFailedError.__name__ and child.traceback.is_whole
    return by_script or is_spare(options, job, child.worker_id)


def _show_tracebacks(tracebacks: EqualTracebacks, console: Console, number: int) -> None:
    """Show those that so many workers have, or more."""
    for lines, worker_ids in tracebacks.take(number):
        console.show_of_all(worker_ids, 2, lines)


async def _show_later(tracebacks: EqualTracebacks, console: Console) -> None:
    await trio.sleep(GATHER_S)
    _show_tracebacks(tracebacks, console, 1)


def _why_not_started(error: OSError | ConfigError) -> str:
    return error.cause if isinstance(error, ConfigError) else os_errors.describe(error)


async def _name_who_goes_on(
    options: LaunchOptions, job: Job, console: Console, children: Mapping[str, Child]
) -> None:
    """Say which processes go on long after the job has ended well; none is ended.

    A script may save a model for hours, which nobody can tell from a thread that hangs.
    """
    await trio.sleep(options.grace_s)
    for worker_id, child in children.items():
        if child.running and not is_spare(options, job, worker_id):
            console.warn(
                f"worker {worker_id} (pid {child.pid}) still runs, though the job has"
                " ended well: waiting for its end; if it should do nothing any more, a thread"
                " of the script may keep it"
            )


async def _show_status(job: Job, policy: RestartPolicy, console: Console) -> None:
    rate = StepRate()
    while True:
        position = job.progress()
        rate.observe(position, trio.current_time())
        where = position_text(position, rate.text())
        console.status(f"{where}{job.summary()}, {counted(policy.restarts, 'restart')}")
        await trio.sleep(STATUS_PERIOD_S)


class Launcher:
    """Runs the workers of one job to its end."""

    def __init__(
        self, options: LaunchOptions, job: Job, console: Console, environment: Mapping[str, str]
    ) -> None:
        """Prepare to start workers with `environment`, to which their own variables are added."""
        self._options = options
        self._job = job
        self._console = console
        self._environment = environment
        self._policy = RestartPolicy(options.restarts, options.workers)
        self._children: dict[str, Child] = {}
        self._roles = StartedRoles(options.spares)
        self._statuses: dict[str, int] = {}
        self._stopped_since: dict[str, float] = {}
        self._finished: set[str] = set()
        self._memory_kills = MemoryKills()
        self._tracebacks = EqualTracebacks()
        self._no_more_starts = trio.Event()
        self._hearing: set[trio.CancelScope] = set()
        self._caught = 0
        self._background: trio.Nursery

    @property
    def failures(self) -> list[str]:
        """Errors of scripts since the newest checkpoint, in words."""
        return self._policy.failures

    async def run(self) -> int:
        """Run all workers and return the exit status for the launcher's process."""
        # Where a parent has had it ignored, the kernel would reap workers, and keep their statuses.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            stop = unless_ignored(signal.SIGTSTP)
            with trio.open_signal_receiver(*end_signals(), *user_signals(), *stop) as signals:
                async with trio.open_nursery() as background:
                    self._background = background
                    background.start_soon(self._obey_signals, signals)
                    background.start_soon(self._watch)
                    background.start_soon(_show_status, self._job, self._policy, self._console)
                    background.start_soon(self._end_with_job)
                    async with trio.open_nursery() as workers:
                        for worker_id in (*self._options.workers, *self._options.spares):
                            workers.start_soon(self._keep, worker_id)
                    await self._hear_tracker()  # a worker given up last ends the job
                    if self._finished == set(self._options.workers):
                        await self._wait_for_the_end()
                    background.cancel_scope.cancel()
        finally:
            self._signal_all(signal.SIGKILL)
            _show_tracebacks(self._tracebacks, self._console, 1)
            for child in self._children.values():  # of a launcher that is cancelled
                self._console.show_of_all([child.worker_id], 2, child.traceback.release())
        return self._exit_status()

    async def _wait_for_the_end(self) -> None:
        """All that was ours to do is done; whether the job ends well is open.

        The tracker is asked again and again: one that is gone for good would not say that.
        """
        while not self._no_more_starts.is_set():
            with trio.move_on_after(self._job.detect_within_s):
                await self._no_more_starts.wait()
            await self._hear_tracker()

    async def _hear_tracker(self) -> None:
        """Wait until what the tracker knows is known here; a signal ends the wait.

        A tracker that is away has `FTCOMM_TRACKER_TIMEOUT` to come back.
        """
        if self._caught:
            return
        with trio.CancelScope() as scope:
            self._hearing.add(scope)
            try:
                await self._job.catch_up()
            finally:
                self._hearing.discard(scope)

    async def _keep(self, worker_id: str) -> None:
        """Run a worker, again and again if need be, until nothing is left to run."""
        while not self._no_more_starts.is_set():
            child = await self._start(worker_id)
            if child is None:
                return
            self._children[worker_id] = child
            _tell_pid(self._options, self._job, self._environment, worker_id, child.process.pid)
            began = f"worker {worker_id} is process {child.process.pid}"
            self._console.begin(worker_id, began)
            self._console.say(began, "INFO" if self._options.keeps_places else "NOTICE")
            status = own_status(self._job, child, await self._attend(child))
            self._show_traceback(child, status)
            self._roles.end(worker_id)
            if status == 0 and not child.departure.has_joined:
                await self._hear_tracker()
                process = self._job.standing_of(worker_id, 0).process
                # It has joined, as far as anybody can tell, unless it is known from its start.
                child.departure.has_joined = process != STARTING
            _tell_pid(self._options, self._job, self._environment, worker_id, 0)
            self._statuses[worker_id] = status
            delay_s = await self._after_exit(child, status)
            if delay_s is None:
                return
            with trio.move_on_after(delay_s):
                await self._no_more_starts.wait()

    async def _start(self, worker_id: str) -> Child | None:
        """Start a worker, as soon as the system has room for it; None if none is to start.

        Raises:
            ConfigError: the command cannot be run, and never could.
        """
        own = {"FTCOMM_WORKER_ID": worker_id, **note_of_launcher()}
        if self._options.keeps_places:
            spare = _begins_as_spare(self._options, self._job, self._roles, worker_id)
            own["FTCOMM_SPARE"] = str(int(spare))
        elif is_spare(self._options, self._job, worker_id):
            own["FTCOMM_SPARE"] = "1"
        has_input = _is_alone(self._options) and can_hand_on_input()
        failures = 0
        while not self._no_more_starts.is_set():
            try:
                environment = {**self._environment, **own}
                return start_child(
                    worker_id, self._options.command, environment, has_input=has_input
                )
            except (OSError, ConfigError) as error:
                # Others end meanwhile, and give back what they use. A command that has run before
                # may be away for a while: its environment is upgraded, or its file system is.
                if isinstance(error, ConfigError) and not self._children:
                    raise
                failures += 1
                delay_s = RESTART_BACKOFF.delay_s(failures)
                self._console.warn(
                    f"worker {worker_id} cannot be started ({_why_not_started(error)});"
                    f" next try in {delay_s:g} s"
                )
                with trio.move_on_after(delay_s):
                    await self._no_more_starts.wait()
        return None

    async def _attend(self, child: Child) -> int:
        show = partial(self._console.show, child.worker_id)
        unfinished = partial(self._console.show_unfinished, child.worker_id)
        async with trio.open_nursery() as nursery:
            forward = partial(forward_output, holds_last=True)
            nursery.start_soon(forward, child, show, unfinished)
            status = await child.wait()
            closed = partial(self._has_closed, child.worker_id)
            await leave_remaining(child, status, self._options.grace_s, closed, self._console.warn)
            child.end()
            return status

    async def _has_closed(self, worker_id: str) -> bool:
        """True if the worker's rank has closed, its last word included."""
        await self._hear_tracker()
        return self._job.has_closed(worker_id)

    def _show_traceback(self, child: Child, status: int) -> None:
        """Show the traceback that ended a process, a moment later: others may have the same."""
        # Another process has told the error of the script, or the job goes on.
        is_of_job = status in (RolledBackError.exit_code, ScriptFailedError.exit_code)
        if is_of_job and child.traceback.is_of_ftcomm and not child.traceback.causes:
            child.traceback.release()
        rest = self._tracebacks.add(child.worker_id, child.traceback)
        self._console.show_of_all([child.worker_id], 2, rest)
        _show_tracebacks(self._tracebacks, self._console, len(self._options.workers))
        self._background.start_soon(_show_later, self._tracebacks, self._console)

    async def _after_exit(self, child: Child, status: int) -> float | None:
        """Decide and act; returns the delay before the next start, None for no more."""
        worker_id = child.worker_id
        memory = self._memory_kills.take(trio.current_time()) if is_killed(status) else ""
        joined = child.departure.has_joined
        by_script = (
            f" (its start script exited with status {child.script_status})"
            if child.script_status
            else ""
        )
        cause = cause_of(status, child.tail, memory, joined=joined) + by_script
        self._job.post(Died(worker_id, child.process.pid, cause))
        await self._hear_tracker()  # what the worker said last counts
        why_again = await self._why_again(worker_id, status)
        if self._no_more_starts.is_set():
            if status != 0 and not (self._caught or _is_told(self._options, self._job, child)):
                # Of a job that has failed its end says why.
                failed = self._job.outcome is not None and not self._job.outcome.ok
                tell = self._console.say if failed else self._console.warn
                tell(f"worker {worker_id} {describe_exit(status)}")
            return None
        self._policy.observe(self._job.progress(), self._job.attempt)
        error = script_error(child, status)
        decision = self._policy.after_exit(
            worker_id,
            status,
            closed=self._job.has_closed(worker_id),
            progress=self._job.progress(),
            now=trio.current_time(),
            missed=bool(why_again),
            error=error,
            as_spare=self._job.had_rank(worker_id, child.process.pid) is False,
            replaced=is_spare(self._options, self._job, worker_id),
            deserted=not any(map(self._job.is_connected, self._policy.workers)),
        )
        if not (isinstance(decision, Finished) and status == 0):
            how = describe_exit(status, memory, joined=joined) + by_script + why_again
            is_told = _is_told_otherwise(self._options, self._job, child, status, decision)
            tell = self._console.say if is_told else self._console.warn
            tell(f"worker {worker_id} {how}: {describe(decision)}")
        match decision:
            case RestartAfter(delay_s):
                return delay_s
            case GiveUp():
                self._give_up(child, decision)
            case Finished():
                self._finished.add(worker_id)
            case NoRestart():
                pass
            case _:
                assert_never(decision)
        return None

    async def _why_again(self, worker_id: str, status: int) -> str:
        """Say why a worker whose place was taken is started again all the same; empty if not."""
        if status not in PLACE_TAKEN:
            return ""
        if is_spare(self._options, self._job, worker_id):
            return REPLACED
        return MISSED if await self._is_missed(worker_id, describe_exit(status)) else ""

    async def _is_missed(self, worker_id: str, how: str) -> bool:
        """Tell whether a worker's replacement has also ended, so that no other launcher starts one.

        It may have been a child of the worker, which has been killed with it.
        """
        job = self._job
        until = trio.current_time() + job.detect_within_s
        if self._options.keeps_places:
            until = math.inf
        while not (self._no_more_starts.is_set() or job.has_closed(worker_id)):
            if job.misses(worker_id) or not job.is_connected(worker_id):
                return job.misses(worker_id)  # else a worker of another id has the place
            if trio.current_time() >= until:
                return False
            if how:
                self._console.warn(
                    f"worker {worker_id} {how}: waiting for the end of its successor"
                )
                how = ""
            with trio.move_on_after(job.detect_within_s / LOOKS_PER_DETECT_WITHIN):
                await self._no_more_starts.wait()
            await self._hear_tracker()
        return False

    def _give_up(self, child: Child, decision: GiveUp) -> None:
        reason = decision.reason
        error = script_error(child, self._statuses[child.worker_id])
        if error is not None and (hint := interpreter_hint(error, self._options.command[0])):
            self._console.warn(hint)
        if child.tail and not decision.script_failed:  # else the traceback has been shown
            self._console.say(f"the last lines of worker {child.worker_id}:")
            self._console.say("\n".join(f"  | {line}" for line in child.tail))
        if is_spare(self._options, self._job, child.worker_id):
            self._console.warn(f"{reason}: the job goes on with one spare less")
            return
        if child.tail and not decision.script_failed:
            reason = f"{reason}; its last line: {child.tail[-1][-MAX_LAST_LINE:]}"
        self._job.post(GivenUp(child.worker_id, reason, decision.script_failed))

    async def _obey_signals(self, signals: AsyncIterator[int]) -> None:
        """End the workers on the first signal; do not wait for them on the second."""
        async for number in signals:
            if number == signal.SIGTSTP:
                self._signal_all(signal.SIGSTOP)
                # Its own action: nobody would continue an orphaned group, which the kernel does
                # not stop.  Sent to this thread, so that it stops before the next line.
                handler = signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
                signal.signal(number, handler)
                self._signal_all(signal.SIGCONT)
                continue
            if number in user_signals():
                for child in self._children.values():
                    note_joined(self._job, child)
                    child.signal(number)
                continue
            if self._caught:
                self._signal_all(signal.SIGKILL)
                return
            self._caught = number
            self._no_more_starts.set()
            for scope in self._hearing:
                scope.cancel()
            self._console.announce(f"{signal.Signals(number).name}: ending the workers")
            # An only worker gets Ctrl-C itself, as without a launcher.
            as_is = number == signal.SIGINT and _is_alone(self._options)
            self._background.start_soon(self._terminate, number if as_is else signal.SIGTERM)

    def kill(self, worker_id: str) -> bool:
        """Kill a worker's process, which is started again as after any death.

        Returns:
            False if none runs here.
        """
        child = self._children.get(worker_id)
        if child is None or not child.running:
            return False
        note_joined(self._job, child)
        self._console.announce(f"killing worker {worker_id} (pid {child.pid}): an operator asks")
        child.signal(signal.SIGKILL)
        return True

    async def _watch(self) -> None:
        """Look at every worker's process a few times in each `detect_within`."""
        while True:
            await trio.sleep(self._job.detect_within_s / LOOKS_PER_DETECT_WITHIN)
            self._memory_kills.look(trio.current_time())
            self._policy.observe(self._job.progress(), self._job.attempt)
            for child in self._children.values():
                if child.running:
                    self._look_at(child, trio.current_time())

    def _look_at(self, child: Child, now: float) -> None:
        """Assert the liveness of one that computes; end one that is stopped and has lost its place.

        A stopped process cannot come back by itself, and as long as it exists it is not started
        again: its place would stay empty until the job fails.
        """
        worker_id = child.worker_id
        note_joined(self._job, child)
        computing = child.is_computing()
        if computing:
            self._job.post(LivenessAsserted(worker_id))
        end_departed(self._job, self._console, child, now, computing=computing)
        if not child.stopped or self._job.is_connected(worker_id):
            self._stopped_since.pop(worker_id, None)
        elif now >= self._stopped_since.setdefault(worker_id, now) + self._job.detect_within_s:
            del self._stopped_since[worker_id]
            self._console.warn(
                f"worker {worker_id} is stopped (SIGSTOP) and has lost its place: killing it"
            )
            child.signal_group(signal.SIGKILL)

    async def _end_with_job(self) -> None:
        """Once the tracker has ended the job, start nothing; after a failure, end the rest."""
        await self._job.over.wait()
        self._no_more_starts.set()
        outcome = self._job.outcome
        if outcome is not None and outcome.ok:
            self._background.start_soon(self._end_spares)
            await _name_who_goes_on(self._options, self._job, self._console, self._children)
        elif outcome is not None:
            grace_s = self._options.grace_s
            with trio.move_on_after(grace_s):
                await trio.sleep(STRAGGLERS_AFTER_S)
                for worker_id, child in self._children.items():
                    if child.running:
                        self._console.warn(
                            f"worker {worker_id} still runs, though the job is over; it has"
                            f" {grace_s:g} s to end by itself"
                        )
                await trio.sleep_forever()
            await self._terminate()

    async def _end_spares(self) -> None:
        """End who was never needed: one that is still starting finds no tracker any more."""
        await trio.sleep(STRAGGLERS_AFTER_S)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for worker_id, child in self._children.items():
                if child.running and is_spare(self._options, self._job, worker_id):
                    child.signal_group(number)
            await trio.sleep(self._options.grace_s)

    async def _terminate(self, number: int = signal.SIGTERM) -> None:
        self._signal_all(number)
        await trio.sleep(self._options.grace_s)
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for child in self._children.values():
            child.signal_group(number)

    @property
    def restarts(self) -> int:
        """Restarts of all workers so far."""
        return self._policy.restarts

    def _exit_status(self) -> int:
        """0 only if the job ended well, and no worker's process ended by itself with a failure.

        A signal that ends a process after its rank has closed takes nothing from the job.
        """
        if self._caught:
            return 128 + self._caught
        outcome = self._job.outcome
        if outcome is not None and not outcome.ok:
            return exit_code_of(outcome.error)
        workers = self._options.workers + self._options.spares
        statuses = [
            self._statuses.get(w, 0) for w in workers if not is_spare(self._options, self._job, w)
        ]
        killed_is_good = outcome is not None  # it is well, so every rank has closed
        bad = [s for s in statuses if s not in _GOOD and not (killed_is_good and s < 0)]
        if bad:
            return bad[0] if bad[0] > 0 else 128 - bad[0]
        if outcome is None:  # a worker lost its place, and the job goes on without us
            return max(statuses, default=0) or FtcommError.exit_code
        return 0
