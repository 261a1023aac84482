"""The journal: durable, one writer, and clear about what it cannot read."""

import sqlite3
import stat
from pathlib import Path

import pytest

from ftcomm.errors import ConfigError
from ftcomm_tracker.journal import (
    FILE_NAME,
    Journal,
    JournalError,
    Remembered,
    SupersededError,
    make_state_dir,
    remembered,
)

BROKEN = [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096]


def test_a_reopened_journal_gives_back_what_was_written_under_a_new_generation(
    tmp_path: Path,
) -> None:
    first = Journal.open(tmp_path)
    assert (first.generation, first.load()) == (1, None)
    document = {"epoch": 1, "byes": [0], "places": [["a", 1, b"\x00\xff", "host"]]}
    first.write(document, epoch=1)
    first.close()
    second = Journal.open(tmp_path)
    assert (second.generation, second.load()) == (2, document)
    second.close()


def test_a_superseded_tracker_can_change_nothing(tmp_path: Path) -> None:
    old = Journal.open(tmp_path)
    old.write({"epoch": 1}, epoch=1)
    old.check()
    new = Journal.open(tmp_path)
    new.write({"epoch": 2}, epoch=2)
    with pytest.raises(SupersededError):
        old.write({"epoch": 9}, epoch=9)
    with pytest.raises(SupersededError):
        old.remember(Remembered("127.0.0.1", 1, "t"))
    with pytest.raises(SupersededError):
        old.check()
    assert (new.load(), new.history()) == ({"epoch": 2}, [{"epoch": 1}, {"epoch": 2}])
    old.close()
    new.close()


def test_a_full_disk_is_said_with_what_to_do_and_changes_nothing(tmp_path: Path) -> None:
    """Sqlite has a limit of its own that fails as a full disk does."""
    journal = Journal.open(tmp_path)
    journal.write({"epoch": 1}, epoch=1)
    (pages,) = journal._database.execute("PRAGMA page_count").fetchone()
    journal._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JournalError, match=r"journal\.sqlite: .*full - make room on its disk"):
        journal.write({"epoch": 2, "text": "x" * 100_000}, epoch=2)
    assert (journal.load(), len(journal.history())) == ({"epoch": 1}, 1)
    journal._database.execute(f"PRAGMA max_page_count = {100 * pages}")
    journal.write({"epoch": 2}, epoch=2)
    assert journal.load() == {"epoch": 2}
    journal.close()


def test_the_history_has_one_document_per_epoch_and_cannot_be_changed(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    for epoch, byes in ((1, 0), (1, 1), (2, 0)):
        journal.write({"epoch": epoch, "byes": byes}, epoch=epoch)
    assert journal.history() == [{"epoch": 1, "byes": 0}, {"epoch": 2, "byes": 0}]
    journal.close()
    outsider = sqlite3.connect(tmp_path / FILE_NAME)
    for statement in ("DELETE FROM history", "UPDATE history SET epoch = 0"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            outsider.execute(statement)
    outsider.close()


def test_the_address_is_remembered_without_taking_a_generation(tmp_path: Path) -> None:
    assert remembered(tmp_path) is None
    journal = Journal.open(tmp_path)
    assert remembered(tmp_path) is None
    journal.remember(Remembered("127.0.0.1", 4711, "/t"))
    assert remembered(tmp_path) == Remembered("127.0.0.1", 4711, "/t")
    journal.check()
    journal.close()


def test_writes_are_synchronous(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    read = journal._database.execute
    assert read("PRAGMA journal_mode").fetchone() == ("wal",)
    assert read("PRAGMA synchronous").fetchone() == (2,)
    journal.close()


@pytest.mark.parametrize("content", BROKEN)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(JournalError, match=FILE_NAME):
        Journal.open(tmp_path)
    with pytest.raises(JournalError, match=FILE_NAME):
        remembered(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == content


def test_a_damaged_page_is_found_at_opening(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    for epoch in range(50):
        journal.write({"epoch": epoch, "padding": "x" * 500}, epoch=epoch)
    journal.close()
    path = tmp_path / FILE_NAME
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(JournalError, match=FILE_NAME):
        Journal.open(tmp_path)


def test_a_foreign_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    foreign = sqlite3.connect(tmp_path / FILE_NAME)
    foreign.execute("CREATE TABLE cookies (x)")
    foreign.commit()
    foreign.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(JournalError, match="not a journal of ftcomm"):
        Journal.open(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_another_format_is_refused(tmp_path: Path) -> None:
    Journal.open(tmp_path).close()
    outsider = sqlite3.connect(tmp_path / FILE_NAME)
    outsider.execute("PRAGMA user_version = 7")
    outsider.commit()
    outsider.close()
    with pytest.raises(JournalError, match="format 7"):
        Journal.open(tmp_path)


def test_a_document_that_is_no_document_is_refused(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    for text in ("[1]", "{"):
        journal._database.execute("UPDATE tracker SET document = ?", (text,))
        with pytest.raises(JournalError, match=FILE_NAME):
            journal.load()
    journal.close()


def test_the_state_directory_and_the_journal_are_private(tmp_path: Path) -> None:
    path = make_state_dir(tmp_path / "a" / "b")
    Journal.open(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / FILE_NAME).stat().st_mode) == 0o600


def test_a_state_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="written by other users"):
        make_state_dir(shared)
    plain = tmp_path / "file"
    plain.write_text("")
    with pytest.raises(ConfigError, match="file"):
        make_state_dir(plain)
