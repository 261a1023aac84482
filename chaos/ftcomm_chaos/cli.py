"""``ftcomm-chaos``: break a job, and judge what its processes have recorded.

In a checkout it has three commands more, for those who work on ftcomm itself: `sim`, `whole` and
`explore`.
"""

import importlib
import importlib.util

import click

from ftcomm_chaos.commands.check import check
from ftcomm_chaos.commands.run import run
from ftcomm_tracker.cli.options import HELP_NAMES, refuse_module


@click.group(context_settings=HELP_NAMES)
@click.version_option(package_name="ftcomm")
def main() -> None:
    """Break a job that uses ftcomm on purpose, and see that its results stay the same."""


main.add_command(run)
main.add_command(check)
for name in ("sim", "whole", "explore"):  # an installed package has none
    module = f"ftcomm_chaos.commands.{name}"
    if importlib.util.find_spec(module) is not None:
        main.add_command(getattr(importlib.import_module(module), name))

if __name__ == "__main__":
    refuse_module("ftcomm-chaos")
