"""Journals of results: bytes that end anywhere, and the files of a host."""

import errno
import io
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ftcomm.durable.journal.journal_files import (
    JournalFile,
    journals_of,
    remove_attempts,
    remove_series,
    remove_versions,
)
from ftcomm.durable.journal.journal_format import (
    FORMAT,
    MAGIC,
    EpochHead,
    Head,
    JournalHeader,
    ResultHead,
    encode_header,
    encode_record,
    read_header,
    read_records,
)
from ftcomm.durable.store import DamagedObjectError

HEADER = JournalHeader("run7", 2, 0, 3, 5)
RECORDS: list[tuple[Head, bytes]] = [
    (EpochHead(5), b""),
    (ResultHead(0, b"s" * 8, 11, (3,)), b"a" * 24),
    (ResultHead(1, b"s" * 8, 11, (), b"d" * 32), b"b" * 8),
]


def whole(header: JournalHeader = HEADER) -> bytes:
    start, crc = encode_header(header)
    parts = [bytes(part) for head, raw in RECORDS for part in encode_record(head, raw, crc)]
    return start + b"".join(parts)


def read(raw: bytes) -> list[tuple[Head, bytes]]:
    file = io.BytesIO(raw)
    header, crc = read_header(file, "j")
    assert header == HEADER
    return [(head, bytes(payload)) for head, payload in read_records(file, crc, len(raw))]


def test_what_is_written_is_read() -> None:
    assert read(whole()) == RECORDS


def test_a_journal_may_end_anywhere() -> None:
    raw, start = whole(), len(encode_header(HEADER)[0])
    counts = [len(read(raw[:end])) for end in range(start, len(raw) + 1)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-2], counts[-1]) == (0, 2, 3)


def test_nothing_counts_from_a_changed_byte_on() -> None:
    raw, start = whole(), len(encode_header(HEADER)[0])
    for place in range(start, len(raw)):
        changed = bytearray(raw)
        changed[place] ^= 1
        assert read(bytes(changed)) == RECORDS[: len(read(raw[:place]))]


def test_a_record_of_another_journal_is_not_taken() -> None:
    other = JournalHeader("run7", 2, 0, 3, 6)
    foreign = whole(other)[len(encode_header(other)[0]) :]
    assert read(encode_header(HEADER)[0] + foreign) == []


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [(0, 1, "is no journal"), (8, 2, "has format 2"), (20, 9, "cut short or was changed")],
)
def test_a_foreign_later_or_changed_header_is_refused_by_name(
    place: int, value: int, said: str
) -> None:
    raw = bytearray(whole())
    raw[place] = value
    with pytest.raises(DamagedObjectError, match=said):
        read(bytes(raw))


def test_a_header_that_is_cut_short_is_refused() -> None:
    start = encode_header(HEADER)[0]
    no_body = MAGIC + struct.pack("<II", FORMAT, 0)
    for cut in [*(start[:end] for end in range(len(start))), no_body, no_body + b"\0"]:
        with pytest.raises(DamagedObjectError):
            read(cut)


# --- files --------------------------------------------------------------------------------------


def make(folder: Path, attempt: int = 2, rank: int = 0, version: int = 3, epoch: int = 5) -> Path:
    file = JournalFile(folder, JournalHeader("run/7", attempt, rank, version, epoch))
    file.append(RECORDS)
    file.close()
    name = f"rank-{rank}.v{version}.e{epoch}.ftj"
    return folder / "job-run%2F7" / f"attempt-{attempt}" / name


def test_a_journal_is_the_owners_alone_and_is_not_written_twice(tmp_path: Path) -> None:
    path = make(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        make(tmp_path)


def test_large_results_are_written_whole(tmp_path: Path) -> None:
    file = JournalFile(tmp_path, HEADER)
    file.append([RECORDS[0], (ResultHead(0, b"", 3, (1 << 20,)), b"x" * (1 << 20)), RECORDS[2]])
    file.close()
    [path] = journals_of(tmp_path, "run7", 2, 0, 3)
    assert [len(raw) for _, raw in read(path.read_bytes())] == [0, 1 << 20, 8]


def test_the_journals_of_a_rank_come_in_the_order_of_their_epochs(tmp_path: Path) -> None:
    late, early = make(tmp_path, epoch=12), make(tmp_path, epoch=7)
    make(tmp_path, rank=1)
    make(tmp_path, version=4)
    make(tmp_path, attempt=1)
    assert journals_of(tmp_path, "run/7", 2, 0, 3) == [early, late]
    assert journals_of(tmp_path / "absent", "run/7", 2, 0, 3) == []


def _refuse_listing(folder: Path) -> NoReturn:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would know that the results in it are lost; what cannot be removed only stays."""
    path = make(tmp_path)
    assert journals_of(path, "run/7", 2, 0, 3) == []  # below a file
    monkeypatch.setattr(Path, "iterdir", _refuse_listing)
    with pytest.raises(PermissionError):
        journals_of(tmp_path, "run/7", 2, 0, 3)
    remove_attempts(tmp_path, "run/7", 2)
    remove_versions(tmp_path, "run/7", 2, 4)
    assert path.exists()


def test_what_is_of_no_more_use_is_removed(tmp_path: Path) -> None:
    first, old, new = make(tmp_path, attempt=1), make(tmp_path), make(tmp_path, version=4)
    (tmp_path / "other").touch()
    remove_attempts(tmp_path, "run/7", 1)
    remove_versions(tmp_path, "run/7", 2, 4)
    assert [path.exists() for path in (first, old, new)] == [False, False, True]
    remove_series(tmp_path, "run/7")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_journal_that_cannot_be_begun_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk each version tries again, and the process has so many files."""
    opened: list[int] = []

    def remembered(*arguments: Any, open_file: Callable[..., int] = os.open) -> int:
        opened.append(open_file(*arguments))
        return opened[-1]

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", remembered)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        JournalFile(tmp_path, HEADER)
    monkeypatch.undo()
    (file,) = opened
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(file)
