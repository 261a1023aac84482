"""Random kills of the example: ``python -m tests.conformance.kills --kills 100``.

Jobs of two to five workers train the Mushroom model while one worker after another gets SIGKILL
at a random moment: while Python starts, in a step, in a checkpoint, right after a recovery.  The
next kill waits until the last one's recovery is over.  For each world size every model must be
that of the run without kills.  A kill counts once the launcher has reaped the process and says
that SIGKILL was its end.

Several die at one moment with ``--at-once 2``, or all but one with ``--at-once others``.  Then the
program is `small_results`, and ``--kills`` counts moments::

    python -m tests.conformance.kills --at-once 2 --sizes 4,5 --kills 100
    python -m tests.conformance.kills --at-once others --sizes 2,3,4,5,6,7,8 --kills 50
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.conformance.counter import FAULT_COUNTER

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "mushroom.py"
SMALL_RESULTS = ROOT / "tests" / "conformance" / "small_results.py"
WORLD_SIZES = (2, 3, 4, 5)
STEPS = 60
PAUSE_S = 0.01  # after a step
OTHERS = 1 << 30  # as many at once as there are, but one
LONGEST_WAIT_S = 0.5  # before a kill: a step takes about 20 ms, a start half a second
WALL_S = 300.0  # for one job; it takes about five seconds on two busy cores, and more in a soak
# Each incarnation notes its number, so that the newest can be found, and becomes the worker.
NOTE_PID = 'echo $$ >> "$0/$FTCOMM_WORKER_ID"; exec "$@"'
STAMP = r"(?:[-\d]{10} [:.\d]{12} [A-Z]+ )?"  # what a launcher puts before its own words
RUNS = re.compile(STAMP + r"ftcomm: epoch \d+ runs: ")
REAPED = re.compile(STAMP + r"ftcomm: worker (\d+) was killed by SIGKILL: (.*)")


class KillsError(Exception):
    """A job did not do what it must."""


@dataclass(frozen=True, slots=True)
class Way:
    """Program to run, and the number of processes that die at one moment.

    Attributes:
        at_once: so many, or all but one if there are no more.
        options: of the launcher.
        pause_s: for which the script rests after a step, or after a call.
        moments_a_job: at which somebody is killed, at most.
    """

    script: Path = EXAMPLE
    at_once: int = 1
    options: tuple[str, ...] = ()
    pause_s: float = PAUSE_S
    moments_a_job: int = 5


# After a call; eight are a step.
SMALL = Way(SMALL_RESULTS, at_once=OTHERS, pause_s=0.002, moments_a_job=3)


@dataclass(slots=True)
class Told:
    """Content of a job's output so far."""

    lines: list[str] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    reaped: list[int] = field(default_factory=list)
    formed: bool = False
    killed: int = 0  # kills sent
    is_quiescent: bool = True  # no kill is being recovered from

    def kill(self, count: int = 1) -> None:
        """Kills are being sent."""
        self.killed += count
        self.is_quiescent = False

    def hear(self, line: str) -> None:
        """Take one line in."""
        self.lines.append(line)
        if found := re.search(r"\bmodel ([0-9a-f]{64})$", line):
            self.models.add(found[1])
        elif found := REAPED.match(line):
            self.reaped.append(int(found[1]))
        elif "ftcomm: recovered, " in line or (RUNS.match(line) and not self.formed):
            self.formed = True
            # What was on its way when the kill was sent says nothing of it.
            self.is_quiescent = len(self.reaped) == self.killed


