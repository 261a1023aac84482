"""Policy of restarts: the worker to start and the time, one pure decision per exit.

Per worker, after an exit: has its rank closed?  Then it is done.  Is the exit status one by which
a typed error says that starting it again cannot help?  Then it is left; but where a process
that took its place has ended too, nobody else would start one.  Has its script failed twice by the
same error, and the job made no progress in between?  Then the script ends the job.  Or have all
workers failed by one error, and none has come back?  Likewise.  Has it died
too often within the window, and the job made no progress since?  Then it is given up.  Else it
starts again: at once the first time, later with a back-off, so that a worker that cannot start
does not burn a core and a log.
"""

import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from ftcomm.config.backoff import REFILL_DELAY_S, RESTART_BACKOFF
from ftcomm.config.plurals import counted
from ftcomm.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    ConfigError,
    EvictedError,
    FencedError,
    FtcommError,
    JobFinishedError,
    JobLostError,
    JobStoppedError,
    LogLimitError,
    RankLostError,
    RolledBackError,
    ScriptFailedError,
    StateChangedError,
)
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.launcher.processes.script_errors import ScriptError

NEVER_JOINED = "ended with status 0 and never called ftcomm.init()"
NEVER_CLOSED = "ended with status 0 without close(): leave `with ftcomm.init()` by its end"
MAX_LAST_LINE = 300  # characters of a worker's last line, which records and errors repeat
# A crash loop at one place ends within minutes; spot nodes are lost a few times in an hour.
MAX_RESTARTS = 20
RESTART_WINDOW_S = 3600.0

# The whole job is over and every rank knows: the tracker has said so, or says so to the rest.
_JOB_OVER: tuple[type[FtcommError], ...] = (
    JobLostError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    StateChangedError,
    RankLostError,
    ScriptFailedError,
    JobStoppedError,
    JobFinishedError,
)
_FENCED: tuple[type[FtcommError], ...] = (FencedError,)
# A worker that leaves its `with` block by LogLimitError tells the tracker, which tells all; this is
# for scripts without one.
_PERMANENT_FAILURES: tuple[type[FtcommError], ...] = (ConfigError, LogLimitError)
# Exit statuses by which a worker says that another process has its place.
PLACE_TAKEN = frozenset(kind.exit_code for kind in _FENCED)
# Exit statuses after which a worker is not started again, unless who has its place ends too.
FINAL = frozenset(kind.exit_code for kind in (*_JOB_OVER, *_FENCED, *_PERMANENT_FAILURES))
# A new process, on another host at best, may reach whom this one could not: it counts as a death.
_TRY_AGAIN: tuple[type[FtcommError], ...] = (EvictedError,)
_MEANINGS = {
    kind.exit_code: kind.__name__
    for kind in (*_JOB_OVER, *_FENCED, *_PERMANENT_FAILURES, *_TRY_AGAIN)
}


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Start the worker again after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The worker's rank has closed; nothing is left to do for it."""


