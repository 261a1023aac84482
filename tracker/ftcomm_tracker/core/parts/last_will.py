"""The last will of a job: a checkpoint that is written before the job ends (rule R16).

A job that has lost a result or a rank for ever still has checkpoints in its members' memory.  The
newest committed one is marked, written and recorded like any other before the end is told, so
that the next attempt begins from there.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from ftcomm.errors import JobLostError, RankLostError
from ftcomm.protocol.durable.store_messages import MarkVersion, WriteFailed
from ftcomm_tracker.core.ending import PendingEnd, release_end
from ftcomm_tracker.core.group_state import GroupState, Peer
from ftcomm_tracker.core.job_states import JobState
from ftcomm_tracker.core.part import NEVER, Part, Row
from ftcomm_tracker.core.reporting.store_words import newest_text

# Ends that a later attempt may follow; what ends a job by its script or its operator is final.
WITH_LAST_WILL = (JobLostError.__name__, RankLostError.__name__)


class LastWill(Part):
    """A checkpoint on its way into the store, and the end of the job that waits for it.

    Attributes:
        version: of the checkpoint.
        until: when it is awaited no longer.
    """

    hears: ClassVar[tuple[type, ...]] = (WriteFailed,)
    texts: ClassVar[str] = """
last_will: the job is lost and writes its checkpoint {last_will} to {url}
  {newest_text}
"""

    def __init__(self) -> None:
        self.version = -1
        self.until = NEVER
        self._end: PendingEnd | None = None  # what follows
        self._asked: set[int] = set()  # ranks that have not said that they cannot write it

    @property
    def has_end(self) -> bool:
        """True while the checkpoint is awaited."""
        return self._end is not None

    def on_end(self, group: GroupState, end: PendingEnd) -> PendingEnd | None:
        """Have the newest committed checkpoint written first, if there is one to write."""
        if not group.versions.is_on or end.error not in WITH_LAST_WILL:
            return end
        if self.has_end:  # the first end is the one that is told
            return None
        version, within_s = group.members.progress().version, group.settings.last_will
        if version <= max(group.versions.newest, 0):
            return end
        self.version, self.until, self._end = version, group.now + within_s, end
        self._asked = set(group.members.slots)
        for conn in group.members.slots.values():
            group.send(conn, MarkVersion(version))
        group.note(
            "warning",
            f"{end.cause}: before the job ends, checkpoint {version} is written to its store, for"
            f" {within_s:g} s at most",
        )
        return None

    def on_message(self, group: GroupState, peer: Peer, message: Any) -> None:
        """Note that a member does not hold the version."""
        if not message.holds and message.version == self.version and peer.rank is not None:
            self._asked.discard(peer.rank)

    def due(self, group: GroupState) -> float:
        """Time at which the end is told though the checkpoint is not written."""
        return self.until

    def on_time(self, group: GroupState) -> None:
        """End the job once its last checkpoint is in the store, or cannot be."""
        if self._end is None or group.state is JobState.OVER:
            return
        outcome = self._outcome(group)
        if outcome:
            end, self._end, self.until = self._end, None, NEVER
            group.note("warning", outcome)
            release_end(group, self, end)

    def _outcome(self, group: GroupState) -> str:
        """Tell in words what became of it; empty while it is being written."""
        versions = group.versions
        if versions.newest >= self.version:
            return f"checkpoint {self.version} is in the store"
        reason = versions.reason_given_up(self.version)
        if not reason and group.now >= self.until:
            reason = versions.trouble or "it took too long"
        if not reason and self._asked & set(group.members.slots) <= versions.holders(self.version):
            reason = versions.lack(self.version)
        return f"checkpoint {self.version} cannot be written: {reason}" if reason else ""

    def rows(self, group: GroupState, now: float) -> dict[str, Any]:
        """Its checkpoint, in the row of the store."""
        version = self.version if self.has_end else None
        return {"store": {"last_will": version}} if group.versions.is_on else {}

    @staticmethod
    def explain(document: Row) -> Iterator[tuple[str, Row]]:
        """The job is lost, and one thing is awaited before it ends."""
        store = document["store"] or {}
        if document["state"] == JobState.COLLECTING.value and store.get("last_will") is not None:
            yield "last_will", {**store, "newest_text": newest_text(store)}
