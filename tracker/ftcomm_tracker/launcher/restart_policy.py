"""Policy of restarts: the worker to start and the time, one pure decision per exit.

Per worker, after an exit: has its rank closed?  Then it is done.  Is the exit status one by which
a typed error says that starting it again cannot help?  Then it is left; but where a process
that took its place has ended too, nobody else would start one.  Has it died too often,
or too often at one place without progress of the job?  Then it is given up.  Else it starts
again: at once the first time, later with a back-off, so that a worker that cannot start does
not burn a core and a log.
"""

import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from ftcomm.config.backoff import RESTART_BACKOFF
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
    StateChangedError,
)
from ftcomm.protocol.position import START, Position

MAX_LAST_LINE = 300  # characters of a worker's last line, which records and errors repeat

# The whole job is over and every rank knows: the tracker has said so, or says so to the rest.
_JOB_OVER: tuple[type[FtcommError], ...] = (
    JobLostError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    StateChangedError,
    RankLostError,
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
    """Do not start it again, and tell the tracker that its place stays empty."""

    reason: str


Decision = RestartAfter | Finished | NoRestart | GiveUp


class RestartPolicy:
    """Counts the deaths of each worker and decides."""

    def __init__(self, *, max_restarts: int, give_up_after: int) -> None:
        """Allow `max_restarts` per worker, and `give_up_after` deaths at one progress."""
        self._max_restarts = max_restarts
        self._give_up_after = give_up_after
        self._restarts: Counter[str] = Counter()
        self._best = START
        self._stuck: dict[str, tuple[Position, int]] = {}
        self._spells: dict[str, tuple[int, int]] = {}  # version, restarts in it

    @property
    def restarts(self) -> int:
        """Restarts of all workers so far."""
        return self._restarts.total()

    def after_exit(
        self,
        worker: str,
        status: int,
        *,
        closed: bool,
        progress: Position,
        missed: bool = False,
    ) -> Decision:
        """Decide about `worker`, which ended with `status` (negative: by that signal).

        Args:
            worker: its id.
            status: as `subprocess.Popen.returncode`.
            closed: the tracker knows that its rank's own close() has completed.
            progress: the highest position known of any member of the job.
            missed: whoever took its place, if somebody did, has ended too: it is a death.
        """
        if closed:
            return Finished()
        taken = status in PLACE_TAKEN and not missed
        if taken or status in {kind.exit_code for kind in _JOB_OVER}:
            return NoRestart(describe_exit(status))
        if status in {kind.exit_code for kind in _PERMANENT_FAILURES}:
            return GiveUp(f"worker {worker} {describe_exit(status)}")
        return self._after_death(worker, status, progress)

    def _after_death(self, worker: str, status: int, progress: Position) -> Decision:
        # The highest ever: while members are away, what the tracker knows of may be lower.
        self._best = progress = max(self._best, progress)
        where, deaths = self._stuck.get(worker, (progress, 0))
        deaths = deaths + 1 if where == progress else 1
        self._stuck[worker] = (progress, deaths)
        if deaths >= self._give_up_after:
            return GiveUp(
                f"worker {worker} died {counted(deaths, 'time')} while the job stood at {progress}"
                f" (last: {describe_exit(status)})"
            )
        if self._restarts[worker] >= self._max_restarts:
            return GiveUp(
                f"worker {worker} was restarted {counted(self._max_restarts, 'time')}"
                f" and died again ({describe_exit(status)})"
            )
        self._restarts[worker] += 1
        return RestartAfter(self._delay_s(worker, progress.version))

    def _delay_s(self, worker: str, version: int) -> float:
        """At once the first time in a version; a checkpoint since the last death starts afresh."""
        since, restarts = self._spells.get(worker, (version, 0))
        restarts = restarts + 1 if since == version else 1
        self._spells[worker] = (version, restarts)
        return RESTART_BACKOFF.delay_s(restarts)


def cause_of(status: int, tail: Sequence[str], memory: str) -> str:
    """Say how a process ended and why, as far as its exit, its last line and the kernel tell.

    Args:
        status: as `subprocess.Popen.returncode`.
        tail: its last lines of output.
        memory: who has counted a process that was killed for want of memory; empty if nobody has.
    """
    how = describe_exit(status, memory)
    last = next((line.strip() for line in reversed(tail) if line.strip()), "")
    return f"{how}: {last[-MAX_LAST_LINE:]}" if status > 0 and last else how


def describe_exit(status: int, memory: str = "") -> str:
    """Say in words how a process ended; `memory` as in `cause_of`."""
    if status < 0:
        why = f", out of memory ({memory})" if memory else ""
        try:
            return f"was killed by {signal.Signals(-status).name}{why}"
        except ValueError:
            return f"was killed by signal {-status}"
    if status == 0:
        return (
            "ended with status 0 but never closed its communicator (`with ftcomm.init() as comm:`)"
        )
    meaning = f" ({_MEANINGS[status]})" if status in _MEANINGS else ""
    return f"exited with status {status}{meaning}"


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
