"""The console of a command that runs for long: `run`, `serve` and `supervise`."""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from ftcomm.config.environment import process_environment
from ftcomm.errors import FtcommError
from ftcomm_tracker.core.events import JobEnded
from ftcomm_tracker.core.reporting.job_end import failure_lines
from ftcomm_tracker.launcher.console import Console, write_all
from ftcomm_tracker.launcher.live_area import LiveArea
from ftcomm_tracker.launcher.log_files import LogFiles
from ftcomm_tracker.launcher.log_lines import NOTICE, LineFormat
from ftcomm_tracker.launcher.signals import leaves_of
from ftcomm_tracker.standard_streams import UNWRITTEN

LAST_WORDS_S = 2.0  # at the end, for a reader that takes nothing of what is left


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Format of a command's lines, and the folder for their copies.

    Attributes:
        log_format: ``text`` or ``json``.
        log_dir: the folder of ``--log-dir``.
        shown: the least severity of the command's own messages that the console prints, as in
            `logging`; from INFO down they have their time and level.
    """

    log_format: str = "text"
    log_dir: Path | None = None
    shown: int = NOTICE

    @property
    def as_json(self) -> bool:
        """True if every line is a JSON object."""
        return self.log_format == "json"

    @property
    def file_form(self) -> LineFormat:
        """Of every line in a file."""
        return LineFormat(as_json=self.as_json, clock=time.time)

    @property
    def form(self) -> LineFormat:
        """Of every line on the console."""
        return replace(
            self.file_form,
            dated=self.shown <= logging.INFO,
            coloured=_shows_colours(process_environment()),
        )

    def say_error(self, text: str) -> None:
        """Print the error that ends the command, whose console is not there any more, or yet."""
        sys.stderr.write(self.form.own("ERROR", text).decode())


def _shows_colours(environ: Mapping[str, str]) -> bool:
    """True on a terminal, unless its user wants none (https://no-color.org)."""
    return sys.stderr.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class _ConsoleHandler(logging.Handler):
    """Prints the tracker's log between the workers' lines, whatever thread logs.

    The console is of the loop's thread alone, in which the handler is made.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._loop = trio.lowlevel.current_trio_token()
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if threading.get_ident() == self._thread:
            self._console.say(text, record.levelname)
            return
        with contextlib.suppress(trio.RunFinishedError):  # of a call that nobody waits for
            self._loop.run_sync_soon(self._console.say, text, record.levelname)


async def with_console(
    options: LogOptions, name: str, work: Callable[[Console], Awaitable[int]]
) -> int:
    """Do `work` with a console, on which this process's log appears too; returns its status.

    Args:
        options: of the command.
        name: of the file in ``--log-dir`` with the command's own lines.
        work: what the command does.

    Raises:
        ConfigError: the folder for files cannot be made.
    """
    form = options.form
    files = None
    if options.log_dir is not None:
        files = LogFiles(options.log_dir, name, options.file_form)
    has_area = sys.stderr.isatty() and not form.as_json and options.shown < logging.ERROR
    area = LiveArea() if has_area else None
    console = Console(form, write=write_all, area=area, files=files, shown=options.shown)
    logger = logging.getLogger("ftcomm_tracker")
    logger.setLevel(min(logging.INFO, options.shown))
    logger.handlers = [_ConsoleHandler(console)]
    status = FtcommError.exit_code
    async with trio.open_nursery() as nursery:
        nursery.start_soon(console.run)
        try:
            status = await work(console)
        except BaseException as error:
            if files is not None:  # `run_and_exit` prints it
                _keep_errors(error, files)
            raise
        finally:
            with trio.CancelScope(shield=True):
                await console.finish(LAST_WORDS_S)
            nursery.cancel_scope.cancel()
    return status or (UNWRITTEN if console.unwritten else 0)


def tell_failure(
    console: Console,
    outcome: JobEnded,
    status: int,
    resumes: str = "",
    before: Sequence[str] = (),
) -> None:
    """Print the block by which a failed job ends; arguments as of `failure_lines`."""
    what, *rest = failure_lines(outcome.error, outcome.cause, status, resumes, before)
    console.say(what, "ERROR")
    for line in rest:
        console.announce(line)


def _keep_errors(error: BaseException, files: LogFiles) -> None:
    for leaf in leaves_of(error):
        if isinstance(leaf, FtcommError):
            files.own_line("ERROR", str(leaf))
