"""The long run: ``python -m tests.soak --hours 1``.

Side by side for that time: the simulator on fresh seeds; real jobs with kills at random moments,
random schedules and, in turn with these, losses of trackers, of their disks and of everything; one
job that lives for the whole time while its workers are killed; and jobs on machines that come and
go by a recorded trace, at 60 times its speed, and are at times all gone.
Status 0: no rule was broken, nothing grows, and enough was done to say so; 1: something was
wrong; 2: too few faults.  Figures go to the standard error every ten seconds and, a line each, to
the log, so that a soak that was interrupted has said what it did.
"""

import argparse
import contextlib
import json
import random
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from tests.conformance.plans import ROOT, worker_environment
from tests.helpers.forker import die_with_parent
from tests.soak.figures import Figures

SAY_EVERY_S = 10.0
MOST_VIOLATIONS = 20  # enough to see what they share
END_WITHIN_S = 2400.0  # after the time: the last job of each kind comes to its end, or hangs
TRACE = ROOT / "tests" / "soak" / "data" / "spot-trace-aws-g4dn.csv"


class Soak:
    """The processes of a soak, and what they report."""

    def __init__(
        self, folder: Path, seed: int, seconds: float, log: IO[str], trace: Path = TRACE
    ) -> None:
        self.figures = Figures()
        self.folder, self.seed, self._log = folder, seed, log
        self._began = self._said = time.monotonic()
        self._end = self._began + seconds
        self._selector = selectors.DefaultSelector()
        self._processes = [
            self._start("simulating", seed, seconds),
            self._start("killing", folder / "killing", seed, seconds),
            self._start("longjob", folder / "longjob", seconds),
            self._start("tracing", folder / "tracing", seed, seconds, trace.absolute()),
        ]

    def _start(self, module: str, *arguments: object) -> "subprocess.Popen[str]":
        errors = self.folder / f"{module}.log"
        with errors.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"tests.soak.{module}", *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=worker_environment(),
                preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
            )
        self._selector.register(process.stdout, selectors.EVENT_READ, process)  # type: ignore[arg-type]  # a pipe, as asked for
        return process

    def run(self) -> None:
        """Listen until all have ended, the time is long over, or too much is wrong."""
        while self._selector.get_map() and len(self.figures.violations) < MOST_VIOLATIONS:
            for key, _ in self._selector.select(1.0):
                self._hear(key.data)
            self._measure()
            if time.monotonic() > self._end + END_WITHIN_S:
                self.figures.violations.append("a process of the soak does not end")
                return
            if time.monotonic() > self._said + SAY_EVERY_S:
                self._said = time.monotonic()
                self.say()

    def _hear(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        line = process.stdout.readline()
        if line:
            self.figures.add(json.loads(line))
            return
        self._selector.unregister(process.stdout)
        if process.wait() != 0:
            self.figures.violations.append(f"status {process.returncode} of {process.args!r:.200}")

    def _measure(self) -> None:
        """Faults are wanted for the time asked for, not for that of the last jobs' ends."""
        self.figures.seconds = min(time.monotonic(), self._end) - self._began

    def say(self, *, over: bool = False) -> None:
        """Write the figures down."""
        sys.stderr.write(f"{self.figures.line()}\n")
        line = {"began": self.folder.name, "seed": self.seed, "over": over}
        self._log.write(json.dumps({**line, **self.figures.document()}) + "\n")
        self._log.flush()

    def close(self) -> None:
        """End what still runs; each takes its own children along."""
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._selector.close()


def earlier(log: Path) -> Figures:
    """The sums over all soaks that the log tells of, by the last line of each."""
    last: dict[str, dict[str, object]] = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        said = json.loads(line)
        last[said["began"]] = said
    total = Figures()
    for said in last.values():
        total.add({**said, "growths": {}})
        total.seconds += float(str(said["seconds"]))
    return total


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="of the first simulated job; default: at random")
    parser.add_argument("--log", type=Path, default=Path("soak.jsonl"))
    parser.add_argument(
        "--trace", type=Path, default=TRACE, help="of machines: ms,add|remove,node in each line"
    )
    parser.add_argument("--json", action="store_true", help="print one document at the end")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(10**6, 10**12)
    folder = Path(tempfile.mkdtemp(prefix="ftcomm-soak-"))
    sys.stderr.write(f"before this soak, {earlier(given.log).line().strip()}\n")
    with given.log.open("a") as log:
        soak = Soak(folder, seed, given.hours * 3600, log, given.trace)
        with contextlib.suppress(KeyboardInterrupt):
            soak.run()
        soak.close()
        soak.say(over=True)
    figures = soak.figures
    for wrong in (*figures.violations, *figures.leaks, *figures.too_few):
        sys.stderr.write(f"{wrong}\n")
    kept = "nothing kept" if figures.status == 0 else f"artefacts in {folder}"
    sys.stderr.write(f"status {figures.status}, seed {seed}, {kept}\n")
    if figures.status == 0:
        shutil.rmtree(folder)
    if given.json:
        sys.stdout.write(json.dumps(figures.document()) + "\n")
    return figures.status


if __name__ == "__main__":
    sys.exit(main())
