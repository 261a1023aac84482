"""Records and objects of a store, as anyone may have left them there."""

from collections.abc import Iterable

from ftcomm.durable.container import ContainerHeader, container_parts, open_container
from ftcomm.durable.records import (
    AttemptRecord,
    ChainLink,
    FinishedRecord,
    SeriesRecord,
    StoredPart,
    VersionRecord,
    decode_record,
    encode_record,
)
from ftcomm.durable.store import Buffer, StoredObject
from ftcomm.protocol.position import PositionRange

SERIES = "run7"
NAME = "data/1/1/state-1-0-00.ftc"
RAW = b"packed state"


class OneObject:
    """A store that has one object, under every name."""

    url = "memory"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def put_new(self, name: str, data: Buffer) -> bool:
        raise NotImplementedError

    def put(self, name: str, parts: Iterable[Buffer]) -> int:
        raise NotImplementedError

    def get(self, name: str) -> bytes:
        return self._data

    def read_into(self, name: str, offset: int, out: memoryview) -> int:
        piece = self._data[offset : offset + len(out)]
        out[: len(piece)] = piece
        return len(piece)

    def list(self, prefix: str) -> list[StoredObject]:
        raise NotImplementedError

    def delete(self, name: str) -> None:
        raise NotImplementedError


def feed_record(data: bytes) -> None:
    """Read a record; what was understood is the same when it is written again."""
    link = decode_record(data, 1, "record")
    assert decode_record(encode_record(link), 1, "record") == link


def feed_object(data: bytes) -> None:
    """Read an object that claims to be anything."""
    opened = open_container(OneObject(data), NAME, SERIES)
    opened.verify(_digest(data))
    raw = bytearray(opened.header.nbytes)
    opened.read_into(memoryview(raw), _digest(data))


def records() -> dict[str, bytes]:
    part = StoredPart("state", -1, 0, len(RAW), NAME, len(RAW), b"d" * 16)
    prelude = StoredPart("prelude", -1, 0, 0, NAME, 3, b"d" * 16, (PositionRange(-1, 0, 2),))
    series = SeriesRecord(SERIES, 2, (0, 1), (("algorithm", "auto"),), b"t" * 16)
    version = VersionRecord(1, 3, 2, 10**15, len(RAW), b"d" * 16, 2, (0, 1), (part, prelude))
    links = {"series": series, "attempt": AttemptRecord(1, 0), "version": version}
    seeds = {**links, "finished": FinishedRecord(1, 9)}
    return {name: encode_record(ChainLink(1, b"n" * 16, each)) for name, each in seeds.items()}


def objects() -> dict[str, bytes]:
    header = ContainerHeader(
        SERIES, 1, 3, 2, "state", -1, 0, len(RAW), len(RAW), b"d" * 16, "blake2b-128", len(RAW)
    )
    parts = container_parts(header, [RAW], lambda digest: None)
    return {"state": b"".join(bytes(part) for part in parts)}


def _digest(data: bytes) -> bytes:
    return data[-16:]
