"""``ftcomm-chaos run``: break a user's own job, and compare what it returns."""

import json
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import click
import trio

from ftcomm.config.environment import job_settings, process_environment
from ftcomm.config.job_settings import MAX_SPARES, SETTINGS
from ftcomm.config.plurals import counted
from ftcomm.errors import ConfigError
from ftcomm.protocol.field_types import MAX_WORLD_SIZE
from ftcomm_chaos.commands.progress_line import ProgressLine
from ftcomm_chaos.commands.report_html import report_page
from ftcomm_chaos.commands.report_text import document, report_text
from ftcomm_chaos.faults.processes import adopt_orphans
from ftcomm_chaos.report.attribution import EVERYTHING
from ftcomm_chaos.report.escaping import printable
from ftcomm_chaos.report.verdict import RunExit
from ftcomm_chaos.runner.fault_plan import check_plan, missing_for
from ftcomm_chaos.runner.job import JobSpec
from ftcomm_chaos.runner.random_plan import random_plan
from ftcomm_chaos.runner.session import RunRequest, RunSession, run_session
from ftcomm_chaos.runner.spot_trace import losses, read_trace
from ftcomm_tracker.cli.main import run as run_job
from ftcomm_tracker.cli.options import COMMAND_LAST, WORKER_COMMAND, CommandStarter
from ftcomm_tracker.server.open_job import naming_options

_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_FILE = click.Path(dir_okay=False, path_type=Path)
USUAL_KILL_EVERY_S = 2.0
OWN_OPTIONS = ("state-dir", "workers")
FLAGS = {  # options of `run` without a value: with one, it would be taken for the command
    name
    for option in run_job.params
    if isinstance(option, click.Option) and option.is_flag
    for name in option.opts
} | {"--help"}
REFUSED = {  # options of `run` that are not for -o: why, and what to do
    "spares": ("this command has --spares", "give that"),
    "log-format": ("this command reads the lines of the job, and reads text", "leave it out"),
    "resume": ("each run begins a job, and goes on after a loss of all", "leave it out"),
}
PATIENCE = ("max-restarts", "restart-window")  # not `serve`'s, but `supervise`'s
LATE_SIGNALS_S = 0.05
UNLIMITED = "1000000"  # incarnations, attempts: more than a run comes to
EACH_VERSION = "1v"
STORE_VARIABLE = "FTCOMM_CHECKPOINT"
EPILOG = """\b
Examples:
  ftcomm-chaos run --kill-every 2s -n 4 python train.py
  ftcomm-chaos run --random --seed 7 --duration 60s -n 4 --html report.html python train.py
  ftcomm-chaos run --plan plan.json -n 4 --compare model.npy python train.py {out}/model.npy
  ftcomm-chaos run --lose-all 20s --kill-every 5s -n 4 python train.py
  ftcomm-chaos run --spares 1 --kill-every 3s -n 4 python train.py
  ftcomm-chaos run --trace spot.csv --duration 10m --min-lost 20 -n 8 python train.py

\b
Ends with 0 if the results agree bitwise and everything else held; 1 if something did not;
2 if nothing was tested; 3 if this machine lacks something that the plan needs.
"""


