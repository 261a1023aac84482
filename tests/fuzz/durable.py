"""Feeders of what a checkpoint store holds, and their seeds.

A changed byte would rarely pass a digest; so each has a second feeder that signs what it is given.
"""

import hashlib
import io
import json
import struct
import zipfile
from dataclasses import dataclass
from typing import Any
from unittest import mock

from ftcomm.durable import container, records
from ftcomm.durable.chain import Chain
from ftcomm.durable.container import ContainerHeader, Entry, container_parts, open_container
from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.export import _Arrays
from ftcomm.durable.packed_state import read_packed_state
from ftcomm.durable.records import (
    AttemptRecord,
    ChainLink,
    ChainRecord,
    EndedRecord,
    EpochMember,
    EpochRecord,
    FinishedRecord,
    SeriesRecord,
    StoredPart,
    VersionRecord,
    decode_record,
)
from ftcomm.durable.records import encode_record as encode_chain_record
from ftcomm.protocol.msgpack_reader import pack
from ftcomm.protocol.position import PRELUDE, Position, PositionRange
from ftcomm.protocol.schema import record_of

NAME = "data/1/7/state-3-0-ab.ftc"
NUMBER = 5
# Of the raw bytes that are read at once; the real one is larger than what an input may cost.
CHUNK_BYTES = 4096


def signed(magic: bytes, format_: int, body: bytes) -> bytes:
    """A head, the body, and the digest that fits."""
    whole = struct.pack("<8sII", magic, format_, len(body)) + body
    return whole + hashlib.blake2b(whole, digest_size=16).digest()


# --- records ------------------------------------------------------------------------------------


def feed_record(raw: bytes) -> ChainLink:
    """A record's file; what is understood can be written again."""
    link = decode_record(raw, NUMBER, "record")
    assert decode_record(encode_chain_record(link), NUMBER, "record") == link
    return link


def feed_record_body(raw: bytes) -> ChainLink:
    """A record whose digest fits whatever is in it."""
    return feed_record(signed(records.MAGIC, records.FORMAT, raw))


@dataclass(frozen=True)
class OneObject:
    """A store whose every object has these bytes."""

    content: bytes
    url: str = "store"

    def get(self, name: str) -> bytes:
        del name
        return self.content


def feed_stored_record(raw: bytes) -> ChainLink:
    """A record in its place in a store: one of a version that was changed is passed over."""
    store: Any = OneObject(raw)
    link = Chain(store).read_one(NUMBER)
    assert link.number == NUMBER
    return link


def later_records() -> dict[str, bytes]:
    """One of each kind that may stand behind the first place, and one that was changed."""
    found = chain_records()
    del found["series"]
    return {**found, "changed": found["version"][:-1]}


def chain_records() -> dict[str, bytes]:
    """One of each kind."""
    part = StoredPart("prelude", -1, 0, 8, NAME, 8, b"d" * 16, (PositionRange(PRELUDE, 0, 3),))
    kinds: dict[str, ChainRecord] = {
        "series": SeriesRecord("job", 2, (0, 1), (("algorithm", "auto"),), b"t"),
        "attempt": AttemptRecord(2, 4),
        "epoch": EpochRecord(2, 1, 3, (EpochMember("w0", 1, b"a", True),)),
        "version": VersionRecord(2, 7, 3, 5, 8, b"s" * 16, 4, (0, 1), (part, part)),
        "ended": EndedRecord(2, 1, "RankLostError", "gone", 3, Position(0, 1, 2), -1),
        "finished": FinishedRecord(2, 9),
    }
    return {
        name: encode_chain_record(ChainLink(NUMBER, b"n" * 16, record))
        for name, record in kinds.items()
    }


def record_bodies() -> dict[str, bytes]:
    return {name: raw[16:-16] for name, raw in chain_records().items()}


# --- containers ---------------------------------------------------------------------------------


class Bytes(DirectoryStore):
    """A store with one object."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_into(self, name: str, offset: int, out: memoryview) -> int:
        part = self._data[offset : offset + len(out)]
        out[: len(part)] = part
        return len(part)


def feed_container(raw: bytes) -> ContainerHeader:
    """An object; one that is whole can be written again."""
    with mock.patch.object(container, "CHUNK_BYTES", CHUNK_BYTES):
        opened = open_container(Bytes(raw), NAME, "job")
        content = raw[opened.start : opened.start + opened.header.nbytes]
        opened.verify(raw[opened.start + len(content) :])
        written = container_parts(opened.header, [content], lambda _: None)
        again = open_container(Bytes(b"".join(written)), NAME, "job")
        assert again.header == opened.header
        return again.header


def feed_container_header(raw: bytes) -> ContainerHeader:
    """A header whose digest fits whatever is in it, and no raw bytes."""
    start = signed(container.MAGIC, container.FORMAT, raw)
    start += bytes(-len(start) % container.ALIGNMENT)
    return feed_container(start + container.new_digest(container.ALGORITHM).digest())


def _header(nbytes: int) -> ContainerHeader:
    entries = (Entry(0, b"s" * 8, 11, (2, 4), 0, 64, b"d" * 32), Entry(2, b"t", 3, (), 64, 4))
    return ContainerHeader(
        "job", 1, 7, 3, "prelude", -1, 0, nbytes, nbytes, b"s", "xxh3-128", nbytes, entries
    )


def containers() -> dict[str, bytes]:
    raw = b"raw bytes"
    parts = container_parts(_header(len(raw)), [raw], lambda _: None)
    return {"whole": b"".join(bytes(part) for part in parts)}


def container_headers() -> dict[str, bytes]:
    return {"empty": pack(record_of(ContainerHeader).write(_header(0)))}


# --- export -------------------------------------------------------------------------------------


def feed_packed_state(raw: bytes) -> None:
    """A state as `checkpoint export` reads it; what is understood can be written."""
    tree = read_packed_state(raw, "state")
    with zipfile.ZipFile(io.BytesIO(), "w") as archive:
        json.dumps(_Arrays(archive).plain(tree, "state"), allow_nan=False)
