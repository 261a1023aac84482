"""Real jobs that lose everything and go on behind their checkpoint, by journals of results."""

import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.ended_job import STEP, Moment, settings
from tests.integration.journalled_results import journals, results_in
from tests.unit.tracker.test_launcher import run

pytestmark = pytest.mark.process

CALLS = 30  # of a version
MOMENTS = (("worker", STEP), ("worker", "write"), ("worker", "sync"), ("tracker", "sync"))
TRAIN = """
import hashlib, os, time
from pathlib import Path
import numpy as np, ftcomm
from tests.integration import ended_job
from tests.integration.journalled_results import await_results

with ftcomm.init() as comm:
    base = comm.allreduce(np.arange(3.0) * (comm.rank + 1))
    version, weights = comm.load_checkpoint(np.zeros(500))
    for step in range(version, VERSIONS):
        for call in range(CALLS):
            x = np.sin(weights * (comm.rank + 1)) + step + call
            weights = weights + comm.allreduce(x) * 0.1 + base[0]
            if call == AWAITED and step:
                await_results(Path(JOURNAL), comm.rank, step, call + 1)
            ended_job.passed("step")
        comm.checkpoint(weights, durable=True)
print("model", hashlib.sha256(weights.tobytes()).hexdigest())
"""

BEFORE = 10  # results, and then a message
DRAW = """
import time
from pathlib import Path
import numpy as np, ftcomm
from tests.integration import ended_job
from tests.integration.journalled_results import await_results

with ftcomm.init() as comm:
    version, weights = comm.load_checkpoint(np.zeros(3))
    if not version:
        comm.checkpoint(weights, durable=True)
    for call in range(BEFORE):
        weights = weights + comm.allreduce(np.full(3, comm.rank + call))
    await_results(Path(JOURNAL), comm.rank, 1, BEFORE)
    drawn = np.zeros(1, np.int64)
    if comm.rank == 0:
        comm.send(np.array([time.time_ns()]), 1)  # another one in each attempt
    if comm.rank == 1:
        drawn = comm.recv(0)
    total = comm.allreduce(drawn)
    for call in range(AFTER):  # a group commit passes meanwhile
        comm.allreduce(total)
    ended_job.passed("step")
    if comm.rank == 1:
        print("result", int(total[0]) - int(drawn[0]), "beyond the message")
    comm.checkpoint(weights, durable=True)
"""


class Job:
    """One job; each run is a new process with the same command."""

    def __init__(
        self, folder: Path, versions: int = 3, awaited: int = CALLS // 2, body: str = TRAIN
    ) -> None:
        folder.mkdir()
        self._body = body
        self._folder, self._runs = folder, 0
        self.journal = folder / "journal"
        self._head = f"VERSIONS, CALLS, AWAITED = {versions}, {CALLS}, {awaited}\n"

    def run(self, moment: Moment | None = None) -> subprocess.CompletedProcess[str]:
        """Run it to its end, or to `moment`."""
        self._runs += 1
        claim = self._folder / f"ended{self._runs}"
        extra = {} if moment is None else settings(moment, claim)
        store, journal = str(self._folder / "store"), str(self.journal)
        options = ("--checkpoint", store, "--checkpoint-every", "1v", "--journal", journal)
        script = f"JOURNAL = {journal!r}\n{self._head}{self._body}"
        done = run(*options, script=script, n=3, **extra)
        assert done.returncode == (0 if moment is None else -9), done.stderr
        return done


def models(done: subprocess.CompletedProcess[str]) -> set[str]:
    return set(re.findall(r"model (\w+)", done.stdout))


