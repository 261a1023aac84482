"""The last will of a job: a checkpoint that is written before the job ends (rule R16).

A job that has lost a result or a rank for ever still has checkpoints in its members' memory.  The
newest committed one is marked, written and recorded like any other before the end is told, so
that the next attempt begins from there.
"""

from dataclasses import dataclass

from ftcomm.protocol.position import Position
from ftcomm_tracker.core.durable.versions import DurableVersions


@dataclass(frozen=True, slots=True)
class PendingEnd:
    """The end that waits: as `end_with_error` was told."""

    error: str
    cause: str
    position: Position
    rank: int


@dataclass(slots=True)
class LastWill:
    """A checkpoint on its way into the store, and the end of the job that waits for it.

    Attributes:
        version: of the checkpoint.
        until: when it is awaited no longer.
        asked: ranks that have not said that they cannot write it.
        end: what follows.
    """

    version: int
    until: float
    asked: set[int]
    end: PendingEnd

    def outcome(self, versions: DurableVersions, members: set[int], now: float) -> str:
        """Tell in words what became of it; empty while it is being written.

        Args:
            versions: of the group.
            members: connected ranks.
            now: the time.
        """
        if versions.newest >= self.version:
            return f"checkpoint {self.version} is in the store"
        reason = versions.reason_given_up(self.version)
        if not reason and now >= self.until:
            reason = versions.trouble or "it took too long"
        if not reason and self.asked & members <= versions.holders(self.version):
            reason = versions.lack(self.version)
        return f"checkpoint {self.version} cannot be written: {reason}" if reason else ""
