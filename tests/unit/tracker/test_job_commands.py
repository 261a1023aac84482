"""The command `list`, what the registry forgets, and a command that finds the only running job."""

import errno
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftcomm.config.process_identity import process_space, this_process
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.operator.job_registry import (
    KEPT_ENDED,
    JobEntry,
    Registry,
    entry_path,
    read_registry,
    register,
    unregister,
)
from ftcomm_tracker.server.journal import FILE_NAME
from ftcomm_tracker.server.state_dir import StateLock
from tests.unit.tracker.serving import serve, supervise
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
    assert "`ftcomm-tracker list` will not show this job: the folder of jobs" in caplog.text
    assert invoke("list") == (0, "no jobs\n")


def test_a_link_is_not_followed(tmp_path: Path, empty_registry: Path) -> None:
    real = entry_path(entry(tmp_path))
    real.rename(tmp_path / "real")
    real.symlink_to(tmp_path / "real")
    assert list(read_registry().damaged) == [real]


def begin_a_job(state_dir: Path) -> None:
    """Register a job, by which old ones are forgotten, and let it end well."""
    job: Any = ServedJob(state_dir, Durable.fresh("new", 2), 2)
    register(job, "run", temporary=False)
    unregister(job)


def made_up(path: Path) -> Path:
    """A directory as a command makes it up, with a journal and a store."""
    (path / "store" / "data").mkdir(parents=True)
    (path / FILE_NAME).touch()
    os.utime(path / FILE_NAME, (0.0, 0.0))  # so that a job's start says how new it is
    return path


def test_the_newest_ten_that_have_ended_are_kept(tmp_path: Path) -> None:
    folders = [made_up(tmp_path / f"made-up-{index}") for index in range(12)]
    for index, folder in enumerate(folders):
        ended(folder, job_id=f"job-{index}", began=float(index))
    begin_a_job(tmp_path / "new")
    assert list(states()) == [f"job-{index}" for index in range(2, 12)]
    assert [folder.exists() for folder in folders] == [False] * 2 + [True] * 10


@pytest.fixture
def ten_newer(tmp_path: Path) -> None:
    """So many that have ended that whatever is older and has ended is forgotten."""
    for index in range(KEPT_ENDED):
        ended(tmp_path / "absent", job_id=f"newer-{index}", temporary=False, began=9.0)


@pytest.mark.usefixtures("ten_newer")
def test_a_job_that_runs_or_is_elsewhere_is_never_forgotten(tmp_path: Path) -> None:
    running = entry(made_up(tmp_path / "running"), job_id="a.12")
    elsewhere = ended(made_up(tmp_path / "elsewhere"), job_id="b", host="elsewhere")
    contained = ended(made_up(tmp_path / "contained"), job_id="c", space=IN_A_CONTAINER)
    begin_a_job(tmp_path / "new")
    for job in (running, elsewhere, contained):
        assert (entry_path(job).exists(), Path(job.state_dir).exists()) == (True, True), job


@pytest.mark.usefixtures("ten_newer")
def test_a_long_job_that_has_just_crashed_is_among_the_newest(tmp_path: Path) -> None:
    crashed = ended(made_up(tmp_path / "crashed"))
    os.utime(tmp_path / "crashed" / FILE_NAME, (100.0, 100.0))
    begin_a_job(tmp_path / "new")
    assert (entry_path(crashed).exists(), Path(crashed.state_dir).exists()) == (True, True)


@pytest.mark.usefixtures("ten_newer")
def test_nothing_is_removed_where_the_file_system_has_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    job = ended(made_up(tmp_path / "made-up"))
    monkeypatch.setattr("fcntl.flock", no_locks)
    begin_a_job(tmp_path / "new")
    assert (entry_path(job).exists(), Path(job.state_dir).exists()) == (True, True)


@pytest.mark.usefixtures("ten_newer")
def test_a_directory_that_the_user_named_stays(tmp_path: Path) -> None:
    chosen = ended(made_up(tmp_path / "chosen"), temporary=False)
    begin_a_job(tmp_path / "new")
    assert (entry_path(chosen).exists(), Path(chosen.state_dir).exists()) == (False, True)


@pytest.mark.usefixtures("ten_newer")
def test_a_made_up_directory_on_which_a_new_job_begins_stays(tmp_path: Path) -> None:
    ended(made_up(tmp_path / "made-up"))
    begin_a_job(tmp_path / "made-up")
    assert (tmp_path / "made-up" / FILE_NAME).exists()


@pytest.mark.usefixtures("ten_newer")
def test_a_made_up_directory_that_a_tracker_holds_stays(tmp_path: Path) -> None:
    job = ended(made_up(tmp_path / "made-up"))
    lock = StateLock.take(Path(job.state_dir))
    assert lock is not None
    begin_a_job(tmp_path / "new")
    assert (entry_path(job).exists(), Path(job.state_dir).exists()) == (True, True)
    lock.close()
    begin_a_job(tmp_path / "new")
    assert (entry_path(job).exists(), Path(job.state_dir).exists()) == (False, False)


@pytest.mark.usefixtures("ten_newer")
def test_what_has_taken_the_name_of_a_made_up_directory_stays(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    link = tmp_path / "link"
    link.symlink_to(made_up(tmp_path / "behind"))
    jobs = [ended(other, job_id="a"), ended(link, job_id="b"), ended(tmp_path / "gone", job_id="c")]
    begin_a_job(tmp_path / "new")
    assert [entry_path(job).exists() for job in jobs] == [False] * 3
    assert (other.exists(), link.exists()) == (True, True)


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
    """A made-up directory stays known, so that it can be removed; and so does a job that runs."""
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
    assert states() == {ready["job"]: "failed: JobStoppedError"}


@pytest.mark.process
@pytest.mark.parametrize("ends_well", [True, False])
def test_a_directory_that_serve_has_made_up_goes_if_its_job_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_well: bool
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    script = "import ftcomm\nwith ftcomm.init(): pass"
    with serve(None, "-n", "1", TMPDIR=str(tmp_path)) as (process, ready):
        if ends_well:
            with supervise(ready, "--worker-id", "0", script=script) as supervisor:
                supervisor.communicate(timeout=60)
        else:
            assert invoke("stop") == (0, "stopped\n")
        process.communicate(timeout=60)
    kept = not ends_well
    assert (Path(ready["state_dir"]).exists(), len(read_registry().entries)) == (kept, kept)


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
