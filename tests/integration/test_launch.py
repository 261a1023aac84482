"""`ftcomm.launch` with real workers: results, errors, kills, and nothing that stays."""

import re
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ftcomm
from ftcomm_tracker.embedding import pickled
from tests.integration import launched
from tests.unit.tracker.test_launcher import environment, wait_gone

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc"),
]

Launch = Callable[..., Any]


@pytest.fixture
def launch() -> Launch:
    """`ftcomm.launch`, after which no process and no folder may be left."""
    mark, folder = str(uuid.uuid4()), Path(tempfile.gettempdir())
    before = set(folder.glob("ftcomm-*"))

    def run(function: Any, workers: int = 2, *arguments: Any, **options: Any) -> Any:
        try:
            return ftcomm.launch(
                function, workers, *arguments, environment={"MARK": mark}, **options
            )
        finally:
            assert (processes_with(mark), set(folder.glob("ftcomm-*")) - before) == ([], set())

    return run


def processes_with(mark: str) -> list[str]:
    """Processes that have `mark` in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:  # it has ended, or is another user's
            continue
    return found


@pytest.mark.smoke
def test_results_come_in_the_order_of_the_ranks_and_output_has_them_in_front(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = launch(launched.train, 3, (4,), {"dying": 2})
    output = capsys.readouterr()
    assert [rank for rank, _ in results] == [0, 1, 2]
    assert len({weights for _, weights in results}) == 1
    assert sorted(output.out.splitlines()) == [f"[{rank}] trained by {rank}" for rank in range(3)]
    assert output.err == ""


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"settings": {"spares": 1}}, marks=pytest.mark.slow)]
)
def test_after_a_kill_the_results_are_the_same(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    clean = launch(launched.train, 3, (10,))
    killed = launch(launched.train, 3, (10,), {"mark": str(tmp_path / "died")}, **options)
    assert (tmp_path / "died").exists()
    assert killed == clean
    said = capsys.readouterr().err
    assert len(re.findall(r"worker 1 (?:killed \(SIGKILL\)|was killed by SIGKILL)", said)) == 1


def test_the_rank_of_a_result_is_that_of_the_job_whatever_else_is_opened(launch: Launch) -> None:
    assert launch(launched.open_others, 2, max_restarts=0) == [0, 1]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_result_is_kept_before_the_close_that_launch_makes(
    launch: Launch, tmp_path: Path, when: str
) -> None:
    mark = str(tmp_path / "died")
    assert launch(launched.die_in_close, 2, (mark,), {"when": when}) == [3, 3]
    assert Path(mark).exists()


def test_a_result_that_is_lost_after_the_functions_own_close_is_named(
    launch: Launch, tmp_path: Path
) -> None:
    with pytest.raises(ftcomm.RankLostError, match="the process of rank 1 ended after its close"):
        launch(launched.die_after_close, 2, (str(tmp_path / "died"),))


def test_a_ranks_exception_is_raised_with_its_rank_and_traceback(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ZeroDivisionError, match="the data are wrong") as caught:
        launch(launched.fail, 2, (1, ZeroDivisionError("the data are wrong")))
    where, job = caught.value.__notes__
    assert where.startswith("in rank 1 of 2 (worker 1):\nTraceback (most recent call last):\n")
    line = re.search(r'  File ".*launched.py", line \d+, in fail\n    raise error\n', where)
    assert line, where
    assert job.startswith("the job ended by it: ScriptFailedError: the script of worker 1 failed")
    output = capsys.readouterr().err
    assert output.count("[1] ZeroDivisionError: the data are wrong") == 1
    assert len(re.findall("^ftcomm: worker 1 exited", output, re.MULTILINE)) == 1


def test_wrong_arguments_that_no_signature_shows_end_the_job_the_second_time(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        launch(max, 2, (1,))
    assert "restarted" not in capsys.readouterr().err


def test_an_exception_that_cannot_be_rebuilt_is_told_by_its_text(launch: Launch) -> None:
    with pytest.raises(ftcomm.ScriptFailedError, match="DataError: row 3, column x") as caught:
        launch(launched.fail_by_own_class)
    assert (caught.value.rank, "in fail_by_own_class" in caught.value.__notes__[0]) == (1, True)


def test_a_script_that_exits_does_not_end_the_caller(launch: Launch) -> None:
    with pytest.raises(ftcomm.ScriptFailedError, match="SystemExit: 5"):
        launch(launched.fail, 2, (0, SystemExit(5)), max_restarts=0)


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (launched.disagree, ftcomm.CollectiveMismatchError, "ranks disagree about collective -1.0"),
        (launched.never_join, ftcomm.ConfigError, "has returned and never called ftcomm.init()"),
        (launched.return_what_cannot_be_sent, TypeError, "the result cannot be sent"),
    ],
)
def test_other_errors_are_raised_as_they_are(
    launch: Launch, function: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=re.escape(text)) as caught:
        launch(function)
    # what an error of this library's says, the end of the job would only say again
    assert not [note for note in caught.value.__notes__ if "the job ended by it" in note]


def test_a_job_that_had_ended_in_the_directory_is_refused(launch: Launch, tmp_path: Path) -> None:
    state = tmp_path / "state"
    launch(launched.train, 1, (2,), state_dir=state)
    with pytest.raises(ftcomm.JobFinishedError, match="give another state_dir for a new job"):
        launch(launched.train, 1, (2,), state_dir=state)


def test_without_cloudpickle_functions_of_modules_are_sent_by_name(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickled, "_cloudpickle", lambda: None)
    assert launch(launched.shown, 1, ("NO_SUCH",)) == [None]


def test_a_function_that_only_this_process_can_import_is_sent_by_content(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    (tmp_path / "only_here.py").write_text(
        "import ftcomm\nNAME = 'hidden'\ndef name():\n    ftcomm.init()\n    return NAME\n"
    )
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        only_here = __import__("only_here")
    assert launch(only_here.name, 1) == ["hidden"]


WITHOUT_GUARD = """
import os, sys
import ftcomm

