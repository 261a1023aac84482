"""Recent calls: what this process has called last, for the report of a mismatch (rule R7).

A mismatch is often seen later than it began: the root of a broadcast sends and goes on, and the
others notice when it is several calls ahead.  So each process keeps its last calls, and the first
position at which two processes differ is found by comparing theirs.
"""

from collections import deque
from typing import NamedTuple

from ftcomm.protocol.field_types import MAX_CALLS
from ftcomm.protocol.messages import CallMade
from ftcomm.protocol.position import Position

# Calls that are kept. A root that is ahead is at most 63 broadcasts ahead: the 64th one in
# a row ends with a barrier (`ftcomm.requests.builder.FLUSH_BROADCASTS`).
CALLS_KEPT = MAX_CALLS - 1  # the call in flight is told with them


class Called(NamedTuple):
    """One call of the user's: its signature, empty while it is not known, and its line."""

    signature: bytes
    site: str


NO_CALL = Called(b"", "")


class RecentCalls:
    """The last completed calls of one process.

    Positions are not stored: within a version they count up by one, and the end of a version is
    stored behind the call that ended it.
    """

    __slots__ = ("_calls", "note")

    def __init__(self) -> None:
        # Twice as many: each call may have ended a version.
        self._calls: deque[Called | Position] = deque(maxlen=2 * CALLS_KEPT)
        # Take a call that was completed; bound once, since every small call pays for it.
        self.note = self._calls.append

    def end_version(self, position: Position) -> None:
        """The call that was noted last, at `position`, was the last one of its version."""
        self._calls.append(position)

    def forget(self) -> None:
        """The calls so far are no part of the sequence that others have called."""
        self._calls.clear()

    def before(self, position: Position) -> list[CallMade]:
        """The calls that were completed before `position`, in order, at most `CALLS_KEPT`."""
        made: list[CallMade] = []
        behind = position
        for item in reversed(self._calls):
            if isinstance(item, Position):
                behind = item.next()
                continue
            behind = behind._replace(seqno=behind.seqno - 1)
            made.append(CallMade(behind, item.signature, item.site))
            if len(made) == CALLS_KEPT:
                break
        return made[::-1]

    def site_of(self, position: Position, reached: Position) -> str:
        """The line of the call at `position`, of those before `reached`; empty if not known."""
        made = self.before(reached)
        return next((call.site for call in made if call.position == position), "")
