"""One worker on a remote node: supervisors, their workers and the tracker as real processes."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.tracker.serving import CLI, serve, supervise
from tests.unit.tracker.test_launcher import SAY_PID_AND_WAIT, environment, said_pids, wait_gone
from tests.unit.tracker.test_run_job import HOLD_THE_INTERPRETER, TRAIN, models

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


@pytest.mark.parametrize("options", [(), ("--prefork",)], ids=["fresh", "forked"])
def test_a_killed_worker_is_restarted_by_its_own_supervisor_and_all_end_well(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    mark = f"MARK = {str(tmp_path / 'died')!r}\n"
    state = tmp_path / "state"
    with serve(state, "-n", "3") as (tracker, ready):
        with supervised(ready, 3, *options, script=mark + TRAIN) as supervisors:
            found = ended(supervisors)
        assert [status for status, _, _ in found] == [0, 0, 0], found
        assert tracker.wait(timeout=60) == 0
    assert [said.count("starting it again") for _, _, said in found] == [0, 1, 0]
    assert "worker 1 was killed by SIGKILL: starting it again" in found[1][2]
    assert len({model for _, out, _ in found for model in models(out)}) == 1
    lines = (state / "incidents.jsonl").read_text().splitlines()
    assert [json.loads(line)["victims"] for line in lines] == [["1"]]


def test_a_supervisor_goes_on_with_a_tracker_that_was_killed_and_started_again(
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
    assert "worker 0 was killed by SIGKILL: starting it again" in found[0][2]
    assert found[0][1].removeprefix("[0]") == found[1][1].removeprefix("[1]")


def test_a_worker_that_holds_the_interpreter_has_its_liveness_asserted_over_the_network(
    tmp_path: Path,
) -> None:
    with serve(tmp_path / "state", "-n", "2", "--detect-within", "1") as (tracker, ready):
        with supervised(ready, 2, script=HOLD_THE_INTERPRETER) as supervisors:
            found = ended(supervisors)
        assert [status for status, _, _ in found] == [0, 0], found
        _, said = tracker.communicate(timeout=60)
    assert "epoch 2" not in said


def test_a_script_that_fails_twice_ends_the_job_for_all_with_its_error(tmp_path: Path) -> None:
    script = """
import ftcomm
with ftcomm.init() as comm:
    comm.load_checkpoint(default=0)
    if comm.worker_id == "1":
        raise RuntimeError("the data are wrong")
    comm.allreduce(1)