def replayed(done: subprocess.CompletedProcess[str]) -> list[tuple[int, int]]:
    """The counts of results, and their checkpoints, behind which the tracker said it goes on."""
    found = re.findall(r"(\d+) results after checkpoint (\d+) were journalled", done.stderr)
    return [(int(count), int(version)) for count, version in found]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The model of a run that nothing happens to, which leaves no journal."""
    job = Job(tmp_path_factory.mktemp("clean") / "job")
    found = models(job.run())
    assert len(found) == 1
    assert list(job.journal.iterdir()) == []
    return found


def in_version_1(call: int) -> Moment:
    return Moment("worker", STEP, CALLS + call)


def left_alone(files: list[Path]) -> None:
    """Change nothing."""


def cut(files: list[Path]) -> None:
    """The machine went within a write: a record of each journal is not whole."""
    for path in files:
        path.write_bytes(path.read_bytes()[:-7])


def flipped(files: list[Path]) -> None:
    """A byte in the middle of each journal is another one."""
    for path in files:
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)


def gone(files: list[Path]) -> None:
    """Two of three hosts do not come back."""
    for path in files[1:]:
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "least"), [(left_alone, 16), (cut, 15), (flipped, 4), (gone, 16)]
)
def test_a_job_that_has_lost_everything_goes_on_behind_its_checkpoint(
    tmp_path: Path, clean: set[str], damage: Callable[[list[Path]], None], least: int
) -> None:
    job = Job(tmp_path / "job")
    job.run(in_version_1(20))
    files = journals(job.journal)
    damage(files)
    journalled = max(len(results_in(path)) for path in journals(job.journal))
    done = job.run()
    assert replayed(done) == [(journalled, 1)], done.stderr
    assert journalled >= least
    assert models(done) == clean
    assert list(job.journal.iterdir()) == []


def test_a_second_loss_goes_on_from_what_the_second_attempt_has_journalled(
    tmp_path: Path, clean: set[str]
) -> None:
    job = Job(tmp_path / "job")
    job.run(in_version_1(17))
    first = job.run(Moment("worker", STEP, 25))  # of version 1, of which 16 were replayed
    folders = [path.name for path in job.journal.glob("*/*")]
    assert "attempt-2" in folders
    done = job.run()
    [(before, _)], [(after, version)] = replayed(first), replayed(done)
    assert version == 1
    assert 16 <= before <= after
    assert models(done) == clean


def test_no_result_of_an_old_message_is_used_beside_a_message_that_is_made_again(
    tmp_path: Path,
) -> None:
    """The two ranks of the message leave no journal: the third one knows of it too."""
    body = f"BEFORE, AFTER = {BEFORE}, 5000\n{DRAW}"
    job = Job(tmp_path / "job", body=body)
    job.run(Moment("worker", STEP, 1))
    for path in journals(job.journal):
        if not path.name.startswith("rank-2."):
            path.unlink()
    done = job.run()
    assert "result 0 beyond the message" in done.stdout
    assert replayed(done) == [(BEFORE, 1)]


def test_a_directory_that_cannot_be_written_to_costs_a_warning(
    tmp_path: Path, clean: set[str]
) -> None:
    job = Job(tmp_path / "job", awaited=-1)
    job.journal.write_text("a file")
    done = job.run()
    assert "are not journalled in" in done.stderr
    assert models(done) == clean


def test_a_journal_without_a_store_is_refused() -> None:
    done = run("--checkpoint", "", "--journal", "/scratch/journal", script="pass", n=2)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (64, "", 1)
    assert "the job has no checkpoint store" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twelve_random_moments_end_with_the_same_model(tmp_path: Path) -> None:
    draw = random.Random(16)
    found = models(Job(tmp_path / "clean", versions=150).run())
    job = Job(tmp_path / "killed", versions=150)
    behind = 0
    for _ in range(12):
        role, call = draw.choice(MOMENTS)
        count = draw.randint(5, CALLS) if call == STEP else draw.randint(1, 6)
        done = job.run(Moment(role, call, count, done=draw.random() < 0.5))
        behind += sum(count for count, _ in replayed(done))
    assert models(job.run()) == found
    assert behind > 0
