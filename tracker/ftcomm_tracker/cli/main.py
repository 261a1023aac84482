"""The command line: `serve`, `run` and `supervise`; the other commands are added to them."""

import logging
import re
import shlex
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import click
import trio

import ftcomm
from ftcomm.config.environment import VARIABLES, WorkerOptions
from ftcomm.config.setting_kinds import OptionGroup
from ftcomm.errors import exit_code_of
from ftcomm_tracker.cli.checkpoint_commands import checkpoint
from ftcomm_tracker.cli.documents import DOCUMENTS, document
from ftcomm_tracker.cli.exit_codes import exit_code_lines
from ftcomm_tracker.cli.kill_command import kill
from ftcomm_tracker.cli.list_command import list_jobs
from ftcomm_tracker.cli.operator_commands import doctor, explain, status, stop
from ftcomm_tracker.cli.options import (
    COMMAND_LAST,
    DIRECTORY,
    FILE,
    HELP_NAMES,
    WORKER_COMMAND,
    GroupedCommand,
    SecondsInRange,
    option,
    run_and_exit,
    with_options,
)
from ftcomm_tracker.cli.setting_options import SETTING_OPTIONS
from ftcomm_tracker.core.reporting.incident_words import done_text
from ftcomm_tracker.launcher.console import Console
from ftcomm_tracker.launcher.console_session import LogOptions, tell_failure, with_console
from ftcomm_tracker.launcher.log_lines import FORMATS, NOTICE
from ftcomm_tracker.launcher.processes.child_process import cannot_run
from ftcomm_tracker.launcher.processes.departure import GRACE_S
from ftcomm_tracker.launcher.restart_policy import (
    MAX_RESTARTS,
    RESTART_WINDOW_S,
    RestartLimits,
)
from ftcomm_tracker.launcher.run_job import RunOptions, run_job
from ftcomm_tracker.launcher.signals import until_signal
from ftcomm_tracker.launcher.supervise import SuperviseOptions, supervise_worker
from ftcomm_tracker.operator.given_command import keep_command, this_command
from ftcomm_tracker.operator.job_registry import register, unregister
from ftcomm_tracker.server.fault_injection import TrackerFaults
from ftcomm_tracker.server.open_job import OpenJob, ServeOptions, naming_options, open_job

log = logging.getLogger("ftcomm_tracker")

EPILOG = """\b
In the order of use
-------------------

\b
One machine, four workers, in one command:
  ftcomm-tracker run -n 4 python train.py

\b
Several machines: 1. a tracker; it prints its address and where the token is:
  ftcomm-tracker serve -n 4 --host 10.0.0.5 --port 4711 --state-dir /var/lib/job1
\b
2. on each other machine, with the token copied there: can it take part?
  ftcomm-tracker doctor --tracker 10.0.0.5:4711 --token-file job1.token
\b
3. there, for each worker, under systemd, Slurm, mpirun or Kubernetes:
  ftcomm-tracker supervise --tracker 10.0.0.5:4711 --token-file job1.token \\
      --worker-id 0 python train.py
\b
4. how is it going, why does it wait, end it:
  ftcomm-tracker status --state-dir /var/lib/job1 --watch
  ftcomm-tracker explain --state-dir /var/lib/job1
  ftcomm-tracker stop --state-dir /var/lib/job1 --reason "wrong data"

\b
The tracker's machine was lost or restarted? The same command on the same --state-dir
takes the job up again; the workers come back by themselves.

\b
More: ftcomm-tracker help exit-codes, help environment, help porting, COMMAND --help
"""
SERVE_EPILOG = """\b
Examples:
  ftcomm-tracker serve -n 8 --host 10.0.0.5 --port 4711 --state-dir /var/lib/job1
  ftcomm-tracker serve -n 8 --host :: --detect-within 2 --log-limit 512MiB
  ftcomm-tracker serve --state-dir /var/lib/job1        # again, after it was killed
\b
The disk with the journal is lost; the workers still run:
  ftcomm-tracker serve --rebuild --host 10.0.0.5 --port 4711 --token-file job1.token \\
      --state-dir /var/lib/job1-again
\b
A second tracker on another host, which leads when the first is lost; workers are given both
addresses, as FTCOMM_TRACKER=10.0.0.5:4711,10.0.0.6:4711:
  ftcomm-tracker serve --standby -n 8 --host 10.0.0.5 --port 4711 \\
      --token-file job1.token --checkpoint s3://bucket/job1
  ftcomm-tracker serve --standby -n 8 --host 10.0.0.6 --port 4711 \\
      --token-file job1.token --checkpoint s3://bucket/job1
"""
RUN_EPILOG = """\b
Examples:
  ftcomm-tracker run -n 4 python train.py --epochs 10
  ftcomm-tracker run -n 4 --spares 1 --state-dir job1 python train.py
"""


