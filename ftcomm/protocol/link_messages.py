"""Messages between workers: by which a link of theirs begins, and those of a fetch link."""

import enum
from typing import Annotated

from ftcomm.protocol.field_types import (
    MAX_TAGS,
    U32,
    DtypeCode,
    InputDigests,
    ItemBytes,
    MessageDigest,
    Name,
    PackedSignature,
    Prose,
    Rank,
    RankOrNone,
    Ranks,
    Shape,
    Site,
    Tag,
)
from ftcomm.protocol.position import PRELUDE, Position, PositionRanges, Version
from ftcomm.protocol.schema import AtMost
from ftcomm.protocol.value_classes import dataclass

MAX_COPIES = 256  # that one request names; more are asked for when these have come


@dataclass(frozen=True, slots=True)
class Relayed:
    """The relay has a connection to the wanted rank, or `failure` says why not."""

    failure: Prose = ""


@dataclass(frozen=True, slots=True)
class Sharing:
    """A step towards the segment of a host, or `failure` says why there is none."""

    failure: Prose = ""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Send checkpoint `load` (-1: none), the local states of `locals`, the results of `runs`.

    In this order; the local states are those of version `local_version`.
    """

    epoch: U32
    load: Version
    runs: PositionRanges
    local_version: Version = PRELUDE
    locals: Ranks = ()


@dataclass(frozen=True, slots=True)
class FetchItem:
    """Header of one served result; `nbytes` raw bytes follow.

    ``what`` is ``"result"``, ``"checkpoint"`` or ``"local"``; for the latter two
    `position.version` is the version and the signature is empty.  ``rank`` owns a local state.
    ``digests`` are those of the inputs, 16 bytes a rank, where the job verifies them.  ``site`` is
    where the holder made a call that gives each rank a result of its own; empty if not known.
    """

    what: Name
    position: Position
    signature: PackedSignature
    dtype: DtypeCode
    shape: Shape
    nbytes: ItemBytes
    rank: RankOrNone = -1
    digests: InputDigests = b""
    site: Site = ""


@dataclass(frozen=True, slots=True)
class FetchWait:
    """Nothing can be sent yet; repeated until it can.

    A checkpoint is still being packed, or the rank that is asked for a part has not come to that
    call.
    """


@dataclass(frozen=True, slots=True)
class FetchEnd:
    """Everything asked for has been sent, or `missing` says what is not held."""

    missing: Prose = ""


@dataclass(frozen=True, slots=True)
class PartRequest:
    """Send the part of your input to the call at `position` that is for the rank that asks."""

    epoch: U32
    position: Position


@dataclass(frozen=True, slots=True)
class PartItem:
    """Header of one served part; `nbytes` raw bytes follow.

    ``signature`` is that of the call, as its log entry has it.
    """

    signature: PackedSignature
    dtype: DtypeCode
    shape: Shape
    nbytes: ItemBytes


@dataclass(frozen=True, slots=True)
class CopyName:
    """The name of one rank's result of one call: that of `owner` at `position`."""

    position: Position
    owner: Rank


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """Send the results of these names, in order."""

    epoch: U32
    names: Annotated[tuple[CopyName, ...], AtMost(MAX_COPIES)]


@dataclass(frozen=True, slots=True)
class CopyItem:
    """Header of one served result; `nbytes` raw bytes follow.

    ``made_in`` is the epoch in which the call was executed.  ``missing`` says why there is none.
    """

    made_in: U32
    nbytes: ItemBytes
    missing: Prose = ""


class Content(enum.IntEnum):
    """Content of a message, as its user gave it; the value is on the wire."""

    ARRAY = 0
    PYTHON_NUMBER = 1
    NUMPY_SCALAR = 2
    OBJECT = 3


@dataclass(frozen=True, slots=True)
class StreamMark:
    """One stream as far as it has arrived: so many messages, and the running digest of them."""

    tag: Tag
    number: U32
    running: MessageDigest


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """Send the messages of `version` for the rank that asks, behind `marks`, and all to come."""

    epoch: U32
    version: Version
    marks: Annotated[tuple[StreamMark, ...], AtMost(MAX_TAGS)] = ()


LinkMessage = (
    FetchRequest
    | FetchItem
    | FetchWait
    | FetchEnd
    | PartRequest
    | PartItem
    | CopyRequest
    | CopyItem
    | MessageRequest
    | Relayed
    | Sharing
)
