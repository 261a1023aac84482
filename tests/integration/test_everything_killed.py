"""Workers and tracker are killed at once, at any moment: the same command goes on, with no loss."""

import random
import re
import subprocess
from pathlib import Path

import pytest

from ftcomm.durable.chain import Chain
from ftcomm.durable.chain_state import chain_state
from ftcomm.durable.opening import open_store
from tests.integration.ended_job import CALLS, STEP, Moment, settings
from tests.unit.tracker.test_launcher import run

pytestmark = pytest.mark.process

SEED = 14
KILLS = 30
STEPS = 120  # more than all killed runs take
STEP_S = 0.25  # of training, where the distance of kill and record is asserted

TRAIN = """
import hashlib, os, time
import numpy as np, ftcomm
from tests.integration import ended_job

def say(text):
    file = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, (text + "\\n").encode())
    os.close(file)

with ftcomm.init() as comm:
    base = comm.allreduce(np.arange(3.0) * (comm.rank + 1))
    version, weights, own = comm.load_checkpoint(np.zeros(5000), local_default=comm.rank)
    say(f"from {version}")
    for step in range(version, STEPS):
        time.sleep(STEP_S)
        weights = weights + comm.allreduce(np.sin(weights * (comm.rank + 1)) + step) + base[0]
        own = own * 31 % 1000 + step
        comm.checkpoint(weights, own)
        say(f"at {step + 1}")
        ended_job.passed("step")
print("model", hashlib.sha256(weights.tobytes()).hexdigest(), own)
"""


class Job:
    """One job and its store; each run is a new process with the same command."""

    def __init__(self, folder: Path, steps: int, step_s: float = 0.0) -> None:
        folder.mkdir()
        self._folder, self._runs = folder, 0
        self._head = f"STEPS, STEP_S = {steps}, {step_s}\n"

    def run(self, moment: Moment | None = None) -> subprocess.CompletedProcess[str]:
        """Run it to its end, or to `moment`."""
        self._runs += 1
        self.log.write_text("")
        extra = {} if moment is None else settings(moment, self.claim)
        options = ("--checkpoint", str(self._folder / "store"), "--checkpoint-every", "1v")
        head = f"LOG = {str(self.log)!r}\n" + self._head
        return run(*options, script=head + TRAIN, n=3, **extra)

    @property
    def log(self) -> Path:
        return self._folder / f"log{self._runs}"

    @property
    def claim(self) -> Path:
        return self._folder / f"ended{self._runs}"

    def said(self, word: str) -> set[int]:
        """Numbers behind `word` in the last run's log."""
        return {int(number) for number in re.findall(rf"{word} (\d+)", self.log.read_text())}

    def newest(self) -> int:
        """Newest version of the chain; 0 if it has none."""
        records = chain_state(Chain(open_store(str(self._folder / "store"))).read()).versions
        return max((record.version for record in records.values()), default=0)


def models(done: subprocess.CompletedProcess[str]) -> set[str]:
    return set(re.findall(r"model (\w+ \d+)", done.stdout))


def killed(job: Job, moments: list[Moment]) -> tuple[list[int], set[str]]:
    """Kill the job at each moment; each time it resumes from what its chain had at the kill.

    Returns: how many completed versions each kill lost, and the model at the end.
    """
    newest, lost = 0, []
    for moment in moments:
        done = job.run(moment)
        assert (done.returncode, job.claim.exists()) == (-9, True), (moment, done.stderr)
        assert job.said("from") <= {newest}, (moment, done.stderr)
        newest = job.newest()
        lost.append(max(job.said("at"), default=newest) - newest)
    done = job.run()
    assert (done.returncode, job.said("from")) == (0, {newest}), done.stderr
    return lost, models(done)


def test_each_kind_of_moment_is_resumed_from_the_newest_record(tmp_path: Path) -> None:
    moments = [
        Moment("worker", "write", 4),  # half of an object
        Moment("worker", "name_new", 3, done=True),  # nobody was told of it
        Moment("tracker", "sync", 5, done=True),  # a record that has no name yet
        Moment("tracker", "name_new", 5, done=True),  # a record that nobody was told of
        Moment("worker", STEP, 3),
    ]
    clean = models(Job(tmp_path / "clean", 30).run())
    assert len(clean) == 3  # a local state for each rank
    _, found = killed(Job(tmp_path / "killed", 30), moments)
    assert found == clean


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thirty_random_moments_lose_one_version_each_at_most(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    moments = [
        Moment(
            draw.choice(("worker", "tracker")),
            draw.choice(CALLS),
            draw.randint(1, 8),
            done=draw.random() < 0.5,
        )
        for _ in range(KILLS - 6)
    ]
    moments += [Moment("worker", STEP, draw.randint(1, 5)) for _ in range(6)]
    draw.shuffle(moments)
    clean = models(Job(tmp_path / "clean", STEPS).run())
    lost, found = killed(Job(tmp_path / "killed", STEPS, STEP_S), moments)
    assert found == clean
    assert max(lost) <= 1, lost
