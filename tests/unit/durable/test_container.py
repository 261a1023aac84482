"""Containers: what is not exactly what was written is refused in words, and by name."""

import hashlib
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ftcomm.durable import container
from ftcomm.durable.container import (
    ALGORITHM,
    ALIGNMENT,
    FORMAT,
    MAGIC,
    MAX_HEADER_BYTES,
    ContainerHeader,
    Entry,
    container_parts,
    digest_of,
    open_container,
)
from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.store import Buffer, DamagedObjectError, MissingObjectError
from ftcomm.errors import ConfigError
from ftcomm.protocol.field_types import MAX_DIMS, MAX_WORLD_SIZE
from ftcomm.protocol.msgpack_reader import Plain, pack
from ftcomm.protocol.signature import SIGNATURE_BYTES
from ftcomm_tracker.core.durable.pending_version import PRELUDE_RESULTS

NAME = "data/1/7/state-3-0-ab.ftc"
RAW = bytes(range(256)) * 3 + b"end"
ENTRIES = (Entry(0, b"s" * 8, 11, (2, 4), 0, 64), Entry(2, b"t" * 8, 3, (), 64, 4, b"d" * 32))


@pytest.fixture
def algorithm() -> str:
    return ALGORITHM


def header(algorithm: str, nbytes: int, entries: tuple[Entry, ...] = ()) -> ContainerHeader:
    return ContainerHeader(
        series="job",
        attempt=1,
        version=7,
        epoch=3,
        kind="state",
        rank=-1,
        lo=100,
        hi=100 + nbytes,
        total=5000,
        state_digest=b"s" * 16,
        algorithm=algorithm,
        nbytes=nbytes,
        entries=entries,
    )


class Bytes(DirectoryStore):
    """One object in memory, so that each of its bytes can be changed."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_into(self, name: str, offset: int, out: memoryview) -> int:
        if name != NAME:
            raise MissingObjectError(name)
        part = self.data[offset : offset + len(out)]
        out[: len(part)] = part
        return len(part)


def written(algorithm: str, raw: Sequence[Buffer] = (RAW,), **more: tuple[Entry, ...]) -> bytes:
    nbytes = sum(len(part) for part in raw)
    parts = container_parts(header(algorithm, nbytes, **more), raw, lambda _: None)
    return b"".join(bytes(part) for part in parts)


def read(data: bytes, expected: bytes) -> bytes:
    """All that readers do: open, read, and verify."""
    opened = open_container(Bytes(data), NAME, "job")
    out = bytearray(opened.header.nbytes)
    opened.read_into(memoryview(out), expected)
    opened.verify(expected)
    return bytes(out)


def refused(data: bytes, expected: bytes = b"") -> str:
    with pytest.raises(DamagedObjectError) as error:
        read(data, expected)
    assert NAME in error.value.cause
    return error.value.cause


def test_the_largest_object_of_a_prelude_has_a_header_that_can_be_read() -> None:
    digests = bytes(16 * MAX_WORLD_SIZE)
    shape = (2**31 - 1,) * MAX_DIMS
    longest = Entry(2**32 - 1, bytes(SIGNATURE_BYTES), 11, shape, 0, 2**40, digests)
    (start, *_) = container_parts(header(ALGORITHM, 0, (longest,) * 2), [], list)
    (shorter, *_) = container_parts(header(ALGORITHM, 0, (longest,)), [], list)
    assert PRELUDE_RESULTS * (len(start) - len(shorter) + ALIGNMENT) < MAX_HEADER_BYTES


def test_an_object_comes_back_as_it_was_written(tmp_path: Path, algorithm: str) -> None:
    store, digests = DirectoryStore(tmp_path), []
    parts: list[Buffer] = [RAW[:5], memoryview(RAW)[5:700], bytearray(RAW[700:])]
    described = header(algorithm, len(RAW), ENTRIES)
    nbytes = store.put(NAME, container_parts(described, parts, digests.append))
    opened = open_container(store, NAME, "job")
    out = bytearray(len(RAW))
    opened.read_into(memoryview(out), digests[0])
    opened.verify(digests[0])
    assert (opened.header, bytes(out)) == (described, RAW)
    assert digests == [digest_of(parts, algorithm)]
    assert (opened.start, nbytes) == (ALIGNMENT, ALIGNMENT + len(RAW) + 16)
    assert (tmp_path / NAME).read_bytes() == written(algorithm, parts, entries=ENTRIES)


def test_an_object_larger_than_a_chunk_and_an_empty_one(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "CHUNK_BYTES", 100)
    for raw in ([RAW], [b""], [], [RAW[:100]], [b"", RAW[:201]]):
        assert read(written(algorithm, raw), digest_of(raw, algorithm)) == b"".join(raw)
    split = written(algorithm, [RAW[:150], RAW[150:]])
    monkeypatch.undo()
    assert split == written(algorithm)


def test_a_byte_changed_anywhere_is_seen(algorithm: str) -> None:
    data, expected = written(algorithm), digest_of([RAW], algorithm)
    for at in range(len(data)):
        refused(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], expected)


def test_a_cut_anywhere_and_a_byte_more_are_seen(algorithm: str) -> None:
    data, expected = written(algorithm), digest_of([RAW], algorithm)
    for length in range(len(data)):
        refused(data[:length], expected)
    refused(data + b"\0", expected)


def test_a_whole_object_of_other_bytes_is_refused(algorithm: str) -> None:
    """It may have been copied over from elsewhere: the record's digest decides."""
    assert "digest of its bytes does not fit" in refused(written(algorithm), bytes(16))


