"""MessageReach: how far the results of a version are free of messages (rules R16, R21).

A later attempt makes the messages of a version again, maybe with other bytes.  So no result is
journalled that may depend on one: what this rank executes from the first message on that it has
taken, and what it executes with another rank of which that is true.  Frames and fetched results say
so of themselves.
"""

from ftcomm.protocol.position import Position
from ftcomm.recovery.call_progress import CallProgress


class MessageReach:
    """Of one worker: the newest version in which it knows of a message, and from where on."""

    def __init__(self, progress: CallProgress) -> None:
        self._progress = progress
        self._first: Position | None = None

    def begin(self) -> None:
        """A message is taken: the call in flight, or the next one, may depend on it."""
        position = self._progress.position
        if not self.covers(position):
            self.begin_at(position)

    def begin_at(self, position: Position) -> None:
        """The result of `position` may depend on a message."""
        first = self._first
        is_older = first is not None and position.version < first.version
        if not is_older and not self.covers(position):
            self._first = position

    def covers(self, position: Position) -> bool:
        """Tell whether the result of `position` may depend on a message of its version."""
        first = self._first
        return (
            first is not None
            and position.version == first.version
            and position.seqno >= first.seqno
        )
