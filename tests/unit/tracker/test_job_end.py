"""The end of a job as a person reads it: of one that has failed, was cut short, or is explained."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import ftcomm
from ftcomm_tracker.cli.main import main
from ftcomm_tracker.core.reporting.job_end import failure_lines, resume_text
from ftcomm_tracker.operator.finished_job import happened_text
from ftcomm_tracker.operator.given_command import (
    FILE,
    GivenCommand,
    keep_command,
    kept_command,
    this_command,
)
from tests.unit.tracker.fake_children import FakeChild, FakeWorkers, joins
from tests.unit.tracker.test_launcher import started

COMMAND = "ftcomm-tracker run -n 2 --state-dir job python a.py"


def test_a_failed_job_ends_with_what_its_status_and_what_to_do() -> None:
    assert failure_lines("NoSuchError", "it broke", 64, "") == [
        "FAILED: NoSuchError: it broke",
        "  status 64",
    ]
    what, status, resumes = failure_lines(
        "ScriptFailedError", "KeyError: 'a' (a.py:3)", 83, resume_text(152, 6.2, COMMAND)
    )
    assert what == "FAILED: ScriptFailedError: KeyError: 'a' (a.py:3)"
    assert status.startswith("  status 83; to do: repair the script or its input")
    assert resumes == f"  the same command resumes from checkpoint 152, 6.2 s old: {COMMAND}"
    begins = "the same command begins again, since no checkpoint was durable yet: "
    assert resume_text(-1, None, COMMAND) == begins + COMMAND


def test_a_command_is_kept_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["python", "run", "-n", "2", "a b.py"])
    keep_command(tmp_path, this_command())
    line = "ftcomm-tracker run -n 2 'a b.py'"
    assert kept_command(tmp_path) == GivenCommand(line, str(tmp_path))
    assert this_command().again == line
    assert GivenCommand(line, "/x y").again == f"cd '/x y' && {line}"
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"line": 1, "folder": ""}', '{"line": "\\u001b[2J", "folder": ""}']
)
def test_a_damaged_command_is_none(tmp_path: Path, text: str) -> None:
    assert kept_command(tmp_path) is None
    (tmp_path / FILE).write_text(text)
    assert kept_command(tmp_path) is None


def fail(comm: ftcomm.Communicator) -> None:
    if comm.load_checkpoint(default=0).version == 0:
        comm.checkpoint(1, durable=True)
    if comm.rank == 1:
        raise KeyError("a")
    comm.barrier()


def test_a_job_that_fails_ends_with_one_block_and_is_listed_and_explained(
    workers: FakeWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "argv", ["python", "run", "python", "a.py"])
    workers.verbosity = ()
    done = workers.run(joins(fail), "--state-dir", str(tmp_path / "job"))
    own = [line for line in done.stderr.splitlines() if line.startswith("ftcomm: ")]
    what, status, resumes = own[-3:]
    assert done.returncode == 83, done.stderr
    assert what.startswith("ftcomm: FAILED: ScriptFailedError: "), what
    assert "KeyError: 'a'" in what
    assert status.startswith("ftcomm:   status 83; to do: ")
    pattern = (
        r"ftcomm:   the same command resumes from checkpoint 1, \d\.\d s old: ftcomm-tracker run"
    )
    assert re.match(pattern, resumes), resumes
    assert not re.search("epoch|frontier", "".join(own))
    listed = CliRunner().invoke(main, ["list"]).output
    assert f"ftcomm-tracker run python a.py (in {Path.cwd()})" in listed
    explained = CliRunner().invoke(main, ["explain", "--state-dir", str(tmp_path / "job")]).output
    assert "the job has ended with ScriptFailedError" in explained
    assert "exited with status 1 (KeyError: 'a')" in explained.partition("What happened:")[2]


def test_a_job_that_ends_well_is_explained_by_its_recoveries(
    workers: FakeWorkers, tmp_path: Path
) -> None:
    async def script(child: FakeChild) -> int:
        def use(comm: ftcomm.Communicator) -> None:
            for step in range(comm.load_checkpoint(default=0).version, 2):
                if step == 1 and child.worker_id == "1" and child.start == 1:
                    raise KeyError("a")
                comm.checkpoint(step + 1)

        return await joins(use)(child)

    done = workers.run(script, "--state-dir", str(tmp_path / "job"))
    assert done.returncode == 0, done.stderr
    explained = CliRunner().invoke(main, ["explain", "--state-dir", str(tmp_path / "job")]).output
    first, _, _, _, who, *rest = explained.splitlines()
    assert first == "the job has finished at version 2."
    assert re.fullmatch(r"  who       worker 1, process \d+ on \S+: exited with status 1 .*", who)
    names = ["when", "given", "survivors", "detect", "stop", "replace", "decide", "fetch", "link"]
    assert [line.split()[0] for line in rest] == [*names, "total"]
    assert happened_text({"incidents": []}) == ""


WAITS = """
import signal, ftcomm
with ftcomm.init() as comm:
    comm.load_checkpoint(0)
    comm.checkpoint(1, durable=True)
    print("durable", flush=True)
    signal.pause()
"""


@pytest.mark.process
def test_of_a_job_whose_launcher_was_killed_the_same_command_is_named(tmp_path: Path) -> None:
    state = tmp_path / "job"
    with started("--state-dir", str(state), script=WAITS, n=1) as launcher:
        assert launcher.stdout is not None
        assert "durable" in launcher.stdout.readline()
        os.kill(launcher.pid, signal.SIGKILL)
        launcher.wait()
    for command in ("status", "explain"):
        shown = CliRunner().invoke(main, [command, "--state-dir", str(state)])
        again = f"ftcomm-tracker run -v -n 1 --state-dir {state} -- {sys.executable}"
        assert shown.exit_code == 79
        assert "the same command resumes from checkpoint 1, " in shown.output
        assert again in shown.output
    assert json.loads((state / FILE).read_text())["folder"]
