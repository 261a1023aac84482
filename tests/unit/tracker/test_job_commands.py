"""The commands `list` and `clean`, and a command that finds the only running job."""

import errno
import fcntl
import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftcomm.config.process_identity import process_space, this_process
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.operator.job_registry import (
    JobEntry,
    Registry,
    entry_path,
    read_registry,
    register,
    unregister,
)
from ftcomm_tracker.server.journal import FILE_NAME
from ftcomm_tracker.server.state_dir import LOCK_NAME, StateLock
from tests.unit.tracker.serving import serve
from tests.unit.tracker.test_cli import invoke
from tests.unit.tracker.test_launcher import run

HOST = "node7"
JOB = "20260101-000000-abcdef"
IN_A_CONTAINER = f"{process_space().partition('/')[0]}/1"
FAILS_ONCE = """
import ftcomm
from ftcomm_tracker.operator.job_registry import read_registry
with ftcomm.init() as comm:
    version, _ = comm.load_checkpoint(0)
    for entry in read_registry().entries:
        print(entry.job_id, "running" if entry.is_running() else "ended")
    comm.checkpoint(1, durable=True)
    if not version:
        raise SystemExit(5)
"""


@pytest.fixture(autouse=True)
def empty_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("platform.node", lambda: HOST)
    folder = tmp_path / "xdg" / "ftcomm" / "jobs"
    folder.mkdir(parents=True)
    return folder


def entry(state_dir: Path, **changes: Any) -> JobEntry:
    """An entry of a job whose process is this test's."""
    process = this_process()
    made = JobEntry(
        job_id=JOB,
        command="run",
        state_dir=str(state_dir),
        temporary=True,
        address="h:1",
        workers=2,
        host=HOST,
        space=process_space(),
        pid=process.pid,
        start=process.start,
        began=5.0,
    )
    made = replace(made, **changes)
    entry_path(made).write_text(json.dumps(asdict(made)))
    return made


def ended(state_dir: Path, **changes: Any) -> JobEntry:
    """An entry of a process with this one's number that began at another time."""
    return entry(state_dir, start=this_process().start + 1, **changes)


def states() -> dict[str, str]:
    status, text = invoke("list", "--json")
    assert status == 0, text
    return {row["job_id"]: row["state"] for row in json.loads(text)["jobs"]}


def test_the_states_of_jobs(tmp_path: Path) -> None:
    """Job `a` has a store, and is in its first attempt."""
    entry(tmp_path, job_id="a.12")
    ended(tmp_path, job_id="b")
    entry(tmp_path, job_id="c", host="elsewhere")
    ended(tmp_path, job_id="d", space=IN_A_CONTAINER)
    ended(tmp_path, job_id="e", space="another-boot/1")
    wanted = {"a.12": "running", "b": "gone", "c": "elsewhere", "d": "elsewhere", "e": "gone"}
    assert states() == wanted
    status, text = invoke("list")
    assert (status, [line.split()[0] for line in text.splitlines()]) == (0, ["JOB", *wanted])


def test_no_job_is_said() -> None:
    assert invoke("list") == (0, "no jobs\n")
    assert invoke("clean") == (0, "nothing to remove\n")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\x00", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"{}", "has other fields than an entry"),
        (b"[" * 100_000, "has more than 16384 bytes"),
    ],
)
def test_a_damaged_file_is_named_and_ignored(
    empty_registry: Path, content: bytes, reason: str
) -> None:
    (empty_registry / f"{JOB}.json").write_bytes(content)
    status, text = invoke("list")
    assert (status, f"it {reason}\nno jobs" in text) == (0, True), text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pid", -1),
        ("pid", True),
        ("state_dir", "relative"),
        ("state_dir", "/tmp/\x1b[2J"),
        ("job_id", "../x"),
        ("job_id", f"{JOB}."),
        ("job_id", f"{JOB}.1.1"),
        ("job_id", f"{JOB}.12345678"),
        ("job_id", ".x"),
        ("began", -1),
        ("workers", "2"),
    ],
)
def test_a_damaged_field_is_refused(
    tmp_path: Path, empty_registry: Path, field: str, value: object
) -> None:
    document = {**asdict(entry(tmp_path)), field: value}
    (empty_registry / f"{JOB}.json").write_text(json.dumps(document))
    registry = read_registry()
    assert (registry.entries, list(registry.damaged.values())) == (
        (),
        [f"has a damaged field {field}"],
    )


def test_a_user_without_a_home_has_no_list_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_user(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_user)
    job: Any = ServedJob(tmp_path, Durable.fresh(JOB, 2), 2)
    register(job, "serve", temporary=False)
    unregister(job)
    assert "`ftcomm list` will not show this job: the folder of jobs" in caplog.text
    assert invoke("list") == (0, "no jobs\n")