def _place_options(address: OptionGroup) -> tuple[Callable[..., Any], ...]:
    """Number of workers, and the group of options for the tracker's address."""
    return (
        option(
            OptionGroup.JOB, "-n", "--workers", "world_size", type=int, metavar="N",
            help="Number of workers",
        ),
        option(address, "--host", metavar="HOST", help="Address to listen on [default: 127.0.0.1]"),
        option(
            address, "--port", type=click.IntRange(0, 65535), metavar="PORT",
            help="Port; 0 or none: a free one",
        ),
        option(
            address, "--token-file", type=FILE, metavar="FILE",
            help="The job's token; made if absent [default: DIR/token]",
        ),
    )  # fmt: skip


_LAUNCHER_OPTIONS = (
    option(
        OptionGroup.FAULTS,
        "--term-grace",
        type=SecondsInRange(0, 30 * 86400),
        metavar="SECONDS",
        default=GRACE_S,
        help="For a worker to end after SIGTERM and, before that, when the job has failed"
        f" [default: {GRACE_S:g}]",
    ),
    option(
        OptionGroup.FAULTS,
        "--max-restarts",
        type=click.IntRange(0),
        metavar="N",
        default=MAX_RESTARTS,
        help=f"Restarts of a worker without progress [default: {MAX_RESTARTS}]",
    ),
    option(
        OptionGroup.RECOVERY,
        "--restart-window",
        type=SecondsInRange(0, 30 * 86400, min_open=True),
        metavar="SECONDS",
        default=RESTART_WINDOW_S,
        help="After this time a death does not count any more for --max-restarts"
        f" [default: {RESTART_WINDOW_S:g}]",
    ),
)

_RESUME_OPTION = option(
    OptionGroup.CHECKPOINTS,
    "--resume",
    type=click.Choice(("auto", "never", "require")),
    default="auto",
    metavar="HOW",
    help="From the newest: auto (default), never, require",
)

_TAKE_OVER_OPTION = option(
    OptionGroup.RECOVERY,
    "--take-over",
    is_flag=True,
    help="Replace a tracker that still uses this state directory or store; it will exit",
)

_LOG_OPTIONS = (
    option(
        OptionGroup.OUTPUT,
        "-q",
        "--quiet",
        is_flag=True,
        help="Print errors alone, beside the workers' lines",
    ),
    option(
        OptionGroup.OUTPUT,
        "-v",
        "--verbose",
        count=True,
        help="Print each step, with its time; -vv: of connections too",
    ),
    option(
        OptionGroup.OUTPUT,
        "--log-format",
        type=click.Choice(FORMATS),
        default="text",
        help="Lines as text, or as one JSON object each",
    ),
    option(
        OptionGroup.OUTPUT,
        "--log-dir",
        type=DIRECTORY,
        metavar="DIR",
        help="Write the lines of each worker to a file too",
    ),
)


class InOrder(click.Group):
    """Lists its commands in the order of their use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, as they were added."""
        del ctx
        return list(self.commands)


