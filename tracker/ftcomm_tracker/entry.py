"""Entry points of the commands: standard streams and Ctrl-C are set up before any import.

The imports take a fifth of a second and more.  Ctrl-C in that time would end the command with a
traceback of whatever module was being read.
"""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from ftcomm_tracker.standard_streams import (
    INTERRUPTED,
    UNWRITTEN,
    StandardOutputError,
    hold_standard_streams,
)


def main() -> None:
    """Run ``ftcomm-tracker``."""
    run_program("ftcomm-tracker", _load)


def ftcomm() -> None:
    """Run ``ftcomm``, which has the same commands."""
    run_program("ftcomm", _load_ftcomm)


def run_program(name: str, load: Callable[[], Callable[..., object]]) -> None:
    """Run the command line that `load` imports, as `name`; ends the process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by nohup
        signal.signal(signal.SIGINT, _end_at_once)
    hold_standard_streams()
    command = load()
    try:
        command(prog_name=name)
    except StandardOutputError as error:
        sys.stderr.write(f"{name}: {error}\n")
        raise SystemExit(UNWRITTEN) from None


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Nothing has been started yet that would have to be ended first."""
    del number, frame
    os._exit(INTERRUPTED)


def _load() -> Callable[..., object]:
    from ftcomm_tracker.cli.main import main as command  # noqa: PLC0415 - see the module's docstring

    return command


def _load_ftcomm() -> Callable[..., object]:
    from ftcomm_tracker.cli.ftcomm_group import main as command  # noqa: PLC0415 - as `_load`

    return command
