"""The log: results kept for replay, and the rules by which they may go (rules R3 and R15).

A member holds the whole result of a position until that position is stable: until this rank has
*executed* a synchronising collective after it in the current epoch.  Replica holders hold it on
until the next checkpoint commits; the prelude's results are kept for the job's lifetime.  Small
results are held as long by every member (`KeptByAll`, rule R15).  What a report listed is pinned
until its plan is settled or a newer report replaces it, and nothing else is: results come and go
also while a plan waits for a tracker that has died (rules R9, R13).
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ftcomm.protocol.field_types import RUNS_OF_A_FRAME
from ftcomm.protocol.position import PRELUDE, START, Position, PositionRange
from ftcomm.recovery.archive.placement import is_replica_holder
from ftcomm.recovery.unasked_calls import KEPT_ROOM, UnaskedCalls

GAPS_BETWEEN_COUNTS = 1024  # results that go from between others; each makes a run or two
_NOTHING = Position(0, PRELUDE - 1, 0)  # below all positions
KEEP_BY_ALL_BYTES = 1 << 20  # a larger result is worth a fetch from one of few holders
# What one result costs beside its bytes: the position, the entry, the array around the bytes.
# Without it a version of many results of 4 bytes would take a hundred times its budget.
ENTRY_BYTES = 512


@dataclass(slots=True)  # made in every call: a frozen one takes twice as long to make
class LogEntry:
    """One logged result. The log owns `value`; nobody writes to it any more."""

    signature: bytes  # the 48 bytes of the collective, compared again in replay (rule R7)
    value: Any  # the result as the engine keeps it; opaque to the log
    nbytes: int = 0  # of the result, the same on every rank
    # Of a fetched result, where the rank that served it had made the call; empty if not known.
    site: str = ""


class KeptByAll:
    """The small results that stay with every member (rule R15), as this member counts them.

    Two budgets of bytes, one for the prelude and one for the present version.  Each is spent in the
    order of positions, by every result that is small enough.  The first result that does not fit
    ends the budget: it and all later ones follow rule R3 alone.  Nobody relies on what is kept so:
    a plan reads reports.  A member passes results in the order of positions, executed or replayed,
    so that every member counts alike.
    """

    __slots__ = ("_closed", "_limit", "_prelude_end", "_unasked", "end", "version")

    def __init__(self, unasked: UnaskedCalls) -> None:
        self._limit = 0  # bytes of each budget; 0 keeps nothing beyond rule R3
        self.version = PRELUDE  # of the newest result that was passed
        self._unasked = unasked  # has what this version's budget has left, and takes of it
        self.end = 0  # the sequence number behind the last that is kept, in this version
        self._closed = False
        self._prelude_end = 0  # `end` of it, where this version is a later one

    def set_limit(self, limit: int) -> None:
        """Fix the bytes of each budget."""
        if not self._closed:
            self._unasked.words[KEPT_ROOM] += limit - self._limit
        self._limit = limit

    def passed(self, position: Position, nbytes: int) -> None:
        """This member has the result of `position`, and has passed all before it."""
        if position.version != self.version:
            self.begin(position.version)
        if nbytes > KEEP_BY_ALL_BYTES or self._closed:
            return
        room = self._unasked.words[KEPT_ROOM] - nbytes - ENTRY_BYTES
        if room < 0:
            self._close()
        else:
            self._unasked.words[KEPT_ROOM] = room
            self.end = position.seqno + 1

    def begin(self, version: int) -> None:
        """Count the results of another version from now on."""
        if self.version == PRELUDE:
            self._prelude_end = self.end
        self.version, self.end, self._closed = version, 0, False
        self._unasked.words[KEPT_ROOM] = self._limit

    def _close(self) -> None:
        self._closed = True
        self._unasked.words[KEPT_ROOM] = 0

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
        self._close()
        if position.version == self.version:
            self.end = min(self.end, position.seqno)
        else:
            self.end = 0
            self._prelude_end = min(self._prelude_end, position.seqno)


class Results:
    """Results by position, with retention. All methods are for the holder of the core's lock."""

    def __init__(self) -> None:
        self._entries: dict[Position, LogEntry] = {}
        self.unasked = UnaskedCalls()  # more results, which calls have logged without asking
        self._unproven: list[Position] = []  # ordered: held, not yet known to be stable
        # What a report listed and a proof may release, stable or not; ordered, none of them above.
        self._pinned: list[Position] = []
        self._stable_below = START
        self._committed = PRELUDE
        self._index = 0
        self._stride = 1
        self._by_all = KeptByAll(self.unasked)
        self._pinned_to: Position | None = None  # what a report listed is not beyond this
        self._gaps = 0  # results that went since runs were counted

    def set_keeping(self, index: int, stride: int, keep_by_all: int = 0) -> None:
        """Fix this member's share, as `replica_holders` computes it from the job's keep order."""
        self._index, self._stride = index, stride
        self._by_all.set_limit(keep_by_all)

    def get(self, position: Position) -> LogEntry | None:
        """The result of `position`, if held."""
        found: LogEntry | None = self._entries.get(position) or self.unasked.get(position)
        return found

    def begin_version(self, version: int) -> None:
        """This member has passed all results of earlier versions."""
        if self._by_all.version != version:
            self._by_all.begin(version)

    def add(self, position: Position, entry: LogEntry) -> None:
        """Hold a result, executed or fetched: both fall under the same rule."""
        if self._is_outdated(position) or self.get(position) is not None:
            return
        self._entries[position] = entry
        if not self._unproven or position > self._unproven[-1]:
            self._unproven.append(position)
        else:
            insort(self._unproven, position)

    def passed(self, position: Position) -> None:
        """This member has executed or replayed `position`; said in order, once for each."""
        entry = self._entries.get(position)
        if entry is not None:
            self._by_all.passed(position, entry.nbytes)

    def skipped(self, position: Position) -> None:
        """This member leaves out the rest of its prelude, from `position` on."""
        for skipped in sorted(p for p in self._entries if p.version == PRELUDE and p >= position):
            self.passed(skipped)

    def prove_stable(self, position: Position) -> list[Any]:
        """Every rank has completed everything below `position`; return values that were dropped."""
        self._stable_below = max(self._stable_below, position)
        return self._collect()

    def succeed(self, position: Position, entry: LogEntry) -> list[Any]:
        """`add`, `passed` and `prove_stable` in one, of a position behind all others.

        Returns:
            values that were released: one at most, but behind broadcasts.
        """
        if len(self._unproven) != 1:
            self.follow(position, entry)
            return self.prove_stable(position)
        before, self._unproven[0] = self._unproven[0], position
        self._stable_below = position
        self._entries[position] = entry
        if self._stride == 1:  # it keeps everything
            return []
        by_all = self._by_all
        # `keeps`, in fewer steps: the one before was passed last, and kept by all
        stays = before.seqno + 1 == by_all.end and before.version == by_all.version
        by_all.passed(position, entry.nbytes)
        return [] if stays or self.keeps(before) else self._drop([before])

    def follow(self, position: Position, entry: LogEntry) -> None:
        """`add` and `passed` in one, of a position behind all others."""
        self._entries[position] = entry
        self._unproven.append(position)
        self._by_all.passed(position, entry.nbytes)

    def commit(self, version: int) -> list[Any]:
        """Checkpoint `version` is committed: results of older versions are not needed again.

        Pins do not matter here: whoever was fetching such a result has either passed it (the
        checkpoint was executed by all) or has a newer plan (the plan committed it).
        """
        self._committed = max(self._committed, version)
        outdated = [position for position in self._entries if self._is_outdated(position)]
        self._unproven = [p for p in self._unproven if not self._is_outdated(p)]
        self._pinned = [p for p in self._pinned if not self._is_outdated(p)]
        released = [self._entries.pop(position).value for position in outdated]
        self.unasked.commit(self._committed)
        return released

    def forget(self) -> None:
        """Release what was read for another job: this process has had no plan of it."""
        self._entries.clear()
        self.unasked.forget()
        self._unproven, self._pinned, self._pinned_to = [], [], None

    def pin(self) -> None:
        """Let nothing go of what is held now: a report is listing it.

        What was pinned for an older report is held still, so it is listed and pinned again.
        """
        self._pinned = sorted(self._pinned + self._unproven)
        self._unproven = []
        self._pinned_to = max(self._entries, default=None)

    def unpin(self) -> list[Any]:
        """The plan is settled; drop what the rules released meanwhile."""
        self._unproven = sorted(self._pinned + self._unproven)
        self._pinned = []
        self._pinned_to = None
        return self._collect()

    def runs(self) -> tuple[PositionRange, ...]:
        """Everything held, as arithmetic runs per version in order."""
        return self._runs_of(self.positions())

    def runs_of(self, version: int) -> tuple[PositionRange, ...]:
        """All that is held of `version`, as arithmetic runs in order; as many as a frame has."""
        held = [position for position in self.positions() if position.version == version]
        return self._runs_of(held)[:RUNS_OF_A_FRAME]

    def __len__(self) -> int:
        return len(self.positions())

    def positions(self) -> list[Position]:
        """Positions held, in order."""
        return sorted([*self._entries, *self.unasked.positions()])

    def keeps(self, position: Position) -> bool:
        """Tell whether this member keeps a result, once stable, until its version is over."""
        if is_replica_holder(self._index, position.seqno, self._stride):
            return True
        entry = self._entries.get(position)
        return entry is not None and self._by_all.keeps(position, entry.nbytes)

    def _is_outdated(self, position: Position) -> bool:
        return PRELUDE < position.version < self._committed

    def _collect(self) -> list[Any]:
        """Release stable results that this rank does not keep."""
        done = bisect_left(self._unproven, self._stable_below)
        goes = [position for position in self._unproven[:done] if not self.keeps(position)]
        del self._unproven[:done]
        return self._drop(goes)

    def _drop(self, positions: list[Position]) -> list[Any]:
        """Release `positions`; of more where what stays has come to be in too many pieces."""
        entries = [self._entries.pop(position, None) for position in positions]
        dropped = [entry.value for entry in entries if entry is not None]
        self._gaps += len(positions) * self._by_all.is_open
        if self._gaps >= GAPS_BETWEEN_COUNTS:
            self._gaps = 0
            dropped += self._bound_runs()
        return dropped

    def _bound_runs(self) -> list[Any]:
        """Keep a report short: drop the newest that others' holders have, none that it lists."""
        held, pinned_to = self.positions(), self._pinned_to or _NOTHING
        extras = [
            position
            for position in held
            if pinned_to < position < self._stable_below
            and position in self._entries
            and not is_replica_holder(self._index, position.seqno, self._stride)
        ]

        def is_long(kept: int) -> bool:
            rest = set(extras[kept:])
            return len(self._runs_of(p for p in held if p not in rest)) > RUNS_OF_A_FRAME

        kept = bisect_left(range(len(extras) + 1), True, key=is_long) - 1
        if kept == len(extras):
            return []
        goes = extras[max(kept, 0) :]
        self._by_all.end_at(goes[0] if goes else held[-1].next())
        return [self._entries.pop(position).value for position in goes]

    def _runs_of(self, positions: Iterable[Position]) -> tuple[PositionRange, ...]:
        by_version: dict[int, list[int]] = {}
        for position in positions:
            by_version.setdefault(position.version, []).append(position.seqno)
        return tuple(
            run
            for version, seqnos in by_version.items()
            for run in compress(version, seqnos, self._stride)
        )


