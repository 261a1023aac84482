"""Files and variables that are torn, foreign, forged or simply wrong: a sentence, and no loss."""

import contextlib
import json
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcomm.config.environment import WorkerOptions, read_token
from ftcomm.errors import ConfigError
from ftcomm_tracker.core.durable_state import Durable, RankOwner
from ftcomm_tracker.server import token_file
from ftcomm_tracker.server.journal import FILE_NAME, Journal, Remembered, remembered
from ftcomm_tracker.server.journal_file import JournalError
from ftcomm_tracker.server.open_job import ServeOptions, open_job
from ftcomm_tracker.server.state_dir import LOCK_NAME

TOKEN = "0123456789abcdef" * 4
DURABLE = Durable(
    "job",
    2,
    epoch=3,
    first_nonces=(b"a", b"b"),
    incarnations=(("0", 1), ("1", 2)),
    places=(RankOwner("0", 1, b"a", "h"), RankOwner("1", 2, b"c", "h")),
    grouping=(0, 0),
    tables=b"t",
)


# --- the token ----------------------------------------------------------------------------------


def a_token(folder: Path, content: bytes = TOKEN.encode() + b"\n", mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b" \n\n"])
def test_an_editors_line_end_is_no_part_of_the_token(tmp_path: Path, end: bytes) -> None:
    assert read_token(a_token(tmp_path, TOKEN.encode() + end)) == TOKEN.encode()


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe", 0o600)
    return folder / "pipe"


NOT_TOKENS: dict[str, Callable[[Path], Path]] = {
    "empty": lambda folder: a_token(folder, b""),
    "short": lambda folder: a_token(folder, TOKEN[:-1].encode()),
    "not hexadecimal": lambda folder: a_token(folder, b"z" * 64),
    "a document": lambda folder: a_token(folder, TOKEN.encode() * 1000),
    "UTF-16": lambda folder: a_token(folder, TOKEN.encode("utf-16")),
    "readable by the group": lambda folder: a_token(folder, mode=0o640),
    "readable by all": lambda folder: a_token(folder, mode=0o604),
    "a directory": lambda folder: folder,
    "a pipe that nobody writes": a_pipe,
    "a device": lambda folder: Path("/dev/zero"),
    "absent": lambda folder: folder / "nowhere",
    "a name that cannot be": lambda folder: folder / "nul\0",
    "a name that is too long": lambda folder: folder / ("x" * 300),
    "a dangling link": lambda folder: a_link(folder, folder / "nowhere"),
    "a link to what others read": lambda folder: a_link(folder, a_token(folder, mode=0o644)),
}


def a_link(folder: Path, target: Path) -> Path:
    link = folder / "link"
    link.symlink_to(target)
    return link


@pytest.mark.parametrize("kind", NOT_TOKENS)
def test_what_is_no_token_is_named_and_not_waited_for(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="token file") as refused:
        read_token(NOT_TOKENS[kind](tmp_path))
    assert TOKEN[:-1] not in str(refused.value)


def test_a_link_to_a_private_token_is_as_good_as_the_token(tmp_path: Path) -> None:
    assert read_token(a_link(tmp_path, a_token(tmp_path))) == TOKEN.encode()


def test_a_full_disk_leaves_no_half_token_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(token_file.os, "fdopen", full)
    with pytest.raises(ConfigError, match="No space left"):
        open_and_close(ServeOptions(2, state_dir=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]


def test_a_token_has_its_name_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "token", list[bool]()

    def sync(file: int) -> None:
        synced.append(path.exists())
        if stat.S_ISREG(os.fstat(file).st_mode):
            assert os.fstat(file).st_size == token_file.TOKEN_BYTES * 2 + 1

    monkeypatch.setattr(token_file.os, "fsync", sync)
    token_file.TokenFile.found_or_made(path)
    assert synced == [False, True]  # the file, and behind its name the folder


def test_a_tracker_that_dies_within_its_token_leaves_no_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(token_file.os, "fsync", dies)
        with pytest.raises(KeyboardInterrupt):
            token_file.TokenFile.found_or_made(tmp_path / "token")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"token.{os.getpid()}.new").write_bytes(b"ha")
    assert token_file.TokenFile.found_or_made(tmp_path / "token").token


# --- the state directory ------------------------------------------------------------------------


def open_and_close(options: ServeOptions) -> str:
    """The job's name, as a tracker finds it."""

    async def run() -> str:
        job = await open_job(options)
        await job.server.close()
        return job.durable.job_id

    return trio.run(run)


def test_a_tracker_that_died_before_its_first_word_can_be_started_again(tmp_path: Path) -> None:
    (tmp_path / f"{FILE_NAME}.{os.getpid()}.new").write_bytes(b"half a journal")
    assert remembered(tmp_path) is None
    name = open_and_close(ServeOptions(2, state_dir=tmp_path))
    assert open_and_close(ServeOptions(state_dir=tmp_path)) == name


