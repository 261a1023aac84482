"""The command `list`: this user's jobs."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ftcomm.errors import ConfigError
from ftcomm_tracker.cli.options import run_and_exit, say_plainly
from ftcomm_tracker.core.reporting.text_table import aligned
from ftcomm_tracker.operator.finished_job import last_state
from ftcomm_tracker.operator.given_command import kept_command
from ftcomm_tracker.operator.job_registry import UNKNOWN_SIZE, JobEntry, read_registry

HEADS = ("JOB", "STATE", "WORKERS", "BEGAN", "STATE DIRECTORY", "COMMAND")
LIST_EPILOG = """\b
Examples:
  ftcomm-tracker list
  ftcomm-tracker list --json | jq -r '.jobs[] | select(.state == "running").state_dir'
"""


@click.command("list", short_help="List this user's jobs.", epilog=LIST_EPILOG)
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON document.")
def list_jobs(*, as_json: bool) -> None:
    """List the jobs of this user that run, and the newest ten that failed or were cut short.

    The state is running, finished, failed (with the error), cut short (its process ended before the
    job did), gone (its state directory is gone too), or elsewhere (on another host, or in another
    container of this one).
    """
    run_and_exit(_list, as_json)


async def _list(as_json: bool) -> int:
    registry = read_registry()
    rows = [
        {**asdict(entry), "state": state_of(entry), "given": _command_of(entry)}
        for entry in registry.entries
    ]
    for path, reason in registry.damaged.items():
        say_plainly(f"ignored {str(path)!r}: it {reason}")
    if as_json:
        click.echo(json.dumps({"jobs": rows}))
        return 0
    click.echo(_table(rows) if rows else "no jobs")
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
    if last.durable.fatal_decision is not None:
        return f"failed: {last.durable.fatal_decision.error}"
    return "finished" if last.durable.end else "cut short"


def _command_of(entry: JobEntry) -> str:
    """The command of a job and its folder, where its state directory can be read."""
    given = kept_command(Path(entry.state_dir))
    return "" if given is None else f"{' '.join(given.line.split())} (in {given.folder})"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        (
            row["job_id"],
            row["state"],
            "?" if row["workers"] == UNKNOWN_SIZE else row["workers"],
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["began"])),
            row["state_dir"],
            row["given"],
        )
        for row in rows
    ]
    return aligned([HEADS, *cells])
