"""Options behind a worker's command belong to the command."""

import click
import pytest
from click.testing import CliRunner

from ftcomm_chaos.cli import main as chaos
from ftcomm_tracker.cli.main import main as tracker

TRAIN = ("python", "train.py", "--epochs", "3", "-n", "7", "--help")
STARTERS = [(tracker, "run"), (tracker, "supervise"), (chaos, "run")]
EVERY_COMMAND = [(group, name) for group in (tracker, chaos) for name in group.commands]


def command_of(group: click.Group, name: str, words: list[str]) -> object:
    return group.commands[name].make_context(name, words).params["command"]


@pytest.mark.parametrize(("group", "name"), STARTERS)
@pytest.mark.parametrize("before", [(), ("--",)], ids=["plain", "dashes"])
def test_the_command_keeps_its_own_options(group: click.Group, name: str, before) -> None:
    options = () if name == "supervise" else ("-n", "2")
    assert command_of(group, name, [*options, *before, *TRAIN]) == TRAIN


def test_dashes_inside_the_command_are_its_own() -> None:
    assert command_of(tracker, "run", ["-n", "2", "sh", "--", "-x"]) == ("sh", "--", "-x")


@pytest.mark.parametrize(("group", "name"), STARTERS)
def test_a_mistyped_option_before_the_command(group: click.Group, name: str) -> None:
    result = CliRunner().invoke(group, [name, "--wrokers", "2", "python", "train.py"])
    assert (result.exit_code, "No such option" in result.output) == (2, True), result.output


@pytest.mark.parametrize(("group", "name"), EVERY_COMMAND)
def test_the_short_name_of_help(group: click.Group, name: str) -> None:
    long, short = (CliRunner().invoke(group, [name, option]) for option in ("--help", "-h"))
    assert (short.exit_code, short.output) == (0, long.output)
    assert CliRunner().invoke(group, ["-h"]).output == CliRunner().invoke(group, ["--help"]).output
