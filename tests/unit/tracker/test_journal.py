"""The journal: durable, one writer, and clear about what it cannot read."""

import contextlib
import os
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

import ftcomm
from ftcomm.errors import ConfigError
from ftcomm_tracker.server.journal import (
    FILE_NAME,
    Journal,
    Remembered,
    SupersededError,
    remembered,
)
from ftcomm_tracker.server.journal_file import FORMAT, WRITTEN_BY, JournalError
from ftcomm_tracker.server.state_dir import LOCK_NAME, StateLock, make_state_dir

BROKEN = [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096]


def test_a_reopened_journal_gives_back_what_was_written_under_a_new_generation(
    tmp_path: Path,
) -> None:
    first = Journal.open(tmp_path)
    assert (first.generation, first.load()) == (1, None)
    document = {"epoch": 1, "byes": [0], "places": [["a", 1, b"\x00\xff", "host"]]}
    first.write(document)
    first.close()
    second = Journal.open(tmp_path)
    assert (second.generation, second.load()) == (2, document)
    second.close()


def test_a_superseded_tracker_can_change_nothing(tmp_path: Path) -> None:
    old = Journal.open(tmp_path)
    old.write({"epoch": 1})
    old.check()
    new = Journal.open(tmp_path)
    new.write({"epoch": 2})
    with pytest.raises(SupersededError):
        old.write({"epoch": 9})
    with pytest.raises(SupersededError):
        old.remember(Remembered("127.0.0.1", 1, "t"))
    with pytest.raises(SupersededError):
        old.check()
    assert new.load() == {"epoch": 2}
    old.close()
    new.close()


def test_a_full_disk_is_said_with_what_to_do_and_changes_nothing(tmp_path: Path) -> None:
    """Sqlite has a limit of its own that fails as a full disk does."""
    journal = Journal.open(tmp_path)
    journal.write({"epoch": 1})
    (pages,) = journal._database.execute("PRAGMA page_count").fetchone()
    journal._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JournalError, match=r"journal\.sqlite: .*full - make room on its disk"):
        journal.write({"epoch": 2, "text": "x" * 100_000})
    assert journal.load() == {"epoch": 1}
    journal._database.execute(f"PRAGMA max_page_count = {100 * pages}")
    journal.write({"epoch": 2})
    assert journal.load() == {"epoch": 2}
    journal.close()


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
        journal.write({"epoch": epoch, "padding": "x" * 500})
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
    with pytest.raises(
        JournalError, match=r"format 7, which a release of ftcomm after 0\.2 writes"
    ):
        Journal.open(tmp_path)


def test_a_journal_of_an_older_release_is_refused_by_name(tmp_path: Path) -> None:
    Journal.open(tmp_path).close()
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as outsider:
        outsider.execute("PRAGMA user_version = 1")
    with pytest.raises(JournalError) as refused:
        Journal.open(tmp_path)
    assert str(refused.value) == (
        f"journal {tmp_path / FILE_NAME} has format 1, which ftcomm 0.1 writes; this is ftcomm"
        f" {ftcomm.__version__}, which reads format 2, of ftcomm 0.2 - let ftcomm 0.1 end that job,"
        " or give another --state-dir for a new one"
    )


def test_the_present_format_is_that_of_the_present_release() -> None:
    assert ftcomm.__version__.startswith(f"{WRITTEN_BY[FORMAT]}.")
    assert max(WRITTEN_BY) == FORMAT


@pytest.mark.parametrize("size", [0, 50, 100, 5000])
def test_a_truncated_journal_is_named_as_that(tmp_path: Path, size: int) -> None:
    journal = Journal.open(tmp_path)
    for epoch in range(20):
        journal.write({"epoch": epoch, "padding": "x" * 500})
    journal.close()
    path = tmp_path / FILE_NAME
    cut = path.read_bytes()[:size]
    path.write_bytes(cut)
    for look in (Journal.open, remembered):
        with pytest.raises(JournalError, match=rf"journal {path} is truncated: it has {size} "):
            look(tmp_path)
    assert path.read_bytes() == cut


def test_a_journal_without_its_log_of_writes_still_knows_the_job(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.write({"epoch": 0})
    journal.settle()
    journal.write({"epoch": 1})
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / FILE_NAME).write_bytes((tmp_path / FILE_NAME).read_bytes())
    journal.close()
    again = Journal.open(copy)
    assert again.load() == {"epoch": 0}
    again.close()


def test_a_deleted_journal_is_made_again_as_it_was(tmp_path: Path) -> None:
    home = tmp_path / "state"
    journal = Journal.open(make_state_dir(home))
    journal.remember(Remembered("127.0.0.1", 4711, "/t"))
    for epoch in (1, 2):
        journal.write({"epoch": epoch})
    assert not journal.repair()
    shutil.rmtree(home)
    assert (journal.repair(), journal.repair()) == (True, False)
    journal.check()
    journal.write({"epoch": 3})
    journal.close()
    assert remembered(home) == Remembered("127.0.0.1", 4711, "/t")
    again = Journal.open(home)
    assert (again.generation, again.load()) == (2, {"epoch": 3})
    again.close()
    assert stat.S_IMODE((home / FILE_NAME).stat().st_mode) == 0o600


def test_another_file_in_a_deleted_journals_place_is_left_alone(tmp_path: Path) -> None:
    journal = Journal.open(make_state_dir(tmp_path / "state"))
    shutil.rmtree(tmp_path / "state")
    other = Journal.open(make_state_dir(tmp_path / "state"))
    with pytest.raises(JournalError, match="was replaced by another tracker's"):
        journal.repair()
    other.check()
    other.close()
    journal.close()


def test_a_lock_that_was_given_back_is_not_given_back_again(tmp_path: Path) -> None:
    """By then its descriptor is another file's."""
    home = make_state_dir(tmp_path / "state")
    journal = Journal.open(home)
    journal.hold(StateLock.take(home))
    shutil.rmtree(home)
    (home / LOCK_NAME).mkdir(parents=True)  # so that no lock can be taken
    with pytest.raises(ConfigError, match=rf"lock {home / LOCK_NAME}: Is a directory"):
        journal.repair()
    with (tmp_path / "another").open("w") as another:
        journal.close()
        os.fstat(another.fileno())


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