class Job:
    """One run of a script under the launcher, in a folder of its own."""

    def __init__(self, folder: Path, world_size: int, way: "Way") -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.told = Told()
        self.killed: list[dict[int, int]] = []  # by moment: workers and their processes
        self._world_size = world_size
        self._rest = b""
        self._open = True
        self._deadline = time.monotonic() + WALL_S
        command = [sys.executable, "-m", "ftcomm_tracker", "run", "-v", "-n", str(world_size)]
        command += ["--state-dir", str(folder / "state"), *way.options, "--"]
        command += ["/bin/sh", "-c", NOTE_PID, str(folder), sys.executable, str(way.script)]
        command += ["--steps", str(STEPS), "--pause", str(way.pause_s)]
        command += ["--model", str(folder / "model")]
        path = os.pathsep.join([str(ROOT), str(ROOT / "tracker")])
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path},
        )

    def listen(self, seconds: float) -> None:
        """Take the output in for `seconds`, or until it ends."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        until = time.monotonic() + seconds
        while self._open and (left := until - time.monotonic()) > 0:
            if not select.select([fd], [], [], left)[0]:
                return
            data = os.read(fd, 1 << 16)
            self._open = bool(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self.told.hear(line.decode())

    def listen_until_undisturbed(self) -> bool:
        """Wait for the end of the last recovery; False if the job's end came first."""
        while self._open and not self.told.is_quiescent:
            self._listen_more()
        return self._open and not self.told.models

    def kill(self, dice: random.Random, at_once: int = 1) -> None:
        """SIGKILL for the newest processes of random workers, of one or of all but one at most."""
        processes = dict(self._newest_lives())
        count = min(at_once, max(len(processes) - 1, 1), len(processes))
        killed: dict[int, int] = {}
        for worker in dice.sample(sorted(processes), count):
            # Who has just ended was not killed here: the moment is of the others, or none at all.
            with contextlib.suppress(ProcessLookupError):
                os.kill(processes[worker], signal.SIGKILL)
                killed[worker] = processes[worker]
        if killed:
            self.told.kill(len(killed))
            self.killed.append(killed)

    def _newest_lives(self) -> Iterator[tuple[int, int]]:
        gone = {pid for moment in self.killed for pid in moment.values()}
        for worker in range(self._world_size):
            note = self.folder / str(worker)
            pids = note.read_text().split() if note.exists() else []
            if pids and int(pids[-1]) not in gone:
                yield worker, int(pids[-1])

    def finish(self) -> str:
        """Wait for a good end; returns the digest of the model.

        Raises:
            KillsError: it ended otherwise, or not at all.
        """
        while self._open:
            self._listen_more()
        status = self._process.wait()
        if status != 0:
            raise self._broken(f"the job ended with status {status}")
        digest = hashlib.sha256((self.folder / "model").read_bytes()).hexdigest()
        if self.told.models != {digest}:
            raise self._broken(f"said models {self.told.models}, written {digest}")
        if not self._killed_are_reaped():
            raise self._broken(f"killed {self.killed}, reaped {self.told.reaped}")
        return digest

    def _killed_are_reaped(self) -> bool:
        """Tell whether exactly the killed processes died of it; those killed last may live."""
        reaped = Counter(self.told.reaped)
        return _workers_in(self.killed[:-1]) <= reaped <= _workers_in(self.killed)

    @property
    def moments(self) -> int:
        """Number of moments at which all killed processes died of the kill."""
        missed = sum(map(len, self.killed)) - len(self.told.reaped)
        return len(self.killed) - bool(missed)

    def _listen_more(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._broken(f"not done within {WALL_S:.0f} s")
        self.listen(min(left, 0.1))

    def _broken(self, what: str) -> KillsError:
        (self.folder / "output").write_text("\n".join(self.told.lines))
        tail = "\n".join(self.told.lines[-30:])
        return KillsError(f"{what}\nartefacts in {self.folder}\n{tail}")

    def recoveries_ms(self) -> list[float]:
        """From the tracker's notice to the last member's next collective, for each recovery."""
        path = self.folder / "state" / "incidents.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["ms"]["total"] for line in lines]

    def close(self) -> None:
        """End it, whatever it does; workers end with their launcher."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _workers_in(moments: list[dict[int, int]]) -> Counter[int]:
    return Counter(worker for moment in moments for worker in moment)


@dataclass(slots=True)
class Row:
    """Runs of one world size."""

    model: str
    jobs: int = 0
    moments: int = 0
    kills: list[int] = field(default_factory=list)  # ranks
    spent_ms: list[float] = field(default_factory=list)

    def text(self, world_size: int) -> str:
        """One line of the table."""
        median = statistics.median(self.spent_ms) if self.spent_ms else 0.0
        by_rank = " ".join(str(self.kills.count(rank)) for rank in range(world_size))
        return (
            f"{world_size:7}  {self.jobs:4}  {len(self.kills):5}  {by_rank:14}  {median:9.0f} ms"
            f"  {self.model[:16]}, all the same"
        )


HEADER = "workers  jobs  kills  by rank         recovery p50  model"


def run_calmly(folder: Path, world_size: int, way: Way) -> Row:
    """The reference: the model of a run without kills."""
    job = Job(folder / f"{world_size}-quiescent", world_size, way)
    try:
        return Row(job.finish())
    finally:
        job.close()


def run_with_kills(folder: Path, world_size: int, row: Row, kills: int, seed: int, way: Way) -> int:
    """One job with kills at up to `kills` moments; returns at how many of them all died of it.

    Raises:
        KillsError: the model is another, or something ended that nobody killed.
    """
    dice = random.Random(seed)
    job = Job(folder / f"{world_size}-seed-{seed}", world_size, way)
    try:
        while len(job.killed) < kills and job.listen_until_undisturbed():
            job.listen(dice.uniform(0, LONGEST_WAIT_S))
            if not job.told.models:
                job.kill(dice, way.at_once)
        model = job.finish()
        if model != row.model:
            raise KillsError(f"model {model}, without kills {row.model}\nin {job.folder}")
    finally:
        job.close()
    row.jobs += 1
    row.moments += job.moments
    row.kills += job.told.reaped
    FAULT_COUNTER.add(kills=len(job.told.reaped))
    row.spent_ms += job.recoveries_ms()
    shutil.rmtree(job.folder)
    return job.moments


def _turns(sizes: tuple[int, ...], way: Way, dice: random.Random) -> Iterator[int]:
    """World sizes one after another; drawn where many die at once."""
    drawn = (dice.choice(sizes) for _ in itertools.count())
    return itertools.cycle(sizes) if way.at_once == 1 else drawn


def run_all(
    folder: Path, kills: int, sizes: tuple[int, ...], seed: int, way: Way = Way()
) -> dict[int, Row]:
    """Kills at `kills` moments at least, dealt out to the world sizes in turn."""
    rows: dict[int, Row] = {}
    done, turns = 0, _turns(sizes, way, random.Random(seed))
    for number in range(10 * kills):
        if done >= kills:
            break
        size = next(turns)
        if size not in rows:
            rows[size] = run_calmly(folder, size, way)
        few = min(way.moments_a_job, kills - done)
        done += run_with_kills(folder, size, rows[size], few, seed + number, way)
    if done < kills:
        raise KillsError(f"only {done} of {kills} kills hit living workers")
    return dict(sorted(rows.items()))


def _way(at_once: str, options: tuple[str, ...]) -> Way:
    if at_once == "1":
        return Way(options=options)
    return replace(SMALL, at_once=OTHERS if at_once == "others" else int(at_once), options=options)


def main() -> int:
    """Run what the command line asks for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--at-once", default="1", metavar="N|others", help="how many die at one moment"
    )
    parser.add_argument("--sizes", default=",".join(map(str, WORLD_SIZES)), help="of the groups")
    parser.add_argument(
        "--option", action="append", default=[], help="of the launcher: --option=--replicas=1"
    )
    given = parser.parse_args()
    way = _way(given.at_once, tuple(given.option))
    sizes = tuple(map(int, given.sizes.split(",")))
    folder = Path(tempfile.mkdtemp(prefix="ftcomm-kills-"))
    began = time.monotonic()
    try:
        rows = run_all(folder, given.kills, sizes, given.seed, way)
    except KillsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    shutil.rmtree(folder)
    lines = [HEADER, *(row.text(size) for size, row in rows.items())]
    total = sum(len(row.kills) for row in rows.values())
    lines.append(f"{total} kills in {time.monotonic() - began:.0f} s, seed {given.seed}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
