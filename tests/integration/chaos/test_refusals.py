"""Options of ``ftcomm-chaos run``: accepted ones, immediate refusals, and the end by signal."""

import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from ftcomm_chaos.cli import main
from ftcomm_chaos.commands import run as run_command
from ftcomm_chaos.report.verdict import judge
from ftcomm_chaos.runner.session import RunRequest, RunSession
from tests.integration.chaos.scenarios import run, session

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all is refused")
KILL = [{"at": {"position": "1.5.0.0@enter"}, "kind": "sigkill"}]

RANDOM = ("--kill-every", "2s")
KILLS = {"at": {"every": 2.0}, "kind": "sigkill"}
STOPS = {"at": {"every": 3.0}, "kind": "sigstop"}


@pytest.mark.parametrize(
    ("options", "status", "complaint"),
    [
        (
            ["-n", "2", "--plan", "{plan}", "--", "no-such-command"],
            3,
            "here: there is no command 'no",
        ),
        (["-n", "2", "--plan", "{empty}", "--", "true"], 2, "empty.json names no fault"),
        (["-n", "2", "--", "true"], 2, "what to break is not said"),
        (["-n", "2", *RANDOM, "--plan", "{plan}", "--", "true"], 2, "or twice"),
        (["-n", "1", "--plan", "{plan}", "--", "true"], 2, "there are ranks 0 to 0"),
        (["-n", "2", "--plan", "/none", "--", "true"], 2, "the plan /none cannot be read"),
        (["-n", "1", "--trace", "{quiet}", "--", "true"], 2, "the trace takes none of 1 worker"),
        (["-n", "2", *RANDOM, "--trace-speed", "20", "--", "true"], 2, "is for a trace"),
        (["-n", "2", *RANDOM, "--replica", "3", "--", "true"], 2, "No such option"),
        (["-n", "2", *RANDOM, "--replicas", "x", "--", "true"], 2, "not a valid integer"),
        (["-n", "2", *RANDOM, "--html", "/none/x.html", "--", "true"], 2, "no such folder"),
        (["-n", "2", *RANDOM, "--compare", "../x", "--", "true"], 2, "is not in {out}"),
        (["-n", "2", *RANDOM, "--replicas", "0", "--", "true"], 2, "--replicas is 0"),
        (["-n", "2", *RANDOM, "--verify", "x", "--", "true"], 2, "--verify"),
        (["-n", "2", "--lose-all", "2s", "--checkpoint-every", "x", "--", "true"], 2, "no period"),
        (["-n", "5000", *RANDOM, "--", "true"], 2, "not in the range"),
        (["-n", "2", *RANDOM, "--keep", "{folder}", "--", "true"], 2, "name a folder that"),
        (["-n", "2", *RANDOM, "--duration", "2x", "--", "true"], 2, "is not a valid float range"),
        (
            ["-n", "2", "--lose-all", "2s", "--lose-tracker-disk", "2s", "--", "true"],
            2,
            "which cannot be with the lose_all",
        ),
        (["-n", "2", *RANDOM, "--checkpoint", "x", "--", "true"], 2, "a store of its own"),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], status: int, complaint: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))  # nothing is made yet
    plan, trace = tmp_path / "plan.json", tmp_path / "trace.csv"
    plan.write_text(json.dumps(KILL))
    trace.write_text("0,add,a\n1,remove,a")
    empty = tmp_path / "empty.json"
    empty.write_text("[]")
    quiet = tmp_path / "quiet.csv"
    quiet.write_text("0,add,a\n1,add,b")
    line = [
        part.format(plan=plan, empty=empty, quiet=quiet, trace=trace, out="{out}", folder=tmp_path)
        for part in options
    ]
    done = CliRunner().invoke(main, ["run", *line])
    assert (done.exit_code, done.stdout) == (status, ""), done.stderr
    assert complaint in done.stderr


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunRequest]:
    """The requests of commands, each of which is interrupted at once."""
    requests: list[RunRequest] = []

    def interrupted(_: object, request: RunRequest, progress: object) -> tuple[RunSession, int]:
        del progress
        requests.append(request)
        return session(), 2

    monkeypatch.setattr(trio, "run", interrupted)
    return requests


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        ([*RANDOM], [KILLS]),
        ([*RANDOM, "--stop-every", "3s"], [KILLS, {**STOPS, "for": 1.0}]),
        (
            ["--stop-every", "3s", "--stop-for", "0.5s", "--tracker-kill-every", "1m"],
            [{**STOPS, "for": 0.5}, {"at": {"every": 60.0}, "kind": "tracker_kill"}],
        ),
    ],
)
def test_what_is_asked_for_at_random_is_in_the_plan(
    asked: list[RunRequest], options: list[str], faults: list[dict[str, Any]]
) -> None:
    line = ["run", "-n", "2", *options, "--max-restarts", "3", "--replicas", "2", "--", "true"]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 128 + 2
    (request,) = asked
    assert request.plan == faults
    assert (request.loses_all_once, request.job.every) == (True, "1v")
    assert request.job.options[-2:] == ("--replicas", "2")  # `serve` has no other option of these
    assert request.job.patience[-2:] == ("--max-restarts", "3")


def test_a_script_is_found_from_another_folder(
    asked: list[RunRequest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    for options in ([], ["--chdir"]):
        line = ["run", "-n", "2", *RANDOM, *options, "--", "python", "train.py", "--steps", "3"]
        CliRunner().invoke(main, line)
    scripts = [request.job.command[1] for request in asked]
    assert scripts == ["train.py", str(tmp_path / "train.py")]
    assert asked[1].job.command == ("python", scripts[1], "--steps", "3")


def test_a_long_program_on_the_line_is_no_file(asked: list[RunRequest]) -> None:
    program = "pass  # " + "x" * 5000
    line = ["run", "-n", "2", *RANDOM, "--chdir", "--", "python", "-c", program]
    done = CliRunner().invoke(main, line)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert asked[0].job.command == ("python", "-c", program)


def test_a_store_of_the_environment_is_no_store_of_the_runs(
    asked: list[RunRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without faults would resume its job, and finish it."""
    monkeypatch.setenv("FTCOMM_CHECKPOINT", "/shared/job1")
    monkeypatch.setenv("FTCOMM_REPLICAS", "2")
    monkeypatch.setenv("FTCOMM_SPARES", "1")  # one more process, of which the harness knows nothing
    CliRunner().invoke(main, ["run", "-n", "2", *RANDOM, "--", "true"])
    (request,) = asked
    assert not {"FTCOMM_CHECKPOINT", "FTCOMM_SPARES"} & request.job.environment.keys()
    assert request.job.environment["FTCOMM_REPLICAS"] == "2"


def test_who_is_impatient_and_interrupts_again_does_not_interrupt_the_cleaning_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = []

    async def play(
        request: RunRequest, _: object, __: object, interrupted: trio.Event
    ) -> RunSession:
        await trio.testing.wait_all_tasks_blocked()  # signals are listened to
        signal.raise_signal(signal.SIGINT)
        await interrupted.wait()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        scenario.append("cleaned up")
        reference = run("without faults", status=None)
        return RunSession(request, reference, [], judge(reference, []))

    monkeypatch.setattr(run_command, "run_session", play)
    done = CliRunner().invoke(main, ["run", "-n", "2", *RANDOM, "--", "true"])
    assert (done.exit_code, scenario) == (128 + signal.SIGINT, ["cleaned up"]), done.output
    assert "SIGINT: ending the present run" in done.stderr
    assert "NOTHING TESTED" in done.stdout
    assert "without faults: cut short by a signal after 10 s" in done.stdout
