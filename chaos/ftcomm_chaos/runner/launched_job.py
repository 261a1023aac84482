"""A job under ``ftcomm-tracker run``: one launcher has the tracker and all workers."""

import sys
from dataclasses import dataclass, field

from ftcomm_chaos.runner.job import LiveJob

TRACKER_COMMAND = (sys.executable, "-m", "ftcomm_tracker")


@dataclass(slots=True)
class LaunchedJob(LiveJob):
    """A job whose launcher is our child."""

    command: list[str] = field(default_factory=list)

    async def run(self) -> int:
        """Run it to its end and return the launcher's status."""
        spec = self.spec
        options = ["-n", str(spec.world_size), "--state-dir", str(spec.state_dir)]
        options += [*spec.options, *self.run_with.options, *spec.patience]
        command = [*TRACKER_COMMAND, "run", *options, "--", *self.command]
        launcher = self.start("launcher", command, self.environment())
        return await self.attend(launcher)
