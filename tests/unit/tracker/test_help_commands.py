"""Help, and what click completes."""

import re
import subprocess
import sys

import click
import pytest

from ftcomm import errors
from ftcomm.config.environment import VARIABLES
from ftcomm.config.setting_kinds import OptionGroup
from ftcomm.protocol.position import START
from ftcomm_tracker.cli.documents import DOCUMENTS
from ftcomm_tracker.cli.exit_codes import ExitCode, exit_codes
from ftcomm_tracker.cli.main import main
from ftcomm_tracker.launcher.restart_policy import RestartAfter, RestartLimits, RestartPolicy
from tests.unit.tracker.test_cli import invoke
from tests.unit.tracker.test_launcher import ROOT, environment

LAST_LINES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").splitlines()[-1]
    for name in DOCUMENTS
}


def test_every_command_has_an_example_or_needs_none() -> None:
    for name, command in main.commands.items():
        if name != "help":
            assert "Example" in (command.epilog or ""), name


def test_the_commands_are_listed_in_the_order_of_their_use() -> None:
    listed = [
        "serve",
        "run",
        "supervise",
        "status",
        "explain",
        "doctor",
        "kill",
        "stop",
        "list",
        "checkpoint",
    ]
    assert list(main.commands)[:10] == listed
    _, text = invoke("--help")
    assert [text.index(f"\n  {name} ") for name in listed] == sorted(
        text.index(f"\n  {name} ") for name in listed
    )


@pytest.mark.parametrize("command", ["run", "serve", "supervise"])
def test_a_command_shows_its_basic_options_on_one_screen(command: str) -> None:
    status, text = invoke(command, "--help")
    rows = re.findall(r"^  --?\w", text, re.MULTILINE)
    assert (status, len(rows) <= 17, "--help-all: all options" in text) == (0, True, True), text
    if command == "run":
        assert text.count("\n") <= 40
        assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", ["run", "serve", "supervise"])
def test_every_option_stands_under_its_group(command: str) -> None:
    status, text = invoke(command, "--help-all")
    heads = re.findall(r"^(\w+):$", text, re.MULTILINE)
    groups = [group.value for group in OptionGroup]
    assert (status, heads) == (0, [group for group in groups if group in heads])
    shown = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE))
    options = [param for param in main.commands[command].params if isinstance(param, click.Option)]
    assert shown - {"--help"} == {option.opts[-1] for option in options if not option.hidden}
    assert text.index("\nJob:") < text.index("\nOutput:") < text.index("\nRecovery:")


@pytest.mark.parametrize("row", exit_codes(), ids=lambda row: row.status)
def test_the_one_table_says_what_the_launcher_does(row: ExitCode) -> None:
    policy = RestartPolicy(RestartLimits(9))
    if row.status.isdigit() and int(row.status) > 2:
        decision = policy.after_exit("0", int(row.status), closed=False, progress=START, now=0.0)
        assert isinstance(decision, RestartAfter) == (row.again != "no"), decision


def test_every_status_of_an_error_is_in_the_one_table() -> None:
    shown = {row.status for row in exit_codes()}
    kinds = errors.FtcommError.__subclasses__()
    assert {str(kind.exit_code) for kind in kinds if kind.__module__ == "ftcomm.errors"} <= shown


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("exit-codes", "  71  JobLostError, "),
        ("environment", "FTCOMM_ADVERTISE\n    address[:port] that this worker tells the others"),
        ("run", "Run COMMAND as N workers"),
        *((name, f"{LAST_LINES[name]}\n") for name in DOCUMENTS),
    ],
)
def test_help_on_a_topic(topic: str, words: str) -> None:
    status, text = invoke("help", topic)
    assert (status, words in text) == (0, True), text
    assert topic in DOCUMENTS or max(map(len, text.splitlines())) <= 100


def test_help_on_all_and_on_nothing() -> None:
    assert invoke("help") == invoke("--help")
    status, text = invoke("help", "nonsense")
    assert (status, "there is no help on 'nonsense'; there is on exit-codes" in text) == (2, True)


def test_all_variables_are_in_the_help() -> None:
    _, text = invoke("help", "environment")
    assert [name for name in VARIABLES if name not in text] == []


@pytest.mark.process
def test_a_command_and_an_option_are_completed() -> None:
    program = "from ftcomm_tracker.cli.main import main; main(prog_name='ftcomm-tracker')"
    for words, expected in (
        ("ftcomm-tracker exp", "plain,explain"),
        ("ftcomm-tracker stop --re", "plain,--reason"),
        ("ftcomm-tracker run -n 4 python tr", "file,tr"),
    ):
        asked = {"_FTCOMM_TRACKER_COMPLETE": "bash_complete", "COMP_WORDS": words}
        asked["COMP_CWORD"] = str(len(words.split()) - 1)
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment(**asked),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == expected
