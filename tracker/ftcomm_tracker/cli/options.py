"""Common parts of all commands: kinds of options, and the end of a command."""

import contextlib
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
from ftcomm.config.setting_kinds import CheckpointPeriod, OptionGroup
from ftcomm.errors import ConfigError, FtcommError
from ftcomm_tracker.launcher.signals import leaves_of, raising_interrupts
from ftcomm_tracker.standard_streams import INTERRUPTED, StandardOutputError

_Command = TypeVar("_Command", bound=Callable[..., Any])


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


class SecondsInRange(click.FloatRange):
    """A number of seconds within bounds, or a text with a unit: 90, 90s, 5m, 1h.

    ``nan`` is not within bounds: it is not below them either.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse and check it."""
        with contextlib.suppress(ValueError):  # else it has no unit
            period = CheckpointPeriod.of(str(value))
            value = value if period.versions else period.seconds
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range.", param, ctx)
        return number


PROGRAM = "ftcomm-tracker"  # in messages; `ftcomm` has the same commands
DIRECTORY = NamedPath(file_okay=False, path_type=Path)
FILE = NamedPath(dir_okay=False, path_type=Path)
HELP_NAMES: Final = {"help_option_names": ["-h", "--help"]}  # of a group; its commands inherit them
# Options behind the worker's command belong to that command, as with mpirun and torchrun.
COMMAND_LAST: Final = {"allow_interspersed_args": False, **HELP_NAMES}


# The type makes shells complete file names.
WORKER_COMMAND = click.argument("command", nargs=-1, required=True, type=click.Path(readable=False))
# Groups of --help; those behind it are for --help-all.
BASIC: Final = tuple(OptionGroup)[: tuple(OptionGroup).index(OptionGroup.OUTPUT) + 1]
_ALL: Final = f"{__name__}.all"  # in the context of a command whose whole help is asked for


class GroupedOption(click.Option):
    """An option that stands in a group of the help."""

    def __init__(self, *names: Any, group: OptionGroup, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.group = group

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The names and our own words, to which click would add bounds."""
        record = super().get_help_record(ctx)
        return record and (record[0], self.help or "")


def option(group: OptionGroup, *names: str, **attributes: Any) -> Callable[[_Command], _Command]:
    """A decorator that gives a command an option of that group."""
    return click.option(*names, cls=GroupedOption, group=group, **attributes)


def _show_all(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    del param
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


class GroupedCommand(click.Command):
    """A command with many options: --help shows the `BASIC` groups, --help-all every one."""

    def __init__(self, *given: Any, **attributes: Any) -> None:
        super().__init__(*given, **attributes)
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                hidden=True,
                callback=_show_all,
            )
        )

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return click's option, with a text that names the other one."""
        found = super().get_help_option(ctx)
        if found is not None:
            found.help = "This text; --help-all: all options"
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups."""
        params = self.get_params(ctx)
        for group in OptionGroup if _ALL in ctx.meta else BASIC:
            shown = [param for param in params if getattr(param, "group", None) is group]
            if group is OptionGroup.OUTPUT:
                shown += filter(None, [self.get_help_option(ctx)])
            rows = list(filter(None, (param.get_help_record(ctx) for param in shown)))
            if rows:
                with formatter.section(group.value):
                    formatter.write_dl(rows)


def with_options(
    options: tuple[Callable[[_Command], _Command], ...],
) -> Callable[[_Command], _Command]:
    """A decorator that gives a command several options, in their order."""

    def decorate(command: _Command) -> _Command:
        return functools.reduce(lambda inner, option: option(inner), reversed(options), command)

    return decorate


def say_plainly(text: str) -> None:
    """Print an error or a warning on the error stream, after the program's name."""
    click.echo(f"{PROGRAM}: {text}", err=True)


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
        require_groups(PROGRAM)
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
