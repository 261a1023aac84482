"""The launcher with workers that really use ftcomm."""

import json
import os
import re
from pathlib import Path

import pytest

from ftcomm.errors import RankLostError, ScriptFailedError
from tests.unit.tracker.test_launcher import run, started

pytestmark = pytest.mark.process

TRAIN = """
import hashlib, os, signal, sys
import numpy as np, ftcomm

def die_once(step):
    if step == 5 and os.environ["FTCOMM_WORKER_ID"] == "1" and not os.path.exists(MARK):
        open(MARK, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

with ftcomm.init() as comm:
    version, weights = comm.load_checkpoint(default=np.zeros(100))
    for step in range(version, 10):
        if MARK:
            die_once(step)
        weights = weights + comm.allreduce(np.sin(weights * (comm.rank + 1)) + step)
        comm.checkpoint(weights)
print("model", hashlib.sha256(weights.tobytes()).hexdigest())
"""


def models(output: str) -> set[str]:
    return set(re.findall(r"model (\w+)", output))


def test_a_killed_worker_is_restarted_and_the_model_is_the_same_to_the_byte(
    tmp_path: Path,
) -> None:
    clean = run(script=f"MARK = ''\n{TRAIN}", n=3)
    assert (clean.returncode, clean.stderr.count("starting it again")) == (0, 0), clean.stderr
    state = tmp_path / "state"
    mark = f"MARK = {str(tmp_path / 'died')!r}\n"
    killed = run("--state-dir", str(state), script=mark + TRAIN, n=3)
    assert killed.returncode == 0, killed.stderr
    assert killed.stderr.count("worker 1 was killed by SIGKILL: starting it again") == 1
    assert killed.stdout.count("model") == 3
    assert models(clean.stdout) == models(killed.stdout)
    assert len(models(clean.stdout)) == 1
    incidents = [json.loads(line) for line in (state / "incidents.jsonl").read_text().splitlines()]
    assert [incident["victims"] for incident in incidents] == [["1"]]


def test_a_job_with_spares_ends_well_without_them_and_with_one_in_a_lost_workers_place(
    tmp_path: Path,
) -> None:
    clean = run("--spares", "1", script=f"MARK = ''\n{TRAIN}", n=3)
    mark = f"MARK = {str(tmp_path / 'died')!r}\n"
    killed = run("--spares", "1", script=mark + TRAIN, n=3)
    ends = [(ended.returncode, ended.stdout.count("model")) for ended in (clean, killed)]
    assert ends == [(0, 3), (0, 3)], clean.stderr + killed.stderr
    assert models(clean.stdout) == models(killed.stdout)
    assert "Traceback" not in clean.stderr + clean.stdout + killed.stderr + killed.stdout


