"""Runs plans one after another, each beside its reference."""

import json
from pathlib import Path

from tests.conformance.harness import PROGRAMS, Job
from tests.conformance.plans import BrokenError, Plan, worker_environment
from tests.helpers.forker import Forker


class Bench:
    """Runs plans, each beside its reference, which is computed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.forker = Forker([PROGRAMS], worker_environment())
        self._references: dict[str, dict[str, str]] = {}
        self._number = 0

    def job(self, plan: Plan) -> Job:
        """A job to drive by hand."""
        return Job(self.forker, self.new_folder(), plan)

    def new_folder(self) -> Path:
        """A place for one job's artefacts."""
        self._number += 1
        folder = self.folder / f"{self._number:04}"
        folder.mkdir(parents=True)
        return folder

    def run(self, plan: Plan) -> Job:
        """Run a plan from start to end and compare it with its reference."""
        reference = self.reference(plan)
        with self.job(plan) as job:
            job.run()
            job.check_against(reference)
        return job

    def reference(self, plan: Plan) -> dict[str, str]:
        """Digest of every result, and of the final state, of the plan's program in peace."""
        peaceful = plan.without_faults()
        key = json.dumps([peaceful.n, dict(peaceful.program), dict(peaceful.settings)])
        if key not in self._references:
            with self.job(peaceful) as job:
                job.run()
            found = job.results()
            found["end"] = {event["sha"] for event in job.of("end")}
            torn = {place: digests for place, digests in found.items() if len(digests) != 1}
            if torn:
                raise BrokenError(f"ranks differ without any fault: {torn}")
            self._references[key] = {place: digests.pop() for place, digests in found.items()}
        return self._references[key]

    def close(self) -> None:
        """End the forker."""
        self.forker.close()
