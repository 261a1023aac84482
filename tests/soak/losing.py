"""One session of a job that loses more than workers: ``losing FOLDER --way disk --seed 7``.

A session is ``ftcomm-chaos run`` on `tests.soak.training`: a run without faults, one with them, and
the verdict over both.  In the job are a spare and, where all can be lost, a store.  Here is counted
what was lost; memory, descriptors and files are measured; and no process or file may be left
behind.  What is wrong is in the report, with the command that repeats the session, whose folder is
kept.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftcomm_chaos.commands.run import REPORT
from ftcomm_chaos.faults.processes import adopt_orphans
from ftcomm_chaos.report.verdict import RunExit
from tests.conformance.plans import ROOT, worker_environment
from tests.helpers.forker import die_with_parent
from tests.soak.figures import LOSSES
from tests.soak.reporting import report
from tests.soak.watching import Watch, left_behind
from tests.soak.ways import TRACE, WAYS, LosingWay, way_of_trace

SAMPLE_EVERY_S = 0.5
OTHER_RUNS_S = 120.0  # beside the run with faults: those without, and the checks of histories
TRAINING = ("-m", "tests.soak.training")
KILL_KINDS = ("sigkill", "node_lost")
FILES = "job files"  # name of what is counted in these folders
TRACKER_FOLDERS = ("store/data", "store/tmp", "state")  # of a run: what may not pile up


@dataclass(frozen=True, slots=True)
class LosingSession:
    """One session.

    Attributes:
        name: of its way.
        way: faults and job.
        seed: of what is random in the faults.
        folder: everything of the session, made anew.
        script: what the job runs, behind the interpreter.
        arguments: of the command that repeats the session, beside the folder and the seed.
    """

    name: str
    way: LosingWay
    seed: int
    folder: Path
    script: tuple[str, ...] = TRAINING
    arguments: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """The command of the session."""
        chaos = [sys.executable, "-m", "ftcomm_chaos", "run", *self.way.options()]
        chaos += ["--seed", str(self.seed), "--keep", str(self.folder / "kept"), "--"]
        work = [str(self.way.versions), str(self.way.pause_s)]
        return [*chaos, sys.executable, *self.script, *work]

    def again(self) -> str:
        """The command that repeats the session."""
        folder = self.folder.parent / f"{self.folder.name}-again"
        words = ["python", "-m", "tests.soak.losing", str(folder), "--way", self.name]
        return shlex.join([*words, "--seed", str(self.seed), *self.arguments])

    def environment(self) -> dict[str, str]:
        """For its processes: what they leave in the usual places is seen."""
        places = {"TMPDIR": self.folder / "tmp", "XDG_STATE_HOME": self.folder / "home"}
        return {**worker_environment(), **{name: str(path) for name, path in places.items()}}

    def run(self) -> dict[str, Any]:
        """Run it; returns the report, and leaves the folder if something was wrong."""
        for part in ("tmp", "home"):
            (self.folder / part).mkdir(parents=True)
        watch = Watch()
        status = self._run_watched(watch)
        wrong = [f"process {seen.pid} is left: {' '.join(seen.command)}" for seen in _end_left()]
        wrong += [f"{path} is left" for path in sorted((self.folder / "tmp").iterdir())]
        document = self._document()
        wrong = [*judged(status, document, self._said()), *wrong]
        losses = counted_losses(document) | {"violations": len(wrong)}
        where = f"losing session, way {self.name}, seed {self.seed}"
        kept = f"; all of it is in {self.folder}; again with: {self.again()}"
        found = {
            "losses": losses,
            "kills": losses["kills"],
            "violations": [f"{where}: {what}{kept}" for what in wrong],
            "growths": self._growths(watch),
            "peaks": {f"{self.name} sessions' {k}": v for k, v in watch.peaks().items()},
        }
        if not wrong:
            shutil.rmtree(self.folder)
        return found

    def _growths(self, watch: Watch) -> dict[str, float]:
        """A worker that was a spare grows when it takes a rank, and a tracker by its workers."""
        return {
            f"{self.name} session's {name}": value
            for name, value in watch.growths().items()
            if self.way.is_steady or name == FILES
        }

    def _run_watched(self, watch: Watch) -> int | None:
        """Its exit status; None if it does not end."""
        end = time.monotonic() + self.way.limit_s + OTHER_RUNS_S
        with (
            (self.folder / "report.txt").open("wb") as output,
            (self.folder / "said.txt").open("wb") as said,
            subprocess.Popen(
                self.command(),
                stdout=output,
                stderr=said,
                cwd=ROOT,
                env=self.environment(),
                preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
            ) as process,
        ):
            while time.monotonic() < end:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(SAMPLE_EVERY_S)
                watch.sample(time.monotonic())
                watch.take("job", 0, {"files": self._files()}, time.monotonic())
            process.kill()
        return None

    def _files(self) -> int:
        """Number of files that the run with faults has in its store, and its tracker has."""
        run = self.folder / "kept" / "run-1"
        folders = [run / name for name in TRACKER_FOLDERS]
        return sum(len(files) for top in folders for _, _, files in os.walk(top))

    def _document(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "kept" / REPORT).read_text())
        except (OSError, ValueError):
            return {"reasons": [], "runs": []}
        return found

    def _said(self) -> str:
        lines = (self.folder / "said.txt").read_text(errors="replace").splitlines()
        return " / ".join(lines[-3:])


def judged(status: int | None, document: Mapping[str, Any], said: str) -> list[str]:
    """Each thing that is wrong by the session's own words."""
    if status is None:
        return ["it does not end"]
    if status in (RunExit.PASSED, RunExit.NOTHING_TESTED):
        return []
    return list(document["reasons"]) or [f"status {status}: {said}"]


