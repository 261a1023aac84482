"""The command `ftcomm`: its commands, and its report of the environment."""

import json
import platform
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import ftcomm
from ftcomm import __main__ as starter
from ftcomm_tracker.cli.environment_report import environment_report, report_text
from ftcomm_tracker.cli.ftcomm_group import main
from ftcomm_tracker.cli.main import main as tracker_group
from tests.helpers.background import ROOT
from tests.unit.tracker.test_launcher import environment


def test_the_group_has_every_command_of_the_tracker() -> None:
    assert main.commands == tracker_group.commands


def test_without_a_command_it_shows_the_environment() -> None:
    result = CliRunner().invoke(main, [], env={"FTCOMM_LOG": "info"})
    said = [f"ftcomm {ftcomm.__version__}", "numpy", "trio", "Transports: ", '  FTCOMM_LOG="info"']
    said += ["ftcomm-tracker run -n 4 python train.py", f"Python: {platform.python_version()}"]
    assert (result.exit_code, [text for text in said if text not in result.output]) == (0, [])


def test_the_environment_as_json() -> None:
    result = CliRunner().invoke(main, ["--json"], env={"FTCOMM_REPLICAS": "3"})
    found = json.loads(result.output)
    assert found["version"] == ftcomm.__version__
    assert found["variables"]["FTCOMM_REPLICAS"] == "3"
    assert set(found["transports"]) == {"shm", "unix", "tcp"}


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("python", "Core: python (FTCOMM_CORE=python)"),
        ("best", "Core: none (FTCOMM_CORE is 'best', must be auto or compiled or python)"),
    ],
)
def test_the_environment_names_the_core_and_why(choice: str, said: str) -> None:
    result = CliRunner().invoke(main, [], env={"FTCOMM_CORE": choice})
    assert (result.exit_code, said in result.output) == (0, True), result.output


def test_json_belongs_behind_a_command() -> None:
    result = CliRunner().invoke(main, ["--json", "status"])
    assert (result.exit_code, "give it after the command" in result.output) == (2, True)


@pytest.mark.parametrize("program", ["ftcomm", "ftcomm-tracker"])
def test_a_message_names_one_program_whatever_was_typed(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = main if program == "ftcomm" else tracker_group
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    damaged = tmp_path / "ftcomm" / "jobs" / "20260101-000000-abcdef.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("[]")
    result = CliRunner().invoke(group, ["status"], prog_name=program)
    assert (result.exit_code, "`ftcomm-tracker list`" in result.stderr) == (64, True)
    assert result.stderr.startswith("ftcomm-tracker: no tracker is named")
    result = CliRunner().invoke(group, ["list"], prog_name=program)
    words = f"ftcomm-tracker: ignored {str(damaged)!r}: it is not a JSON object\n"
    assert result.stderr == words


def test_a_variable_cannot_write_to_the_terminal() -> None:
    report = {**environment_report(), "variables": {"FTCOMM_LGO": "\x1b[2J"}}
    assert '  FTCOMM_LGO="\\u001b[2J"  (ftcomm does not read this variable)' in report_text(report)


def test_a_missing_package_is_named() -> None:
    report = {**environment_report(), "packages": {"numpy": None}}
    assert "Packages: numpy missing" in report_text(report)


def test_every_extra_of_a_user_is_in_the_report() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of_developers = {"adapters", "bench", "dev", "docs", "frameworks", "fuzz"}
    extras = set(project["optional-dependencies"]) - of_developers
    assert set(environment_report()["extras"]) == extras


def test_without_the_tracker_the_error_says_what_to_install(monkeypatch, capsys) -> None:
    monkeypatch.setattr(starter, "COMMAND_LINE", "ftcomm_absent.entry")
    with pytest.raises(SystemExit) as ended:
        starter.main()
    assert (ended.value.code, "package ftcomm_absent" in capsys.readouterr().err) == (64, True)


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "name"),
    [("ftcomm", "ftcomm"), ("ftcomm_tracker", "ftcomm-tracker"), ("ftcomm_chaos", "ftcomm-chaos")],
)
def test_each_package_is_a_command(module: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    expected = f"{name}, version {ftcomm.__version__}\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