@click.group(cls=InOrder, epilog=EPILOG, context_settings=HELP_NAMES)
@click.version_option(ftcomm.__version__, prog_name="ftcomm-tracker")
def main() -> None:
    """Ranks, membership and recovery for jobs that use ftcomm."""


@main.command(cls=GroupedCommand, short_help="Serve one job's tracker.", epilog=SERVE_EPILOG)
@with_options(_place_options(OptionGroup.JOB))
@option(
    OptionGroup.JOB,
    "--state-dir",
    type=DIRECTORY,
    metavar="DIR",
    help="Journal and token; give it again to resume the job",
)
@_TAKE_OVER_OPTION
@option(
    OptionGroup.RECOVERY,
    "--rebuild",
    is_flag=True,
    help="The journal is lost: take the job up from what its workers know, once all have come; if"
    " they do not within --replace-within, tell those that have, and end",
)
@option(
    OptionGroup.RECOVERY,
    "--standby",
    is_flag=True,
    help="Two trackers, on two hosts, for one job: each is started with this option and the same"
    " --checkpoint. One leads; the other waits, and leads when the first is lost",
)
@with_options(SETTING_OPTIONS)
@_RESUME_OPTION
@with_options(_LOG_OPTIONS)
@click.option("--faults", hidden=True)
def serve(faults: str | None, **given: Any) -> None:
    """Serve one job until it ends; workers are started by others.

    Prints one line when it is ready: "ftcomm-tracker ready address=HOST:PORT job=ID
    token_file=PATH state_dir=PATH". Ends with 0 if the job ended well, else with the status of
    the error that ended it.
    """
    log_options = _log_options(given)
    serving = _serve_options(given)
    run_and_exit(_serve, serving, faults, log_options, say=log_options.say_error)


@main.command(
    short_help="Run a job's tracker and its workers on this machine.",
    epilog=RUN_EPILOG,
    context_settings=COMMAND_LAST,
    cls=GroupedCommand,
)
@with_options(_place_options(OptionGroup.NETWORK))
@option(
    OptionGroup.JOB,
    "--state-dir",
    type=DIRECTORY,
    metavar="DIR",
    help="Journal and checkpoints of this job [default: temporary]",
)
@_TAKE_OVER_OPTION
@with_options(SETTING_OPTIONS)
@_RESUME_OPTION
@with_options(_LAUNCHER_OPTIONS)
@with_options(_LOG_OPTIONS)
@WORKER_COMMAND
def run(command: tuple[str, ...], **given: Any) -> None:
    """Run COMMAND as N workers with their tracker, and restart the workers that die.

    Worker I gets FTCOMM_WORKER_ID=I; its lines are printed after "[I] ". Ends with 0 only if
    every rank ended well. The same command on the same --state-dir goes on from the newest
    checkpoint after a loss of everything.
    """
    log_options = _log_options(given)
    restarts, grace_s = _restart_limits(given), given.pop("term_grace")
    serving = replace(_serve_options(given), size_remedy=_size_remedy(command))
    options = RunOptions(serving, command, restarts, log_options, grace_s, given=this_command())
    run_and_exit(_run, options, say=log_options.say_error)


SUPERVISE_EPILOG = """\b
Examples:
  ftcomm-tracker supervise --tracker 10.0.0.5:4711 --worker-id 3 \\
      --token-file /etc/job1.token python train.py
  FTCOMM_TOKEN_FILE=$HOME/job1.token \\
      srun ftcomm-tracker supervise --tracker $HEAD:4711 python train.py
"""