def counted_losses(document: Mapping[str, Any]) -> dict[str, int]:
    """Count the losses that a session's report tells of."""
    runs = document["runs"]
    delivered = [each for run in runs for each in run["deliveries"] if not each["failed"]]
    kinds = Counter(each["kind"] for each in delivered)
    counts = {name: kinds[kind] for name, kind in LOSSES.items()}
    return counts | {
        "sessions": 1,
        "untested": int(document.get("status") == RunExit.NOTHING_TESTED),
        "kills": sum(len(each["dies"]) for each in delivered if each["kind"] in KILL_KINDS),
        "attempts": sum(len(run["attempts"]) for run in runs),
    }


def _end_left() -> Sequence[Any]:
    left = left_behind()
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return left


def run_losing(folder: Path, way: str, seed: int, *more: str) -> None:
    """Run a session as a process of its own, which reports on this one's standard output."""
    command = [sys.executable, "-m", "tests.soak.losing", str(folder), "--way", way]
    subprocess.run(
        [*command, "--seed", str(seed), *more],
        cwd=ROOT,
        env=worker_environment(),
        preexec_fn=die_with_parent,
        check=True,
    )


def main() -> None:
    """Run the session that the command line asks for, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="new, and kept if something is wrong")
    parser.add_argument("--way", choices=[*WAYS, TRACE], required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", help="of machines, with --way trace")
    parser.add_argument("--versions", type=int, help="of the job [default: those of the way]")
    given = parser.parse_args()
    if (given.way == TRACE) != (given.trace is not None):
        parser.error("--way trace needs --trace, and no other takes it")
    arguments: tuple[str, ...] = ()
    if given.trace is None:
        way = WAYS[given.way]
    else:
        way = way_of_trace(given.trace, given.versions or 1)
        arguments = ("--trace", given.trace)
    if given.versions is not None:
        way = replace(way, versions=given.versions)
        arguments += ("--versions", str(given.versions))
    adopt_orphans()
    session = LosingSession(
        given.way, way, given.seed, given.folder.absolute(), arguments=arguments
    )
    report(**session.run())


if __name__ == "__main__":
    main()
