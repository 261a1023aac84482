"""The commands that teach: `help` and `completion`."""

import sys
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import get_completion_class

from ftcomm.config.environment import VARIABLES
from ftcomm_tracker.cli.exit_codes import exit_code_lines

PROGRAM = "ftcomm-tracker"
PROGRAMS = (PROGRAM, "ftcomm")
SHELLS = ("bash", "zsh", "fish")
# The script calls compdef, which a shell has only after compinit; -i asks no question.
ZSH_WITHOUT_COMPINIT = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }"
COMPLETION_EPILOG = """\b
Examples:
  source <(ftcomm-tracker completion bash)      # in ~/.bashrc
  source <(ftcomm-tracker completion zsh)       # in ~/.zshrc
  ftcomm-tracker completion fish > ~/.config/fish/completions/ftcomm-tracker.fish
"""


def environment_lines() -> str:
    """Every variable with its meaning."""
    return "\n".join(f"{name}\n    {meaning}" for name, meaning in VARIABLES.items())


TOPICS: dict[str, Callable[[], str]] = {
    "exit-codes": exit_code_lines,
    "environment": environment_lines,
}


@click.command("help", short_help="Explain a command, exit-codes or environment.")
@click.argument("topic", required=False, metavar="[COMMAND | exit-codes | environment]")
@click.pass_context
def help_command(ctx: click.Context, topic: str | None) -> None:
    """Explain a command, the exit statuses, or the environment variables."""
    assert ctx.parent is not None
    group = ctx.parent.command
    assert isinstance(group, click.Group)
    if topic is None:
        click.echo(group.get_help(ctx.parent))
    elif topic in TOPICS:
        click.echo(TOPICS[topic]())
    elif topic in group.commands:
        command = group.commands[topic]
        click.echo(command.get_help(click.Context(command, info_name=topic, parent=ctx.parent)))
    else:
        known = ", ".join([*TOPICS, *group.commands])
        raise click.UsageError(f"there is no help on {topic!r}; there is on {known}")


@click.command(short_help="Print completions for a shell.", epilog=COMPLETION_EPILOG)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete this program's commands and options."""
    assert ctx.parent is not None
    kind: Any = get_completion_class(shell)
    name = ctx.parent.info_name
    program = name if name in PROGRAMS else PROGRAM  # another name: no file on PATH has it
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    script = kind(ctx.parent.command, {}, program, variable).source()
    if shell == "zsh":  # the first line stays the first: zsh finds the command's name there
        first, _, rest = script.partition("\n")
        script = f"{first}\n{ZSH_WITHOUT_COMPINIT}\n{rest}"
    sys.stdout.write(script + "\n")
