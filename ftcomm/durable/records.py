"""Records of a store's chain: what was begun, what is durable, what has ended; pure.

A record is a file of a few hundred bytes to some hundred KiB::

    bytes       content
    0 to 7      "FTCHAIN" and a zero byte
    8 to 11     format, little endian
    12 to 15    length n of the body, little endian
    16 to 15+n  body: msgpack array of kind, number in the chain, nonce of its writer, and fields
    16 bytes    blake2b-128 of all before
"""

import hashlib
import struct
from typing import Annotated, Any, get_args

from ftcomm.durable.store import MAX_NAME as MAX_OBJECT_NAME
from ftcomm.durable.store import ChangedRecordError, DamagedRecordError
from ftcomm.errors import ProtocolError
from ftcomm.protocol.field_types import (
    MAX_WORLD_SIZE,
    U32,
    Blob,
    ItemBytes,
    Name,
    Prose,
    RankOrNone,
    Ranks,
    SeqnoOrNone,
    SettingPairs,
    WorldSize,
)
from ftcomm.protocol.msgpack_reader import Reader, pack
from ftcomm.protocol.position import Position, PositionRanges, Version
from ftcomm.protocol.schema import AtMost, Int, Text, record_of
from ftcomm.protocol.value_classes import dataclass

MAGIC = b"FTCHAIN\0"
FORMAT = 1
DIGEST_BYTES = 16
_HEAD = struct.Struct("<8sII")
_LENGTH_AT = 12  # magic and format are before it
MAX_RECORD_BYTES = 16 << 20  # of 2,048 ranks, each with two objects of 300 bytes, and room
# Local states of all ranks, and their parts of the state and of the prelude.
MAX_OBJECTS = 4 * MAX_WORLD_SIZE

ObjectName = Annotated[str, Text(MAX_OBJECT_NAME)]
Microseconds = Annotated[int, Int(0, 2**63 - 1)]  # since 1970, by the tracker's clock


@dataclass(frozen=True, slots=True)
class SeriesRecord:
    """The first record: what every attempt of the job must have alike.

    ``settings`` are those on which bits depend; ``tables`` is the digest of the algorithm tables.
    """

    series: Name
    world_size: WorldSize
    grouping: Ranks
    settings: SettingPairs
    tables: Blob


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """Attempt ``attempt`` runs from the version of record ``parent``, 0 for the beginning."""

    attempt: U32
    parent: U32


@dataclass(frozen=True, slots=True)
class EpochMember:
    """The owner of one rank."""

    worker_id: Name
    incarnation: U32
    nonce: Blob
    present: bool


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """The tracker of ``generation`` begins ``epoch``: one of an earlier generation has lost."""

    attempt: U32
    generation: U32
    epoch: U32
    roster: Annotated[tuple[EpochMember, ...], AtMost(MAX_WORLD_SIZE)]


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One object of a version.

    ``kind`` is ``"state"`` for the bytes ``lo`` to ``hi`` of the packed state, ``"local"`` for the
    packed local state of ``rank``, ``"prelude"`` for the results named by ``runs``.  ``nbytes`` and
    ``digest`` are those of the raw bytes; see `ftcomm.durable.container`.
    """

    kind: Name
    rank: RankOrNone
    lo: ItemBytes
    hi: ItemBytes
    name: ObjectName
    nbytes: ItemBytes
    digest: Blob
    runs: PositionRanges = ()


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """Checkpoint ``version`` is durable: its objects are in the store, and agree.

    ``nbytes`` and ``digest`` are those of the whole packed state.  ``local_ranks`` is None for a
    checkpoint without local states.
    """

    attempt: U32
    version: Version
    epoch: U32
    written_at: Microseconds
    nbytes: ItemBytes
    digest: Blob
    prelude_length: SeqnoOrNone
    local_ranks: Ranks | None
    parts: Annotated[tuple[StoredPart, ...], AtMost(MAX_OBJECTS)]


@dataclass(frozen=True, slots=True)
class NextRecord:
    """``attempt`` has committed checkpoint ``version`` with ``digest``, right behind a durable one.

    It is an object beside the chain, which has the number of that one's record.
    """

    attempt: U32
    version: Version
    digest: Blob


@dataclass(frozen=True, slots=True)
class EndedRecord:
    """The tracker of ``generation`` ends the attempt with ``error``, which it tells from then on.

    The other fields are those of the fatal decision.
    """

    attempt: U32
    generation: U32
    error: Name
    cause: Prose
    epoch: U32
    position: Position
    rank: RankOrNone


@dataclass(frozen=True, slots=True)
class FinishedRecord:
    """All ranks have closed at ``version``: there is nothing to resume."""

    attempt: U32
    version: Version


ChainRecord = (
    SeriesRecord
    | AttemptRecord
    | EpochRecord
    | VersionRecord
    | NextRecord
    | EndedRecord
    | FinishedRecord
)
_KINDS: dict[str, type] = {
    kind.__name__.removesuffix("Record"): kind for kind in get_args(ChainRecord)
}


@dataclass(frozen=True, slots=True)
class DamagedLink:
    """In the place of a record that is missing or cannot be read: ``why``, in words."""

    why: str


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A record in its place."""

    number: int  # place in the chain, from 1
    nonce: bytes  # drawn by its writer, who knows its record by that
    record: ChainRecord | DamagedLink  # content


