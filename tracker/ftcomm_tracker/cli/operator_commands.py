"""The commands that ask a tracker: `status`, `explain`, `doctor` and `stop`."""

import json
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import trio

from ftcomm.config.environment import WorkerOptions, parse_addresses, read_token
from ftcomm.errors import ConfigError, FtcommError, TrackerLostError
from ftcomm.protocol.messages import ControlMessage
from ftcomm.protocol.operator_messages import Done, StatusReply, StatusRequest, StopRequest
from ftcomm_tracker.cli.options import (
    DIRECTORY,
    FILE,
    SecondsInRange,
    run_and_exit,
    say_plainly,
    with_options,
)
from ftcomm_tracker.core.reporting.explain import explain as explain_document
from ftcomm_tracker.core.reporting.explain import explanation
from ftcomm_tracker.core.reporting.job_end import resume_text
from ftcomm_tracker.core.reporting.status import table
from ftcomm_tracker.operator.client import Answer, ask_tracker
from ftcomm_tracker.operator.doctor import examine
from ftcomm_tracker.operator.finished_job import LastState, happened_text, last_state
from ftcomm_tracker.operator.given_command import kept_command
from ftcomm_tracker.operator.job_registry import read_registry
from ftcomm_tracker.server.journal import remembered
from ftcomm_tracker.standard_streams import reader_has_left

WATCH_EVERY_S = 2.0
LOST_PATIENCE_S = 30.0  # of a watcher; whoever starts a tracker again does so within seconds
_CLEAR_SCREEN = "\x1b[H\x1b[2J"

TRACKER_OPTIONS = (
    click.option("--tracker", help="HOST:PORT[,HOST:PORT] [default: FTCOMM_TRACKER]."),
    click.option("--token-file", type=FILE, help="The job's token [default: FTCOMM_TOKEN_FILE]."),
    click.option(
        "--state-dir",
        type=DIRECTORY,
        help="Read address and token from this tracker directory [default: that of the only job"
        " that runs here].",
    ),
)
_SHOW_OPTIONS = (
    *TRACKER_OPTIONS,
    click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON document a line."),
    click.option(
        "--watch",
        "every_s",
        type=SecondsInRange(0.1),
        is_flag=False,
        flag_value=WATCH_EVERY_S,
        metavar="[SECONDS]",
        help=f"Repeat every SECONDS until the job is over [alone: {WATCH_EVERY_S:g}].",
    ),
)
STATUS_EPILOG = """\b
Examples:
  ftcomm-tracker status --state-dir /var/lib/job1
  ftcomm-tracker status --tracker 10.0.0.5:4711 --token-file /etc/job1.token --watch
  ftcomm-tracker status --state-dir /var/lib/job1 --json | jq .progress
"""
EXPLAIN_EPILOG = """\b
Examples:
  ftcomm-tracker explain --state-dir /var/lib/job1
  ftcomm-tracker explain --state-dir /var/lib/job1 --json | jq -r '.findings[].kind'
"""
DOCTOR_EPILOG = """\b
Examples:
  ftcomm-tracker doctor
  ftcomm-tracker doctor --checkpoint s3://bucket/job1
  ftcomm-tracker doctor --tracker 10.0.0.5:4711 --token-file /etc/job1.token
  srun ftcomm-tracker doctor --tracker $HEAD:4711 --json
"""
STOP_EPILOG = """\b
Example:
  ftcomm-tracker stop --state-dir /var/lib/job1 --reason "wrong data"
"""


