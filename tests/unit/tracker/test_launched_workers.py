"""The launcher's decisions, with workers that are no processes."""

import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

import ftcomm
from ftcomm.errors import CollectiveMismatchError, RankLostError, ScriptFailedError
from ftcomm_tracker.core import ending
from ftcomm_tracker.launcher import run_job, supervise
from ftcomm_tracker.launcher.memcpy_tuning import with_tuned_copies
from tests.unit.tracker.fake_children import FakeChild, FakeWorkers, Script, exits, joins, runs_on

KILLED = -signal.SIGKILL


def traceback_of(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n{error}\n'


def test_a_worker_gets_one_thread_of_blas_unless_the_user_says_more(
    workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = workers.run(exits(64))
    found = [workers.children[0].environment["OMP_NUM_THREADS"]]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    own = workers.run(exits(64))
    found.append(workers.children[0].environment["OMP_NUM_THREADS"])
    said = ["OMP_NUM_THREADS is not set" in done.stderr for done in (usual, own)]
    assert (found, said) == (["1", "3"], [True, False])


def test_workers_have_large_copies_streamed_where_the_library_would_not(
    workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    workers.run(exits(64), n=1)
    wanted = with_tuned_copies(dict(os.environ)).get("GLIBC_TUNABLES")
    assert workers.children[0].environment.get("GLIBC_TUNABLES") == wanted


def test_only_the_worker_that_dies_is_restarted_and_given_up_after_its_last_restart(
    workers: FakeWorkers,
) -> None:
    async def script(child: FakeChild) -> int:
        if child.worker_id == "0":
            return await joins()(child)
        child.say("start of 1\nmy last words\n", 1)
        return KILLED

    done = workers.run(script, "--max-restarts", "2")
    assert done.returncode == 73, done.stderr
    assert sorted(child.worker_id for child in workers.children) == ["0", "1", "1", "1"]
    assert done.stdout == "[1] start of 1\n[1] my last words\n" * 3
    assert "worker 1 was killed by SIGKILL: starting it again\n" in done.stderr
    assert "starting it again in 0.5 s\n" in done.stderr
    assert "ftcomm: the last lines of worker 1:\n" in done.stderr
    assert "ftcomm:   | start of 1\n" in done.stderr
    assert "worker 1 died 3 times within 3600 s while the job stood at -1.0" in done.stderr


@pytest.mark.parametrize(
    ("status", "ends_with"), [(0, 83), (1, 73), (64, 73), (74, 73), (75, 73), (77, 77)]
)
def test_ends_non_zero_unless_every_rank_has_closed(
    workers: FakeWorkers, status: int, ends_with: int
) -> None:
    done = workers.run(exits(status), "--max-restarts", "1")
    assert done.returncode == ends_with
    starts_again = done.stderr.count("starting it again\n")
    assert (starts_again > 0) == (status in (0, 1, 75))  # 75: fenced, by nobody who is there
    if status == 0:
        assert "ended with status 0 and never called ftcomm.init(): giving it up" in done.stderr
        assert "without close()" not in done.stderr


def test_max_restarts_ends_the_job(workers: FakeWorkers) -> None:
    done = workers.run(exits(1), "--max-restarts", "0", n=1)
    assert done.returncode == 73
    assert "worker 0 died 1 time within 3600 s while the job stood at -1.0" in done.stderr


def test_deaths_that_are_further_apart_than_the_window_do_not_end_the_job(
    workers: FakeWorkers,
) -> None:
    """No two deaths of processes are as close together as this window."""

    async def script(child: FakeChild) -> int:
        return KILLED if child.start < 5 else await joins()(child)

    done = workers.run(script, "--max-restarts", "1", "--restart-window", "0.000001", n=1)
    assert (done.returncode, done.stderr.count("starting it again\n")) == (0, 4), done.stderr


def test_a_failure_after_close_is_passed_on_and_not_restarted(workers: FakeWorkers) -> None:
    async def script(child: FakeChild) -> int:
        await joins()(child)
        return 3 if child.worker_id == "1" else 0

    done = workers.run(script)
    assert (done.returncode, len(workers.children)) == (3, 2), done.stderr
    assert "worker 1 exited with status 3\n" in done.stderr


def test_the_same_exception_twice_ends_the_job_for_all_and_is_printed_once(
    workers: FakeWorkers,
) -> None:
    def use(comm: ftcomm.Communicator) -> None:
        comm.load_checkpoint(default=0)
        if comm.worker_id == "1":
            raise RuntimeError("the data are wrong")
        comm.allreduce(1)

    done = workers.run(joins(use))
    assert done.returncode == ScriptFailedError.exit_code, done.stderr
    cause = (
        "the script of worker 1 failed twice by the same error while the job stood at 0.0:"
        " RuntimeError: the data are wrong ("
    )
    assert f"FAILED: ScriptFailedError: {cause}" in done.stderr
    assert done.stderr.count("starting it again") == 1
    assert done.stderr.count("[1] RuntimeError: the data are wrong\n") == 1
    assert done.stderr.count("[1] Traceback") == 1


def fails_at_load(comm: ftcomm.Communicator) -> None:
    comm.load_checkpoint(default=0)
    raise RuntimeError("the data are wrong")


def fails_on_all(comm: ftcomm.Communicator) -> None:
    comm.load_checkpoint(default=0)
    if comm.incarnation > 1:
        comm.barrier()  # the others have yet to fail for the first time
    raise RuntimeError("the data are wrong")


@pytest.mark.parametrize(
    "script",
    [exits(1, traceback_of("ModuleNotFoundError: No module named 'a'")), joins(fails_on_all)],
    ids=["before init", "in the job"],
)
def test_the_same_error_of_all_workers_ends_the_job_and_is_shown_once(
    workers: FakeWorkers, script: Script
) -> None:
    done = workers.run(script, n=3)
    lines = done.stderr.splitlines()
    assert done.returncode == ScriptFailedError.exit_code, done.stderr
    assert [line for line in lines if "Traceback" in line] == [
        "[0-2] Traceback (most recent call last):"
    ]
    assert "RolledBackError" not in done.stderr
    assert "attempt 2" not in done.stderr
    told = [line for line in lines if "WARNING" in line and "starting it again" in line]
    assert told == [], "the traceback says it"
    end = next(index for index, line in enumerate(lines) if "ERROR ftcomm: FAILED: " in line)
    assert "by the same error on all ranks" in lines[end]
    block = "\n".join(lines[end:])
    assert "status 83; to do: repair the script" in block
    assert "give --state-dir DIR" in block


@pytest.mark.parametrize("handles", [True, False])
def test_of_the_others_the_error_of_the_script_is_no_traceback(
    workers: FakeWorkers, handles: bool
) -> None:
    """Unless they were handling one of their own."""

    def fails_alone(comm: ftcomm.Communicator) -> None:
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            raise KeyError("data")
        try:
            if handles:
                fails_at_load(comm)
        finally:
            comm.barrier()

    done = workers.run(joins(fails_alone))
    assert done.returncode == ScriptFailedError.exit_code, done.stderr
    assert done.stderr.count("[0] KeyError: 'data'") == 1
    shown = ["[1] ValueError: load_checkpoint" in done.stderr, "[1] ftcomm.errors" in done.stderr]
    assert shown == [handles, handles], done.stderr


def test_the_traceback_of_a_process_that_must_start_again_is_not_shown(
    workers: FakeWorkers,
) -> None:
    again = traceback_of("ftcomm.errors.RolledBackError: all have died")

    async def script(child: FakeChild) -> int:
        return await (exits(76, again) if child.start == 1 else joins())(child)

    done = workers.run(script)
    assert (done.returncode, len(workers.children)) == (0, 4), done.stderr
    assert "Traceback" not in done.stderr


def test_the_first_error_is_named_beside_what_followed_from_it(workers: FakeWorkers) -> None:
    async def script(child: FakeChild) -> int:
        def use(comm: ftcomm.Communicator) -> None:
            comm.load_checkpoint(default=0)
            if (child.worker_id, child.start) == ("1", 1):
                raise KeyError("nokey")
            comm.allreduce(1 if child.worker_id == "0" else 1.0)

        return await joins(use)(child)

    done = workers.run(script)
    assert done.returncode == CollectiveMismatchError.exit_code, done.stderr
    last = done.stderr.partition("FAILED: CollectiveMismatchError: ranks disagree about")[2]
    assert re.search(r"before: worker 1 failed: KeyError: 'nokey' \(.*:\d+\)\n", last)
    assert "status 72; to do: make every rank call the same" in last


def test_a_directory_says_what_the_same_command_goes_on_from(
    workers: FakeWorkers, tmp_path: Path
) -> None:
    def use(comm: ftcomm.Communicator) -> None:
        comm.load_checkpoint(default=0)
        comm.checkpoint(1, durable=True)
        raise RuntimeError("the data are wrong")

    done = workers.run(joins(use), "--state-dir", str(tmp_path / "state"))
    assert "the same command resumes from checkpoint 1, " in done.stderr


def test_an_exception_is_the_recorded_cause_of_a_death(
    workers: FakeWorkers, tmp_path: Path
) -> None:
    async def script(child: FakeChild) -> int:
        def use(comm: ftcomm.Communicator) -> None:
            comm.load_checkpoint(default=0)
            comm.allreduce(1)
            if (child.worker_id, child.start) == ("1", 1):
                raise RuntimeError("the data are wrong")
            comm.allreduce(1)

        return await joins(use)(child)

    done = workers.run(script, "--state-dir", str(tmp_path / "state"))
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "state" / "incidents.jsonl").read_text().splitlines()
    causes = [cause for line in lines for cause in json.loads(line)["causes"]]
    assert [(cause["worker"], cause["how"]) for cause in causes] == [
        ("1", "exited with status 1: RuntimeError: the data are wrong")
    ]


def test_a_worker_that_never_calls_init_ends_the_job_and_is_named(workers: FakeWorkers) -> None:
    failed = trio.Event()

    async def script(child: FakeChild) -> int:
        if child.worker_id == "0":
            status = await joins()(child)
            failed.set()
            return status
        await failed.wait()  # as an import that hangs
        return 1

    done = workers.run(script, "--form-within", "1")
    assert done.returncode == RankLostError.exit_code
    (pid,) = [child.process.pid for child in workers.children if child.worker_id == "1"]
    who = (
        re.escape(f"missing: worker 1 (pid {pid} on ") + r"\S+, started \d+ s ago, has not called "
    )
    cause = "the group was not complete 1 s after its first worker came: 1 of 2 workers are here; "
    assert re.search(f"RankLostError: {cause}{who}", done.stderr), done.stderr


def test_a_script_that_fails_before_it_joins_ends_after_two_processes(workers: FakeWorkers) -> None:
    done = workers.run(exits(1, traceback_of("ModuleNotFoundError: No module named 'a'")), n=1)
    assert (done.returncode, len(workers.children)) == (ScriptFailedError.exit_code, 2)
    assert done.stderr.count("[0] ModuleNotFoundError") == 1
    assert done.stderr.count("[0] Traceback") == 1


@pytest.mark.parametrize(
    ("error", "which"),
    [
        ("ModuleNotFoundError: No module named 'ftcomm'", "which has no ftcomm"),
        ("ftcomm.errors.ProtocolVersionError: this side", "which has another version of ftcomm"),
        ("ModuleNotFoundError: No module named 'numpyy'", None),
    ],
)
def test_a_python_without_this_ftcomm_is_named(
    workers: FakeWorkers, error: str, which: str | None
) -> None:
    done = workers.run(exits(1, traceback_of(error)), n=1)
    assert done.returncode == ScriptFailedError.exit_code
    said = f"the workers ran {shutil.which('true')}, {which}; this command's is that of"
    assert (said in done.stderr) == (which is not None), done.stderr
    assert (f"that of {sys.executable}: activate" in done.stderr) == (which is not None)


def test_one_that_fails_elsewhere_each_time_is_restarted(workers: FakeWorkers) -> None:
    async def script(child: FakeChild) -> int:
        if child.start == 5:
            return await joins()(child)
        child.say(traceback_of(f"ValueError: start {child.start}"))
        return 1

    done = workers.run(script, n=1)
    assert (done.returncode, done.stderr.count("[0] Traceback")) == (0, 4), done.stderr


@pytest.mark.parametrize(("joining", "kept"), [(True, 0), (False, 1)])
def test_a_state_directory_that_was_made_up_is_kept_and_named_only_after_trouble(
    workers: FakeWorkers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    joining: bool,
    kept: int,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = workers.run(joins() if joining else exits(64), n=1)
    left = [str(folder) for folder in tmp_path.iterdir()]
    named = [line for line in done.stderr.splitlines() if " ftcomm: the journal " in line]
    assert (len(left), len(named)) == (kept, kept), done.stderr
    assert [line.endswith(f"are kept in {left[0]}") for line in named] == [True] * kept


def misspells(comm: ftcomm.Communicator) -> None:
    comm.barrier()
    comm.chekpoint(0)  # type: ignore[attr-defined]  # the misspelt name is what is tested


def exits_early(comm: ftcomm.Communicator) -> None:
    comm.barrier()
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (misspells, "failed by the same error on all ranks at -1.1: AttributeError: "),
        (exits_early, "of worker . failed twice by the same error .* at -1.1: ended with status 0"),
    ],
)
def test_a_line_that_ends_every_rank_is_named_in_the_last_error(
    workers: FakeWorkers, use: Callable[[ftcomm.Communicator], None], why: str
) -> None:
    done = workers.run(joins(use))
    assert done.returncode == ScriptFailedError.exit_code, done.stderr
    assert re.search(f"FAILED: ScriptFailedError: the script {why}", done.stderr)


@pytest.mark.timeout(60)
def test_a_failed_job_ends_at_once_when_nobody_is_left_to_hear_why(
    workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "FAREWELL_S", 600.0)
    monkeypatch.setattr(run_job, "LAST_WORDS_S", 600.0)
    assert workers.run(exits(64)).returncode == 73


def test_a_job_without_a_store_cannot_be_required_to_resume(workers: FakeWorkers) -> None:
    done = workers.run(runs_on, "--resume", "require")
    assert (done.returncode, workers.children, done.stderr.count("\n")) == (64, [], 1)
    assert "the job has no checkpoint store" in done.stderr


@pytest.mark.parametrize(
    ("checkpoints", "status", "end", "refusal"),
    [
        (False, 0, "has finished at version 0", 77),
        (True, 72, "has ended: CollectiveMismatchError: ranks", 64),
    ],
)
def test_the_directory_of_a_job_that_has_ended_is_refused_in_a_sentence(
    workers: FakeWorkers,
    tmp_path: Path,
    checkpoints: bool,
    status: int,
    end: str,
    refusal: int,
) -> None:
    def use(comm: ftcomm.Communicator) -> None:
        comm.load_checkpoint()
        if checkpoints:
            comm.checkpoint(comm.rank)

    state = str(tmp_path / "state")
    options = ("--state-dir", state, "--checkpoint", "")
    assert workers.run(joins(use), *options).returncode == status
    again = workers.run(runs_on, *options)
    assert (again.returncode, again.stderr.count("\n")) == (refusal, 1)
    assert f"the job in {state} {end}" in again.stderr
    assert "give another --state-dir" in again.stderr


# --- supervise ------------------------------------------------------------------------------------

NOBODY = "127.0.0.1:9"


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "another-token"
    path.write_text("ab" * 32)
    path.chmod(0o600)
    return str(path)


def test_a_script_that_fails_twice_is_told_to_a_tracker_elsewhere(workers: FakeWorkers) -> None:
    with ftcomm.Tracker(1) as tracker:
        where = ("--tracker", tracker.address, "--token-file", str(tracker.token_file))
        script = exits(1, traceback_of("RuntimeError: the data are wrong"))
        done = workers.supervise(script, *where, "--worker-id", "0")
    assert (done.returncode, len(workers.children)) == (ScriptFailedError.exit_code, 2)
    assert "worker 0 failed twice by the same error" in done.stderr
    assert done.stderr.count("[0] Traceback") == 1


def test_a_wrong_token_ends_the_worker_too(workers: FakeWorkers, token: str) -> None:
    with ftcomm.Tracker(2) as tracker:
        where = ("--tracker", tracker.address, "--token-file", token)
        done = workers.supervise(runs_on, *where, "--worker-id", "0")
    assert (done.returncode, "does not hold this job's token" in done.stderr) == (70, True)
    assert [child.ended_by for child in workers.children] == [signal.SIGKILL]


def test_a_signal_ends_a_supervisor_whose_worker_died_while_no_tracker_was_there(
    workers: FakeWorkers, token: str
) -> None:
    """It waits for a tracker, up to 600 s: to know whether the worker is to be started again."""

    async def signal_later() -> None:
        await trio.testing.wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGTERM)

    async def script(child: FakeChild) -> int:
        trio.lowlevel.spawn_system_task(signal_later)
        return KILLED

    where = ("--tracker", NOBODY, "--token-file", token)
    done = workers.supervise(script, *where, "--worker-id", "0")
    assert (done.returncode, len(workers.children)) == (128 + signal.SIGTERM, 1)


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (("--worker-id", "0", "--tracker", "none"), 64, "no tracker is named"),
        ((), 64, "no worker id"),
        (("--worker-id", "0", "--tracker-timeout", "0"), 79, "whether worker 0 has closed"),
    ],
)
def test_what_keeps_a_supervisor_from_working_is_said(
    workers: FakeWorkers, token: str, options: tuple[str, ...], status: int, text: str
) -> None:
    where = ("--tracker", NOBODY, "--token-file", token)
    done = workers.supervise(exits(0), *where, *options)
    assert (done.returncode, text in done.stderr) == (status, True), done.stderr


def test_a_token_file_that_never_comes_ends_the_supervisor(
    workers: FakeWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTCOMM_TRACKER_TIMEOUT", "0.1")
    where = ("--tracker", NOBODY, "--token-file", str(tmp_path / "token"))
    done = workers.supervise(exits(0), *where, "--worker-id", "0")
    assert (done.returncode, "No such file or directory" in done.stderr) == (64, True)


def test_a_token_file_that_comes_later_is_waited_for(
    workers: FakeWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "token"
    has_content, looks = supervise._has_content, iter(["absent", "begun", "whole"])

    def look(path: Path) -> bool:
        found = next(looks)
        if found == "begun":  # as a copy that has begun
            late.touch(mode=0o600)
        elif found == "whole":
            late.write_text(tracker.token_file.read_text())
        return has_content(path)

    monkeypatch.setattr(supervise, "_has_content", look)
    with ftcomm.Tracker(1) as tracker:
        where = ("--tracker", tracker.address, "--token-file", str(late))
        done = workers.supervise(joins(), *where, "--worker-id", "0")
    said = f"token file {late} does not exist yet: waiting up to 60 s for it"
    assert (done.returncode, done.stderr.count(said)) == (0, 1), done.stderr
