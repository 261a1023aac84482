"""Records of the chain: what is not exactly what was written is refused in words, and by name."""

import hashlib
import struct
from pathlib import Path

import pytest

from ftcomm.durable import records
from ftcomm.durable.chain import Chain, OvertakenError, record_name
from ftcomm.durable.chain_state import ChainState, chain_state
from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.records import (
    FORMAT,
    MAGIC,
    MAX_RECORD_BYTES,
    AttemptRecord,
    ChainLink,
    ChainRecord,
    DamagedLink,
    EndedRecord,
    EpochMember,
    EpochRecord,
    FinishedRecord,
    SeriesRecord,
    StoredPart,
    VersionRecord,
    decode_record,
    encode_record,
)
from ftcomm.durable.store import DamagedObjectError
from ftcomm.protocol.messages import PositionRange
from ftcomm.protocol.msgpack_reader import Plain, pack
from ftcomm.protocol.position import PRELUDE, Position

NONCE = b"n" * 16
SERIES = SeriesRecord("job", 2, (0, 1), (("algorithm", "auto"),), b"t" * 32)
RUNS = (PositionRange(PRELUDE, 0, 3), PositionRange(PRELUDE, 4, 9, 2))
STATE = StoredPart("state", -1, 0, 10, "data/1/7/state-1-0-ab.ftc", 10, b"d" * 16)
PRELUDE_PART = StoredPart("prelude", -1, 0, 8, "data/1/7/prelude-1-0-cd.ftc", 8, b"e" * 16, RUNS)
VERSION = VersionRecord(
    1, 7, 3, 1_700_000_000_000_000, 10, b"s" * 16, 4, (0, 1), (STATE, PRELUDE_PART)
)
RECORDS: tuple[ChainRecord, ...] = (
    SERIES,
    AttemptRecord(1, 0),
    EpochRecord(1, 2, 3, (EpochMember("w0", 1, b"a", True), EpochMember("w1", 2, b"b", False))),
    VERSION,
    VersionRecord(1, 8, 3, 0, 0, b"", -1, None, ()),
    EndedRecord(1, 2, "RankLostError", "worker 3 is gone", 4, Position(0, 1, 2), 3),
    FinishedRecord(1, 9),
)


IDS = [f"{number}-{type(record).__name__}" for number, record in enumerate(RECORDS)]


def signed(body: bytes, *, magic: bytes = MAGIC, format_: int = FORMAT) -> bytes:
    """A record with a right digest, whatever is in it."""
    whole = struct.pack("<8sII", magic, format_, len(body)) + body
    return whole + hashlib.blake2b(whole, digest_size=16).digest()


def refused(data: bytes, number: int = 5) -> str:
    with pytest.raises(DamagedObjectError) as error:
        decode_record(data, number, record_name(number))
    assert record_name(number) in error.value.cause
    return error.value.cause


@pytest.mark.parametrize("record", RECORDS, ids=IDS)
def test_a_record_comes_back_as_it_was_written(record: ChainRecord) -> None:
    link = ChainLink(5, NONCE, record)
    assert decode_record(encode_record(link), 5, record_name(5)) == link


