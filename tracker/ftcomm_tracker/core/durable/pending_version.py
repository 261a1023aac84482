"""PendingVersion: one marked checkpoint on its way into the store.

Members say that they hold it, are ordered to write disjoint objects of it, and say what they have
written.  It is complete when the objects hold the whole state, all local states and the prelude.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from ftcomm.protocol.durable.store_messages import Marked, ObjectOrder, ObjectWritten
from ftcomm.protocol.field_types import MAX_OBJECT_ORDERS
from ftcomm.protocol.position import PositionRange
from ftcomm.recovery.archive.results import compress

STATE, LOCAL, PRELUDE_KIND = "state", "local", "prelude"
UNKNOWN = -1  # how many results the prelude has: a spare learns it from its first plan
# A smaller part is not worth an object of its own: a store's reply takes as long as writing it.
MIN_SHARD_BYTES = 8 << 20
# Of each result of the prelude: all versions of an attempt name its objects, so one damaged object
# would make all of them useless.
PRELUDE_COPIES = 2
# Results in one object: its header has the inputs' digests of all ranks, at most 17 MiB with these,
# and one above 32 MiB would not be read again.
PRELUDE_RESULTS = 512
SHARD_ALIGNMENT = 4096  # a page, so that parts of a mapped state begin on one
# A member that could not write is ordered again after so long, if no other holds the object.
RETRY_S = 5.0

Span = tuple[int, int]
Orders = tuple[list[ObjectOrder], list[int]]  # objects, and seqnos of the prelude


class PendingVersion:
    """One marked version: who holds it, what is written, what is ordered from whom.

    Attributes:
        version: its number.
        since: when the tracker heard of it first.
        marks: by rank, what a connected member said of it.
    """

    def __init__(self, version: int, *, since: float) -> None:
        self.version = version
        self.since = since
        self.marks: dict[int, Marked] = {}
        self._written: dict[str, ObjectWritten] = {}
        self._ordered: dict[ObjectOrder, int] = {}
        self._prelude_ordered: dict[int, set[int]] = {}  # seqnos by rank
        self._paused: dict[int, float] = {}  # ranks that failed to write, and until when

    # --- what members say ---------------------------------------------------------------------

    def on_marked(self, rank: int, marked: Marked) -> None:
        """A member holds it, packed."""
        self.marks[rank] = marked

    def on_written(self, rank: int, written: ObjectWritten) -> None:
        """An object is in the store, whoever has written it."""
        self._written[written.name] = written
        if self._ordered.get(written.order) == rank:
            del self._ordered[written.order]
        if written.order.kind == PRELUDE_KIND:
            self._prelude_ordered.pop(rank, None)

    def on_missing(self, names: Collection[str]) -> None:
        """Objects that were written are in the store no more."""
        left = self._written.items()
        self._written = {name: written for name, written in left if name not in names}

    def on_failed(self, rank: int, *, holds: bool, until: float) -> None:
        """A member could not write: others are asked first."""
        self._forget_orders(rank)
        if holds:
            self._paused[rank] = until
        else:
            self.marks.pop(rank, None)

    def lose(self, rank: int) -> None:
        """A member is gone: what it has written stays, what it was to write another writes."""
        self.marks.pop(rank, None)
        self._paused.pop(rank, None)
        self._forget_orders(rank)

    def _forget_orders(self, rank: int) -> None:
        self._ordered = {order: who for order, who in self._ordered.items() if who != rank}
        self._prelude_ordered.pop(rank, None)

    # --- what follows -------------------------------------------------------------------------

    @property
    def retry_at(self) -> float:
        """Time at which a member that failed may be ordered again; infinity if none has."""
        return min(self._paused.values(), default=float("inf"))

    @property
    def is_agreed(self) -> bool:
        """True if all members have packed the same bytes."""
        return len({(marked.digest, marked.nbytes) for marked in self.marks.values()}) <= 1

    @property
    def has_locals(self) -> bool:
        """True if it has local states."""
        return any(marked.locals is not None for marked in self.marks.values())

    @property
    def facts(self) -> Marked | None:
        """Words of one of the members; all say the same of the digest and the packed bytes."""
        return next(iter(self.marks.values()), None)

    def orders(
        self, world_size: int, now: float, *, prelude: int
    ) -> dict[int, tuple[list[ObjectOrder], tuple[PositionRange, ...]]]:
        """Order what is neither written nor ordered from members that hold it.

        Args:
            world_size: of the job.
            now: the time.
            prelude: how many results of the prelude belong to it, `UNKNOWN` if nobody has said.

        Returns:
            by rank, its objects, and the prelude's results for an object of these.
        """
        self._paused = {rank: until for rank, until in self._paused.items() if until > now}
        writers = [rank for rank in sorted(self.marks) if rank not in self._paused]
        found: dict[int, Orders] = {rank: ([], []) for rank in writers}
        if not writers:
            return {}
        for writer, order in self._state_orders(writers):
            found[writer][0].append(order)
        for owner in self._missing_locals(world_size):
            holder = self._holder_of(owner, writers)
            if holder is not None:
                found[holder][0].append(ObjectOrder(LOCAL, owner))
        for seqno, count in self._missing_prelude(prelude, ordered=True).items():
            holders = [rank for rank in writers if self._may_write(rank, seqno)]
            for holder in holders[:count]:
                found[holder][1].append(seqno)
        return dict(self._noted(found))

    def _noted(
        self, found: dict[int, Orders]
    ) -> Iterator[tuple[int, tuple[list[ObjectOrder], tuple[PositionRange, ...]]]]:
        for rank, (objects, seqnos) in found.items():
            objects, seqnos = objects[:MAX_OBJECT_ORDERS], seqnos[:PRELUDE_RESULTS]
            self._ordered.update(dict.fromkeys(objects, rank))
            if seqnos:
                self._prelude_ordered[rank] = set(seqnos)
            if objects or seqnos:
                yield rank, (objects, tuple(compress(-1, seqnos, 1)))

    def is_complete(self, world_size: int, *, prelude: int) -> bool:
        """True if every byte of it is in the store."""
        if not self.is_agreed or self.facts is None or prelude == UNKNOWN:
            return False
        missing = self._missing_prelude(prelude, ordered=False)
        if any(n == PRELUDE_COPIES or self._is_held(seqno) for seqno, n in missing.items()):
            return False  # one copy is enough where nobody is left who could write the other
        whole = not _gaps(self._spans_written(), self.facts.nbytes)
        written = {w.order.rank for w in self._written.values() if w.order.kind == LOCAL}
        locals_ = not self.has_locals or written >= set(range(world_size))
        return whole and locals_

    def missing(self, world_size: int, *, prelude: int) -> str:
        """Name what no connected member can write; empty if nothing is missing."""
        if self.facts is None:
            return "" if not self._written else "no member holds it any more"
        held = {rank for m in self.marks.values() for rank in m.locals or ()}
        lost = [rank for rank in self._missing_locals(world_size) if rank not in held]
        if lost:
            return f"the local state of rank {lost[0]} is held by no member"
        if prelude == UNKNOWN:
            return "no member knows how many results the prelude has"
        for seqno, count in self._missing_prelude(prelude, ordered=False).items():
            if count == PRELUDE_COPIES and not self._is_held(seqno):
                return f"result {seqno} of the prelude is held by no member"
        return ""

    def objects(self) -> tuple[ObjectWritten, ...]:
        """The objects of its record: each byte once."""
        state = self._taken()
        locals_ = {w.order.rank: w for w in self._written.values() if w.order.kind == LOCAL}
        prelude = [w for w in self._written.values() if w.order.kind == PRELUDE_KIND]
        by_name = sorted(prelude, key=lambda written: written.name)
        return (*state, *(locals_[rank] for rank in sorted(locals_)), *by_name)

    # --- parts of the state -------------------------------------------------------------------

    def _taken(self) -> list[ObjectWritten]:
        """Written parts of the state that do not overlap, in order."""
        digest = None if self.facts is None else self.facts.digest
        parts = [
            w for w in self._written.values() if w.order.kind == STATE and w.state_digest == digest
        ]
        taken: list[ObjectWritten] = []
        for part in sorted(parts, key=lambda w: (w.order.lo, w.order.hi, w.name)):
            if not taken or part.order.lo >= taken[-1].order.hi:
                taken.append(part)
        return taken

    def _spans_written(self) -> list[Span]:
        return [(part.order.lo, part.order.hi) for part in self._taken()]

    def _state_orders(self, writers: Sequence[int]) -> Iterator[tuple[int, ObjectOrder]]:
        """Deal the parts of the state that are neither written nor ordered."""
        assert self.facts is not None
        nbytes = self.facts.nbytes
        ordered = [(o.lo, o.hi) for o in self._ordered if o.kind == STATE]
        even = -(-nbytes // (len(writers) * SHARD_ALIGNMENT)) * SHARD_ALIGNMENT
        size = max(even, MIN_SHARD_BYTES)
        turn = self.version  # so that small states are not always the first member's to write
        for lo, hi in _gaps(sorted([*self._spans_written(), *ordered]), nbytes):
            for begin in range(lo, hi, size):
                yield (
                    writers[turn % len(writers)],
                    ObjectOrder(STATE, lo=begin, hi=min(begin + size, hi)),
                )
                turn += 1

    # --- local states and the prelude ---------------------------------------------------------

    def _missing_locals(self, world_size: int) -> list[int]:
        """Owners whose local states are neither written nor ordered."""
        if not self.has_locals:
            return []
        done = {w.order.rank for w in self._written.values() if w.order.kind == LOCAL}
        done |= {order.rank for order in self._ordered if order.kind == LOCAL}
        return [rank for rank in range(world_size) if rank not in done]

    def _holder_of(self, owner: int, writers: Sequence[int]) -> int | None:
        """The member that writes the local state of `owner`: itself, if it can."""
        holders = [rank for rank in writers if owner in (self.marks[rank].locals or ())]
        return owner if owner in holders else next(iter(holders), None)

    def _missing_prelude(self, prelude: int, *, ordered: bool) -> dict[int, int]:
        """Copies of the prelude's results that are not written, nor `ordered` if that counts."""
        done = Counter(seqnos_of(self._written.values()))
        if ordered:
            for seqnos in self._prelude_ordered.values():
                done.update(seqnos)
        missing = {seqno: PRELUDE_COPIES - done[seqno] for seqno in range(max(prelude, 0))}
        return {seqno: count for seqno, count in missing.items() if count > 0}

    def _may_write(self, rank: int, seqno: int) -> bool:
        """True if a member holds a result, and writes none now: one object follows the other."""
        return rank not in self._prelude_ordered and self._has_result(rank, seqno)

    def _is_held(self, seqno: int) -> bool:
        """True if a connected member holds a result of the prelude."""
        return any(self._has_result(rank, seqno) for rank in self.marks)

    def _has_result(self, rank: int, seqno: int) -> bool:
        return any(seqno in run.seqnos() for run in self.marks[rank].prelude)


def seqnos_of(objects: Iterable[ObjectWritten]) -> Iterator[int]:
    """Return the seqnos of the prelude's results that `objects` hold."""
    for each in objects:
        for run in each.prelude:
            yield from run.seqnos()


def _gaps(spans: Sequence[Span], end: int) -> list[Span]:
    """Return the parts of 0 to `end` that are in none of the ascending `spans`."""
    gaps, reached = [], 0
    for lo, hi in spans:
        if lo > reached:
            gaps.append((reached, lo))
        reached = max(reached, hi)
    if reached < end:
        gaps.append((reached, end))
    return gaps
