"""``ftcomm-chaos``: simulate jobs, search states, break real ones."""

import click

from ftcomm_chaos.commands.check import check
from ftcomm_chaos.commands.checkout_only import checkout_command
from ftcomm_chaos.commands.run import run
from ftcomm_tracker.cli.options import HELP_NAMES, refuse_module


@click.group(context_settings=HELP_NAMES)
@click.version_option(package_name="ftcomm")
def main() -> None:
    """Break ftcomm on purpose and watch whether it keeps its promises."""


main.add_command(check)
main.add_command(checkout_command("sim"))
main.add_command(run)
main.add_command(checkout_command("explore"))

if __name__ == "__main__":
    refuse_module("ftcomm-chaos")
