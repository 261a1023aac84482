"""A job under ``ftcomm-tracker run``: one launcher has the tracker and all workers."""

import signal
import sys
from dataclasses import dataclass, field

import trio

from ftcomm_chaos.faults.fault import NotDeliveredError
from ftcomm_chaos.runner.job import LiveJob
from ftcomm_tracker.launcher.processes.child_process import Child

TRACKER_COMMAND = (sys.executable, "-m", "ftcomm_tracker")


@dataclass(slots=True)
class LaunchedJob(LiveJob):
    """A job whose launcher is our child."""

    command: list[str] = field(default_factory=list)
    _launcher: Child | None = None
    _again: trio.Event | None = None  # set when the command is to be given again
    _finished: bool = False

    async def run(self) -> int:
        """Run it to its end, again where everything was lost; return the launcher's status."""
        spec = self.spec
        options = [*spec.job_options(), "--state-dir", str(spec.state_dir)]
        options += [*self.run_with.options, *spec.patience]
        command = [*TRACKER_COMMAND, "run", "-v", *options, "--", *self.command]
        while True:
            self._launcher = self.start("launcher", command, self.environment())
            status = await self.attend(self._launcher)
            if self._again is None or status != -signal.SIGKILL:
                return status
            await self._again.wait()
            self._again = None
            if self._finished:
                return 0

    async def kill_everything(self) -> None:
        """Kill the launcher: the kernel kills its workers in that moment."""
        launcher = self._launcher
        if launcher is None or not launcher.running or self._again is not None:
            raise NotDeliveredError("the launcher does not run")
        self._again = trio.Event()
        launcher.signal_group(signal.SIGKILL)
        await self.until(lambda _: not launcher.running)
        if launcher.process.returncode != -signal.SIGKILL:
            self._again = None
            raise NotDeliveredError("the job had ended")

    def note_end(self, *, finished: bool) -> None:
        """Remember whether there is anything to resume."""
        self._finished = finished

    async def resume(self) -> None:
        """Give the same command again."""
        if self._again is not None:
            self._again.set()