def test_a_link_is_not_followed(tmp_path: Path, empty_registry: Path) -> None:
    real = entry_path(entry(tmp_path))
    real.rename(tmp_path / "real")
    real.symlink_to(tmp_path / "real")
    assert list(read_registry().damaged) == [real]


def test_clean_removes_what_an_ended_run_left(tmp_path: Path) -> None:
    made_up, chosen = tmp_path / "made-up", tmp_path / "chosen"
    for folder in (made_up, chosen):
        folder.mkdir()
        for name in (FILE_NAME, "token", "progress.jsonl", "mine.txt"):
            (folder / name).touch()
        (folder / "store" / "data").mkdir(parents=True)
        (folder / "store" / "data" / "object").touch()
    gone = ended(made_up, job_id="a")
    kept = ended(chosen, job_id="b", temporary=False)
    alive = entry(tmp_path, job_id="c")
    status, said = invoke("clean", "--dry-run")
    assert (status, said.count("would remove"), (made_up / FILE_NAME).exists()) == (0, 8, True)
    status, _ = invoke("clean")
    assert status == 0
    assert [entry_path(job).exists() for job in (gone, kept, alive)] == [False, False, True]
    assert [path.name for path in made_up.iterdir()] == ["mine.txt"]
    assert {FILE_NAME, "token", "mine.txt"} <= {path.name for path in chosen.iterdir()}
    status, _ = invoke("clean", "--state-dir", str(chosen))
    assert (status, {path.name for path in chosen.iterdir()}) == (0, {"mine.txt", "store"})
    assert (chosen / "store" / "data" / "object").exists()


def test_clean_takes_no_directory_for_a_store_by_its_name(tmp_path: Path) -> None:
    chosen = tmp_path / "store"
    (chosen / "mine").mkdir(parents=True)
    for name in (FILE_NAME, "mine.txt", "mine/more.txt"):
        (chosen / name).touch()
    status, text = invoke("clean", "--state-dir", str(chosen))
    assert (status, f"left {str(chosen)!r}" in text) == (0, True), text
    assert {path.name for path in chosen.rglob("*")} == {"mine", "mine.txt", "more.txt"}


def test_clean_leaves_what_is_not_of_the_store_in_a_temporary_one(tmp_path: Path) -> None:
    made_up = tmp_path / "made-up"
    store = made_up / "store"
    for folder in ("chain", "data/1/2", "beat", "probe", "tmp"):
        (store / folder).mkdir(parents=True)
        (store / folder / "object").touch()
    for path in (made_up / FILE_NAME, store / "mine.txt"):
        path.touch()
    ended(made_up)
    status, text = invoke("clean")
    assert (status, f"left {str(store)!r}" in text) == (0, True), text
    assert {path.name for path in made_up.rglob("*")} == {"store", "mine.txt"}