@pytest.mark.parametrize("record", RECORDS, ids=IDS)
def test_a_byte_changed_anywhere_and_a_cut_anywhere_are_seen(record: ChainRecord) -> None:
    data = encode_record(ChainLink(5, NONCE, record))
    for at in range(len(data)):
        for flip in (1, 0x80):
            refused(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
        refused(data[:at])
    refused(data + b"\0")


def test_the_reason_is_named() -> None:
    data = encode_record(ChainLink(5, NONCE, AttemptRecord(2, 4)))
    name = record_name(5)
    assert [
        refused(b""),
        refused(data[:-1]),
        refused(data + b"\0"),
        refused(data[:20] + b"!" + data[21:]),
        refused(b"FTOTHER\0" + data[8:]),
        refused(signed(data[16:-16], format_=FORMAT + 1)),
        refused(encode_record(ChainLink(4, NONCE, AttemptRecord(2, 4)))),
    ] == [
        f"record {name} has only 0 bytes",
        f"record {name} is cut short or too long: {len(data) - 1} bytes",
        f"record {name} is cut short or too long: {len(data) + 1} bytes",
        f"record {name} was changed: its digest does not fit",
        f"{name} is no record of ftcomm",
        f"record {name} has format 2; this ftcomm reads up to 1",
        f"record {name} is a copy of record 4",
    ]


HOSTILE: dict[str, Plain] = {
    "no-array": 7,
    "empty": [],
    "short": ["Attempt", 5],
    "no-kind": [7, 5, NONCE, 1, 0],
    "unknown-kind": ["Chain", 5, NONCE, 1, 0],
    "kind-of-another-table": ["Welcome", 5, NONCE],
    "true-for-one": ["Attempt", True, NONCE, 1, 0],
    "text-for-nonce": ["Attempt", 5, "n" * 16, 1, 0],
    "too-few-fields": ["Attempt", 5, NONCE, 1],
    "too-many-fields": ["Attempt", 5, NONCE, 1, 0, 0],
    "negative": ["Attempt", 5, NONCE, -1, 0],
    "array-for-number": ["Attempt", 5, NONCE, [1], 0],
    "no-array-of-runs": ["Finished", 5, NONCE, 1, "x" * 100],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_body_that_is_none_is_refused_though_its_digest_fits(name: str) -> None:
    assert refused(signed(pack(HOSTILE[name]))).startswith(f"record {record_name(5)} is malformed")


def test_bytes_that_follow_a_body_are_refused() -> None:
    body = pack(["Attempt", 5, NONCE, 1, 0]) + b"\0"
    assert "1 bytes behind the end" in refused(signed(body))


def test_an_announced_length_is_not_believed() -> None:
    assert "too long" in refused(struct.pack("<8sII", MAGIC, FORMAT, 2**32 - 1) + bytes(100))


def test_what_no_reader_would_take_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in the chain it could neither be read nor be replaced."""
    for record in (AttemptRecord(-1, 0), SeriesRecord("j" * 65, 2, (), (), b"")):
        with pytest.raises(ValueError, match=r"^\w+Record\.\w+: "):
            encode_record(ChainLink(1, NONCE, record))
    longest = len(encode_record(ChainLink(5, NONCE, VERSION)))
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", longest)
    encode_record(ChainLink(5, NONCE, VERSION))
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", longest - 1)
    with pytest.raises(ValueError, match=f"at most {longest - 1}"):
        encode_record(ChainLink(5, NONCE, VERSION))


# --- records in their places --------------------------------------------------------------------


LEFT = "2 versions of other records can be read, the newest is version 8 of attempt 1"


def a_chain(folder: Path, *records: ChainRecord) -> Path:
    """A store with records, as they are written by nobody who reads the chain first."""
    store = DirectoryStore(folder)
    for number, record in enumerate(records, 1):
        store.put_new(record_name(number), encode_record(ChainLink(number, NONCE, record)))
    return folder


def reading_fails(folder: Path) -> str:
    with pytest.raises(DamagedObjectError) as error:
        Chain(DirectoryStore(folder)).read()
    return error.value.cause.removeprefix(f"{folder}: ")


def test_a_chain_begins_with_its_series_and_has_one(tmp_path: Path) -> None:
    assert [
        reading_fails(a_chain(tmp_path / "a", AttemptRecord(1, 0))),
        reading_fails(a_chain(tmp_path / "b", SERIES, AttemptRecord(1, 0), SERIES)),
    ] == [
        "record chain/00000001.rec is out of its place",
        "record chain/00000003.rec is out of its place",
    ]


def test_a_gap_a_swapped_record_and_a_foreign_file_are_damage(tmp_path: Path) -> None:
    gap, swapped, foreign, torn = (
        a_chain(tmp_path / name, *RECORDS) / "chain"
        for name in ("gap", "swapped", "foreign", "torn")
    )
    (gap / "00000003.rec").unlink()
    (swapped / "00000003.rec").rename(swapped / "00000009.rec")
    (swapped / "00000004.rec").rename(swapped / "00000003.rec")
    (foreign / "notes.txt").write_text("x")
    (torn / "00000007.rec").write_bytes((torn / "00000007.rec").read_bytes()[:30])
    assert [reading_fails(folder.parent) for folder in (gap, swapped, foreign, torn)] == [
        f"record chain/00000003.rec of its chain is missing; {LEFT}",
        "record chain/00000003.rec is a copy of record 4",
        "chain/notes.txt is no record",
        f"record chain/00000007.rec has only 30 bytes; {LEFT}",
    ]


def test_damage_is_told_with_what_is_left_besides(tmp_path: Path) -> None:
    """Also where nothing is, and where the others cannot be read."""
    none, unread = (a_chain(tmp_path / name, *RECORDS[:3]) for name in ("none", "unread"))
    for folder in (none, unread):
        (folder / record_name(2)).write_bytes(b"x")
    (unread / record_name(3)).write_bytes(encode_record(ChainLink(9, NONCE, RECORDS[2])))
    damage = "record chain/00000002.rec has only 1 bytes"
    assert reading_fails(none) == f"{damage}; no other record is of a version"
    assert reading_fails(unread) == damage


def rewritten(folder: Path, number: int, data: bytes) -> Path:
    (folder / record_name(number)).write_bytes(data)
    return folder


def test_a_version_of_which_a_record_was_changed_is_passed_over(tmp_path: Path) -> None:
    """At the end of the chain and before it; nothing else is lost."""
    folder = a_chain(tmp_path, *RECORDS[:5])
    for number in (4, 5):
        whole = (folder / record_name(number)).read_bytes()
        for at in range(len(whole)):
            changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
            if not 12 <= at <= 16 and at < 26:  # where it says what it is
                assert record_name(number) in reading_fails(rewritten(folder, number, changed))
                continue
            state = chain_state(Chain(DirectoryStore(rewritten(folder, number, changed))).read())
            assert (list(state.damaged), list(state.versions)) == ([number], [9 - number])
            assert len(state.attempts) == len(state.epochs) == 1
        for cut in (26, 40, len(whole) - 1):
            links = Chain(DirectoryStore(rewritten(folder, number, whole[:cut]))).read()
            assert isinstance(links[number - 1].record, DamagedLink)
        rewritten(folder, number, whole)


def test_what_is_put_behind_a_damaged_version_is_behind_it_for_all(tmp_path: Path) -> None:
    """Its number is not used again: whoever could read the record finds what follows."""
    store = DirectoryStore(a_chain(tmp_path, *RECORDS[:4]))
    older = Chain(store)
    older.read()
    rewritten(tmp_path, 4, encode_record(ChainLink(4, NONCE, VERSION))[:-1])
    assert Chain(store).append(AttemptRecord(2, 0), b"p" * 16, attempt=2) == 5
    with pytest.raises(OvertakenError):
        older.append(VERSION, b"v" * 16, attempt=1)


def test_a_damaged_version_is_none_of_those_that_are_kept() -> None:
    damaged = DamagedLink("it was changed")
    records = (SERIES, AttemptRecord(1, 0), VERSION, damaged, VERSION, AttemptRecord(2, 4), VERSION)
    state = chain_state([ChainLink(n, NONCE, each) for n, each in enumerate(records, 1)])
    assert (state.kept(1), state.kept(2), state.kept(3)) == ({7}, {5, 7}, {3, 5, 7})


def test_a_huge_file_in_place_of_a_record_is_damage(tmp_path: Path) -> None:
    with (a_chain(tmp_path, SERIES) / "chain" / "00000002.rec").open("wb") as file:
        file.truncate(MAX_RECORD_BYTES + 1)
    assert reading_fails(tmp_path) == f"record chain/00000002.rec has {MAX_RECORD_BYTES + 1} bytes"


# --- what a chain says ---------------------------------------------------------------------------


def state_of(*records: ChainRecord) -> ChainState:
    return chain_state([ChainLink(n, NONCE, each) for n, each in enumerate(records, 1)])


def test_a_chain_is_read_as_a_whole() -> None:
    assert state_of(*RECORDS) == ChainState(
        SERIES,
        {2: AttemptRecord(1, 0)},
        {4: RECORDS[3], 5: RECORDS[4]},
        finished=9,
        epochs=(RECORDS[2],),
        ended=RECORDS[5],
    )
    again = state_of(*RECORDS[:6], AttemptRecord(2, 0))
    assert (again.epochs, again.ended) == ((), None)  # of the newest attempt alone
    empty = state_of()
    assert (empty.series, empty.newest_attempt, empty.finished) == (None, 0, PRELUDE)
    assert empty.kept(3) == set()


def test_the_parent_of_the_newest_attempt_is_kept_until_it_has_versions_of_its_own() -> None:
    first = (SERIES, AttemptRecord(1, 0), *(VERSION,) * 5)  # versions are records 3 to 7
    assert state_of(*first).kept(3) == {5, 6, 7}
    resumed = (*first, AttemptRecord(2, 4))  # the newer ones were damaged
    assert state_of(*resumed).kept(3) == {4, 5, 6, 7}
    assert state_of(*resumed, VERSION, VERSION).kept(3) == {4, 7, 9, 10}
    assert state_of(*resumed, VERSION, VERSION, VERSION).kept(3) == {9, 10, 11}
