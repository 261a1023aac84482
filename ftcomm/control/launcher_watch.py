"""The end of a worker with its launcher, whatever stands between the two.

The kernel ends a launcher's own child with it; a start script's child would train on, beside the
workers of the next launcher.
"""

import contextlib
import os
import signal
import sys

import trio

from ftcomm.config.environment import LAUNCHER
from ftcomm.config.process_identity import ProcessName
from ftcomm.errors import ConfigError


def refuse_without_launcher(launcher: ProcessName | None) -> None:
    """Refuse to join for a launcher that has ended.

    Raises:
        ConfigError: it has; nobody would start this worker again, and another may run in its place.
    """
    if launcher is not None and not launcher.is_running():
        raise ConfigError(
            f"the launcher of this worker, process {launcher.pid}, has ended",
            remedy=f"start the job's launcher again; a worker without one has no {LAUNCHER}",
        )


async def end_with_launcher(launcher: ProcessName | None) -> None:
    """Kill this process when its launcher ends; return where there is none, or nobody can tell."""
    if launcher is not None and sys.platform == "linux":
        with contextlib.suppress(OSError):  # without the system call, in a sandbox
            await _wait_for_end(launcher)
            os.kill(os.getpid(), signal.SIGKILL)


if sys.platform == "linux":

    async def _wait_for_end(launcher: ProcessName) -> None:
        try:
            pidfd = os.pidfd_open(launcher.pid)
        except ProcessLookupError:
            return
        try:
            # The number may have been another's already; from here on the descriptor alone tells.
            if launcher.is_running():
                await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
