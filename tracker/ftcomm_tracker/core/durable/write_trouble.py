"""WriteTrouble: what the tracker's log says while members cannot write checkpoints."""

from dataclasses import dataclass, field

Note = tuple[str, str]  # level, text


@dataclass(slots=True)
class WriteTrouble:
    """Trouble of the members with the store: said when it begins, and when it is over.

    A full store fails each retry of each version, and small objects still find room there.  So
    neither a failure nor an object tells a beginning or an end: the record of a version does, if
    nobody's last try has failed.

    Attributes:
        reason: why a member could not write last; empty if there is no trouble.
    """

    reason: str = ""
    _failing: set[int] = field(default_factory=set)  # ranks whose last try has failed

    def on_failed(self, rank: int, version: int, reason: str) -> list[Note]:
        """A member could not write an object; return what to log."""
        is_new, self.reason = not self.reason, f"rank {rank}: {reason}"
        self._failing.add(rank)
        if not is_new:
            return []
        return [("warning", f"checkpoint {version} waits, the job goes on: {self.reason}")]

    def forget(self, rank: int) -> None:
        """A member has written an object, or is gone."""
        self._failing.discard(rank)

    def on_put(self) -> list[Note]:
        """A version has its record; return what to log."""
        if self._failing or not self.reason:  # others may have written for them
            return []
        self.reason = ""
        return [("info", "all ranks can write checkpoints again")]

    def at_the_end(self, newest: int) -> list[Note]:
        """Return what to log at the job's end, of which `newest` is durable; -1 for none."""
        if not self.reason:
            return []
        durable = "no checkpoint is durable" if newest < 0 else f"checkpoint {newest} is durable"
        return [
            ("warning", f"the job ends, and not all could be written: {self.reason}; {durable}")
        ]