def test_a_worker_that_never_calls_init_ends_the_job_and_is_named(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = f"""
import os, ftcomm
print("pid", os.getpid(), flush=True)
if os.environ["FTCOMM_WORKER_ID"] == "1":
    open({str(gate)!r}).read()  # as an import that hangs
with ftcomm.init() as comm:
    comm.barrier()
"""
    with started("--form-within", "1", script=script) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        lines = [launcher.stdout.readline().split() for _ in range(2)]
        (pid,) = [line[-1] for line in lines if line[0] == "[1]"]
        said = ""
        while "RankLostError: the group" not in said:
            said = launcher.stderr.readline()
            assert said, "the job did not fail"
        gate.write_text("go on")
        launcher.communicate(timeout=60)
    who = (
        re.escape(f"missing: worker 1 (pid {pid} on ") + r"\S+, started \d+ s ago, has not called "
    )
    cause = "the group was not complete 1 s after its first worker came: 1 of 2 workers are here; "
    assert re.search(cause + who, said), said
    assert launcher.returncode == RankLostError.exit_code


def test_the_same_exception_twice_ends_the_job_for_all_and_is_printed_once() -> None:
    script = """
import ftcomm
with ftcomm.init() as comm:
    comm.load_checkpoint(default=0)
    if comm.worker_id == "1":
        raise RuntimeError("the data are wrong")
    comm.allreduce(1)
"""
    done = run(script=script)
    assert done.returncode == ScriptFailedError.exit_code, done.stderr
    cause = (
        "the script of worker 1 failed twice by the same error while the job stood at 0.0:"
        " RuntimeError: the data are wrong (<string>:6)"
    )
    assert f"[0] ftcomm.errors.ScriptFailedError: {cause}" in done.stderr
    assert done.stderr.count("starting it again") == 1
    assert done.stderr.count("[1] RuntimeError: the data are wrong\n") == 1
    assert done.stderr.count("[1] Traceback") == 1


HOLD_THE_INTERPRETER = """
import re, time
import ftcomm

def hold(length):
    # One call into C that never lets another thread run: the heartbeats stop.
    began = time.process_time()  # whatever else this machine does
    re.match("(a+)+$", "a" * length + "b")
    return time.process_time() - began

with ftcomm.init() as comm:
    comm.load_checkpoint(default=0)
    if comm.rank == 1:
        length = 18  # each letter more doubles it
        while hold(length) < 1.6:
            length += 1
    comm.allreduce(1)
"""


def test_a_worker_that_holds_the_interpreter_while_it_computes_keeps_its_place() -> None:
    done = run("--detect-within", "1", script=HOLD_THE_INTERPRETER)
    assert done.returncode == 0, done.stderr
    assert "epoch 2" not in done.stderr


def test_a_stopped_worker_that_has_lost_its_place_is_killed_and_started_again(
    tmp_path: Path,
) -> None:
    """Nobody else could: a stopped process holds its own place until the job fails."""
    mark = f"MARK = {str(tmp_path / 'stopped')!r}\n"
    script = mark + TRAIN.replace("SIGKILL", "SIGSTOP")
    done = run("--detect-within", "0.5", script=script, n=3)
    assert done.returncode == 0, done.stderr
    assert "worker 1 is stopped (SIGSTOP) and has lost its place: killing it\n" in done.stderr
    assert done.stderr.count("starting it again") == 1
    assert len(models(done.stdout)) == 1


def test_a_line_that_ends_every_rank_is_named_in_the_last_error() -> None:
    script = """
import os, ftcomm
with ftcomm.init() as comm:
    comm.barrier()
    os._exit(0)
"""
    done = run(script=script, n=2)
    lost = "3 attempts from the beginning were lost in a row; the last: every member "
    assert done.returncode == 71, done.stderr
    end = f"ERROR ftcomm: .*/store: {lost}.*; the first loss: .*its connection ended"
    assert re.search(end, done.stderr)


def test_a_script_that_never_closes_is_told_so() -> None:
    done = run(script="import ftcomm\ncomm = ftcomm.init()\ncomm.barrier()", n=2)
    assert done.returncode == 71
    assert "left: its script ended without closing the communicator" in done.stderr
    assert "never closed its communicator (`with ftcomm.init() as comm:`)" in done.stderr


def test_a_script_that_fails_is_not_waited_for_because_a_thread_lives_on() -> None:
    """Neither a thread nor a pool of them, for which Python waits before it ends a process."""
    script = """
import os, threading, ftcomm
from concurrent.futures import ThreadPoolExecutor
comm = ftcomm.init()
comm.load_checkpoint(0)
if comm.rank == 0:
    threading.Thread(target=comm.recv, args=(1,)).start()
    ThreadPoolExecutor().submit(comm.recv, 1, 2)
    raise ValueError("a bug of the script")
comm.recv(0)
"""
    done = run("--checkpoint", "", script=script, n=2)
    assert done.returncode in (71, 83), done.stderr
    assert "left: ValueError: a bug of the script" in done.stderr


def test_the_directory_of_a_job_that_was_cut_short_is_refused_in_a_sentence(
    tmp_path: Path,
) -> None:
    script = """
import os, ftcomm
with ftcomm.init() as comm:
    comm.load_checkpoint()
    os.kill(os.getppid(), 9)
    comm.barrier()
"""
    state = str(tmp_path / "state")
    options = ("--state-dir", state, "--checkpoint", "")
    assert run(*options, script=script, n=1).returncode == -9
    again = run(*options, script=script, n=1)
    assert (again.returncode, again.stderr.count("\n")) == (64, 1)
    assert f"the job in {state} was cut short" in again.stderr
    assert "give another --state-dir" in again.stderr
