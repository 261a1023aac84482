"""``ftcomm-chaos run``: break a user's own job, and compare what it returns."""

import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
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
from ftcomm_tracker.cli.options import COMMAND_LAST, WORKER_COMMAND
from ftcomm_tracker.launcher.live_area import LiveArea
from ftcomm_tracker.server.open_job import naming_options

_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_FILE = click.Path(dir_okay=False, path_type=Path)
PATIENCE = ("max_restarts", "restart_window")  # not `serve`'s, but `supervise`'s
REPORT = "report.json"  # in the folder of --keep
LOG_EVERY_S = 60.0  # of a session whose output is not a terminal
LATE_SIGNALS_S = 0.05
UNLIMITED = "1000000"  # attempts: more than a run comes to
EACH_VERSION = "1v"
STORE_VARIABLE = "FTCOMM_CHECKPOINT"
EPILOG = """\b
Examples:
  ftcomm-chaos run --kill-every 2s -n 4 --html report.html python train.py
  ftcomm-chaos run --lose-all 20s --kill-every 5s -n 4 python train.py
  ftcomm-chaos run --trace spot.csv --duration 10m -n 8 python train.py

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


class ProgressLine:
    """Writes lines that stay, and one line of progress.

    On a terminal the progress is redrawn in place.  Elsewhere, as in a log of CI, it becomes a line
    of its own once in `LOG_EVERY_S`.
    """

    def __init__(
        self,
        *,
        is_terminal: bool,
        clock: Callable[[], float] = time.monotonic,
        width: Callable[[], int] | None = None,
    ) -> None:
        """Args: `width` is of the terminal, in columns; None asks it."""
        self._area = LiveArea(width) if is_terminal else None
        self._clock = clock
        self._logged_at = clock()

    def say(self, text: str) -> None:
        """Write a line that stays; the progress goes, since it is of what came before."""
        if self._area is not None:
            click.echo(self._area.erase(), err=True, nl=False)
        click.echo(f"ftcomm-chaos: {printable(text)}", err=True)
        self._logged_at = self._clock()

    def show(self, text: str) -> None:
        """Show the progress of a run, in place of what was shown before."""
        if self._area is not None:
            self._area.set_status(f"ftcomm-chaos:   {printable(text)}")
            click.echo(self._area.erase() + self._area.draw(), err=True, nl=False)
        elif self._clock() >= self._logged_at + LOG_EVERY_S:
            self.say(f"  {text}")


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """The options as they were given."""

    command: tuple[str, ...]
    world_size: int
    plan: Path | None
    kill_every: float | None
    stop_every: float | None
    stop_for: float
    tracker_kill_every: float | None
    lose_tracker_disk: float | None
    lose_all: float | None
    spares: int
    trace: Path | None
    trace_speed: float | None
    seed: int
    duration: float | None
    limit: float | None
    compare: str | None
    chdir: bool
    keep: Path | None
    html: Path | None
    settings: dict[str, str]


@click.command(
    epilog=EPILOG,
    short_help="Break your own job, and compare what it returns.",
    context_settings=COMMAND_LAST,
)
@click.option(
    "-n",
    "--workers",
    "world_size",
    type=click.IntRange(1, MAX_WORLD_SIZE),
    required=True,
    metavar="N",
    help="Number of workers",
)
@click.option(
    "--kill-every", type=TIME, metavar="TIME", help="Mean time between kills of random workers"
)
@click.option(
    "--stop-every", type=TIME, metavar="TIME", help="Mean time between stops of random workers"
)
@click.option(
    "--stop-for",
    type=TIME,
    metavar="TIME",
    default=1.0,
    help="How long one stays stopped [default: 1s]",
)
@click.option(
    "--tracker-kill-every", type=TIME, metavar="TIME", help="Mean time between kills of the tracker"
)
@click.option(
    "--lose-all",
    type=TIME,
    metavar="TIME",
    help="Mean time between losses of everything [default: one in each job]",
)
@click.option("--lose-tracker-disk", type=TIME, hidden=True)  # what `serve --rebuild` is for
@click.option(
    "--plan", type=_FILE, metavar="FILE", help="Faults as JSON (ftcomm-tracker help chaos)"
)
@click.option(
    "--trace", type=_FILE, metavar="FILE", help="Machines that come and go: ms,add|remove,node"
)
@click.option(
    "--trace-speed",
    type=click.FloatRange(0.001),
    metavar="FACTOR",
    help="Of the trace [default: by --duration, else 1]",
)
@click.option(
    "--spares",
    type=click.IntRange(0, MAX_SPARES),
    default=0,
    metavar="N",
    help="Spare workers; random faults hit them too",
)
@click.option("--seed", default=0, metavar="N", help="Of all random choices [default: 0]")
@click.option(
    "--duration", type=TIME, metavar="TIME", help="How long to break things [default: one job]"
)
@click.option("--limit", type=TIME, metavar="TIME", help="A job that takes longer hangs")
@click.option("--compare", metavar="FILE", help="Result that the script writes to {out}")
@click.option("--chdir", is_flag=True, help="Run the script in {out}, a folder of its own")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Logs and records [default: kept if not all is well]",
)
@click.option("--html", type=_FILE, metavar="FILE", help="Write a page with a timeline too")
@WORKER_COMMAND
def run(**given: Any) -> None:
    """Run COMMAND as N workers without faults, then with faults, and compare.

    {out} in COMMAND names a folder that each run has for itself. Without --compare the last
    results of the runs are compared. Settings of the job are given as to `ftcomm-tracker run`,
    for example --detect-within 1.
    """
    settings = {name: given.pop(name) for name in _SETTINGS}
    asked = GivenOptions(
        **given, settings={name: text for name, text in settings.items() if text is not None}
    )
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
    session, caught = trio.run(_until_signal, request, progress)
    _report(asked, session, folder)
    sys.exit(128 + caught if caught else session.verdict.outcome)


_own = {option.name for option in run.params}
# As text: it is passed on to the commands of the job.
_SETTINGS = {
    option.name: click.Option(option.opts, type=str, hidden=True)
    for option in run_job.params
    if option.name in (*SETTINGS, *PATIENCE) and option.name not in _own
}
run.params += _SETTINGS.values()


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
    at_random = any((*kills, *losses))
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
        kill_every_s=asked.kill_every,
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
    if asked.trace is None and asked.trace_speed:
        raise ConfigError("--trace-speed is for a trace", remedy="give --trace too, or neither")
    speed = asked.trace_speed or 1.0
    if trace and asked.trace_speed is None and asked.duration is not None:
        speed = max(trace[-1].at_s / asked.duration, 0.001)
    workers = asked.world_size + asked.spares
    if trace and not losses(trace, workers):
        raise ConfigError(
            f"the trace takes none of {counted(workers, 'worker')}",
            remedy="take more workers, or another trace",
        )
    compare = None if asked.compare is None else _inside(asked.compare)
    options, patience = _settings(asked.settings)
    plan = _plan(asked)
    is_random = asked.plan is None and asked.trace is None
    loses_once = is_random and not (asked.lose_all or asked.lose_tracker_disk)
    every = _store_period(options, plan, must_have=bool(trace) or loses_once)
    if asked.html is not None and not asked.html.absolute().parent.is_dir():
        raise ConfigError(f"--html {asked.html}: there is no such folder", remedy="make it first")
    job = JobSpec(
        name="without faults",
        folder=Path("reference"),
        world_size=asked.world_size,
        command=_found_from_elsewhere(asked.command) if asked.chdir else asked.command,
        options=tuple(options),
        patience=("--max-restarts", "10", *patience),
        environment=_environment(),
        in_out=asked.chdir,
        every=every,
        spares=asked.spares,
    )
    return RunRequest(
        job,
        plan=plan,
        loses_all_once=loses_once,
        trace=trace,
        speed=speed,
        seed=asked.seed,
        duration_s=asked.duration,
        limit_s=asked.limit,
        compare=compare,
    )


def _found_from_elsewhere(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command for another folder: what is a file here, as the script, by its whole path."""
    return tuple(str(Path(word).absolute()) if _is_file(word) else word for word in command)


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:  # too long for a name, as a program behind `python -c`
        return False


