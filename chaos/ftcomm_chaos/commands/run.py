"""``ftcomm-chaos run``: break a user's own job, and compare what it returns."""

import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from ftcomm_chaos.faults.fault_kinds import DISK_LOST
from ftcomm_chaos.faults.processes import adopt_orphans
from ftcomm_chaos.report.attribution import EVERYTHING
from ftcomm_chaos.report.escaping import printable
from ftcomm_chaos.report.verdict import RunExit
from ftcomm_chaos.runner.fault_plan import check_plan, missing_for, parse_plan
from ftcomm_chaos.runner.job import JobSpec
from ftcomm_chaos.runner.session import RunRequest, RunSession, run_session
from ftcomm_chaos.runner.spot_trace import losses, read_trace
from ftcomm_tracker.cli.main import run as run_job
from ftcomm_tracker.cli.options import COMMAND_LAST, WORKER_COMMAND, SecondsInRange, with_options
from ftcomm_tracker.launcher.live_area import LiveArea
from ftcomm_tracker.server.open_job import naming_options

_FILE = click.Path(dir_okay=False, path_type=Path)
PATIENCE = ("max_restarts", "restart_window")  # not `serve`'s, but `supervise`'s
REPORT = "report.json"  # in the folder of --keep
LOG_EVERY_S = 60.0  # of a session whose output is not a terminal
LATE_SIGNALS_S = 0.05
UNLIMITED = "1000000"  # attempts: more than a run comes to
EACH_VERSION = "1v"
STORE_VARIABLE = "FTCOMM_CHECKPOINT"
STOPPED_FOR_S = 1.0
TIME = SecondsInRange(0, min_open=True)
# Options of faults that come again and again: the kind, and the help.
AT_RANDOM = {
    "--kill-every": ("sigkill", "Mean time between kills of random workers"),
    "--stop-every": ("sigstop", "Mean time between stops of random workers"),
    "--tracker-kill-every": ("tracker_kill", "Mean time between kills of the tracker"),
    "--lose-all": (EVERYTHING, "Mean time between losses of everything [default: one in each job]"),
    "--lose-tracker-disk": (DISK_LOST, "Mean time between losses of the tracker and its disk"),
}
Given = Mapping[str, Any]  # the options, by name
EPILOG = """\b
Examples:
  ftcomm-chaos run --kill-every 2s -n 4 --html report.html python train.py
  ftcomm-chaos run --lose-all 20s --kill-every 5s -n 4 python train.py
  ftcomm-chaos run --trace spot.csv --duration 10m -n 8 python train.py

\b
Ends with 0 if the results agree bitwise and everything else held; 1 if something did not;
2 if nothing was tested; 3 if this machine lacks something that the plan needs.
"""


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


def _time(name: str, text: str) -> Callable[[Any], Any]:
    return click.option(name, type=TIME, metavar="TIME", help=text)


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
@with_options(tuple(_time(name, text) for name, (_, text) in AT_RANDOM.items()))
@_time("--stop-for", f"How long one stays stopped [default: {STOPPED_FOR_S:g}s]")
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
@_time("--duration", "How long to break things [default: one job]")
@_time("--limit", "A job that takes longer hangs")
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
    try:
        plan = _plan(given)
        if lacks := _lacks(given, plan):
            for lack in lacks:
                _say(f"cannot be done here: {lack}")
            sys.exit(RunExit.LACKING)
        request = _request(given, plan)
        folder = _folder(given["keep"])
    except ConfigError as error:
        _say(str(error))
        sys.exit(RunExit.NOTHING_TESTED)
    adopt_orphans()
    job = replace(request.job, folder=folder / request.job.folder)
    progress = ProgressLine(is_terminal=sys.stderr.isatty())
    session, caught = trio.run(_until_signal, replace(request, job=job), progress)
    _report(session, folder, kept=given["keep"] is not None, html=given["html"])
    sys.exit(128 + caught if caught else session.verdict.outcome)


_own = {option.name for option in run.params}
# As text: it is passed on to the commands of the job.
_SETTINGS = {
    option.name: click.Option(option.opts, type=str, hidden=True)
    for option in run_job.params
    if option.name in (*SETTINGS, *PATIENCE) and option.name not in _own
}
run.params += _SETTINGS.values()


def _lacks(given: Given, plan: Sequence[dict[str, Any]]) -> list[str]:
    """List what this machine lacks, each in words."""
    found = [] if sys.platform == "linux" else ["needs Linux (pidfd, /proc)"]
    command = given["command"][0]
    if shutil.which(command) is None:
        found.append(f"there is no command {command!r}")
    return found + missing_for(check_plan(plan, given["world_size"]))


