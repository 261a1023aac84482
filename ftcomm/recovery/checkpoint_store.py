"""CheckpointStore: the committed checkpoint, the tentative one, and the local states of both.

A checkpoint is tentative from `offer` until every rank is known to hold it (rule R6).
"""

from typing import Any

from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.recovery.local_state_store import LocalStore
from ftcomm.recovery.states import Checkpoint


class CheckpointStore:
    """Checkpoints of one worker. All methods are for the holder of the machine's lock."""

    def __init__(self) -> None:
        self.committed: Checkpoint | None = None  # the newest committed one that is here
        self.tentative: Checkpoint | None = None  # the next one, offered and not committed yet
        self.locals = LocalStore()  # local states of both versions

    @property
    def digest(self) -> bytes:
        """Digest of the tentative checkpoint, empty without one."""
        return b"" if self.tentative is None else self.tentative.digest

    @property
    def committed_version(self) -> int:
        """Version of the committed checkpoint, `PRELUDE` without one."""
        return PRELUDE if self.committed is None else self.committed.version

    @property
    def tentative_version(self) -> int:
        """Version of the tentative checkpoint, `PRELUDE` without one."""
        return PRELUDE if self.tentative is None else self.tentative.version

    def offer(self, checkpoint: Checkpoint, rank: int, local: Any | None) -> None:
        """Hold `checkpoint` as tentative, with the local state of this `rank` unless it is None."""
        self.tentative = checkpoint
        if local is not None:
            self.locals.offer(checkpoint.version, rank, local)

    def keep_local(self, version: int, rank: int, value: Any) -> bool:
        """Hold a copy of a tentative local state of `rank`; False if nobody expects it here."""
        if self.tentative is None or self.tentative.version != version:
            return False
        return self.locals.put(version, rank, value)

    def commit(self) -> int:
        """Commit the tentative checkpoint; return its version.

        The old version is released only now that the commit is known (rule R6).
        """
        tentative = self.tentative
        assert tentative is not None
        self.committed, self.tentative = tentative, None
        self.locals.commit(tentative.version)
        return tentative.version

    def put_fetched(self, version: int, value: Any, own: Any | None = None) -> None:
        """Hold the checkpoint to load, which another rank has sent; see `Checkpoint.own`."""
        self.committed = Checkpoint(version, value, own=own)
        self.locals.commit(version)

    def forget(self) -> None:
        """Release what is held: it belongs to a job in which this process has no part."""
        self.committed = self.tentative = None
        self.locals = LocalStore()

    def loadable(self, version: int, rank: int) -> Checkpoint | None:
        """The committed checkpoint if it is `version` and the local state of `rank` is here."""
        ready = self.committed is not None and self.committed.version == version
        ready = ready and not self.locals.lacks(version, rank)
        return self.committed if ready else None

    def check_invariants(self, position: Position, rank: int) -> None:
        """Assert that a rank behind its load holds the version that it is in."""
        if position.past_load:
            assert self.committed is not None
            assert self.committed.version == position.version
            assert not self.locals.lacks(self.committed.version, rank)
