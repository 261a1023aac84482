"""One job for the whole soak, whose workers are killed in turn: ``longjob FOLDER SECONDS``.

A spare takes the rank of each that is killed, and is killed in its turn.  The job has a store in
its state directory.  The tracker and worker 0 live from start to end, so what they take from
memory, descriptors and files must not grow; of the workers that are killed the peaks of one
incarnation after the other must not.
"""

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.kills import NOTE_PID
from tests.conformance.plans import ROOT, worker_environment
from tests.helpers.forker import die_with_parent
from tests.soak.figures import Series, growth, peaks
from tests.soak.reporting import report, usage
from tests.soak.ways import NICE

WORKERS = 3
MORTAL = ("1", "2", "spare-0")
SAMPLE_EVERY_S = 1.0
SAMPLES_A_KILL = 5  # an incarnation is sampled a few times before it ends
END_WITHIN_S = 120.0  # from the order to stop; a busy machine may take seconds
UNLIMITED = "1000000"  # restarts


class LongJob:
    """The job and what has been seen of its processes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.kills = 0
        self._seen: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._lives: dict[str, list[int]] = defaultdict(list)
        command = [
            sys.executable,
            "-m",
            "ftcomm_tracker",
            "run",
            "-v",
            "-n",
            str(WORKERS),
            "--spares",
            "1",
        ]
        command += ["--state-dir", str(folder / "state"), "--max-restarts", UNLIMITED]
        command += ["--", "/bin/sh", "-c", NOTE_PID, str(folder)]
        command += [sys.executable, "-m", "tests.soak.worker", str(folder / "stop")]
        with (folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=worker_environment(),
                preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
            )

    def wait(self, seconds: float) -> bool:
        """Wait; False if the job has ended meanwhile."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def sample(self) -> None:
        """Look at every process."""
        now = time.monotonic()
        for name, pid in [("tracker", self.process.pid), *self.newest_lives()]:
            for kind, value in (usage(pid) or {}).items():
                self._seen[f"{name} {kind}"].append((now, value))
                self._lives[f"{name} {kind}"].append(pid)
        everything = (self.folder / "state").rglob("*")  # but the chain, whose records stay
        files = sum(path.is_file() and path.parent.name != "chain" for path in everything)
        self._seen["tracker files"].append((now, files))

    def newest_lives(self) -> Iterator[tuple[str, int]]:
        """Name and process of each worker's newest incarnation."""
        for worker in ("0", *MORTAL):
            note = self.folder / worker
            pids = note.read_text().split() if note.exists() else []
            if pids:
                yield f"worker {worker}", int(pids[-1])

    def kill(self) -> None:
        """End one of the workers that may die, in turn; never worker 0, which keeps its rank."""
        name = f"worker {MORTAL[self.kills % len(MORTAL)]}"
        pid = dict(self.newest_lives()).get(name)
        if pid is not None and usage(pid) is not None:
            os.kill(pid, signal.SIGKILL)
            self.kills += 1
            report(kills=1)

    def growths(self) -> dict[str, float]:
        """By how much each process grows, as far as that can be said."""
        found = {}
        for name, series in self._seen.items():
            lasting = name.startswith(("tracker", "worker 0"))
            judged: Series = series if lasting else peaks(series, self._lives[name])
            grown = growth(judged)
            if grown is not None:
                found[f"long job's {name}"] = grown
        return found

    def finish(self) -> str:
        """Tell it to stop; empty if it ends well, else what was wrong."""
        (self.folder / "stop").touch()
        try:
            status: int | str = self.process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            status = "none at all"
            self.process.kill()
            self.process.wait()
        tail = (self.folder / "output").read_text().splitlines()[-10:]
        reaped = (self.folder / "output").read_text().count("was killed by SIGKILL: ")
        if status != 0:
            return f"the long job ended with status {status}: {tail}"
        if reaped not in (self.kills, self.kills - 1):  # the last one may have ended by itself
            return f"the long job's launcher reaped {reaped} of {self.kills} killed: {tail}"
        return ""


def main() -> None:
    """Sample and kill until the time is over, then judge."""
    os.nice(NICE)
    job, end = LongJob(Path(sys.argv[1])), time.monotonic() + float(sys.argv[2])
    samples = 0
    while job.wait(SAMPLE_EVERY_S) and time.monotonic() < end:
        job.sample()
        samples += 1
        if samples % SAMPLES_A_KILL == 0:
            job.kill()
        report(growths=job.growths())
    wrong = job.finish()
    report(growths=job.growths(), violations=[wrong] if wrong else [])


if __name__ == "__main__":
    main()
