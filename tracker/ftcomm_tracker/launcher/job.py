"""The job as a launcher sees it: the tracker's knowledge of its workers."""

from typing import Protocol

import trio

from ftcomm.protocol.operator_messages import WorkerStatusReply
from ftcomm.protocol.position import Position
from ftcomm_tracker.core.events import Died, GivenUp, JobEnded, LivenessAsserted, Supervised


class Job(Protocol):
    """Methods that the launcher needs of the tracker in its process; `server.Server` has them."""

    over: trio.Event
    outcome: JobEnded | None

    @property
    def detect_within_s(self) -> float:
        """Seconds after which a silent worker loses its place."""

    def post(self, event: Died | GivenUp | LivenessAsserted | Supervised) -> None:
        """Tell the roster."""

    async def catch_up(self) -> None:
        """Return when everything that has arrived has been taken in."""

    def has_closed(self, worker_id: str) -> bool:
        """True if that worker's rank has completed its close()."""

    def is_connected(self, worker_id: str) -> bool:
        """True if an incarnation of that worker is connected to the tracker."""

    def misses(self, worker_id: str) -> bool:
        """True while there is a place for that worker, and none of its processes is connected."""

    def had_rank(self, worker_id: str, pid: int) -> bool | None:
        """Tell whether its process `pid` had a rank when it ended; None if that is not known."""

    def has_rank(self, worker_id: str) -> bool:
        """True if that worker has a place in the group, whether it is connected or not."""

    def standing_of(self, worker_id: str, number: int) -> WorkerStatusReply:
        """The tracker's knowledge of that worker and of its process that was named last."""

    def progress(self) -> Position:
        """The highest position known of any member."""

    @property
    def attempt(self) -> int:
        """The present attempt, 0 without one."""

    def summary(self) -> str:
        """The job's state in one line."""
