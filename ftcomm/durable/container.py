"""Container: one object of a durable checkpoint, and how it is verified.

::

    bytes              content
    0 to 7             "FTDATA" and two zero bytes
    8 to 11            format, little endian
    12 to 15           length n of the header, little endian
    16 to 15+n         header: msgpack array of the fields of `ContainerHeader`
    then 16 bytes      blake2b-128 of all before
    then zeros         to the next multiple of 4,096, so that the raw bytes can be mapped
    then nbytes        raw bytes
    last bytes         digest of the raw bytes, by the header's `algorithm`

Nothing in it is unpickled.  A reader checks both digests and the zeros before it uses anything.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ftcomm.durable.store import Buffer, DamagedObjectError, Store
from ftcomm.errors import ConfigError, ProtocolError
from ftcomm.protocol.field_types import (
    U32,
    Blob,
    DtypeCode,
    InputDigests,
    ItemBytes,
    Name,
    PackedSignature,
    RankOrNone,
    Shape,
)
from ftcomm.protocol.msgpack_reader import Reader, pack
from ftcomm.protocol.position import Version
from ftcomm.protocol.schema import AtMost, record_of

if TYPE_CHECKING:
    import xxhash

MAGIC = b"FTDATA\0\0"
FORMAT = 2  # 2: a packed state says which of its parts are one object
ALIGNMENT = 4096
HEADER_DIGEST_BYTES = 16
MAX_ENTRIES = 65_536  # results of one prelude
MAX_HEADER_BYTES = 32 << 20
CHUNK_BYTES = 8 << 20  # of raw bytes that are digested, written or read at once
ALGORITHM = "xxh3-128"  # ten times as fast as blake2b
_START = struct.Struct("<8sII")


@dataclass(frozen=True, slots=True)
class Entry:
    """One result within the raw bytes of a prelude's object.

    ``seqno`` is its position in the prelude; ``offset`` and ``nbytes`` say where it is.
    """

    seqno: U32
    signature: PackedSignature
    dtype: DtypeCode
    shape: Shape
    offset: ItemBytes
    nbytes: ItemBytes
    digests: InputDigests = b""


@dataclass(frozen=True, slots=True)
class ContainerHeader:
    """Description of what an object holds.

    ``kind`` is ``"state"``, ``"local"`` or ``"prelude"``.  A state's object holds the bytes ``lo``
    to ``hi`` of ``total`` packed bytes, whose digest is ``state_digest``; others hold all of
    theirs.  ``rank`` owns a local state, and is -1 elsewhere.
    """

    series: Name
    attempt: U32
    version: Version
    epoch: U32
    kind: Name
    rank: RankOrNone
    lo: ItemBytes
    hi: ItemBytes
    total: ItemBytes
    state_digest: Blob
    algorithm: Name
    nbytes: ItemBytes
    entries: Annotated[tuple[Entry, ...], AtMost(MAX_ENTRIES)] = ()


def new_digest(algorithm: str) -> "xxhash.xxh3_128":
    """A digest to feed; raises ConfigError."""
    import xxhash  # noqa: PLC0415 - the tracker's start does not need it

    if algorithm != ALGORITHM:
        raise ConfigError(f"digest {algorithm[:40]!r} is not known to this ftcomm")
    return xxhash.xxh3_128()


def digest_of(parts: Sequence[Buffer], algorithm: str) -> bytes:
    """Digest of bytes, one part after the other."""
    digest = new_digest(algorithm)
    for part in parts:
        for chunk in _chunks(part):
            digest.update(chunk)
    return digest.digest()


def container_parts(
    header: ContainerHeader, raw: Sequence[Buffer], on_digest: Callable[[bytes], object]
) -> Iterator[Buffer]:
    """The bytes of an object, to be written as they come; raw bytes are read once.

    Args:
        header: its `nbytes` is the sum of `raw`.
        raw: the raw bytes, which must not change meanwhile.
        on_digest: is called with the digest of the raw bytes when all have been taken.
    """
    body = pack(record_of(ContainerHeader).write(header))
    start = _START.pack(MAGIC, FORMAT, len(body)) + body
    start += _header_digest(start)
    yield start + bytes(_aligned(len(start)) - len(start))
    digest = new_digest(header.algorithm)
    for part in raw:
        for chunk in _chunks(part):
            digest.update(chunk)
            yield chunk
    found = digest.digest()
    on_digest(found)
    yield found


@dataclass(frozen=True, slots=True)
class OpenContainer:
    """An object whose header was read and verified."""

    store: Store
    name: str  # of the object
    header: ContainerHeader  # what it holds
    start: int  # where its raw bytes begin

    def read_into(self, out: memoryview, expected: bytes) -> None:
        """Read all raw bytes into `out`, and verify them.

        Args:
            out: of `header.nbytes` bytes.
            expected: digest that the version record names.

        Raises:
            DamagedObjectError: they are not the bytes that were written.
            MissingObjectError: the object is gone.
            StoreError: the store could not be read.
        """
        digest = new_digest(self.header.algorithm)
        for at in range(0, self.header.nbytes, CHUNK_BYTES):
            chunk = out[at : min(at + CHUNK_BYTES, self.header.nbytes)]
            if self.store.read_into(self.name, self.start + at, chunk) != len(chunk):
                raise DamagedObjectError(f"object {self.name} is cut short")
            digest.update(chunk)
        self._must_end_with(digest.digest(), expected)

    def verify(self, expected: bytes) -> None:
        """Read and verify all raw bytes, a chunk at a time; see `read_into`."""
        digest = new_digest(self.header.algorithm)
        chunk = memoryview(bytearray(min(CHUNK_BYTES, max(self.header.nbytes, 1))))
        left, at = self.header.nbytes, self.start
        while left:
            view = chunk[: min(left, len(chunk))]
            if self.store.read_into(self.name, at, view) != len(view):
                raise DamagedObjectError(f"object {self.name} is cut short")
            digest.update(view)
            left, at = left - len(view), at + len(view)
        self._must_end_with(digest.digest(), expected)

    def _must_end_with(self, found: bytes, expected: bytes) -> None:
        trailer = bytearray(len(found) + 1)  # one more: nothing may follow
        end = self.start + self.header.nbytes
        count = self.store.read_into(self.name, end, memoryview(trailer))
        if bytes(trailer[:count]) != found or found != expected:
            raise DamagedObjectError(
                f"object {self.name} was changed: the digest of its bytes does not fit"
            )


def open_container(store: Store, name: str, series: str) -> OpenContainer:
    """Read and verify the header of an object.

    An object of another job than `series` is refused.

    Raises:
        DamagedObjectError: it is cut short, changed, foreign, of another job or format.
        MissingObjectError: there is none.
        StoreError: the store could not be read.
    """
    fixed = bytearray(_START.size)
    if store.read_into(name, 0, memoryview(fixed)) != len(fixed):
        raise DamagedObjectError(f"object {name} is cut short")
    magic, format_, length = _START.unpack(fixed)
    if magic != MAGIC:
        raise DamagedObjectError(f"{name} is no object of ftcomm")
    if format_ != FORMAT:
        raise DamagedObjectError(
            f"object {name} has format {format_}; this ftcomm reads format {FORMAT}",
            remedy="use the ftcomm that wrote it",
        )
    if length > MAX_HEADER_BYTES:
        raise DamagedObjectError(f"object {name} announces a header of {length} bytes")
    end = length + HEADER_DIGEST_BYTES
    rest = bytearray(_aligned(len(fixed) + end) - len(fixed))
    if store.read_into(name, len(fixed), memoryview(rest)) != len(rest):
        raise DamagedObjectError(f"object {name} is cut short")
    whole, digest = bytes(fixed + rest[:length]), bytes(rest[length:end])
    if _header_digest(whole) != digest or any(rest[end:]):
        raise DamagedObjectError(
            f"object {name} was changed: the digest of its header does not fit"
        )
    header = _read_header(whole[len(fixed) :], name)
    if header.series != series:
        raise DamagedObjectError(
            f"object {name} is of job {header.series}, and this is job {series}"
        )
    return OpenContainer(store, name, header, len(fixed) + len(rest))


def _header_digest(whole: bytes) -> bytes:
    return hashlib.blake2b(whole, digest_size=HEADER_DIGEST_BYTES).digest()


def _read_header(body: bytes, name: str) -> ContainerHeader:
    reader = Reader(body)
    try:
        header: ContainerHeader = record_of(ContainerHeader).read(reader)
        reader.finish()
    except ProtocolError as error:
        raise DamagedObjectError(f"the header of {name} is malformed: {error.cause}") from None
    return header


def _chunks(part: Buffer) -> Iterator[memoryview]:
    view = memoryview(part).cast("B")
    for at in range(0, len(view), CHUNK_BYTES):
        yield view[at : at + CHUNK_BYTES]


def _aligned(at: int) -> int:
    return -(-at // ALIGNMENT) * ALIGNMENT