class Model:
    def __init__(self, total):
        self.total = total

def work(start):
    with ftcomm.init() as comm:
        print("pid", os.getpid(), flush=True)
        if start == "wait":
            import signal
            signal.pause()
        return Model(comm.allreduce(int(start) + comm.rank))

print("begun", flush=True)
models = ftcomm.launch(work, 2, (sys.argv[1],))
print("models", [type(model) is Model for model in models], [model.total for model in models])
"""


def script(folder: Path, text: str, *arguments: str) -> "subprocess.Popen[str]":
    path = folder / "job.py"
    path.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(path), *arguments],
        env=environment(TMPDIR=str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_script_needs_no_guard_since_workers_do_not_import_it(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    output, errors = script(tmp_path, WITHOUT_GUARD, "3").communicate(timeout=60)
    assert errors == ""
    assert output.count("begun") == 1
    assert output.endswith("models [True, True] [7, 7]\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_its_caller(tmp_path: Path, number: signal.Signals) -> None:
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    with script(tmp_path, WITHOUT_GUARD, "wait") as caller:
        assert caller.stdout is not None
        assert caller.stderr is not None
        assert caller.stdout.readline() == "begun\n"
        pids = [int(caller.stdout.readline().split()[-1]) for _ in range(2)]
        host = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        caller.send_signal(number)
        wait_gone([*pids, host])
        assert ("KeyboardInterrupt" in caller.stderr.read()) == (number == signal.SIGINT)
    assert [path.name for path in tmp_path.iterdir()] == ["job.py"]


def test_a_module_that_launches_when_a_worker_imports_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(
        "import ftcomm\ndef work():\n    ftcomm.init()\nftcomm.launch(work, 1)\n"
    )
    with script(tmp_path, "import jobs\n") as caller:
        _, errors = caller.communicate(timeout=60)
    said = "ConfigError: launch(work) was called while a worker imports the module that calls it"
    assert errors.count(f"[0] ftcomm.errors.{said}") == 1
    assert f"\nftcomm.errors.{said}" in errors
