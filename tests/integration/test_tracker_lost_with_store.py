"""The tracker and its directory are lost, the job has a store, and its members live."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcomm.durable.chain import Chain
from ftcomm.durable.chain_state import chain_state
from ftcomm.durable.opening import open_store
from ftcomm.errors import FencedError, TrackerLostError
from tests.unit.tracker.serving import CLI, serve
from tests.unit.tracker.test_launcher import environment

pytestmark = pytest.mark.process

RANKS = 2
MODEL = "total 36\n"
SCRIPT = """
import os, ftcomm
with ftcomm.init() as comm:
    version, total = comm.load_checkpoint(0)
    for step in range(version, 6):
        total += comm.allreduce(step + comm.rank)
        comm.checkpoint(total, durable=True)
        if step == 3:
            print("stands", flush=True)
            open(os.environ["GATE"]).read()
print("total", total)
"""
PATIENCE = ("--replace-within", "4", "--reattach-within", "4")
WHOLE_CHAIN = ["attempts 1", *(f"version {number} of 1" for number in range(1, 7)), "finished 6"]
LATER = ["version 5 of 2", "version 6 of 2", "finished 6"]
FROM_CHECKPOINT_4 = ["attempts 2", *WHOLE_CHAIN[1:5], *LATER]


class Job:
    """A job whose members stand behind checkpoint 4, and its tracker."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder, self._stack = folder, stack
        token = folder / "token"
        token.write_text("ab" * 32)
        token.chmod(0o600)
        options = ("-n", str(RANKS), "--checkpoint", self.store, "--token-file", str(token))
        options += PATIENCE
        self.tracker, ready = stack.enter_context(serve(folder / "first", *options))
        self.host, _, self.port = ready["address"].rpartition(":")
        for rank in range(RANKS):
            os.mkfifo(folder / f"gate{rank}")
        self.workers = [self.start(rank) for rank in range(RANKS)]
        for worker in self.workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "stands\n"

    @property
    def store(self) -> str:
        return str(self.folder / "store")

    @property
    def address(self) -> tuple[str, ...]:
        token = str(self.folder / "token")
        return ("--host", self.host, "--port", self.port, "--token-file", token)

    def start(self, rank: int) -> "subprocess.Popen[str]":
        given = {
            "FTCOMM_TRACKER": f"{self.host}:{self.port}",
            "FTCOMM_TOKEN_FILE": str(self.folder / "token"),
            "FTCOMM_WORKER_ID": str(rank),
            "GATE": str(self.folder / f"gate{rank}"),
        }
        worker = subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env=environment(**given),
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.enter_context(worker)
        self._stack.callback(worker.kill)
        return worker

    def lose_tracker(self) -> None:
        self.tracker.kill()
        self.tracker.wait(timeout=30)
        shutil.rmtree(self.folder / "first")

    def open_gates(self, *ranks: int) -> None:
        for rank in ranks or range(RANKS):
            (self.folder / f"gate{rank}").write_text("")

    def models(self) -> list[tuple[int, str]]:
        """Exit status of each worker, and what it has said since it stood."""
        said = [worker.communicate(timeout=90)[0] for worker in self.workers]
        return [(worker.returncode, out) for worker, out in zip(self.workers, said, strict=True)]

    def chain(self) -> list[str]:
        """The records of the store in a word or two each."""
        state = chain_state(Chain(open_store(self.store)).read())
        versions = [f"version {each.version} of {each.attempt}" for each in state.versions.values()]
        return [f"attempts {len(state.attempts)}", *versions, f"finished {state.finished}"]

    def refused(self, *options: str) -> str:
        """Return what a tracker says that ends by itself, with an error."""
        ended = subprocess.run(
            [*CLI, "serve", "--state-dir", str(self.folder / "refused"), *options],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode
        return ended.stderr


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with contextlib.ExitStack() as stack:
        yield Job(tmp_path, stack)


@pytest.mark.parametrize("given_again", ["rebuild", "store"])
def test_members_go_on_and_later_checkpoints_are_durable(
    given_again: str, job: Job, tmp_path: Path
) -> None:
    """By ``--rebuild``, or by the same command on an empty directory: no member notices."""
    job.lose_tracker()
    same = ("-n", str(RANKS), "--checkpoint", job.store)
    options = ("--rebuild",) if given_again == "rebuild" else same
    with serve(tmp_path / "second", *options, *job.address) as (again, _):
        job.open_gates()
        assert job.models() == [(0, MODEL)] * RANKS
        _, said = again.communicate(timeout=60)
    assert "goes on in generation 2 from what its workers know and its store" in said
    assert "all workers are back in epoch 1; nothing was lost" in said
    assert again.returncode == 0
    assert job.chain() == WHOLE_CHAIN
    assert "the job of this store has finished at version 6" in job.refused(*same, *job.address)


def test_another_store_ends_the_tracker_and_not_the_job(job: Job, tmp_path: Path) -> None:
    """This host has none under that name, or another one."""
    job.lose_tracker()
    Path(job.store).rename(tmp_path / "away")
    assert job.store in job.refused("--rebuild", *job.address)
    (Path(job.store) / "tmp").mkdir(parents=True)  # which each store has
    said = job.refused("--rebuild", *job.address)
    assert "is not the store in which the tracker has begun" in said
    shutil.rmtree(job.store)
    (tmp_path / "away").rename(job.store)
    with serve(tmp_path / "second", "--rebuild", *job.address):
        job.open_gates()
        assert job.models() == [(0, MODEL)] * RANKS
    assert job.chain() == WHOLE_CHAIN


def test_without_a_member_those_that_wait_are_told_what_to_do(job: Job, tmp_path: Path) -> None:
    """By ``--rebuild``: the tracker says how the next attempt begins, and that is so."""
    job.workers[1].kill()
    job.workers[1].wait(timeout=30)
    job.lose_tracker()
    with serve(tmp_path / "second", "--rebuild", *job.address) as (again, _):
        _, said = again.communicate(timeout=60)
    assert again.returncode == TrackerLostError.exit_code
    assert "worker 1 of job" in said
    assert f"start the tracker with -n 2 --checkpoint {job.store}, without --rebuild" in said
    job.open_gates(0)
    assert job.workers[0].wait(timeout=60) == TrackerLostError.exit_code
    same = ("-n", str(RANKS), "--checkpoint", job.store)
    with serve(tmp_path / "third", *same, *job.address):
        job.workers = [job.start(rank) for rank in range(RANKS)]
        assert job.models() == [(0, MODEL)] * RANKS
    assert job.chain() == FROM_CHECKPOINT_4


def test_without_a_member_the_next_attempt_begins_in_the_end(job: Job, tmp_path: Path) -> None:
    """The store decides: the job goes back to its newest checkpoint."""
    job.workers[1].kill()
    job.workers[1].wait(timeout=30)
    job.lose_tracker()
    options = ("-n", str(RANKS), "--checkpoint", job.store, *PATIENCE)
    with serve(tmp_path / "second", *options, *job.address) as (again, _):
        job.workers[1] = job.start(1)
        assert again.stderr is not None
        said = ""
        while "attempt 2 begins from checkpoint 4" not in said:
            said = again.stderr.readline()
        job.open_gates(0)
        assert job.workers[0].wait(timeout=60) == FencedError.exit_code
        job.workers[0] = job.start(0)
        assert job.models() == [(0, MODEL)] * RANKS
    assert job.chain() == FROM_CHECKPOINT_4