def compress(version: int, seqnos: Iterable[int], stride: int) -> list[PositionRange]:
    """Write ascending sequence numbers as few arithmetic runs.

    What is held and what is missing are whole residue classes of the replica holders' `stride`,
    from one interruption to the next.  Of a member that lacks one class of three the runs from the
    left are a third as many as the results; those of each class are two.
    """
    ascending = list(seqnos)
    runs = _from_the_left(version, ascending)
    if len(runs) <= stride:
        return runs
    classes: dict[int, list[int]] = {}
    for seqno in ascending:
        classes.setdefault(seqno % stride, []).append(seqno)
    by_class = [run for each in classes.values() for run in _from_the_left(version, each)]
    return min(runs, by_class, key=len)


def _from_the_left(version: int, seqnos: Iterable[int]) -> list[PositionRange]:
    runs: list[PositionRange] = []
    pending: list[int] = []
    for seqno in seqnos:
        if len(pending) >= 2 and seqno - pending[-1] != pending[1] - pending[0]:
            runs.append(_run_of(version, pending))
            pending = []
        pending.append(seqno)
    if pending:
        runs.append(_run_of(version, pending))
    return runs


def _run_of(version: int, seqnos: list[int]) -> PositionRange:
    step = seqnos[1] - seqnos[0] if len(seqnos) > 1 else 1
    return PositionRange(version, seqnos[0], seqnos[-1] + 1, step)