def signed(body: bytes, *, magic: bytes = MAGIC, format_: int = FORMAT) -> bytes:
    """A container's start with a right digest, whatever is in its header."""
    start = struct.pack("<8sII", magic, format_, len(body)) + body
    start += hashlib.blake2b(start, digest_size=16).digest()
    return start + bytes(-len(start) % ALIGNMENT)


def test_the_reason_is_named() -> None:
    data = written(ALGORITHM)
    assert [
        refused(b""),
        refused(b"PK\3\4" + data[4:]),
        refused(signed(b"", format_=FORMAT + 1)),
        refused(signed(b"", format_=FORMAT - 1)),
        refused(struct.pack("<8sII", MAGIC, FORMAT, MAX_HEADER_BYTES + 1)),
        refused(data[:100]),
        refused(data[:30] + b"!" + data[31:]),
        refused(data[:-17] + b"!" + data[-16:]),
        refused(signed(pack([1, 2, 3]))),
    ] == [
        f"object {NAME} is cut short",
        f"{NAME} is no object of ftcomm",
        f"object {NAME} has format 3; this ftcomm reads format 2",
        f"object {NAME} has format 1; this ftcomm reads format 2",
        f"object {NAME} announces a header of {MAX_HEADER_BYTES + 1} bytes",
        f"object {NAME} is cut short",
        f"object {NAME} was changed: the digest of its header does not fit",
        f"object {NAME} was changed: the digest of its bytes does not fit",
        f"the header of {NAME} is malformed: ContainerHeader with 3 fields, expected 13",
    ]


def test_an_object_of_another_job_is_refused() -> None:
    with pytest.raises(DamagedObjectError, match="is of job job, and this is job other"):
        open_container(Bytes(written(ALGORITHM)), NAME, "other")


def test_an_object_that_is_gone_is_named() -> None:
    with pytest.raises(MissingObjectError, match=r"data/other\.ftc"):
        open_container(Bytes(b""), "data/other.ftc", "job")


FIELDS: list[Plain] = ["job", 1, 7, 3, "state", -1, 0, 8, 8, b"s", ALGORITHM, 8, []]
HOSTILE: dict[str, Plain] = {
    "no-array": 7,
    "empty": [],
    "more-fields": [*FIELDS, 1],
    "negative-size": [*FIELDS[:11], -1, []],
    "size-of-a-petabyte": [*FIELDS[:11], 1 << 50, []],
    "entries-announced": [*FIELDS[:12], 7],
    "entry-of-too-little": [*FIELDS[:12], [[0, b"s"]]],
    "entry-of-a-map": [*FIELDS[:12], [5, 6]],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_is_none_is_refused_though_its_digest_fits(name: str) -> None:
    assert refused(signed(pack(HOSTILE[name]))).startswith(f"the header of {NAME} is malformed")


def test_a_size_that_is_announced_is_not_believed() -> None:
    """Nothing is allocated for it beyond a chunk."""
    data = signed(pack([*FIELDS[:11], 1 << 39, []]))
    with pytest.raises(DamagedObjectError, match="is cut short"):
        open_container(Bytes(data), NAME, "job").verify(b"")


def test_a_digest_that_is_not_known_is_refused_by_name() -> None:
    data = signed(pack([*FIELDS[:10], "crc32", 8, []])) + bytes(24)
    with pytest.raises(ConfigError, match="digest 'crc32' is not known to this ftcomm"):
        open_container(Bytes(data), NAME, "job").verify(b"")


def test_the_tracker_reads_chains_and_containers_without_numpy() -> None:
    program = (
        "import sys; import ftcomm.durable.chain_state, ftcomm.durable.chain;"
        "import ftcomm.durable.container, ftcomm.durable.directory_store;"
        "print([name for name in ('numpy', 'trio', 'xxhash') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