@dataclass(frozen=True, slots=True)
class NoRestart:
    """Do not start it again; the job goes on, or ends, without the launcher's doing."""

    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not start it again, and tell the tracker that its place stays empty.

    Attributes:
        reason: for every rank.
        script_failed: the script fails in every process, and its traceback has been printed.
    """

    reason: str
    script_failed: bool = False


Decision = RestartAfter | Finished | NoRestart | GiveUp


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """Limits on the restarts of one worker.

    Attributes:
        max_restarts: restarts in `window_s` without progress of the job.
        window_s: seconds; deaths that are further back do not count.
    """

    max_restarts: int = MAX_RESTARTS
    window_s: float = RESTART_WINDOW_S


@dataclass(slots=True)
class _Deaths:
    """The deaths of one worker.

    Attributes:
        recent: time and progress of the job, of each death in the window and the present version.
        error: the newest error of the script, and the progress of the job then.
    """

    recent: deque[tuple[float, Position]] = field(default_factory=deque)
    error: tuple[ScriptError, Position] | None = None

    def add(self, now: float, progress: Position, window_s: float) -> None:
        """Note a death; forget those that are too old, or before the last checkpoint."""
        self.recent.append((now, progress))
        while len(self.recent) > 1 and (
            self.recent[0][0] <= now - window_s or self.recent[0][1].version < progress.version
        ):
            self.recent.popleft()

    def without_progress(self, progress: Position) -> int:
        """Count the deaths since the job came to `progress`."""
        return sum(where == progress for _, where in self.recent)

    def repeats(self, error: ScriptError | None, progress: Position) -> bool:
        """Note the error of a death; True if it is the one before, without progress since."""
        before = self.error
        if error is not None:
            self.error = (error, progress)
        return error is not None and before == self.error


class RestartPolicy:
    """Counts the deaths of each worker and decides."""

    def __init__(self, limits: RestartLimits, workers: Sequence[str] = ()) -> None:
        """Allow each worker restarts within `limits`; `workers` are all that have a rank."""
        self.workers = workers
        self._limits = limits
        self._restarts = 0
        self._best = START
        self._attempt = 0
        self._deaths: dict[str, _Deaths] = {}
        self._spare_deaths: dict[str, _Deaths] = {}

    @property
    def restarts(self) -> int:
        """Restarts of all workers so far."""
        return self._restarts

    @property
    def failures(self) -> list[str]:
        """Errors that ended scripts since the newest checkpoint, one for each worker."""
        return [
            f"worker {worker} failed: {deaths.error[0]}"
            for worker, deaths in sorted(self._deaths.items())
            if deaths.error is not None and deaths.error[1].version == self._best.version
        ]

    def observe(self, progress: Position, attempt: int = 0) -> None:
        """Hear how far the job is: while members are away, later less may be known.

        A new attempt goes over the same ground once more, and makes progress there.
        """
        if attempt > self._attempt:
            self._attempt, self._best = attempt, progress
        self._best = max(self._best, progress)

    def after_exit(
        self,
        worker: str,
        status: int,
        *,
        closed: bool,
        progress: Position,
        now: float,
        missed: bool = False,
        error: ScriptError | None = None,
        as_spare: bool = False,
        replaced: bool = False,
        deserted: bool = False,
    ) -> Decision:
        """Decide about `worker`, which ended with `status` (negative: by that signal).

        Args:
            worker: its id.
            status: as `subprocess.Popen.returncode`.
            closed: the tracker knows that its rank's own close() has completed.
            progress: the highest position known of any member of the job.
            now: seconds, on one clock for all exits.
            missed: whoever took its place, if somebody did, has ended too: it is a death.
            error: the error by which its script ended, if one is known.
            as_spare: it had no rank, so its death has cost the job nothing.
            replaced: a spare has taken its rank, and its next process is a spare.
            deserted: no worker is in the job just now.
        """
        self.observe(progress)
        if status == RolledBackError.exit_code:  # no death: the job goes on in its next attempt
            return RestartAfter(0.0)
        if closed:
            return Finished()
        taken = status in PLACE_TAKEN and not missed
        if taken or status in {kind.exit_code for kind in _JOB_OVER}:
            return NoRestart(describe_exit(status))
        if status in {kind.exit_code for kind in _PERMANENT_FAILURES}:
            return GiveUp(f"worker {worker} {describe_exit(status)}")
        if as_spare:
            return RestartAfter(self._delay_of_spare(worker, now))
        decision = self._after_death(worker, status, now, error)
        if deserted and error is not None and self._is_of_all(error):
            return GiveUp(
                f"the script failed by the same error on all ranks: {error}", script_failed=True
            )
        if replaced and isinstance(decision, RestartAfter):
            return RestartAfter(max(decision.delay_s, REFILL_DELAY_S))
        return decision

    def _is_of_all(self, error: ScriptError) -> bool:
        """True if `error` ended a process of each worker while the job stood where it is."""
        newest = [self._deaths[worker].error for worker in self.workers if worker in self._deaths]
        is_common = newest == [(error, self._best)] * len(self.workers)
        # A handler of SIGTERM may have ended all with status 0: that counts when it comes again.
        may_pass = error.may_pass or error.text == NEVER_CLOSED
        return is_common and len(self.workers) > 1 and not may_pass

    def _after_death(
        self, worker: str, status: int, now: float, error: ScriptError | None
    ) -> Decision:
        limits, progress = self._limits, self._best
        deaths = self._deaths.setdefault(worker, _Deaths())
        deaths.add(now, progress, limits.window_s)
        if deaths.repeats(error, progress):
            return GiveUp(
                f"the script of worker {worker} failed twice by the same error while the job stood"
                f" at {progress}: {error}",
                script_failed=True,
            )
        stuck = deaths.without_progress(progress)
        if stuck > limits.max_restarts:
            return GiveUp(
                f"worker {worker} died {counted(stuck, 'time')} within {limits.window_s:g} s while"
                f" the job stood at {progress} (last: {describe_exit(status)})"
            )
        self._restarts += 1
        # At once the first time in a version; a checkpoint since the last death starts afresh.
        return RestartAfter(RESTART_BACKOFF.delay_s(len(deaths.recent)))

    def _delay_of_spare(self, worker: str, now: float) -> float:
        """The same delays, counted apart: a spare's death never ends a job."""
        deaths = self._spare_deaths.setdefault(worker, _Deaths())
        deaths.add(now, self._best, self._limits.window_s)
        self._restarts += 1
        return RESTART_BACKOFF.delay_s(len(deaths.recent))


def cause_of(status: int, tail: Sequence[str], memory: str, *, joined: bool = True) -> str:
    """Say how a process ended and why, as far as its exit, its last line and the kernel tell.

    Args:
        status: as `subprocess.Popen.returncode`.
        tail: its last lines of output.
        memory: who has counted a process that was killed for want of memory; empty if nobody has.
        joined: False if it is known that the process has not said hello to the tracker.
    """
    how = describe_exit(status, memory, joined=joined)
    last = next((line.strip() for line in reversed(tail) if line.strip()), "")
    return f"{how}: {last[-MAX_LAST_LINE:]}" if status > 0 and last else how


def describe_exit(status: int, memory: str = "", *, joined: bool = True) -> str:
    """Say in words how a process ended; `memory` and `joined` as in `cause_of`."""
    why = f", out of memory ({memory})" if memory else ""
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}{why}"
        except ValueError:
            return f"was killed by signal {-status}"
    if status == 0:
        return NEVER_CLOSED if joined else NEVER_JOINED
    meaning = f" ({_MEANINGS[status]})" if status in _MEANINGS else ""
    return f"exited with status {status}{meaning}{why}"


def is_killed(status: int) -> bool:
    """True if SIGKILL has ended the process, or the last command of a shell."""
    return status in (-signal.SIGKILL, 128 + signal.SIGKILL)


def describe(decision: Decision) -> str:
    """Describe the launcher's decision in words."""
    match decision:
        case RestartAfter(0.0):
            return "starting it again"
        case RestartAfter(delay_s):
            return f"starting it again in {delay_s:g} s"
        case Finished():
            return "it had closed: done"
        case NoRestart():
            return "leaving it"
        case GiveUp():
            return "giving it up"
        case _:
            assert_never(decision)