@main.command(
    short_help="Run one worker on this machine for a tracker elsewhere.",
    epilog=SUPERVISE_EPILOG,
    context_settings=COMMAND_LAST,
    cls=GroupedCommand,
)
@option(OptionGroup.JOB, "--tracker", metavar="HOST:PORT,...", help="[default: FTCOMM_TRACKER]")
@option(
    OptionGroup.JOB,
    "--worker-id",
    metavar="ID",
    help="What names this worker over its restarts [default: FTCOMM_WORKER_ID, else the"
    " scheduler's index]",
)
@option(
    OptionGroup.JOB,
    "--token-file",
    type=FILE,
    metavar="FILE",
    help="The job's token, which is waited for [default: FTCOMM_TOKEN_FILE]",
)
@with_options(_LAUNCHER_OPTIONS)
@option(
    OptionGroup.NETWORK,
    "--tracker-timeout",
    type=float,
    metavar="SECONDS",
    help="Seconds to wait for a tracker that is needed and does not answer"
    " [default: FTCOMM_TRACKER_TIMEOUT, else 60 for the first answer, 600 for one that was lost]",
)
@with_options(_LOG_OPTIONS)
@WORKER_COMMAND
def supervise(command: tuple[str, ...], **given: Any) -> None:
    """Run COMMAND as one worker, and restart it if it dies.

    Under systemd, Slurm, mpirun or Kubernetes: one of these on each machine, for each worker. Its
    lines are printed after "[ID] ". SIGINT, SIGTERM and SIGHUP end the worker (SIGHUP not under
    nohup), SIGUSR1 and SIGUSR2 are passed on to it. The worker dies with this process.

    Ends with 0 only if the whole job ended well, else with the status of the error that ended the
    job, of the worker that lost its place, or 128 + a signal.
    """
    log_options = _log_options(given)
    kept = partial(
        SuperviseOptions,
        command=command,
        restarts=_restart_limits(given),
        log=log_options,
        grace_s=given.pop("term_grace"),
    )
    run_and_exit(_supervise, kept, given, say=log_options.say_error)


async def _run(options: RunOptions) -> int:
    """Run the job, unless its command cannot be: that is known before there is a job."""
    program = options.command[0]

    async def refuse(console: Console) -> int:
        del console  # the refusal is on it, and in the files of --log-dir
        raise cannot_run(program, "no such program can be executed", _program_remedy(program))

    if shutil.which(program) is None:
        return await with_console(options.log, "run", refuse)
    return await run_job(options)


def _size_remedy(command: tuple[str, ...]) -> str:
    """Say what to do without a number of workers, which may stand in the wrong place."""
    for place, word in enumerate(command):
        if word in ("-n", "--workers"):
            text = shlex.join(command[place : place + 2])
            return f"`{text}` stands behind the command, and is passed to it: put it before"
        if word.startswith("--workers=") or re.fullmatch(r"-n\d+", word):
            return f"`{word}` stands behind the command, and is passed to it: put it before"
    return "give -n"


def _program_remedy(program: str) -> str:
    """Say what may be meant by a program that is not there."""
    if program.endswith(".py"):
        return f"a Python script? `python {program}`"
    known = get_close_matches(program, ("python", "python3", "torchrun", "bash"), n=1)
    return f"did you mean `{known[0]}`?" if known else "check the name of the program"


async def _serve(options: ServeOptions, faults: str | None, log_options: LogOptions) -> int:
    async def serve_one_job(console: Console) -> int:
        job = await open_job(options)
        began = trio.current_time()
        temporary = options.state_dir is None
        register(job, "serve", temporary=temporary)
        if faults:
            generation = job.journal.generation
            job.server.faults = TrackerFaults(faults, job.durable, generation)
        keep_command(job.state_dir, this_command())
        status = await _serve_to_its_end(job, console)
        outcome = job.server.outcome
        if outcome is not None and not outcome.ok:
            tell_failure(console, outcome, status)
        if status == 0:
            spent_s = trio.current_time() - began
            console.announce(done_text(spent_s, job.server.final_version, 0))
            if temporary:
                shutil.rmtree(job.state_dir, ignore_errors=True)
            unregister(job)
        return status

    return await with_console(log_options, "serve", serve_one_job)