def _store_period(options: list[str], plan: list[dict[str, Any]], *, must_have: bool) -> str:
    """Period of the checkpoints that go to each run's store; empty where a run needs none.

    It is taken out of `options`, which get a limit on attempts that no run comes to.
    """
    given = dict(zip(options[::2], options[1::2], strict=True))
    if "--checkpoint" in given:
        raise ConfigError(
            "--checkpoint: each run has a store of its own, in its folder",
            remedy="leave it out; --checkpoint-every 1v says how often a checkpoint goes there",
        )
    loses_all = any(entry["kind"] == EVERYTHING for entry in plan)
    if not (loses_all or must_have or "--checkpoint-every" in given):
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


def _settings(given: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Options for the job, and for who starts its workers again."""
    options: list[str] = []
    patience: list[str] = []
    for name, text in given.items():
        (patience if name in PATIENCE else options).extend((_SETTINGS[name].opts[0], text))
    try:
        parsed = run_job.make_context("ftcomm-tracker run", [*options, *patience, "--", "true"])
    except click.UsageError as error:
        remedy = "see ftcomm-tracker run --help-all"
        raise ConfigError(error.format_message(), remedy=remedy) from None
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


async def _until_signal(request: RunRequest, progress: ProgressLine) -> tuple[RunSession, int]:
    """Run the session; return it, and the first signal, which has cut it short."""
    caught = 0
    interrupted = trio.Event()
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            nonlocal caught
            ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            with trio.open_signal_receiver(*ends) as signals:
                async for number in signals:
                    if not caught:
                        progress.say(f"{signal.Signals(number).name}: ending the present run")
                    caught = caught or number
                    interrupted.set()

        nursery.start_soon(watch)
        session = await run_session(request, progress.say, progress.show, interrupted)
        # Whoever was impatient has sent more of them: `watch` takes these too, and they do nothing.
        await trio.sleep(LATE_SIGNALS_S)
        nursery.cancel_scope.cancel()
    return session, caught


def _report(asked: GivenOptions, session: RunSession, folder: Path) -> None:
    (folder / REPORT).write_text(json.dumps(document(session)), encoding="utf-8")
    click.echo(report_text(session))
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
