"""``ftcomm-chaos``: simulate jobs, search states."""

import json
import sys
import time

import click

from ftcomm_chaos.sim.explorer import explore as search
from ftcomm_chaos.sim.script import Script
from ftcomm_chaos.sim.simulation import Simulation
from ftcomm_chaos.sim.sweep import MIN_FAULTS_PER_RUN, Sweep, run_seeds


@click.group()
@click.version_option(package_name="ftcomm")
def main() -> None:
    """Break ftcomm on purpose and watch whether it keeps its promises."""


@main.command()
@click.option("--seeds", default=2000, show_default=True, help="How many jobs to simulate.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--seed", type=int, help="Simulate this one only.")
@click.option("--trace", is_flag=True, help="Print all that happens (with --seed).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--stop-after", default=10, show_default=True, help="How many failures to collect.")
def sim(
    seeds: int, first: int, seed: int | None, stop_after: int, *, trace: bool, as_json: bool
) -> None:
    """Simulate whole jobs with faults; the same seed is the same run, byte for byte."""
    if seed is not None:
        sys.exit(_one(seed, trace=trace))
    began = time.perf_counter()
    sweep = run_seeds(range(first, first + seeds), stop_after=stop_after)
    seconds = time.perf_counter() - began
    click.echo(json.dumps(_document(sweep, seconds)) if as_json else _text(sweep, seconds))
    sys.exit(0 if sweep.ok else 1)


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


def _one(seed: int, *, trace: bool) -> int:
    simulation = Simulation(seed, tracing=trace)
    try:
        outcome = simulation.run()
    except Exception as error:  # noqa: BLE001 - whatever escapes a core is a finding
        click.echo("\n".join(simulation.world.lines))
        click.echo(f"seed {seed}: {type(error).__name__}: {error}")
        return 1
    click.echo("\n".join(simulation.world.lines))
    click.echo(
        f"seed {seed}: {outcome.verdict} after {outcome.virtual_s:.2f} virtual s, "
        f"{outcome.epochs} epochs, {outcome.steps} events; faults: {', '.join(outcome.faults)}"
    )
    return 0


def _document(sweep: Sweep, seconds: float) -> dict[str, object]:
    return {
        "ok": sweep.ok,
        "runs": sweep.runs,
        "seconds": round(seconds, 2),
        "events": sweep.events,
        "epochs": sweep.epochs,
        "endings": dict(sweep.endings),
        "faults": dict(sweep.faults),
        "faults_per_faulty_run": round(sweep.faults_per_run, 2),
        "failures": [
            {"seed": failure.seed, "what": failure.what, "replay": failure.replay}
            for failure in sweep.failures
        ],
    }


def _text(sweep: Sweep, seconds: float) -> str:
    lines = [
        f"{sweep.runs} jobs, {sweep.events} events, {sweep.epochs} epochs in {seconds:.1f} s",
        "endings: " + _counts(sweep.endings),
        "faults:  " + _counts(sweep.faults),
        f"{sweep.faults_per_run:.1f} faults per faulty job (at least {MIN_FAULTS_PER_RUN})",
    ]
    for failure in sweep.failures:
        lines += [f"seed {failure.seed}: {failure.what}", f"  again with: {failure.replay}"]
    lines.append("all rules held" if sweep.ok else "FAILED")
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{name} {count}" for name, count in ordered)


if __name__ == "__main__":
    main()