@dataclass(frozen=True, slots=True)
class TrackerAddress:
    """The tracker that a command asks, as its options name it."""

    tracker: str | None
    token_file: Path | None
    state_dir: Path | None

    def located(self) -> "TrackerAddress":
        """This, or where nothing names a tracker, the only job of this user that runs here.

        Raises:
            ConfigError: several jobs run.
        """
        if self.state_dir is not None or WorkerOptions.load(tracker=self.tracker).routes:
            return self
        running = read_registry().running()
        if not running:
            return self
        if len(running) > 1:
            names = ", ".join(entry.state_dir for entry in running)
            raise ConfigError(
                f"{len(running)} jobs of this user run here", remedy=f"give --state-dir: {names}"
            )
        return replace(self, state_dir=Path(running[0].state_dir))

    def find(self) -> tuple[tuple[tuple[str, int], ...], Path | None]:
        """Addresses and token file from the options, a state directory or the environment.

        Raises:
            ConfigError: none of them names a tracker.
        """
        if self.state_dir is not None:
            found = remembered(self.state_dir)
            if found is None:
                raise ConfigError(f"no tracker has ever served from {self.state_dir}")
            own = ((found.host, found.port),)
            routes = parse_addresses(self.tracker) if self.tracker else own
            return routes, self.token_file or Path(found.token_file)
        options = WorkerOptions.load(tracker=self.tracker, token_file=self.token_file)
        if options.routes is None:
            raise ConfigError(
                "no tracker is named",
                remedy="give --tracker or --state-dir; `ftcomm-tracker list` shows your jobs",
            )
        return options.routes, options.token_file

    async def ask(self, request: ControlMessage, kind: type[Answer]) -> Answer:
        """Ask the first route that answers."""
        routes, token_path = self.find()
        token = read_token(token_path)
        for route in routes[:-1]:
            try:
                return await ask_tracker(route, token, request, kind)
            except TrackerLostError as error:
                say_plainly(error.cause)
        try:
            return await ask_tracker(routes[-1], token, request, kind)
        except TrackerLostError as error:
            raise self._with_what_is_journalled(error) from error

    def ended(self) -> LastState | None:
        """The job's last state, if a state directory is named and says that the job is over.

        Raises:
            ConfigError: its journal is damaged, or of another format.
        """
        last = None if self.state_dir is None else last_state(self.state_dir)
        return last if last is not None and last.durable.end else None

    def _with_what_is_journalled(self, error: TrackerLostError) -> TrackerLostError:
        """Nobody answers; if there is a journal here, it knows whether anybody should."""
        last = None if self.state_dir is None else last_state(self.state_dir)
        if last is None or last.durable.end:
            return error
        assert self.state_dir is not None
        given = kept_command(self.state_dir)
        again = "the command that began it" if given is None else given.again
        newest, age_s = last.newest_checkpoint()
        return TrackerLostError(
            f"{error.cause}; the job in {self.state_dir} was cut short",
            remedy=resume_text(newest, age_s, again),
        )


@click.command(short_help="Show a job's status.", epilog=STATUS_EPILOG)
@with_options(_SHOW_OPTIONS)
def status(*, as_json: bool, every_s: float | None, **where: Any) -> None:
    """Show members, positions, what is waited for, and the last recoveries.

    Incarnation is the number of a worker's start; position is VERSION.NUMBER of the collective that
    it completes next; lag is how many collectives (or checkpoints: v) it is behind the furthest.
    Of a job that is over, --state-dir shows the last state, also when its tracker has ended.
    """
    show = json.dumps if as_json else table
    run_and_exit(_show, TrackerAddress(**where), show, every_s)


@click.command(short_help="Say why a job waits, and what to do.", epilog=EXPLAIN_EPILOG)
@with_options(_SHOW_OPTIONS)
def explain(*, as_json: bool, every_s: float | None, **where: Any) -> None:
    """Say on whom a job waits, since when, how the tracker knows, and what to do."""
    show = _explained_as_json if as_json else _explained
    run_and_exit(_show, TrackerAddress(**where), show, every_s)


