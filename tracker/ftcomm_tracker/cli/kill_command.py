"""The command `kill`: end one worker's process, to see the job recover."""

import platform
import signal
from collections.abc import Mapping
from typing import Any

import click

from ftcomm.config.environment import WorkerOptions
from ftcomm.config.process_identity import UNKNOWN_START, ProcessName
from ftcomm.errors import ConfigError
from ftcomm.protocol.operator_messages import KillReply, KillRequest
from ftcomm_tracker.cli.operator_commands import TRACKER_OPTIONS, TrackerAddress, status_of
from ftcomm_tracker.cli.options import run_and_exit, with_options

KILL_EPILOG = """\b
Examples:
  ftcomm-tracker kill 2 --state-dir /var/lib/job1
  ftcomm-tracker kill 2 --tracker 10.0.0.5:4711 --token-file /etc/job1.token
"""


@click.command(short_help="Kill one worker's process.", epilog=KILL_EPILOG)
@click.argument("worker")
@with_options(TRACKER_OPTIONS)
def kill(worker: str, **where: Any) -> None:
    """Kill the process of WORKER (its id) with SIGKILL, as a crash would end it.

    On this host by its process id and start, elsewhere through its supervisor or `run`. Whoever
    started the worker starts it again.
    """
    run_and_exit(_kill, TrackerAddress(**where), worker)


async def _kill(where: TrackerAddress, worker: str) -> int:
    where = where.located()
    document = await status_of(where)
    if document["state"] == "OVER":
        click.echo("nothing to kill: the job is over")
        return 0
    row = _row_of(document, worker)
    process = _here(row)
    if process is not None and _was_killed(process):
        click.echo(f"killed worker {worker}: process {process.pid} of this host")
        return 0
    reply = await where.ask(KillRequest(worker), KillReply)
    if not reply.sent:
        raise _out_of_reach(worker, row)
    click.echo(f"told the supervisor of worker {worker} to kill it")
    return 0


def _row_of(document: Mapping[str, Any], worker: str) -> Mapping[str, Any]:
    """Return the tracker's row of a member; empty if the document leaves that member out.

    Raises:
        ConfigError: the job has no such worker.
    """
    rows: dict[str, Mapping[str, Any]] = {row["worker_id"]: row for row in document["members"]}
    if worker in rows or document.get("members_left_out"):
        return rows.get(worker, {})
    if rows:
        remedy = f"its workers are {', '.join(rows)}"
    else:
        remedy = "wait until its group has formed, which `ftcomm-tracker status` shows"
    raise ConfigError(f"the job has no worker {worker!r}", remedy=remedy)


def _here(row: Mapping[str, Any]) -> ProcessName | None:
    """The worker's process, if it is known to be one of this host."""
    host = WorkerOptions.load(tracker="none").host or platform.node()[:64] or "localhost"
    if not row.get("pid") or row["start"] == UNKNOWN_START or row["host"] != host:
        return None
    return ProcessName(int(row["pid"]), int(row["start"]))


def _was_killed(process: ProcessName) -> bool:
    """Kill a process of this host; False if it has ended, or is another user's."""
    try:
        return process.signal(signal.SIGKILL)
    except PermissionError:
        return False


def _out_of_reach(worker: str, row: Mapping[str, Any]) -> ConfigError:
    if row.get("pid"):
        return ConfigError(
            f"worker {worker} is process {row['pid']} on {row['host']}, and no supervisor of it"
            " is connected to the tracker",
            remedy=f"on {row['host']}: kill -9 {row['pid']}",
        )
    return ConfigError(
        f"worker {worker} is not connected, and no supervisor of it is",
        remedy="`ftcomm-tracker explain` says why it is gone",
    )
