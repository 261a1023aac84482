"""The command line."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import ftcomm
from ftcomm.config.environment import job_settings
from ftcomm.config.job_settings import SETTINGS
from ftcomm_tracker.cli.main import main
from ftcomm_tracker.cli.setting_options import Size
from tests.unit.tracker.serving import Serving, serve
from tests.unit.tracker.test_launcher import environment


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.output


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """`serve --port 0` as a real process, and the fields of the line that it prints."""
    with serve(tmp_path / "state", "-n", "1") as found:
        yield found


@pytest.mark.process
def test_serve_prints_one_line_and_answers_status_and_stop(serving) -> None:
    process, ready = serving
    assert set(ready) == {"address", "job", "token_file", "state_dir"}
    token = Path(ready["token_file"])
    assert (len(token.read_text().strip()), token.stat().st_mode & 0o777) == (64, 0o600)
    status, text = invoke("status", "--state-dir", ready["state_dir"])
    assert (status, f"job {ready['job']}: forming" in text) == (0, True)
    given = ("--tracker", ready["address"], "--token-file", ready["token_file"])
    status, text = invoke("status", *given, "--json")
    assert (status, json.loads(text)["job_id"]) == (0, ready["job"])
    comm = ftcomm.init(ready["address"], worker_id="0", token_file=ready["token_file"])
    with pytest.raises(ftcomm.JobStoppedError, match="lunch"), comm:
        assert invoke("stop", *given, "--reason", "lunch") == (0, "stopped\n")
    rest, errors = process.communicate(timeout=30)
    assert (process.returncode, rest, "lunch" in errors) == (78, "", True)
    status, text = invoke("status", "--state-dir", ready["state_dir"])
    assert (status, "verdict JobStoppedError: the job was stopped: lunch" in text) == (0, True)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_after_sigkill_takes_up_job_and_address(serving, number: signal.Signals) -> None:
    process, before = serving
    process.kill()
    process.wait(timeout=30)
    status, text = invoke("status", "--state-dir", before["state_dir"])
    same = "the same command begins again, since no checkpoint was durable yet"
    same = f"{same}: ftcomm-tracker serve -v"
    assert (status, f"{before['state_dir']} was cut short - {same}" in text) == (79, True), text
    with serve(Path(before["state_dir"])) as (again, ready):
        assert ready == before
        assert again.stderr is not None
        said = again.stderr.readline()
        assert "generation 2 of the tracker; its journal has no group yet" in said
        again.send_signal(number)
        assert again.wait(timeout=30) == 128 + number


@pytest.mark.process
def test_the_command_line_starts_without_numpy() -> None:
    program = "import sys, ftcomm_tracker.cli.main; sys.exit('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], env=environment(), check=False)
    assert done.returncode == 0


@pytest.mark.process
@pytest.mark.parametrize("name", ["ftcomm-tracker", "ftcomm-chaos"])
def test_module_of_the_commands_names_the_command(name: str) -> None:
    package = name.replace("-", "_")
    done = subprocess.run(
        [sys.executable, "-m", f"{package}.cli", "run", "-n", "1", "--", "true"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    said = f"{name}: {package}.cli is not a command - run {name} or python -m {package}\n"
    assert (done.returncode, done.stdout, done.stderr) == (64, "", said)


@pytest.mark.process
def test_a_wrong_token_is_said(serving, tmp_path: Path) -> None:
    _, ready = serving
    other = tmp_path / "other"
    other.write_text("ab" * 32)
    other.chmod(0o600)
    status, text = invoke("status", "--tracker", ready["address"], "--token-file", str(other))
    assert (status, "does not hold this job's token" in text) == (70, True)


def test_nobody_at_the_address_is_said(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        status, text = invoke("status", "--tracker", f"127.0.0.1:{free.getsockname()[1]}")
    assert (status, "no tracker at 127.0.0.1" in text) == (79, True)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["serve"], 64, "number of workers"),
        (["serve", "-n", "0"], 64, "1 to 2048 workers"),
        (["serve", "-n", "2", "--detect-within", "-1"], 64, " --detect-within is -1.0"),
        (["run", "-n", "2", "--replicas", "0", "true"], 64, " --replicas is 0, must be"),
        (["supervise", "--tracker-timeout", "-1", "true"], 64, " --tracker-timeout is -1.0"),
        (["serve", "-n", "2", "--host", "192.0.2.1"], 64, "- give a name or an address of"),
        (["serve", "-n", "2", "--host", "node..1"], 64, "cannot listen on node..1"),
        (["status", "--tracker", "node..1:4711"], 64, "host:port"),
        (["serve", "-n", "2", "--log-limit", "many"], 2, "not a size"),
        (["run", "-n", "2"], 2, "Missing argument"),
        (["status", "--tracker", "nonsense"], 64, "host:port"),
        (["status"], 64, "no tracker is named"),
        (["explain", "--tracker", "none"], 64, "give --tracker or --state-dir"),
        (["stop", "--tracker", "[::1]:9", "--token-file", "/nonexistent"], 64, "/nonexistent"),
        (["status", "--watch", "0"], 2, "not in the range"),
        (["status", "--watch", "nan"], 2, "nan is not in the range"),
        (["run", "-n", "2", "--restart-window", "nan", "true"], 2, "nan is not in the range"),
        (["run", "-n", "2", "--term-grace", "10v", "true"], 2, "'10v' is not a valid"),
        (["run", "-n", "2", "--term-grace", "721h", "true"], 2, "2595600.0 is not in the range"),
        *(
            ([*command, "~nobody-of-this-name/x"], 2, "there is no such home directory")
            for command in (
                ["status", "--state-dir"],
                ["status", "--token-file"],
                ["serve", "--log-dir"],
            )
        ),
        (["serve", "-n", "1", "--checkpoint", "~nobody-of-this-name/x"], 64, "no such home"),
        (["serve", "-n", "1", "--state-dir", "/absent/x\udcff"], 64, "is not UTF-8 text"),
        (["serve", "-n", "1", "--token-file", "/absent/x\udcff"], 64, "is not UTF-8 text"),
        (["serve", "-n", "1", "--checkpoint", "/absent/x\udcff"], 64, "is no name of a store"),
    ],
)
def test_a_wrong_command_is_answered_with_a_sentence(
    arguments: list[str], status: int, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))  # no job runs
    monkeypatch.chdir(tmp_path)
    found, output = invoke(*arguments)
    assert (found, text in output) == (status, True), output


def test_a_path_of_any_command_may_be_in_the_users_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    status, text = invoke("status", "--state-dir", "~/job1")
    assert (status, f"no tracker has ever served from {tmp_path / 'job1'}" in text) == (64, True)
    assert invoke("run", "-n", "0", "--log-dir", "~/logs", "true")[0] == 64
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


@pytest.mark.parametrize("command", [["serve"], ["run", "true"]])
def test_a_start_without_a_temporary_directory_is_refused(
    monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    status, text = invoke(command[0], "-n", "1", *command[1:])
    assert (status, "no temporary directory can be made" in text) == (64, True), text


def test_status_of_a_directory_without_a_tracker_is_said(tmp_path: Path) -> None:
    status, text = invoke("status", "--state-dir", str(tmp_path))
    assert (status, "no tracker has ever served" in text) == (64, True)


def test_help_teaches_and_version_is_the_packages() -> None:
    status, text = invoke("--help")
    assert (status, "ftcomm-tracker run -n 4 python train.py" in text) == (0, True)
    assert invoke("--version") == (0, f"ftcomm-tracker, version {ftcomm.__version__}\n")
    for command in ("serve", "run", "supervise", "status", "explain", "doctor", "stop"):
        assert invoke(command, "--help")[0] == 0


@pytest.mark.parametrize("command", ["serve", "run"])
def test_every_job_setting_is_an_option_without_a_default_of_its_own(command: str) -> None:
    arguments = ["-n", "2", *(["true"] if command == "run" else [])]
    # As the group does: a command keeps the help option of its first context.
    parent = click.Context(main, **main.context_settings)
    with main.commands[command].make_context(command, arguments, parent=parent) as context:
        options = {option.name: option.opts for option in context.command.params}
        found = {name: (options[name], context.params[name]) for name in SETTINGS}
    assert found == {name: ([setting.option], None) for name, setting in SETTINGS.items()}


@pytest.mark.parametrize("command", ["serve", "run"])
@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("checkpoint", "none", ""),
        ("checkpoint_every", " 5M", "5m"),
    ],
)
def test_an_option_reads_a_text_as_the_settings_variable_does(
    command: str, name: str, text: str, value: str
) -> None:
    arguments = [SETTINGS[name].option, text, *(["true"] if command == "run" else [])]
    parent = click.Context(main, **main.context_settings)
    with main.commands[command].make_context(command, arguments, parent=parent) as context:
        assert context.params[name] == value
    environ = {SETTINGS[name].variable: text}
    assert getattr(job_settings(environ=environ), name) == value


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7), ("2GiB", 2 << 30), ("1.5 kib", 1536), ("2G", 2 << 30), ("3MB", 3_000_000)],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "--port", "0", "true"], "number of workers"),
        (["serve"], "number of workers"),
        (["supervise", "--tracker", "none", "true"], "no tracker is named"),
    ],
)
def test_an_error_before_the_console_has_a_time_and_a_level(
    arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status, output = invoke(arguments[0], "-v", *arguments[1:])
    head = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ERROR ftcomm: .*"
    assert (status, bool(re.fullmatch(head + text + r".*\n", output))) == (64, True), output
    status, output = invoke(arguments[0], "--log-format", "json", *arguments[1:])
    line = json.loads(output)
    assert (status, line["level"], text in line["message"]) == (64, "error", True)


@pytest.mark.process
def test_the_error_that_ends_a_command_is_in_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    options = ("-n", "1", "--log-dir", str(tmp_path / "logs"))
    status, output = invoke("run", *options, "--", str(tmp_path / "absent"))
    last = (tmp_path / "logs" / "run.log").read_text().splitlines()[-1]
    assert (status, " ERROR ftcomm: cannot run " in last) == (64, True), output
