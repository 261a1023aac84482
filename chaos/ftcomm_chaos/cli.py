"""``ftcomm-chaos``: simulate jobs, search states, break real ones."""

import sys
import time

import click

from ftcomm_chaos.commands.check import check
from ftcomm_chaos.commands.run import run
from ftcomm_chaos.commands.sim import sim
from ftcomm_chaos.sim.explorer import explore as search
from ftcomm_chaos.sim.script import Script


@click.group()
@click.version_option(package_name="ftcomm")
def main() -> None:
    """Break ftcomm on purpose and watch whether it keeps its promises."""


main.add_command(check)
main.add_command(sim)
main.add_command(run)


@main.command()
@click.argument("letters", default="SB")
@click.argument("ranks", default=2)
@click.argument("crashes", default=1)
def explore(letters: str, ranks: int, crashes: int) -> None:
    """Try every order of events of a small job.

    LETTERS is the script: S a synchronising collective, B a broadcast, L load, C checkpoint, P
    checkpoint with a local state, E close.
    """
    began = time.perf_counter()
    found = search(Script(letters, ranks, crashes))
    for move in found.path:
        click.echo(f"  {' '.join(str(part) for part in move)}")
    click.echo(f"violation: {found.violation}" if found.violation else "all rules held")
    seconds = time.perf_counter() - began
    click.echo(f"{found.states} states, {found.moves} moves, {found.ends} ends in {seconds:.1f} s")
    sys.exit(1 if found.violation else 0)


if __name__ == "__main__":
    main()