@click.command(short_help="Say whether this machine can take part in a job.", epilog=DOCTOR_EPILOG)
@with_options(TRACKER_OPTIONS)
@click.option("--checkpoint", metavar="STORE", default="", help="Try this store of checkpoints.")
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON document.")
def doctor(*, checkpoint: str, as_json: bool, **where: Any) -> None:
    """Examine this machine; with a tracker, the way to it and its way back.

    Python, numpy, memory, open files, addresses, clock; with --checkpoint the store. With a tracker
    names, connection, token, versions, clocks and round trip, and whether the tracker can reach a
    port of this machine, as the other workers must. Each line says ok, warn
    or FAIL, and what to do. Run it on every machine, as the user and under the scheduler that will
    run the workers. Ends with 1 if a line says FAIL.
    """
    run_and_exit(_doctor, TrackerAddress(**where), checkpoint, as_json)


@click.command(short_help="End a job for all its workers.", epilog=STOP_EPILOG)
@with_options(TRACKER_OPTIONS)
@click.option("--reason", default="by the operator", show_default=True, help="Told to every rank.")
def stop(reason: str, **where: Any) -> None:
    """End the job: every rank's current or next call raises JobStoppedError, with the reason.

    The workers and the tracker end with status 78 and are not started again. A job in --state-dir
    that is over already is left as it is.
    """
    run_and_exit(_stop, TrackerAddress(**where), reason)


async def _show(
    where: TrackerAddress, show: Callable[[Mapping[str, Any]], str], every_s: float | None
) -> int:
    where = where.located()
    document = await status_of(where)
    click.echo(show(document))
    seen_at = trio.current_time()
    while every_s is not None and document["state"] != "OVER" and not reader_has_left():
        await trio.sleep(every_s)
        try:
            document = await status_of(where)
        except TrackerLostError as error:  # it may be on its way back
            if trio.current_time() > seen_at + LOST_PATIENCE_S:
                raise
            say_plainly(error.cause)
            continue
        seen_at = trio.current_time()
        click.echo(f"{_CLEAR_SCREEN if sys.stdout.isatty() else ''}{show(document)}")
    return 0


async def status_of(where: TrackerAddress) -> Mapping[str, Any]:
    """The job's status document; of a job that is over, its last one."""
    try:
        reply = await where.ask(StatusRequest(), StatusReply)
    except FtcommError:  # nobody, or another job's tracker, whose port may be the same
        last = where.ended()
        if last is None:
            raise
        return last.document()
    document: Mapping[str, Any] = json.loads(reply.document)
    return document


def _explained(document: Mapping[str, Any]) -> str:
    text = explanation(explain_document(document))
    happened = happened_text(document) if document["state"] == "OVER" else ""
    return f"{text}\n\n{happened}" if happened else text


def _explained_as_json(document: Mapping[str, Any]) -> str:
    diagnoses = [asdict(diagnosis) for diagnosis in explain_document(document)]
    waiting = any(diagnosis["waiting"] for diagnosis in diagnoses)
    return json.dumps({"job_id": document["job_id"], "waiting": waiting, "findings": diagnoses})


async def _doctor(where: TrackerAddress, checkpoint: str, as_json: bool) -> int:
    where, options = where.located(), WorkerOptions.load(tracker="none")
    if where.state_dir is not None or WorkerOptions.load(tracker=where.tracker).routes:
        routes, token_file = where.find()
        options = replace(options, routes=routes, token_file=token_file)
    checks = await examine(options, checkpoint)
    if where.state_dir is not None:  # `run` and `supervise` name its workers
        checks = [check for check in checks if check.name != "worker_id"]
    failed = any(check.level == "fail" for check in checks)
    if as_json:
        report = {"host": socket.gethostname(), "ok": not failed}
        click.echo(json.dumps({**report, "checks": [asdict(check) for check in checks]}))
        return int(failed)
    for check in checks:
        mark = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}[check.level]
        click.echo(f"{mark}  {check.name}: {check.what}")
        if check.todo:
            click.echo(f"      to do: {check.todo}")
    return int(failed)


async def _stop(where: TrackerAddress, reason: str) -> int:
    where = where.located()
    last = where.ended()
    if last is not None:
        click.echo(f"nothing to stop: the job in {last.state_dir} {last.durable.end}")
        return 0
    await where.ask(StopRequest(reason), Done)
    click.echo("stopped")
    return 0