async def _serve_to_its_end(job: OpenJob, console: Console) -> int:
    async with (
        until_signal() as caught
    ):  # before the line: a script may answer it with a signal at once
        click.echo(job.ready_line())
        if job.durable.end:
            console.announce(
                f"the job {job.durable.end}; late workers are told so for"
                f" {job.settings.reattach_within:g} s"
            )
        elif job.durable.places and job.journal.generation > 1:
            log.info(
                "generation %d of the tracker takes the job over in epoch %d; its workers have"
                " %g s to come back",
                job.journal.generation,
                job.durable.epoch,
                job.settings.reattach_within,
            )
        elif job.journal.generation > 1:
            log.info(
                "generation %d of the tracker; its journal has no group yet",
                job.journal.generation,
            )
        await job.server.run()
    job.journal.close()
    if caught:
        return 128 + caught[0]
    outcome = job.server.outcome
    assert outcome is not None
    return 0 if outcome.ok else exit_code_of(outcome.error)


async def _supervise(options: Callable[[WorkerOptions], SuperviseOptions], given: Any) -> int:
    with naming_options(given):
        worker = WorkerOptions.load(**given)
    return await supervise_worker(options(worker))


_PLACE = ("world_size", "host", "port", "token_file", "state_dir")
_NOT_SETTINGS = (*_PLACE, "take_over", "rebuild", "resume", "standby")


def _serve_options(given: dict[str, Any]) -> ServeOptions:
    settings = {
        name: value
        for name, value in given.items()
        if name not in _NOT_SETTINGS and value is not None
    }
    place = {name: given[name] for name in _PLACE}
    return ServeOptions(
        **place,
        take_over=given.get("take_over", False),
        rebuild=given.get("rebuild", False),
        resume=given["resume"],
        standby=given.get("standby", False),
        settings=settings,
    )


def _restart_limits(given: dict[str, Any]) -> RestartLimits:
    """Takes them out of `given`, whose other options are settings."""
    return RestartLimits(given.pop("max_restarts"), given.pop("restart_window"))


def _log_options(given: dict[str, Any]) -> LogOptions:
    """Takes them out of `given`, whose other options are settings.

    Raises:
        click.UsageError: the console is to be quiet and verbose.
    """
    quiet, verbose = given.pop("quiet"), given.pop("verbose")
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")
    shown = logging.ERROR if quiet else (NOTICE, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    return LogOptions(given.pop("log_format"), given.pop("log_dir"), shown)


def environment_lines() -> str:
    """Every variable with its meaning."""
    return "\n".join(
        f"{name}\n{textwrap.indent(textwrap.fill(meaning, 90), '    ')}"
        for name, meaning in VARIABLES.items()
    )


TOPICS: dict[str, Callable[[], str]] = {
    "exit-codes": exit_code_lines,
    "environment": environment_lines,
}


@click.command("help", short_help="Explain a command or a topic, such as porting.")
@click.argument("topic", required=False, metavar="[COMMAND | TOPIC]")
@click.pass_context
def help_command(ctx: click.Context, topic: str | None) -> None:
    """Explain a command or a topic: exit-codes, environment, or a document.

    The documents are quickstart, porting, running, watching, python, torch, recovery, reference and
    chaos.
    """
    assert ctx.parent is not None
    group = ctx.parent.command
    assert isinstance(group, click.Group)
    if topic is None:
        click.echo(group.get_help(ctx.parent))
    elif topic in TOPICS:
        click.echo(TOPICS[topic]())
    elif topic in DOCUMENTS:
        click.echo_via_pager(document(topic))
    elif topic in group.commands:
        command = group.commands[topic]
        click.echo(command.get_help(click.Context(command, info_name=topic, parent=ctx.parent)))
    else:
        known = ", ".join([*TOPICS, *DOCUMENTS, *group.commands])
        raise click.UsageError(f"there is no help on {topic!r}; there is on {known}")


for command in (status, explain, doctor, kill, stop, list_jobs, checkpoint, help_command):
    main.add_command(command)