"""
    with serve(tmp_path / "state", "-n", "2", "--detect-within", "2") as (tracker, ready):
        with supervised(ready, 2, script=script) as supervisors:
            found = ended(supervisors)
        assert [status for status, _, _ in found] == [83, 83], found
        assert tracker.wait(timeout=60) == 83
    assert "the script of worker 1 failed twice by the same error" in found[0][2]
    assert "at 0.0: RuntimeError: the data are wrong (<string>:6)" in found[0][2]
    assert found[1][2].count("[1] Traceback") == 1


def test_a_token_file_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    late = tmp_path / "copied" / "token"
    script = "import ftcomm\nwith ftcomm.init() as comm:\n    comm.barrier()\n"
    with serve(tmp_path / "state", "-n", "1") as (tracker, ready):
        not_yet = {**ready, "token_file": str(late)}
        with supervise(not_yet, "--worker-id", "0", script=script) as supervisor:
            assert supervisor.stderr is not None
            said = supervisor.stderr.readline()
            late.parent.mkdir()
            late.touch(mode=0o600)  # as a copy that has begun
            late.write_text(Path(ready["token_file"]).read_text())
            _, rest = supervisor.communicate(timeout=60)
        assert tracker.wait(timeout=60) == 0
    assert f"token file {late} does not exist yet: waiting up to 60 s for it" in said
    assert (supervisor.returncode, rest.count("does not exist yet")) == (0, 0), rest


def test_a_token_file_that_never_comes_ends_the_supervisor(tmp_path: Path) -> None:
    nobody = {"address": "127.0.0.1:9", "token_file": str(tmp_path / "token")}
    options = ("--worker-id", "0")
    with supervise(nobody, *options, script="", FTCOMM_TRACKER_TIMEOUT="0.1") as supervisor:
        _, said = supervisor.communicate(timeout=60)
    assert (supervisor.returncode, "No such file or directory" in said) == (64, True), said


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


def test_a_signal_ends_a_supervisor_whose_worker_died_while_no_tracker_was_there(
    tmp_path: Path,
) -> None:
    """It waits for a tracker, up to 600 s: to know whether the worker is to be started again."""
    token = tmp_path / "token"
    token.write_text("ab" * 32)
    token.chmod(0o600)
    nobody = {"address": "127.0.0.1:9", "token_file": str(token)}
    with supervise(nobody, "--worker-id", "0", script=SAY_PID_AND_WAIT) as supervisor:
        (pid,) = said_pids(supervisor, 1)
        os.kill(pid, signal.SIGKILL)
        wait_gone([pid])
        supervisor.send_signal(signal.SIGTERM)
        supervisor.communicate(timeout=60)
    assert supervisor.returncode == 128 + signal.SIGTERM


def test_the_worker_dies_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "state", "-n", "2") as (_, ready),
        supervise(ready, "--worker-id", "0", script=SAY_PID_AND_WAIT) as supervisor,
    ):
        pids = said_pids(supervisor, 1)
        supervisor.kill()
        wait_gone(pids)


def test_a_stopped_job_ends_its_workers_with_the_operators_words(tmp_path: Path) -> None:
    script = """
import ftcomm
with ftcomm.init() as comm:
    comm.load_checkpoint(default=0)
    print("in", flush=True)
    if comm.rank == 1:
        open(GATE).read()
    comm.allreduce(1)
"""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = f"GATE = {str(gate)!r}\n{script}"
    with serve(tmp_path / "state", "-n", "2") as (tracker, ready):
        with supervised(ready, 2, script=script) as supervisors:
            for supervisor in supervisors:
                assert supervisor.stdout is not None
                assert supervisor.stdout.readline().endswith("in\n")
            given = ["--state-dir", ready["state_dir"], "--reason", "wrong data"]
            stop = [*CLI, "stop", *given]
            said = subprocess.run(
                stop, env=environment(), capture_output=True, text=True, timeout=60, check=False
            )
            assert (said.returncode, said.stdout) == (0, "stopped\n")
            gate.write_text("go")
            found = ended(supervisors)
        assert [status for status, _, _ in found] == [78, 78], found
        assert tracker.wait(timeout=60) == 78
    assert "JobStoppedError: the job was stopped: wrong data" in found[0][2]


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (("--worker-id", "0", "--tracker", "none"), 64, "no tracker is named"),
        ((), 64, "no worker id"),
        (("--worker-id", "0", "--tracker-timeout", "0"), 79, "whether worker 0 has closed"),
    ],
)
def test_what_keeps_it_from_working_is_said(
    options: tuple[str, ...], status: int, text: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("ab" * 32)
    token.chmod(0o600)
    nobody = {"address": "127.0.0.1:9", "token_file": str(token)}
    with supervise(nobody, *options, script="raise SystemExit(0)") as supervisor:
        _, said = supervisor.communicate(timeout=60)
    assert (supervisor.returncode, text in said) == (status, True), said


def test_a_wrong_token_ends_the_worker_too(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("ab" * 32)
    token.chmod(0o600)
    with serve(tmp_path / "state", "-n", "2") as (_, ready):
        given = {**ready, "token_file": str(token)}
        with supervise(given, "--worker-id", "0", script=SAY_PID_AND_WAIT) as supervisor:
            _, said = supervisor.communicate(timeout=60)
    assert (supervisor.returncode, "does not hold this job's token" in said) == (70, True), said
