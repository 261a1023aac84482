"""The bytes of a journal of results; pure.

::

    bytes          content
    0 to 7         "FTJOURN" and a zero byte
    8 to 11        format, little endian
    12 to 15       length n of the header, little endian
    16 to 15+n     header: msgpack array of the fields of `JournalHeader`
    then 4         crc32 of all before, little endian

Records follow, one behind the other::

    bytes          content
    0 to 3         length h of the head, little endian
    4 to 11        length p of the payload, little endian
    then h         head: msgpack array of kind and fields
    then p         payload: the bytes of a result
    then 4         crc32 of the record before it, begun with the crc32 of the header

A journal may end anywhere within a record: its writer died.  What follows the first record that is
not whole does not count.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from ftcomm.durable.store import Buffer, DamagedObjectError
from ftcomm.errors import ProtocolError
from ftcomm.protocol.field_types import (
    U32,
    DtypeCode,
    InputDigests,
    Name,
    PackedSignature,
    RankOrNone,
    Shape,
)
from ftcomm.protocol.msgpack_reader import Reader, pack
from ftcomm.protocol.position import Version
from ftcomm.protocol.schema import record_of

MAGIC = b"FTJOURN\0"
FORMAT = 1
MAX_HEAD_BYTES = 1 << 20  # of a result: digests of the inputs of 2,048 ranks, and room
_START = struct.Struct("<8sII")
_RECORD = struct.Struct("<IQ")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """The owner of a journal: it is of ``rank``, for ``version``, begun in ``first_epoch``."""

    series: Name
    attempt: U32
    rank: RankOrNone
    version: Version
    first_epoch: U32


@dataclass(frozen=True, slots=True)
class EpochHead:
    """From here on the writer takes part in ``epoch``, and holds all that is written above."""

    epoch: U32


@dataclass(frozen=True, slots=True)
class ResultHead:
    """One result; the payload is its elements. ``digests`` are those of the inputs, if compared."""

    seqno: U32
    signature: PackedSignature
    dtype: DtypeCode
    shape: Shape
    digests: InputDigests = b""


Head = EpochHead | ResultHead
_KINDS: dict[str, type] = {"epoch": EpochHead, "result": ResultHead}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode_header(header: JournalHeader) -> tuple[bytes, int]:
    """The first bytes of a journal, and the crc32 with which those of its records begin."""
    body = pack(record_of(JournalHeader).write(header))
    start = _START.pack(MAGIC, FORMAT, len(body)) + body
    crc = zlib.crc32(start)
    return start + _CRC.pack(crc), crc


def encode_record(head: Head, payload: Buffer, header_crc: int) -> list[Buffer]:
    """A record, in parts; the payload is one of them."""
    kind: type = type(head)
    fields = record_of(kind).write(head)
    assert isinstance(fields, list)
    packed = pack([_NAMES[kind], *fields])
    start = _RECORD.pack(len(packed), memoryview(payload).nbytes) + packed
    crc = zlib.crc32(payload, zlib.crc32(start, header_crc))
    return [start, payload, _CRC.pack(crc)]


def read_header(file: BinaryIO, name: str) -> tuple[JournalHeader, int]:
    """The header of a journal, and the crc32 with which those of its records begin.

    Raises:
        DamagedObjectError: it is cut short, changed, foreign, or of a later format.
    """
    start = file.read(_START.size)
    if len(start) < _START.size:
        raise DamagedObjectError(f"journal {name} has only {len(start)} bytes")
    magic, format_, length = _START.unpack(start)
    if magic != MAGIC:
        raise DamagedObjectError(f"{name} is no journal of ftcomm")
    if format_ > FORMAT:
        raise DamagedObjectError(
            f"journal {name} has format {format_}; this ftcomm reads up to {FORMAT}",
            remedy="use the ftcomm that wrote it",
        )
    body, crc = file.read(min(length, MAX_HEAD_BYTES)), file.read(_CRC.size)
    is_whole = (len(body), len(crc)) == (length, _CRC.size)
    if not is_whole or zlib.crc32(start + body) != _CRC.unpack(crc)[0]:
        raise DamagedObjectError(f"the header of journal {name} is cut short or was changed")
    reader = Reader(body)
    try:
        header: JournalHeader = record_of(JournalHeader).read_fields(reader, reader.array_length())
        reader.finish()
    except ProtocolError as error:
        raise DamagedObjectError(f"journal {name} is malformed: {error.cause}") from None
    return header, zlib.crc32(start + body)


def read_records(file: BinaryIO, header_crc: int, nbytes: int) -> Iterator[tuple[Head, bytearray]]:
    """Yield the records of a journal, from behind its header to the first that is not whole.

    Args:
        file: stands behind the header.
        header_crc: of this journal.
        nbytes: of the whole file: no payload can be longer, whatever it says.
    """
    while True:
        start = file.read(_RECORD.size)
        if len(start) < _RECORD.size:
            return
        head_bytes, payload_bytes = _RECORD.unpack(start)
        if head_bytes > MAX_HEAD_BYTES or payload_bytes > nbytes:
            return
        packed, payload = file.read(head_bytes), bytearray(file.read(payload_bytes))
        crc = file.read(_CRC.size)
        if (len(packed), len(payload), len(crc)) != (head_bytes, payload_bytes, _CRC.size):
            return
        if zlib.crc32(payload, zlib.crc32(start + packed, header_crc)) != _CRC.unpack(crc)[0]:
            return
        head = _read_head(packed)
        if head is None:
            return
        yield head, payload


def _read_head(packed: bytes) -> Head | None:
    """The head of a record; None if it is none, though its crc32 fits."""
    reader = Reader(packed)
    try:
        length = reader.array_length()
        kind = reader.scalar()
        declared = _KINDS.get(kind) if isinstance(kind, str) else None
        if declared is None:
            return None
        head: Any = record_of(declared).read_fields(reader, length - 1)
        reader.finish()
    except ProtocolError:
        return None
    assert isinstance(head, EpochHead | ResultHead)
    return head