def test_a_journal_cut_short_anywhere_is_refused_by_name_and_left_as_it_is(tmp_path: Path) -> None:
    open_and_close(ServeOptions(2, state_dir=tmp_path))
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    assert not (tmp_path / f"{FILE_NAME}-wal").exists()
    for size in range(1000, len(whole), 1777):  # less than a page is no database yet
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=FILE_NAME):
            open_and_close(ServeOptions(state_dir=tmp_path))
        assert path.read_bytes() == whole[:size]


@pytest.fixture(scope="module")
def whole_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal.open(folder)
    journal.write(DURABLE.to_wire())
    journal.remember(Remembered("127.0.0.1", 4711, "/t"))
    journal.close()
    return folder / FILE_NAME


@settings(max_examples=40)
@given(damage=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1))
def test_a_damaged_journal_gives_a_job_or_a_sentence_that_names_it(
    damage: list[tuple[int, int]],
    whole_journal: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    raw = bytearray(whole_journal.read_bytes())
    for at, value in damage:
        raw[at % len(raw)] = value
    (folder / FILE_NAME).write_bytes(raw)
    assert "journal" in (what_a_journal_says(folder) or "journal")


def what_a_journal_says(folder: Path) -> str | None:
    """The sentence with which it is refused; None if it is taken."""
    try:
        remembered(folder)
        with contextlib.closing(Journal.open(folder)) as journal:
            Durable.from_wire(journal.load() or {})
    except ConfigError as error:
        return str(error)
    return None


FORGERIES: dict[str, str] = {
    "no row": "DELETE FROM tracker",
    "an address of another kind": "UPDATE tracker SET port = 'x', host = 7",
    "a document that is a number": "UPDATE tracker SET document = 7",
    "a document without end": "UPDATE tracker SET document = printf('%.200000c', '[')",
    "a list for a document": "UPDATE tracker SET document = '[]'",
    "bytes for a document": "UPDATE tracker SET document = x'ff00'",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_journal_is_refused_by_name(forgery: str, tmp_path: Path) -> None:
    open_and_close(ServeOptions(2, state_dir=tmp_path))
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute(FORGERIES[forgery])
    database.commit()
    database.close()
    with pytest.raises(JournalError, match=FILE_NAME):
        open_and_close(ServeOptions(state_dir=tmp_path))


def test_a_journal_of_a_later_version_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    open_and_close(ServeOptions(2, state_dir=tmp_path))
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(
        JournalError, match=r"format 99, which a release of ftcomm after 0.2 writes"
    ):
        open_and_close(ServeOptions(state_dir=tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"world_size": 0},
        {"world_size": 10**9},
        {"world_size": 1e400},
        {"tables": 10**12},
        {"first_lives": [10**12, 1]},
        {"places": [["0", 1, b"a", "h"]]},
        {"grouping": [0, 2]},
        {"byes": [7]},
        {"epoch": -1},
        {"version": -2},
        {"verdict": ["X"]},
        {"settings": 7},
        {"format": 1},
    ],
    ids=lambda change: json.dumps(change, default=repr),
)
def test_a_document_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    assert Durable.from_wire(DURABLE.to_wire()) == DURABLE
    with pytest.raises(ConfigError, match="journal"):
        Durable.from_wire({**DURABLE.to_wire(), **change})


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722])
def test_a_state_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 700"):
        open_and_close(ServeOptions(2, state_dir=tmp_path))


def test_a_state_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, file / "below"):
        with pytest.raises(ConfigError, match="state directory"):
            open_and_close(ServeOptions(2, state_dir=path))


# --- variables ----------------------------------------------------------------------------------

MALFORMED = {
    "FTCOMM_WORKER_ID": ["x" * 65, "ä" * 33, "\udc80", "two\nlines", "\x1b[2J", "nul\0"],
    "FTCOMM_TRACKER": ["host", "host:", ":1", "h:0", "h:65536", "h:" + "9" * 5000, "a:1,,b:2", ","],
    "FTCOMM_TRACKER_TIMEOUT": ["soon", "nan", "-1", "inf", "1e9", "9" * 5000],
    "FTCOMM_LOG": ["loud", "INFO "],
    "FTCOMM_DETECT_WITHIN": ["0", "nan", "1h"],
    "FTCOMM_REPLICAS": ["0", "2.0", "1025"],
    "FTCOMM_LOG_LIMIT": ["-1", "2 gigs", "9" * 5000],
    "FTCOMM_ALGORITHM": ["fast"],
    "FTCOMM_TRANSPORT": ["infiniband"],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in MALFORMED.items() for text in texts]
)
def test_a_malformed_variable_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        WorkerOptions.load(environ={name: text})
    assert name in str(refused.value) or (name == "FTCOMM_TRACKER" and "address" in str(refused))


@given(st.dictionaries(st.sampled_from(sorted(MALFORMED)), st.text(max_size=30)))
def test_any_text_in_the_variables_gives_options_or_a_sentence(environ: dict[str, str]) -> None:
    with contextlib.suppress(ConfigError):
        WorkerOptions.load(environ=environ)


def test_a_schedulers_size_without_end_is_no_size() -> None:
    environ = {"SLURM_PROCID": "0", "SLURM_NTASKS": "9" * 5000}
    assert WorkerOptions.load(environ=environ).scheduler_size is None
