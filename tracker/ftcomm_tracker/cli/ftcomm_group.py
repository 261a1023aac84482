"""The command `ftcomm`: every command of `ftcomm-tracker`, and a report of the environment."""

import json

import click

import ftcomm
from ftcomm_tracker.cli.environment_report import environment_report, report_text
from ftcomm_tracker.cli.main import InOrder
from ftcomm_tracker.cli.main import main as tracker_group
from ftcomm_tracker.cli.options import HELP_NAMES


@click.group(
    cls=InOrder,
    invoke_without_command=True,
    epilog=tracker_group.epilog,
    context_settings=HELP_NAMES,
)
@click.version_option(ftcomm.__version__, prog_name="ftcomm")
@click.option("--json", "as_json", is_flag=True, help="Print the environment as one JSON document.")
@click.pass_context
def main(ctx: click.Context, *, as_json: bool) -> None:
    """Run and examine jobs that use ftcomm; without a command, show the environment.

    The commands are those of ftcomm-tracker.
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(
                f"--json before {ctx.invoked_subcommand} is for the environment; give it after"
                " the command"
            )
        return
    report = environment_report()
    click.echo(json.dumps(report) if as_json else report_text(report))


for command in tracker_group.commands.values():
    main.add_command(command)
