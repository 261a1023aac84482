"""The archive: all that one member keeps for replay, for itself and for others.

| kind | kept by | until |
|---|---|---|
| results, alike on all ranks | `results`: all until stable, then their holders (R3, R15) | commit |
| states of checkpoints | every member | commit of the next (R6) |
| local states | their owner and its holders | likewise |
| copies of results that are of one rank each | their owner and its holders (R20) | commit |
| inputs of this rank | this rank (R20) | commit |

A checkpoint is tentative from `offer` until every rank is known to hold it.  Of versions before the
committed one nothing is kept: a rank that lacks something of it loads the newer version.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from ftcomm.protocol.field_types import MAX_LOCAL_VERSIONS
from ftcomm.protocol.link_messages import CopyName
from ftcomm.protocol.messages import LocalStates
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.recovery.archive.results import Results
from ftcomm.recovery.states import Checkpoint

Place = TypeVar("Place", int, Position)
Item = TypeVar("Item")


class ResultCopy(NamedTuple):
    """One rank's result of one call.

    Attributes:
        epoch: in which the call was executed.
        digest: of the result.
        value: the result as the engine keeps it; opaque here, and never written any more.
    """

    epoch: int
    digest: bytes
    value: Any


@dataclass(frozen=True, slots=True)
class Contribution:
    """One rank's input to one call; logged before anything of it is sent.

    Attributes:
        signature: the 48 bytes of the call.
        digest: of the whole input.
        value: the input as the engine keeps it; opaque here, and never written any more.
        extents: for each rank, which rows ``[lo, hi)`` of the value are its part; empty where the
            value itself tells.
    """

    signature: bytes
    digest: bytes
    value: Any
    extents: tuple[tuple[int, int], ...] = ()


class Shelf(Generic[Place, Item]):
    """Items of one kind, by their place, a version or a position, and the rank that owns them.

    A place may be known before anything of it is held.
    """

    def __init__(self) -> None:
        self._held: dict[Place, dict[int, Item]] = {}

    def __len__(self) -> int:
        return sum(len(items) for items in self._held.values())

    def know(self, place: Place) -> None:
        """Items of `place` exist, whether any of them is held or not."""
        self._held.setdefault(place, {})

    def put(self, place: Place, owner: int, item: Item) -> None:
        """Hold one more, or another one in its place."""
        self._held[place] = dict(sorted({**self._held.get(place, {}), owner: item}.items()))

    def get(self, place: Place, owner: int) -> Item | None:
        """One item; None if it is not held or never was."""
        return self._held.get(place, {}).get(owner)

    def of(self, place: Place) -> Mapping[int, Item] | None:
        """The items of `place` that are held, by owner; None if it is not known."""
        return self._held.get(place)

    def lacks(self, place: Place, owner: int) -> bool:
        """Tell whether `place` is known and the item of `owner` is not here yet."""
        return place in self._held and owner not in self._held[place]

    def keep_only(self, place: Place, owners: Mapping[int, Item]) -> None:
        """Drop all items of `place` but these."""
        self._held[place] = dict(owners)

    def places(self) -> list[Place]:
        """The places that are known, in order."""
        return sorted(self._held)

    def drop(self, places: list[Place]) -> list[Item]:
        """Release what these places have."""
        return [item for place in places for item in self._held.pop(place).values()]


class Archive:
    """All that one member keeps. Its methods are for the holder of the machine's lock.

    Attributes:
        results: alike on all ranks, by position.
        committed: the newest committed checkpoint that is here.
        tentative: the next one, offered and not committed yet.
        locals: local states of both, by version and rank.
        copies: by position and owner.
        inputs: this rank's, by position.
        made_from_copies: the checkpoint committed last was computed from some.
    """

    def __init__(self) -> None:
        self.results = Results()
        self.committed: Checkpoint | None = None
        self.tentative: Checkpoint | None = None
        self.locals: Shelf[int, Any] = Shelf()
        self.copies: Shelf[Position, ResultCopy] = Shelf()
        self.inputs: Shelf[Position, Contribution] = Shelf()
        self.made_from_copies = False
        self._wanted: dict[CopyName, bytes] = {}  # copies that should be here; their digests

    # --- checkpoints --------------------------------------------------------------------------

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
        """Hold `checkpoint` as tentative, with the local state of this `rank` unless it is None.

        Copies of local states of an earlier attempt at it go.
        """
        self.tentative = checkpoint
        if local is not None:
            self.locals.keep_only(checkpoint.version, {rank: local})

    def abandon(self, rank: int) -> None:
        """A plan did not commit the tentative version: it is made again, from one's own on.

        What others gave goes: another incarnation of theirs may offer something else.
        """
        own = self.locals.get(self.tentative_version, rank)
        if own is not None:
            self.locals.keep_only(self.tentative_version, {rank: own})

    def put_fetched(self, version: int, value: Any, own: Any | None = None) -> None:
        """Hold the checkpoint to load, which another rank has sent; see `Checkpoint.own`."""
        self.committed = Checkpoint(version, value, own=own)
        self.drop_locals(version)

    def loadable(self, version: int, rank: int) -> Checkpoint | None:
        """The committed checkpoint if it is `version` and the local state of `rank` is here."""
        ready = self.committed_version == version and not self.locals.lacks(version, rank)
        return self.committed if ready else None

    def keep_local(self, version: int, rank: int, value: Any) -> bool:
        """Hold a local state of `rank`; False, and nothing is held, if `version` is not known."""
        is_known = self.locals.of(version) is not None
        if is_known:
            self.locals.put(version, rank, value)
        return is_known

    def drop_locals(self, version: int) -> None:
        """Release local states of versions before this one."""
        self.locals.drop([v for v in self.locals.places() if v < version])

    def report_locals(self) -> tuple[LocalStates, ...]:
        """List the ranks whose local states are held, by version."""
        versions = self.locals.places()
        assert len(versions) <= MAX_LOCAL_VERSIONS, f"local states of versions {versions}"
        return tuple(LocalStates(v, tuple(self.locals.of(v) or ())) for v in versions)

    # --- copies -------------------------------------------------------------------------------

    @property
    def wanted(self) -> tuple[CopyName, ...]:
        """Names of copies that are expected and not here."""
        return tuple(self._wanted)

    def expect_copy(self, name: CopyName, digest: bytes) -> None:
        """A copy with this digest should be here: others have completed the call with it."""
        copy = self.copies.get(name.position, name.owner)
        if copy is None or copy.digest != digest:
            self._wanted[name] = digest

    def put_copy(self, name: CopyName, copy: ResultCopy) -> None:
        """Hold a copy; those of an older execution of the call go, whose ever they are."""
        held = self.copies.of(name.position) or {}
        newer = {rank: other for rank, other in held.items() if other.epoch >= copy.epoch}
        self.copies.keep_only(name.position, newer)
        self.copies.put(name.position, name.owner, copy)
        if self.fits(name, copy):
            del self._wanted[name]

    def fits(self, name: CopyName, copy: ResultCopy) -> bool:
        """Tell whether that is the copy which is wanted."""
        return self._wanted.get(name) == copy.digest

    # --- the end of a version -----------------------------------------------------------------

    def commit_tentative(self) -> tuple[int, list[Any]]:
        """Commit the tentative checkpoint; return its version, and values as `commit` does.

        The old version is released only now that the commit is known (rule R6).
        """
        tentative = self.tentative
        assert tentative is not None
        self.committed, self.tentative = tentative, None
        return tentative.version, self.commit(tentative.version)

    def commit(self, version: int) -> list[Any]:
        """Checkpoint `version` is committed: release what older versions have.

        Returns:
            values of results, inputs and copies, whose memory is the pool's.
        """
        self.drop_locals(version)
        inputs, copies = (
            [position for position in shelf.places() if position.version < version]
            for shelf in (self.inputs, self.copies)
        )
        self.made_from_copies = bool(copies)
        self._wanted = {n: d for n, d in self._wanted.items() if n.position.version >= version}
        released = self.results.commit(version)
        released += [each.value for each in self.inputs.drop(inputs)]
        return released + [each.value for each in self.copies.drop(copies)]

    def forget_checkpoints(self) -> None:
        """Release checkpoints: they belong to a job in which this process has no part."""
        self.committed = self.tentative = None
        self.locals = Shelf()

    def check_invariants(self, position: Position, rank: int) -> None:
        """Assert that a rank behind its load holds the version that it is in."""
        if position.past_load:
            assert self.committed is not None
            assert self.committed.version == position.version
            assert not self.locals.lacks(self.committed.version, rank)