def encode_record(link: ChainLink) -> bytes:
    """Bytes of a record.

    Raises:
        ValueError: a field is out of its bounds, or the record is too long to be read again.
    """
    kind: type = type(link.record)
    fields = record_of(kind).write(link.record)
    assert isinstance(fields, list)
    body = pack([kind.__name__.removesuffix("Record"), link.number, link.nonce, *fields])
    start = _HEAD.pack(MAGIC, FORMAT, len(body)) + body
    if len(start) + DIGEST_BYTES > MAX_RECORD_BYTES:
        raise ValueError(f"a record of {len(start)} bytes; it has at most {MAX_RECORD_BYTES}")
    return start + hashlib.blake2b(start, digest_size=DIGEST_BYTES).digest()


def decode_record(data: bytes, number: int, name: str) -> ChainLink:
    """The record in `data`, which stands at `number` of the chain.

    Raises:
        ChangedRecordError: it is cut short or changed.
        DamagedRecordError: it is misplaced, malformed, or of a later format.
    """
    if len(data) < _HEAD.size + DIGEST_BYTES:
        raise ChangedRecordError(f"record {name} has only {len(data)} bytes")
    magic, format_, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ChangedRecordError(f"{name} is no record of ftcomm")
    if format_ > FORMAT:
        raise DamagedRecordError(
            f"record {name} has format {format_}; this ftcomm reads up to {FORMAT}",
            remedy="use the ftcomm that wrote it",
        )
    if len(data) != _HEAD.size + length + DIGEST_BYTES:
        raise ChangedRecordError(f"record {name} is cut short or too long: {len(data)} bytes")
    whole, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.blake2b(whole, digest_size=DIGEST_BYTES).digest() != digest:
        raise ChangedRecordError(f"record {name} was changed: its digest does not fit")
    try:
        link = _read_body(whole[_HEAD.size :])
    except ProtocolError as error:
        raise DamagedRecordError(f"record {name} is malformed: {error.cause}") from None
    if link.number != number:
        raise DamagedRecordError(f"record {name} is a copy of record {link.number}")
    return link


def is_of_a_version(data: bytes, number: int) -> bool:
    """Tell whether the first bytes of a record that was changed behind them are a version's.

    No other kind begins like that, so nothing is lost with it but the version.
    """
    body = _HEAD.size + 1  # one byte has the length of the array
    begins_well = data.startswith(_HEAD.pack(MAGIC, FORMAT, 0)[:_LENGTH_AT])
    return begins_well and data[body:].startswith(pack("Version") + pack(number))


def _read_body(body: bytes) -> ChainLink:
    reader = Reader(body)
    length = reader.array_length()
    kind, number, nonce = reader.scalar(), reader.scalar(), reader.scalar()
    declared = _KINDS.get(kind) if isinstance(kind, str) else None
    if declared is None or type(number) is not int or not isinstance(nonce, bytes):
        raise ProtocolError(f"unknown kind of record {str(kind)[:40]!r}")
    record: Any = record_of(declared).read_fields(reader, length - 3)
    reader.finish()
    return ChainLink(number, nonce, record)
