"""A warning when a job stands still: the first sentence of `explain`."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.job_states import JobState
from ftcomm_tracker.core.reporting.explain import explain
from ftcomm_tracker.core.roster import Roster

LOOK_S = 1.0  # workers' heartbeats are no faster
PATIENCE_S = 30.0  # a step without a collective is seldom longer
LONGER = 2.0  # times the longest pause of this job so far: its own steps may be long
_WATCHED = (JobState.RUNNING, JobState.COLLECTING)  # others say by themselves what they wait for

log = logging.getLogger("ftcomm_tracker")


@dataclass(slots=True)
class StallWatch:
    """Follows a job's position, and says once for each pause why it stands still; pure."""

    since: float
    _position: Position = START
    _longest_s: float = 0.0
    _told: set[bool] = field(default_factory=set)

    def look(self, roster: Roster, now: float) -> str:
        """Return the sentence to be said now, empty for none.

        Args:
            roster: of the present attempt.
            now: seconds, on the clock of `since`.
        """
        position = roster.progress()
        if position != self._position or roster.state not in _WATCHED:
            if roster.state is JobState.RUNNING and position != self._position:
                self._longest_s = max(self._longest_s, now - self.since)
            self.since, self._position = now, position
            self._told.clear()
            return ""
        still_s = now - self.since
        if still_s < roster.settings.detect_within:
            return ""
        first = explain(roster.snapshot(now))[0]
        is_proven = first.kind == "cyclic_wait"
        is_long = still_s >= max(PATIENCE_S, LONGER * self._longest_s)
        if is_proven in self._told or not (first.waiting and (is_proven or is_long)):
            return ""
        self._told.add(is_proven)
        todo = "" if first.todo.startswith("nothing") else f" - {first.todo}"
        return f"no progress for {still_s:.0f} s: {first.what}{todo}"


async def watch_stalls(roster_of: Callable[[], Roster]) -> None:
    """Log why the job stands still; `roster_of` returns the roster of the present attempt."""
    watch = StallWatch(trio.current_time())
    while True:
        await trio.sleep(LOOK_S)
        if said := watch.look(roster_of(), trio.current_time()):
            log.warning("%s", said)