def _plan(given: Given) -> list[dict[str, Any]]:
    """The faults of the options, as a plan file says them."""
    at_random: list[dict[str, Any]] = [
        {"at": {"every": every_s}, "kind": kind}
        for name, (kind, _) in AT_RANDOM.items()
        if (every_s := given[name[2:].replace("-", "_")])
    ]
    if sum(map(bool, (given["plan"], at_random, given["trace"]))) != 1:
        raise ConfigError(
            "what to break is not said, or twice",
            remedy="give one of --plan, --trace, or --kill-every and the like",
        )
    for entry in at_random:
        if entry["kind"] == "sigstop":
            entry["for"] = given["stop_for"] or STOPPED_FOR_S
    return at_random if given["plan"] is None else _plan_of(given["plan"], given["world_size"])


def _plan_of(path: Path, world_size: int) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the plan {path} cannot be read: {error}") from None
    if not parse_plan(text, world_size):
        raise ConfigError(f"the plan {path} names no fault", remedy="write one at least")
    return list(json.loads(text))


def _folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="ftcomm-chaos-"))
    try:
        keep.mkdir(parents=True)
    except OSError as error:
        remedy = "name a folder that is not there yet"
        raise ConfigError(f"--keep {keep}: {error.strerror}", remedy=remedy) from None
    return keep.absolute()


def _request(given: Given, plan: list[dict[str, Any]]) -> RunRequest:
    """Check the request; its folder is made once every check has passed."""
    trace = [] if given["trace"] is None else read_trace(given["trace"])
    speed = given["trace_speed"]
    if not trace and speed:
        raise ConfigError("--trace-speed is for a trace", remedy="give --trace too, or neither")
    if trace and speed is None and given["duration"] is not None:
        speed = max(trace[-1].at_s / given["duration"], 0.001)
    workers = given["world_size"] + given["spares"]
    if trace and not losses(trace, workers):
        raise ConfigError(
            f"the trace takes none of {counted(workers, 'worker')}",
            remedy="take more workers, or another trace",
        )
    options, patience = _settings(given)
    kinds = {entry["kind"] for entry in plan}
    loses_once = not (given["plan"] or trace or kinds & {EVERYTHING, DISK_LOST})
    must_have = bool(trace) or loses_once or EVERYTHING in kinds
    every = _store_period(options, must_have=must_have)
    html = given["html"]
    if html is not None and not html.absolute().parent.is_dir():
        raise ConfigError(f"--html {html}: there is no such folder", remedy="make it first")
    command = given["command"]
    job = JobSpec(
        name="without faults",
        folder=Path("reference"),
        world_size=given["world_size"],
        command=_found_from_elsewhere(command) if given["chdir"] else command,
        every=every,
        options=tuple(options),
        patience=("--max-restarts", "10", *patience),
        environment=_environment(),
        in_out=given["chdir"],
        spares=given["spares"],
    )
    return RunRequest(
        job,
        plan=plan,
        loses_all_once=loses_once,
        trace=trace,
        speed=speed or 1.0,
        seed=given["seed"],
        duration_s=given["duration"],
        limit_s=given["limit"],
        compare=None if given["compare"] is None else _inside(given["compare"]),
    )


def _found_from_elsewhere(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command for another folder: what is a file here, as the script, by its whole path."""
    return tuple(str(Path(word).absolute()) if _is_file(word) else word for word in command)


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:  # too long for a name, as a program behind `python -c`
        return False


def _store_period(options: list[str], *, must_have: bool) -> str:
    """Period of the checkpoints that go to each run's store; empty where a run needs none.

    It is taken out of `options`, which get a limit on attempts that no run comes to.
    """
    given = dict(zip(options[::2], options[1::2], strict=True))
    if "--checkpoint" in given:
        raise ConfigError(
            "--checkpoint: each run has a store of its own, in its folder",
            remedy="leave it out; --checkpoint-every 1v says how often a checkpoint goes there",
        )
    if not (must_have or "--checkpoint-every" in given):
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


def _settings(given: Given) -> tuple[list[str], list[str]]:
    """Options for the job, and for who starts its workers again."""
    options: list[str] = []
    patience: list[str] = []
    for name, option in _SETTINGS.items():
        if given[name] is not None:
            (patience if name in PATIENCE else options).extend((option.opts[0], given[name]))
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


def _report(session: RunSession, folder: Path, *, kept: bool, html: Path | None) -> None:
    (folder / REPORT).write_text(json.dumps(document(session)), encoding="utf-8")
    click.echo(report_text(session))
    if html is not None:  # last: what fails here must not cost the report above
        try:
            html.write_text(report_page(session), encoding="utf-8")
        except OSError as error:
            _say(f"cannot write {html}: {error.strerror}")
    if kept or session.verdict.outcome is not RunExit.PASSED:
        _say(f"output, histories and records of all runs: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _say(text: str) -> None:
    click.echo(f"ftcomm-chaos: {printable(text)}", err=True)
