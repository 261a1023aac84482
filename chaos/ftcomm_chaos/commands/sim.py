"""``ftcomm-chaos sim``: simulate whole jobs, see one again, make a failing one small."""

import sys
import time

import click

from ftcomm.config.plurals import counted
from ftcomm_chaos.sim.seed_sweep import MIN_FAULTS_PER_RUN, Sweep, run_seeds
from ftcomm_chaos.sim.shrink import shrink
from ftcomm_chaos.sim.simulation import Simulation

FAILED, TOO_FEW_FAULTS = 1, 3  # exit statuses; a wrong option is click's 2


def _numbers(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Numbers with commas between them, or the word none."""
    if value is None:
        return None
    words = [] if value == "none" else value.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise click.BadParameter(f"{value!r}: give numbers such as 2,5, or none", ctx, param)
    return tuple(int(word) for word in words)


@click.command()
@click.option("--seeds", default=3000, show_default=True, help="How many jobs to simulate.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--seed", type=int, help="Simulate this one only.")
@click.option("--trace", is_flag=True, help="Print all that happens (with --seed).")
@click.option(
    "--only-faults", callback=_numbers, help="Of its faults, only these (with --seed): 2,5."
)
@click.option("--shrink", "shrinking", is_flag=True, help="Find its smallest failing plan.")
@click.option("--digest", is_flag=True, help="Print a digest of everything that happened.")
@click.option("--stop-after", default=10, show_default=True, help="How many failures to collect.")
def sim(
    seeds: int,
    first: int,
    seed: int | None,
    stop_after: int,
    only_faults: tuple[int, ...] | None,
    *,
    trace: bool,
    shrinking: bool,
    digest: bool,
) -> None:
    """Simulate whole jobs with faults; the same seed is the same run, byte for byte."""
    if seed is None and (trace or shrinking or only_faults is not None):
        raise click.UsageError("--trace, --shrink and --only-faults belong to one run: give --seed")
    if seed is not None:
        sys.exit(_shrink(seed) if shrinking else _one(seed, only_faults, trace=trace))
    began = time.perf_counter()
    sweep = run_seeds(range(first, first + seeds), stop_after=stop_after, digesting=digest)
    seconds = time.perf_counter() - began
    click.echo(_text(sweep, seconds))
    sys.exit(0 if sweep.ok else FAILED if sweep.failures else TOO_FEW_FAULTS)


def _one(seed: int, only: tuple[int, ...] | None, *, trace: bool) -> int:
    simulation = Simulation(seed, tracing=trace, only=only)
    try:
        outcome = simulation.run()
    except Exception as error:  # noqa: BLE001 - whatever escapes a core is a finding
        click.echo("\n".join(simulation.world.lines))
        click.echo(f"seed {seed}: {type(error).__name__}: {error}")
        return 1
    click.echo("\n".join(simulation.world.lines))
    click.echo(
        f"seed {seed}: {outcome.fatal_decision} after {outcome.virtual_s:.2f} virtual s, "
        f"{counted(outcome.epochs, 'epoch')}, {counted(outcome.steps, 'event')};"
        f" faults: {', '.join(outcome.faults)}"
    )
    return 0


def _shrink(seed: int) -> int:
    small = shrink(seed)
    if small is None:
        click.echo(f"seed {seed} keeps all rules")
        return 0
    click.echo(f"seed {seed}: {small.fall.what}")
    click.echo(f"  {small.fall.place}; the smallest plan, found in {counted(small.runs, 'run')}:")
    for planned in small.plan:
        click.echo(f"  fault {planned}")
    click.echo(f"again with: {small.replay}")
    return 1


def _text(sweep: Sweep, seconds: float) -> str:
    done = f"{counted(sweep.runs, 'job')}, {counted(sweep.events, 'event')}"
    lines = [
        f"{done}, {counted(sweep.epochs, 'epoch')} in {seconds:.1f} s",
        "endings: " + _counts(sweep.endings),
        f"{counted(sum(sweep.faults.values()), 'fault')}: {_counts(sweep.faults)}",
        f"{sweep.faults_per_run:.1f} faults per job (at least {MIN_FAULTS_PER_RUN})",
    ]
    if sweep.digest:
        lines.append(f"digest:  {sweep.digest}")
    for failure in sweep.failures:
        lines += [
            f"seed {failure.seed}: {failure.what}",
            f"  again with: {failure.replay}",
            f"  make it small with: ftcomm-chaos sim --seed {failure.seed} --shrink",
        ]
    words = "FAILED" if sweep.failures else "FAILED: too few faults happened to show anything"
    lines.append("all rules held" if sweep.ok else words)
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{name} {count}" for name, count in ordered)
