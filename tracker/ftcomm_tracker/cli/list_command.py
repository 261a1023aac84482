"""The command `list`: this user's jobs."""

import json
import time
from dataclasses import asdict
from pathlib import Path

import click

from ftcomm.errors import ConfigError
from ftcomm_tracker.cli.options import run_and_exit, say_plainly
from ftcomm_tracker.operator.finished_job import last_state
from ftcomm_tracker.operator.job_registry import UNKNOWN_SIZE, JobEntry, read_registry

LIST_EPILOG = """\b
Examples:
  ftcomm-tracker list
  ftcomm-tracker list --json | jq -r '.jobs[] | select(.state == "running").state_dir'
"""


@click.command("list", short_help="List this user's jobs.", epilog=LIST_EPILOG)
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON document.")
def list_jobs(*, as_json: bool) -> None:
    """List the jobs of this user that run, and the newest ten that failed or were cut short.

    The state is running, over (its journal says how), cut short (its process ended before the
    job did), gone (its state directory is gone too), or elsewhere (on another host, or in another
    container of this one).
    """
    run_and_exit(_list, as_json)


async def _list(as_json: bool) -> int:
    registry = read_registry()
    rows = [{**asdict(entry), "state": state_of(entry)} for entry in registry.entries]
    for path, reason in registry.damaged.items():
        say_plainly(f"ignored {str(path)!r}: it {reason}")
    if as_json:
        click.echo(json.dumps({"jobs": rows}))
        return 0
    click.echo("\n".join(_lines(registry.entries)) if rows else "no jobs")
    return 0


def state_of(entry: JobEntry) -> str:
    """The state of a job in words, from its process and its journal."""
    if not entry.is_here:
        return "elsewhere"
    if entry.is_running():
        return "running"
    try:
        last = last_state(Path(entry.state_dir))
    except (ConfigError, OSError):
        return "cut short"
    if last is None:
        return "gone"
    return "over" if last.durable.end else "cut short"


def _lines(entries: tuple[JobEntry, ...]) -> list[str]:
    rows = [("JOB", "STATE", "WORKERS", "PROCESS", "BEGAN", "STATE DIRECTORY")]
    rows += [
        (
            entry.job_id,
            state_of(entry),
            "?" if entry.workers == UNKNOWN_SIZE else str(entry.workers),
            f"{entry.pid} on {entry.host}",
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.began)),
            entry.state_dir,
        )
        for entry in entries
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