def test_clean_leaves_a_directory_that_a_tracker_holds(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    lock = StateLock.take(tmp_path)
    assert lock is not None
    ended(tmp_path)
    assert invoke("clean")[0] == 0
    assert (tmp_path / LOCK_NAME).exists()
    assert (tmp_path / FILE_NAME).exists()
    status, text = invoke("clean", "--state-dir", str(tmp_path))
    lock.close()
    assert (status, "serves the job in" in text) == (64, True), text


def test_clean_leaves_a_directory_where_nobody_can_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    (tmp_path / FILE_NAME).touch()
    job = ended(tmp_path)
    other = ended(tmp_path / "other", job_id="b")
    status, text = invoke("clean")
    assert (status, text.count("removed"), "its file system has no locks" in text) == (0, 1, True)
    status, text = invoke("clean", "--state-dir", str(tmp_path))
    assert (status, "delete the directory by hand" in text) == (64, True), text
    assert (tmp_path / FILE_NAME).exists()
    assert [entry_path(which).exists() for which in (job, other)] == [True, False]


def test_clean_leaves_a_job_whose_process_runs(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    running = entry(tmp_path, job_id="a.12")
    elsewhere = ended(tmp_path, job_id="b", host="elsewhere")
    contained = ended(tmp_path, job_id="c", space=IN_A_CONTAINER)
    assert invoke("clean") == (0, "nothing to remove\n")
    assert all(entry_path(job).exists() for job in (running, elsewhere, contained))
    assert (tmp_path / FILE_NAME).exists()


def test_clean_of_a_directory_without_a_job_is_refused(tmp_path: Path) -> None:
    status, text = invoke("clean", "--state-dir", str(tmp_path))
    assert (status, "is not the state directory of a job" in text) == (64, True), text


@pytest.mark.parametrize("command", [("status",), ("explain",), ("kill", "0"), ("stop",)])
def test_of_several_jobs_the_choices_are_named(tmp_path: Path, command: tuple[str, ...]) -> None:
    entry(tmp_path / "one", job_id="a")
    entry(tmp_path / "two", job_id="b")
    status, text = invoke(*command)
    names = f"{tmp_path / 'one'}, {tmp_path / 'two'}"
    assert (status, f"2 jobs of this user run here - give --state-dir: {names}" in text) == (
        64,
        True,
    )


class ServedJob:
    """A job that a tracker of this process serves; the tracker shows it after events."""

    def __init__(self, state_dir: Path, durable: Durable, size: int | None) -> None:
        self.state_dir, self.durable, self.address = state_dir, durable, "h:1"
        self.server = SimpleNamespace(snapshot=lambda: {"world_size": size}, watch_job=None)


def listed() -> list[tuple[str, str]]:
    """Jobs and their numbers of workers, as `list` shows them."""
    return [(line.split()[0], line.split()[2]) for line in invoke("list")[1].splitlines()[1:]]


def test_a_later_attempt_replaces_the_entry_of_an_earlier_one(tmp_path: Path) -> None:
    """A made-up directory stays known to `clean`, and so does a job that runs."""
    ended(tmp_path, job_id=f"{JOB}.1", temporary=False)
    ended(tmp_path / "other", job_id=f"{JOB}.2", temporary=False)
    ended(tmp_path / "made-up", job_id=f"{JOB}.3")
    entry(tmp_path / "beside", job_id=JOB, temporary=False)
    ended(tmp_path / "else", job_id="b.1", temporary=False)
    job: Any = ServedJob(tmp_path, Durable.fresh(f"{JOB}.4", 2), 2)
    register(job, "run", temporary=False)
    others = {f"{JOB}.3", JOB, "b.1"}
    assert states().keys() == {*others, f"{JOB}.4"}
    job.server.watch_job(Durable.fresh(f"{JOB}.5", 2))
    assert states().keys() == {*others, f"{JOB}.5"}
    unregister(job)
    assert states().keys() == others


def test_a_rebuilt_job_is_listed_once_its_workers_have_named_it(tmp_path: Path) -> None:
    job: Any = ServedJob(tmp_path, Durable.fresh("not-known-yet", 2048), None)
    register(job, "serve", temporary=False)
    assert listed() == [("not-known-yet", "?")]  # which `explain` finds, since it waits
    job.server.watch_job(Durable.fresh(JOB, 3))
    assert listed() == [(JOB, "3")]


def test_the_entry_of_another_process_stays(tmp_path: Path) -> None:
    job: Any = ServedJob(tmp_path, Durable.fresh(JOB, 2), 2)
    register(job, "serve", temporary=False)
    ended(tmp_path)
    unregister(job)
    assert states() == {JOB: "gone"}


@pytest.mark.process
def test_status_takes_the_only_job_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    with serve(tmp_path / "state", "-n", "1") as (process, ready):
        status, text = invoke("status", "--json")
        assert (status, json.loads(text)["job_id"]) == (0, ready["job"])
        assert states() == {ready["job"]: "running"}
        assert invoke("stop") == (0, "stopped\n")
        process.wait(timeout=30)
    assert states() == {ready["job"]: "over"}


@pytest.mark.process
def test_run_leaves_an_entry_only_if_it_leaves_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    done = run(script="import ftcomm\nwith ftcomm.init(): pass", n=1)
    assert (done.returncode, read_registry().entries) == (0, ()), done.stdout
    failed = run("--max-restarts", "0", script="raise SystemExit(5)", n=1)
    (left,) = read_registry().entries
    assert (failed.returncode, left.temporary, Path(left.state_dir).is_dir()) == (73, True, True)
    assert invoke("clean")[0] == 0
    assert (read_registry().entries, Path(left.state_dir).exists()) == ((), False)


@pytest.mark.process
def test_run_with_a_store_is_listed_and_its_next_attempt_takes_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    options = ("--state-dir", str(tmp_path / "state"), "--max-restarts", "0")
    failed = run(*options, script=FAILS_ONCE, n=1)
    (left,) = read_registry().entries
    assert (failed.returncode, failed.stdout) == (73, f"[0] {left.job_id} running\n")
    again = run(*options, script=FAILS_ONCE, n=1)
    series = left.job_id.removesuffix(".1")
    assert (again.returncode, again.stdout) == (0, f"[0] {series}.2 running\n"), again.stderr
    assert read_registry() == Registry((), {})
