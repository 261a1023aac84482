"""Kept by all: which small results stay with every member (rule R15).

Two budgets of bytes, one for the prelude and one for the present version.  Each is spent in the
order of positions, by every result that is small enough.  The first result that does not fit ends
the budget: it and all later ones follow rule R3 alone.  Nobody relies on what is kept so: a plan
reads reports.
"""

from ftcomm.protocol.position import PRELUDE, Position

KEEP_BY_ALL_BYTES = 1 << 20  # a larger result is worth a fetch from one of few holders
# What one result costs beside its bytes: the position, the entry, the array around the bytes.
# Without it a version of many results of 4 bytes would take a hundred times its budget.
ENTRY_BYTES = 512


class KeptByAll:
    """The budgets of one member, spent as this member passes results.

    It passes them in the order of positions, executed or replayed, so that every member counts
    alike.

    Attributes:
        limit: bytes of each budget; 0 keeps nothing beyond rule R3.
        version: of the newest result that was passed.
        end: the sequence number behind the last that is kept, in this version.
    """

    __slots__ = ("_closed", "_prelude_end", "_spent", "end", "limit", "version")

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.version = PRELUDE
        self._spent = 0  # of the budget of this version
        self.end = 0
        self._closed = False
        self._prelude_end = 0  # `end` of it, where this version is a later one

    def passed(self, position: Position, nbytes: int) -> None:
        """This member has the result of `position`, and has passed all before it."""
        if position.version != self.version:
            self._begin(position.version)
        if nbytes > KEEP_BY_ALL_BYTES or self._closed:
            return
        self._spent += nbytes + ENTRY_BYTES
        if self._spent > self.limit:
            self._closed = True
        else:
            self.end = position.seqno + 1

    def _begin(self, version: int) -> None:
        if self.version == PRELUDE:
            self._prelude_end = self.end
        self.version, self._spent, self.end, self._closed = version, 0, 0, False

    def keeps(self, position: Position, nbytes: int) -> bool:
        """Tell whether a given result stays here, independent of its replica holders."""
        if position.version == self.version:
            end = self.end
        else:
            end = self._prelude_end if position.version == PRELUDE else 0
        return position.seqno < end and nbytes <= KEEP_BY_ALL_BYTES

    @property
    def is_open(self) -> bool:
        """True if the next small result of this version may be kept too."""
        return not self._closed

    def end_at(self, position: Position) -> None:
        """Keep nothing more from `position` on, up to the end of this version."""
        self._closed = True
        if position.version == self.version:
            self.end = min(self.end, position.seqno)
        else:
            self.end = 0
            self._prelude_end = min(self._prelude_end, position.seqno)
