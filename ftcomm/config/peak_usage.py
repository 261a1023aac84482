"""Bound of a pool's memory, from the use in the last versions; pure."""

from collections import deque

# A program does not do the same in all versions: what so many in a row did not need is given back.
KEPT_VERSIONS = 4
# Of the most that was needed, a pool may hold a quarter more: where sizes differ, not every result
# finds one that fits among what is free, and fresh pages cost as much as the copy into them.
SLACK_PARTS = 4


class Peaks:
    """The most bytes that were in use at once, in this version and in the last ones.

    Args:
        limit: bytes above which nothing is held that is not in use.
    """

    __slots__ = ("_earlier", "limit", "newest")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.newest = 0  # the most in this version; whoever has no time for `note` raises it
        self._earlier: deque[int] = deque(maxlen=KEPT_VERSIONS)

    def note(self, in_use: int) -> None:
        """So many bytes are in use now."""
        self.newest = max(self.newest, in_use)

    def next_version(self, in_use: int) -> None:
        """A version has ended, and so many bytes are in use."""
        self._earlier.append(self.newest)
        self.newest = in_use

    @property
    def allowance(self) -> int:
        """Bytes that may be held, in use or not."""
        most = max(self.newest, *self._earlier, 0)
        return min(most + most // SLACK_PARTS, max(most, self.limit))