class Duration(click.ParamType[float]):
    """A time: 2s, 500ms, 10m, 1h; a number alone is seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse a number with an optional unit."""
        if isinstance(value, int | float):
            return float(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip())
        if match is None or match[2] not in _UNITS or float(match[1]) == 0:
            self.fail(f"{value!r} is not a time such as 2s, 500ms or 10m", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


TIME = Duration()


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """The options as they were given."""

    command: tuple[str, ...]
    world_size: int
    plan: Path | None
    random: bool
    kill_every: float | None
    stop_every: float | None
    stop_for: float
    tracker_kill_every: float | None
    lose_tracker_disk: float | None
    lose_all: float | None
    spares: int
    trace: Path | None
    trace_speed: float | None
    min_lost: int | None
    seed: int
    duration: float | None
    limit: float | None
    compare: str | None
    chdir: bool
    settings: tuple[str, ...]
    keep: Path | None
    html: Path | None
    as_json: bool


@click.command(
    epilog=EPILOG,
    short_help="Break your own job, and compare what it returns.",
    context_settings=COMMAND_LAST,
    cls=CommandStarter,
)
@click.option(
    "-n", "--workers", "world_size", type=click.IntRange(1, MAX_WORLD_SIZE), required=True
)
@click.option(
    "--plan",
    type=_FILE,
    help="Faults as JSON (docs/chaos.md); positions count incarnations from 0, reports from 1.",
)
@click.option("--random", is_flag=True, help="Random kills [default: every 2 s].")
@click.option("--kill-every", type=TIME, help="Mean time between SIGKILLs of a random worker.")
@click.option("--stop-every", type=TIME, help="Mean time between SIGSTOPs of a random worker.")
@click.option(
    "--stop-for",
    type=TIME,
    default=1.0,
    show_default=True,
    help="How long a worker stays stopped, until SIGCONT.",
)
@click.option("--tracker-kill-every", type=TIME, help="SIGKILL and restart of the tracker.")
@click.option(
    "--lose-tracker-disk",
    type=TIME,
    metavar="TIME",
    help="SIGKILL of the tracker, about so often, and removal of its directory; then serve"
    " --rebuild takes its place. Not with --lose-all.",
)
@click.option(
    "--lose-all",
    type=TIME,
    metavar="TIME",
    help="SIGKILL of all workers and the tracker at once, about so often; then the same command"
    " goes on from the newest checkpoint of the run's own store.",
)
@click.option(
    "--spares",
    type=click.IntRange(0, MAX_SPARES),
    default=0,
    show_default=True,
    help="Number of spare workers; random faults hit them too.",
)
@click.option("--trace", type=_FILE, help="Replay machines that come and go: ms,add|remove,node.")
@click.option("--trace-speed", type=click.FloatRange(0.001), help="[default: from --duration].")
@click.option(
    "--min-lost",
    type=click.IntRange(1),
    help="Fail the run if fewer workers were lost: it tests nothing [default: 1].",
)
@click.option("--seed", default=0, show_default=True, help="Seed of all random choices.")
@click.option("--duration", type=TIME, help="How long to break things [default: one job].")
@click.option("--limit", type=TIME, help="Time limit for one job; longer counts as a hang.")
@click.option("--compare", help="File that the script writes to {out} [default: last result].")
@click.option(
    "--chdir",
    is_flag=True,
    help="Run the script in {out}, a folder of its own.",
)
@click.option(
    "-o",
    "--option",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option for `ftcomm-tracker run`, e.g. -o detect-within=1.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="New folder for all that is written [default: kept unless all is well].",
)
@click.option("--html", type=_FILE, help="Write a page with a timeline.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@WORKER_COMMAND
def run(**given: Any) -> None:
    """Run COMMAND as N workers without faults, then with faults, and compare.

    Options of this command stand before COMMAND; whatever follows COMMAND is passed to it.
    {out} in COMMAND, and FTCOMM_CHAOS_OUT, name a folder that each run has for itself.
    """
    asked = GivenOptions(**given)
    try:
        if lacks := _lacks(asked):
            for lack in lacks:
                _say(f"cannot be done here: {lack}")
            sys.exit(RunExit.LACKING)
        request = _request(asked)
        folder = _folder(asked)
    except ConfigError as error:
        _say(str(error))
        sys.exit(RunExit.NOTHING_TESTED)
    adopt_orphans()
    job = replace(request.job, folder=folder / request.job.folder)
    request = replace(request, job=job)
    progress = ProgressLine(is_terminal=sys.stderr.isatty())
    session = trio.run(_until_signal, request, progress)
    if isinstance(session, int):
        progress.say(
            f"{signal.Signals(session).name}: every process has been ended; {folder} is left"
        )
        sys.exit(128 + session)
    _report(asked, session, folder)
    sys.exit(session.verdict.outcome)


def _lacks(asked: GivenOptions) -> list[str]:
    """List what this machine lacks, each in words."""
    found = [] if sys.platform == "linux" else ["needs Linux (pidfd, /proc)"]
    if shutil.which(asked.command[0]) is None:
        found.append(f"there is no command {asked.command[0]!r}")
    return found + missing_for(check_plan(_plan(asked), asked.world_size))


def _plan(asked: GivenOptions) -> list[dict[str, Any]]:
    """The faults of the options, as a plan file says them."""
    kills = (asked.kill_every, asked.stop_every, asked.tracker_kill_every)
    losses = (asked.lose_tracker_disk, asked.lose_all)
    at_random = asked.random or any((*kills, *losses))
    if sum([asked.plan is not None, at_random, asked.trace is not None]) != 1:
        raise ConfigError(
            "what to break is not said, or twice",
            remedy="give one of --plan, --trace, or --kill-every and the like",
        )
    if asked.plan is not None:
        try:
            plan = json.loads(asked.plan.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"the plan {asked.plan} cannot be read: {error}") from None
        if not check_plan(plan, asked.world_size):
            raise ConfigError(f"the plan {asked.plan} names no fault", remedy="write one at least")
        return list(plan)
    if not at_random:
        return []
    return random_plan(
        kill_every_s=asked.kill_every or (USUAL_KILL_EVERY_S if asked.random else None),
        stop_every_s=asked.stop_every,
        stop_for_s=asked.stop_for,
        tracker_every_s=asked.tracker_kill_every,
        lose_all_every_s=asked.lose_all,
        lose_disk_every_s=asked.lose_tracker_disk,
    )


def _folder(asked: GivenOptions) -> Path:
    if asked.keep is None:
        return Path(tempfile.mkdtemp(prefix="ftcomm-chaos-"))
    try:
        asked.keep.mkdir(parents=True)
    except OSError as error:
        remedy = "name a folder that is not there yet"
        raise ConfigError(f"--keep {asked.keep}: {error.strerror}", remedy=remedy) from None
    return asked.keep.absolute()


def _request(asked: GivenOptions) -> RunRequest:
    """Check the request; make its folder once every check has passed."""
    trace = [] if asked.trace is None else read_trace(asked.trace)
    if asked.trace is None and (asked.min_lost or asked.trace_speed):
        raise ConfigError(
            "--min-lost and --trace-speed are for a trace", remedy="give --trace too, or neither"
        )
    least = asked.min_lost or 1
    speed = asked.trace_speed or 1.0
    if trace and asked.trace_speed is None and asked.duration is not None:
        speed = max(trace[-1].at_s / asked.duration, 0.001)
    if trace and (lost := losses(trace, asked.world_size + asked.spares)) < least:
        raise ConfigError(
            f"the trace takes {counted(lost, 'worker')} of {asked.world_size + asked.spares},"
            f" and --min-lost is {least}",
            remedy="take more workers, or another trace",
        )
    compare = None if asked.compare is None else _inside(asked.compare)
    options, patience = _settings(asked.settings)
    plan = _plan(asked)
    every = _store_period(options, plan, has_trace=bool(trace))
    if asked.html is not None and not asked.html.absolute().parent.is_dir():
        raise ConfigError(f"--html {asked.html}: there is no such folder", remedy="make it first")
    job = JobSpec(
        name="without faults",
        folder=Path("reference"),
        world_size=asked.world_size,
        command=_found_from_elsewhere(asked.command) if asked.chdir else asked.command,
        # We kill as often as the plan says: the patience of a job is not what is tested.
        options=("--max-incarnations", UNLIMITED, *options),
        patience=("--max-restarts", "10", *patience),
        environment=_environment(),
        in_out=asked.chdir,
        every=every,
        spares=asked.spares,
    )
    return RunRequest(
        job,
        plan=plan,
        trace=trace,
        speed=speed,
        seed=asked.seed,
        duration_s=asked.duration,
        limit_s=asked.limit,
        compare=compare,
        least=least,
    )


def _found_from_elsewhere(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command for another folder: what is a file here, as the script, by its whole path."""
    return tuple(str(Path(word).absolute()) if _is_file(word) else word for word in command)


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:  # too long for a name, as a program behind `python -c`
        return False


def _store_period(options: list[str], plan: list[dict[str, Any]], *, has_trace: bool) -> str:
    """Period of the checkpoints that go to each run's store; empty where a run needs none.

    It is taken out of `options`, which get a limit on attempts that no run comes to.
    """
    given = dict(zip(options[::2], options[1::2], strict=True))
    if "--checkpoint" in given:
        raise ConfigError(
            "-o checkpoint: each run has a store of its own, in its folder",
            remedy="leave it out; -o checkpoint-every=1v says how often a checkpoint goes there",
        )
    loses_all = any(entry["kind"] == EVERYTHING for entry in plan)
    if not (loses_all or has_trace or "--checkpoint-every" in given):
        return ""
    options[:0] = ["--max-attempts", UNLIMITED]
    return given.get("--checkpoint-every", EACH_VERSION)


def _inside(compare: str) -> str:
    """A file in the output folder; ``{out}/`` before it may be written or left out."""
    path = PurePosixPath(compare.removeprefix("{out}/"))
    if path.is_absolute() or ".." in path.parts:
        raise ConfigError(
            f"--compare {compare} is not in {{out}}",
            remedy="let the script write it to {out}, or use --chdir",
        )
    return str(path)


def _settings(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options for the job, and for who starts its workers again."""
    options: list[str] = []
    patience: list[str] = []
    for text in given:
        name, equals, value = text.partition("=")
        if not (re.fullmatch(r"[a-z-]+", name) and equals) or name in OWN_OPTIONS:
            raise ConfigError(f"-o {text} is not NAME=VALUE of an option of ftcomm-tracker run")
        if name in REFUSED:
            reason, remedy = REFUSED[name]
            raise ConfigError(f"-o {text}: {reason}", remedy=remedy)
        if f"--{name}" in FLAGS:
            reason = f"--{name} takes no value, and is not for runs of this command"
            raise ConfigError(f"-o {text}: {reason}", remedy="leave it out")
        (patience if name in PATIENCE else options).extend((f"--{name}", value))
    try:
        parsed = run_job.make_context("ftcomm-tracker run", [*options, *patience, "--", "true"])
    except click.UsageError as error:
        remedy = "see ftcomm-tracker run --help"
        raise ConfigError(f"-o: {error.format_message()}", remedy=remedy) from None
    settings = {name: parsed.params[name] for name in SETTINGS if name in parsed.params}
    with naming_options(settings):
        job_settings(settings, environ=_environment())
    return options, patience


def _environment() -> dict[str, str]:
    """This process's, without what would put faults into the run without faults.

    Without the store of a real job too: each run would go on from it, and the first would finish
    it.  And without spares, which have their own option here.
    """
    environment = process_environment()
    for name in (STORE_VARIABLE, "FTCOMM_SPARES"):
        environment.pop(name, None)
    return {name: text for name, text in environment.items() if "FAULTS" not in name}


async def _until_signal(request: RunRequest, progress: ProgressLine) -> RunSession | int:
    """Run the session; a signal ends every process and is returned."""
    session: RunSession | int = 0
    running = trio.CancelScope()
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            nonlocal session
            ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            with trio.open_signal_receiver(*ends) as signals:
                async for number in signals:
                    session = session or number
                    running.cancel()

        nursery.start_soon(watch)
        with running:
            session = await run_session(request, progress.say, progress.show)
        # Whoever was impatient has sent more of them: `watch` takes these too, and they do nothing.
        await trio.sleep(LATE_SIGNALS_S)
        nursery.cancel_scope.cancel()
    return session


def _report(asked: GivenOptions, session: RunSession, folder: Path) -> None:
    click.echo(json.dumps(document(session)) if asked.as_json else report_text(session))
    if asked.html is not None:  # last: what fails here must not cost the report above
        try:
            asked.html.write_text(report_page(session), encoding="utf-8")
        except OSError as error:
            _say(f"cannot write {asked.html}: {error.strerror}")
    if asked.keep is not None or session.verdict.outcome is not RunExit.PASSED:
        _say(f"output, histories and records of all runs: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _say(text: str) -> None:
    click.echo(f"ftcomm-chaos: {printable(text)}", err=True)
