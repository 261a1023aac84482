"""Messages about durable checkpoints, between a worker and its tracker."""

from typing import Annotated

from ftcomm.protocol.field_types import (
    MAX_OBJECT_ORDERS,
    U32,
    Address,
    Blob,
    ItemBytes,
    Name,
    Prose,
    RankOrNone,
    Ranks,
    SeqnoOrNone,
)
from ftcomm.protocol.position import PositionRanges, Version
from ftcomm.protocol.schema import AtMost
from ftcomm.protocol.value_classes import dataclass


@dataclass(frozen=True, slots=True)
class ObjectOrder:
    """One object of a durable version: what it holds.

    ``kind`` is ``"state"`` for the bytes ``lo`` to ``hi`` of the packed state, ``"local"`` for the
    local state of ``rank``, ``"prelude"`` for results of the prelude.
    """

    kind: Name
    rank: RankOrNone = -1
    lo: ItemBytes = 0
    hi: ItemBytes = 0


@dataclass(frozen=True, slots=True)
class Marked:
    """This member holds the marked checkpoint ``version``, packed: it can be written to the store.

    ``digest`` is that of the ``nbytes`` packed bytes.  ``locals`` are the ranks whose local states
    are held, None if the version has none.  ``prelude`` are the prelude's results held here, of
    ``prelude_length``; -1 of a spare that has had no plan, and does not know.  It is state:
    repeated after each welcome until the version is durable.
    """

    version: Version
    digest: Blob
    nbytes: ItemBytes
    locals: Ranks | None
    prelude: PositionRanges
    prelude_length: SeqnoOrNone


@dataclass(frozen=True, slots=True)
class ObjectWritten:
    """An object of ``version`` is in the store under ``name``, and synced.

    ``nbytes`` and ``digest`` are the object's; ``state_digest`` is that of the whole packed state
    from which it was written.  ``prelude`` are the results that an object of that kind holds.
    Repeated like `Marked`.
    """

    version: Version
    order: ObjectOrder
    name: Address
    nbytes: ItemBytes
    digest: Blob
    state_digest: Blob
    prelude: PositionRanges = ()


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """This member could not write what it was ordered to, or does not hold ``version``.

    ``unusable`` says that its host has not the tracker's store: a retry alone does not help.
    """

    version: Version
    holds: bool
    reason: Prose
    unusable: bool = False


@dataclass(frozen=True, slots=True)
class NextDigest:
    """Checkpoint ``version`` was committed with ``digest``, and the one before it is for the store.

    That one is marked, or durable already.  A later attempt that begins from it has to commit the
    same.  Repeated like `Marked`.
    """

    version: Version
    digest: Blob


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """This member could not read the checkpoint of ``record`` from the store."""

    record: U32
    reason: Prose


@dataclass(frozen=True, slots=True)
class WriteObjects:
    """Write these objects of the marked checkpoint ``version`` to the store.

    ``attempt`` and ``epoch`` are parts of the objects' names.  ``prelude`` are the results of an
    object of that kind, empty if none is ordered.
    """

    attempt: U32
    version: Version
    epoch: U32
    orders: Annotated[tuple[ObjectOrder, ...], AtMost(MAX_OBJECT_ORDERS)]
    prelude: PositionRanges = ()


@dataclass(frozen=True, slots=True)
class MarkVersion:
    """Mark ``version``, if it is the committed checkpoint: the job ends once it is durable.

    A member that does not hold it answers with `WriteFailed`.
    """

    version: Version


@dataclass(frozen=True, slots=True)
class VersionDurable:
    """A record of the store names ``version``, written by ``attempt``: it survives everything."""

    attempt: U32
    version: Version


@dataclass(frozen=True, slots=True)
class VersionGivenUp:
    """The marked ``version`` will not be written: do not hold it for that any more."""

    version: Version
    reason: Prose


@dataclass(frozen=True, slots=True)
class Restore:
    """Read the checkpoint and the prelude's results that the store's record number names.

    It comes before the first `Revoke` of an attempt; the report follows when all has been read.
    """

    record: U32
