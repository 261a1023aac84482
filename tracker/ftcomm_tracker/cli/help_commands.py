"""The command `help`."""

from collections.abc import Callable

import click

from ftcomm.config.environment import VARIABLES
from ftcomm_tracker.cli.exit_codes import exit_code_lines


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
