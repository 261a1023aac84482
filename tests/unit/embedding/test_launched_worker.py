"""One process of a launched worker: what it reports, and how it ends."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ftcomm.errors import ConfigError, JobFinishedError
from ftcomm_tracker.embedding import worker
from ftcomm_tracker.embedding.launch_folder import LaunchFolder, WorkerReport

Run = Callable[[BaseException], tuple[object, list[WorkerReport]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Do a worker's work with a function that raises; returns exit status and reports."""

    def run(error: BaseException) -> tuple[object, list[WorkerReport]]:
        def fail() -> None:
            raise error

        folder = LaunchFolder(tmp_path)
        folder.write_call(b"")
        monkeypatch.setattr(worker, "load_call", lambda _: fail)
        monkeypatch.setattr(worker, "use_exit_codes", lambda: None)
        with pytest.raises(SystemExit) as caught:
            worker.main(str(tmp_path))
        return caught.value.code, folder.reports()

    monkeypatch.setenv("FTCOMM_WORKER_ID", "1")
    monkeypatch.setenv("FTCOMM_TRACKER", "127.0.0.1:1")
    return run


def test_a_spare_that_was_never_needed_ends_without_a_word(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FTCOMM_SPARE", "1")
    assert run(SystemExit(JobFinishedError.exit_code)) == (JobFinishedError.exit_code, [])
    assert capsys.readouterr().err == ""


def test_an_exit_of_the_function_is_reported(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    status, [report] = run(SystemExit(JobFinishedError.exit_code))
    assert (status, report.error, report.text, report.is_own) == (1, "SystemExit", "77", True)
    assert capsys.readouterr().err.endswith("SystemExit: 77\n")


def test_an_exit_code_does_not_hang_on_the_functions_own_hook(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    assert run(ConfigError("wrong"))[0] == ConfigError.exit_code


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """An error that refuses attributes."""

    row: int


class WordlessError(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"), [(FrozenError(3), "3"), (WordlessError(), "<exception str() failed>")]
)
def test_an_error_of_a_strange_class_is_reported(run: Run, error: Exception, text: str) -> None:
    status, [report] = run(error)
    assert (status, report.error, report.text) == (1, type(error).__name__, text)
    assert "in fail\n" in report.traceback
