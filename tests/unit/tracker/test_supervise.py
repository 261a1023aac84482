"""One worker on a remote node: supervisors, their workers and the tracker as real processes."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.tracker.serving import serve, supervise
from tests.unit.tracker.test_launcher import SAY_PID_AND_WAIT, wait_gone

pytestmark = pytest.mark.process
Ended = list[tuple[int, str, str]]


@contextlib.contextmanager
def supervised(
    ready: dict[str, str], n: int, *options: str, script: str
) -> Iterator[list["subprocess.Popen[str]"]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                supervise(
                    ready, "--worker-id", str(rank), *options, script=script, OMP_NUM_THREADS="1"
                )
            )
            for rank in range(n)
        ]


def ended(supervisors: list["subprocess.Popen[str]"]) -> Ended:
    """Exit status and both outputs of each."""
    outputs = [supervisor.communicate(timeout=90) for supervisor in supervisors]
    return [(s.returncode, *said) for s, said in zip(supervisors, outputs, strict=True)]


def test_a_killed_worker_is_restarted_by_its_supervisor_under_the_next_tracker(
    tmp_path: Path,
) -> None:
    """The worker dies after the restart: only the new tracker can say that the job has moved."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = f"""
import os, signal
import numpy as np, ftcomm
with ftcomm.init() as comm:
    version, weights = comm.load_checkpoint(default=np.zeros(4))
    for step in range(version, 6):
        if step == 3 and comm.rank == 0 and not os.path.exists({str(tmp_path / "died")!r}):
            print("at the gate", flush=True)
            open({str(gate)!r}).read()
            open({str(tmp_path / "died")!r}, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        weights = comm.allreduce(weights + step)
        comm.checkpoint(weights)
print("model", weights.tobytes().hex())
"""
    state = tmp_path / "state"
    with contextlib.ExitStack() as stack:
        first, ready = stack.enter_context(serve(state, "-n", "2"))
        supervisors = stack.enter_context(supervised(ready, 2, script=script))
        assert supervisors[0].stdout is not None
        assert supervisors[0].stdout.readline() == "[0] at the gate\n"
        first.kill()
        first.wait(timeout=30)
        tracker, _ = stack.enter_context(serve(state))
        gate.write_text("go")
        found = ended(supervisors)
        assert [status for status, _, _ in found] == [0, 0], found
        assert tracker.wait(timeout=60) == 0
    assert [said.count("starting it again") for _, _, said in found] == [1, 0]
    assert "worker 0 was killed by SIGKILL: starting it again" in found[0][2]
    assert found[0][1].removeprefix("[0]") == found[1][1].removeprefix("[1]")


def test_the_schedulers_index_names_the_worker_and_a_signal_ends_it(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "state", "-n", "2") as (_, ready),
        supervise(ready, script=SAY_PID_AND_WAIT, SLURM_PROCID="1") as supervisor,
    ):
        assert supervisor.stdout is not None
        name, _, pid = supervisor.stdout.readline().split()
        supervisor.send_signal(signal.SIGTERM)
        supervisor.communicate(timeout=30)
        wait_gone([int(pid)])
        assert (name, supervisor.returncode) == ("[1]", 128 + signal.SIGTERM)
