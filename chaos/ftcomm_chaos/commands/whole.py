"""``ftcomm-chaos whole``: simulate whole jobs that run the drivers, and see one again."""

import hashlib
import sys
import time
from collections import Counter

import click

from ftcomm.config.plurals import counted
from ftcomm_chaos.whole.job import WholeJob

FAILED, NO_FAULTS = 1, 3  # exit statuses, as of `sim`
SHOWN_LINES = 60  # the end of a failing seed's trace


def _range(_ctx: click.Context, _param: click.Parameter, value: str) -> range:
    first, colon, behind = value.partition(":")
    if not (first.isdecimal() and (behind.isdecimal() or not colon)):
        raise click.BadParameter(f"{value!r}: give a seed such as 57, or a range such as 0:100")
    return range(int(first), int(behind) if colon else int(first) + 1)


@click.command()
@click.option("--seeds", default="0:100", show_default=True, callback=_range, help="FIRST:BEHIND.")
@click.option("--trace", is_flag=True, help="Print all that happens.")
@click.option("--digest", is_flag=True, help="Print a digest of everything that happened.")
@click.option("--stop-after", default=10, show_default=True, help="How many failures to collect.")
def whole(seeds: range, *, trace: bool, digest: bool, stop_after: int) -> None:
    """Simulate whole jobs over the real drivers; the same seed is the same run."""
    began, events, runs = time.perf_counter(), 0, 0
    faults, endings, failures = Counter[str](), Counter[str](), list[str]()
    digests = hashlib.sha256()
    for seed in seeds:
        job = WholeJob(seed, tracing=trace)
        broken = broken_rule(job)
        runs, events = runs + 1, events + job.world.events
        faults.update(job.faults.fired)
        endings[job.ending or "no end"] += 1
        digests.update(job.world.digest.encode())
        for line in job.world.lines or ():
            click.echo(line)
        if broken:
            failures.append(f"seed {seed}: {broken}")
            click.echo(_failure(seed, broken))
            if len(failures) >= stop_after:
                break
    seconds = time.perf_counter() - began
    click.echo(f"{counted(runs, 'job')}, {counted(events, 'event')} in {seconds:.1f} s")
    click.echo(f"endings: {_counts(endings)}")
    click.echo(f"{counted(faults.total(), 'fault')}: {_counts(faults)}")
    if digest:
        click.echo(f"digest:  {digests.hexdigest()}")
    click.echo("\n".join(["FAILED", *failures]) if failures else "all rules held")
    sys.exit(FAILED if failures else 0 if faults else NO_FAULTS)


def broken_rule(job: WholeJob) -> str:
    """Run a job; return the rule that it breaks, empty if it keeps all."""
    try:
        job.run()
    except Exception as error:  # noqa: BLE001 - whatever escapes a driver is a finding
        return f"{type(error).__name__}: {error}"
    return ""


def _failure(seed: int, broken: str) -> str:
    """The end of the trace of a failing seed, which is run again for it."""
    again = WholeJob(seed, tracing=True)
    broken_rule(again)
    lines = (again.world.lines or [])[-SHOWN_LINES:]
    command = f"ftcomm-chaos whole --seeds {seed} --trace"
    return "\n".join([*lines, f"seed {seed}: {broken}", f"  again with: {command}"])


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"
