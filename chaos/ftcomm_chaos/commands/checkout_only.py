"""Commands that an installed wheel lacks: they test ftcomm itself, in a checkout of its source."""

import importlib
import importlib.util
import sys
from typing import NoReturn

import click

from ftcomm.errors import ConfigError


def checkout_command(name: str) -> click.Command:
    """The command of the module `name` beside this one, or one that says where it can be had."""
    module = f"ftcomm_chaos.commands.{name}"
    if importlib.util.find_spec(module) is None:
        return _absent(name)
    command = getattr(importlib.import_module(module), name)
    assert isinstance(command, click.Command)
    return command


def _absent(name: str) -> click.Command:
    """A command that takes any arguments and refuses them."""

    def refuse(words: tuple[str, ...]) -> NoReturn:
        del words
        error = ConfigError(
            f"{name} is not part of the installed package",
            remedy=f"run `make test` and then `.venv/bin/ftcomm-chaos {name}` in a checkout of"
            " ftcomm's source",
        )
        click.echo(f"ftcomm-chaos {name}: {error}", err=True)
        sys.exit(error.exit_code)

    return click.Command(
        name,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        callback=refuse,
        help=f"Refused here: {name} needs a checkout of ftcomm's source.",
        context_settings={"ignore_unknown_options": True},
    )
