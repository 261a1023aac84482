"""Progress lines of a running job, one a minute: its position and its rate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.server.recovery_log import record_progress

LOOK_S = 1.0  # so exact is the age of a checkpoint; workers' heartbeats are no faster
PERIOD_S = 60.0  # a job of a month writes 10 MB


@dataclass(slots=True)
class ProgressLog:
    """Follows a job's position, and makes a record of it in each period; pure.

    Attributes:
        due: when the next record is to be made, on the clock of `observe`.
    """

    due: float
    _checkpoint_at: float
    _recorded_at: float
    _recorded: Position = START
    _position: Position = START

    @classmethod
    def begin(cls, now: float) -> "ProgressLog":
        """Follow a job from `now` on."""
        return cls(now + PERIOD_S, now, now)

    def observe(self, position: Position, now: float) -> None:
        """The job has come to `position`."""
        if position.version > self._position.version:
            self._checkpoint_at = now
        self._position = max(self._position, position)

    def record(self, snapshot: Mapping[str, Any], log_limit: int, now: float) -> dict[str, Any]:
        """The record of the period that ends `now`, and the start of the next.

        Args:
            snapshot: the job, as `status` shows it.
            log_limit: bytes that a worker's log may hold.
            now: on the clock of `observe`.
        """
        elapsed = max(now - self._recorded_at, 1e-9)
        versions = max(self._position.version, 0) - max(self._recorded.version, 0)
        same = self._position.version == self._recorded.version
        calls = self._position.seqno - self._recorded.seqno if same else None
        logs = [row["log_bytes"] for row in snapshot["members"] if row["log_bytes"] is not None]
        self._recorded, self._recorded_at = self._position, now
        self.due = now + PERIOD_S
        return {
            "state": snapshot["state"],
            "epoch": snapshot["epoch"],
            "connected": sum(row["connected"] for row in snapshot["members"]),
            "world_size": snapshot["world_size"],
            "position": str(self._position),
            "checkpoints_per_s": round(versions / elapsed, 4),
            "calls_per_s": None if calls is None else round(calls / elapsed, 4),
            "log_fill": round(max(logs, default=0) / log_limit, 4),
            "checkpoint_age_s": round(now - self._checkpoint_at, 1),
        }


async def write_progress(roster_of: Callable[[], Roster], state_dir: Path) -> None:
    """Write a line a minute about the job into `state_dir`; return when that fails.

    Args:
        roster_of: returns the roster of the present attempt.
        state_dir: where `progress.jsonl` is.
    """
    progress = ProgressLog.begin(trio.current_time())
    while True:
        await trio.sleep(LOOK_S)
        roster, now = roster_of(), trio.current_time()
        progress.observe(roster.progress(), now)
        if now >= progress.due:
            record = progress.record(roster.snapshot(now), roster.settings.log_limit, now)
            if not record_progress(state_dir, record):
                return
