"""Common parts of all commands: kinds of options, and the end of a command."""

import functools
import math
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click
import trio

from ftcomm.config.named_paths import with_home
from ftcomm.config.platforms import require_groups
from ftcomm.errors import ConfigError, FtcommError
from ftcomm_tracker.launcher.signals import leaves_of, raising_interrupts
from ftcomm_tracker.standard_streams import INTERRUPTED, StandardOutputError


class NamedPath(click.Path):
    """A path that is not empty: `Path("")` would be the working directory.

    ``~`` is the user's home: a shell expands no ``--state-dir=~/job1``.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty text, as of a shell variable that is not set; else as click does."""
        if value == "":
            self.fail("an empty path", param, ctx)
        try:
            path = with_home(value, "the path")
        except ConfigError as error:
            self.fail(error.cause, param, ctx)
        return super().convert(path, param, ctx)


class NumberInRange(click.FloatRange):
    """A number within bounds, which ``nan`` is not: it is not below them either."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse and check it."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range.", param, ctx)
        return number


DIRECTORY = NamedPath(file_okay=False, path_type=Path)
FILE = NamedPath(dir_okay=False, path_type=Path)
HELP_NAMES: Final = {"help_option_names": ["-h", "--help"]}  # of a group; its commands inherit them
# Options behind the worker's command belong to that command, as with mpirun and torchrun.
COMMAND_LAST: Final = {"allow_interspersed_args": False, **HELP_NAMES}


# The type makes shells complete file names.
WORKER_COMMAND = click.argument("command", nargs=-1, required=True, type=click.Path(readable=False))

_Command = TypeVar("_Command", bound=Callable[..., Any])


def with_options(
    options: tuple[Callable[[_Command], _Command], ...],
) -> Callable[[_Command], _Command]:
    """A decorator that gives a command several options, in their order."""

    def decorate(command: _Command) -> _Command:
        return functools.reduce(lambda inner, option: option(inner), reversed(options), command)

    return decorate


def program_name() -> str:
    """Return the name of the program that was typed, such as ``ftcomm``."""
    context = click.get_current_context(silent=True)
    name = context.find_root().info_name if context is not None else None
    return name or "ftcomm-tracker"


def say_plainly(text: str) -> None:
    """Print an error or a warning on the error stream, after the program's name."""
    click.echo(f"{program_name()}: {text}", err=True)


def run_and_exit(
    function: Callable[..., Awaitable[int]],
    *arguments: object,
    say: Callable[[str], None] = say_plainly,
) -> NoReturn:
    """Run `function` under trio and end with its status, or with that of its error.

    Args:
        function: the command.
        arguments: of `function`.
        say: prints the text of its error.
    """
    try:
        require_groups(program_name())
        with raising_interrupts():
            status = trio.run(functools.partial(function, *arguments))
    except (FtcommError, KeyboardInterrupt, BaseExceptionGroup) as error:
        status = _status_of(error, say)
    sys.exit(status)


def refuse_module(name: str) -> NoReturn:
    """End a process that runs the module that only defines the commands of `name`."""
    package = name.replace("-", "_")
    error = ConfigError(
        f"{package}.cli is not a command", remedy=f"run {name} or python -m {package}"
    )
    click.echo(f"{name}: {error}", err=True)
    sys.exit(error.exit_code)


def _status_of(error: BaseException, say: Callable[[str], None]) -> int:
    """Say what ended us; anything but our own errors and Ctrl-C is a defect and goes on."""
    leaves = leaves_of(error)
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return INTERRUPTED
    for leaf in leaves:
        if isinstance(leaf, StandardOutputError):
            raise leaf  # out of its group: `entry` says it
    ours = [leaf for leaf in leaves if isinstance(leaf, FtcommError)]
    if len(ours) < len(leaves):
        raise error
    say(str(ours[0]))
    return ours[0].exit_code
