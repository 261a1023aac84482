"""The launcher with workers that really use ftcomm."""

import json
import os
import re
from pathlib import Path

import pytest

from ftcomm.durable.chain import Chain
from ftcomm.durable.chain_state import chain_state
from ftcomm.durable.opening import open_store
from tests.unit.tracker.test_launcher import run

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
    clean = run(script=f"MARK = ''\n{TRAIN}")
    assert (clean.returncode, clean.stderr.count("starting it again")) == (0, 0), clean.stderr
    state = tmp_path / "state"
    mark = f"MARK = {str(tmp_path / 'died')!r}\n"
    killed = run("--state-dir", str(state), script=mark + TRAIN)
    assert killed.returncode == 0, killed.stderr
    assert killed.stderr.count("worker 1 was killed by SIGKILL: starting it again") == 1
    assert killed.stdout.count("model") == 2
    assert models(clean.stdout) == models(killed.stdout)
    assert len(models(clean.stdout)) == 1
    incidents = [json.loads(line) for line in (state / "incidents.jsonl").read_text().splitlines()]
    assert [incident["victims"] for incident in incidents] == [["1"]]


def test_a_job_with_spares_ends_well_without_them_and_with_one_in_a_lost_workers_place(
    tmp_path: Path,
) -> None:
    clean = run("--spares", "1", script=f"MARK = ''\n{TRAIN}", n=1)
    mark = f"MARK = {str(tmp_path / 'died')!r}\n"
    killed = run("--spares", "1", script=mark + TRAIN)
    ends = [(ended.returncode, ended.stdout.count("model")) for ended in (clean, killed)]
    assert ends == [(0, 1), (0, 2)], clean.stderr + killed.stderr
    assert len(models(killed.stdout)) == 1
    assert "Traceback" not in clean.stderr + clean.stdout + killed.stderr + killed.stdout


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
    done = run("--detect-within", "0.5", script=script)
    assert done.returncode == 0, done.stderr
    assert "worker 1 is stopped (SIGSTOP) and has lost its place: killing it\n" in done.stderr
    assert done.stderr.count("starting it again") == 1
    assert len(models(done.stdout)) == 1


NEVER_CLOSES = """
import os, sys
import ftcomm
comm = ftcomm.init()
comm.barrier()
"""


@pytest.mark.parametrize("end", ["", "pass"])
def test_a_script_that_ends_well_without_close_is_closed(end: str) -> None:
    done = run(script=NEVER_CLOSES + end, n=2)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the script has ended without close()") == 1
    assert "starting it again" not in done.stderr


WITHOUT_THREADS = """
import atexit, os, signal, threading
import numpy as np, ftcomm
from trio._core import _thread_cache

def refuse(*_, **__):
    raise RuntimeError("can't create new thread at interpreter shutdown")

def refuse_threads():
    threading._start_new_thread = threading._start_joinable_thread = refuse

_thread_cache.IDLE_TIMEOUT = 0.0  # no thread is left over
comm = ftcomm.init()
version, x = comm.load_checkpoint(np.zeros(3))
"""


def test_a_worker_that_closes_at_exit_serves_a_restarted_one(tmp_path: Path) -> None:
    """From 3.12 on Python starts no thread then, and the state has to be packed."""
    script = """
def end():  # runs before the exit function of the library
    refuse_threads()
    if comm.rank == 0:
        open(FIFO, "w").close()

atexit.register(end)
if version == 0:
    comm.checkpoint(np.ones(3), lazy=True)
    if comm.rank == 1:
        open(FIFO).close()
        os.kill(os.getpid(), signal.SIGKILL)
print("loaded", version, x.sum())
"""
    os.mkfifo(tmp_path / "fifo")
    head = f"FIFO = {str(tmp_path / 'fifo')!r}\n"
    done = run(script=head + WITHOUT_THREADS + script, n=2)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] loaded 0 0.0", "[1] loaded 1 3.0"]
    assert done.stderr.count("starting it again") == 1, done.stderr


def test_a_checkpoint_is_written_where_no_thread_can_be_started(tmp_path: Path) -> None:
    script = "refuse_threads(); comm.checkpoint(np.ones(3), lazy=True, durable=True)"
    done = run("--checkpoint", str(tmp_path), script=WITHOUT_THREADS + script, n=2)
    assert done.returncode == 0, done.stderr
    records = chain_state(Chain(open_store(str(tmp_path))).read()).versions
    assert [record.version for record in records.values()] == [1], done.stderr


def test_who_goes_on_calling_where_others_end_without_close_is_told_of_a_mismatch() -> None:
    done = run(script=NEVER_CLOSES + "if comm.rank: comm.barrier()", n=2)
    assert done.returncode == 72, done.stderr
    cause = "rank 0 called close() at the end of the script but rank 1 called barrier() at"
    words = f"CollectiveMismatchError: ranks disagree about collective -1.1: {cause}"
    assert f"FAILED: {words}" in done.stderr


@pytest.mark.parametrize("end", ["os._exit(0)", "raise SystemExit(0)", "sys.exit(0)"])
def test_a_script_whose_end_is_not_known_to_be_good_is_told_so(end: str) -> None:
    script = NEVER_CLOSES + end
    done = run("--checkpoint", "", script=script, n=1)
    assert done.returncode == 71
    left = "left: its script ended without closing the communicator"
    assert (left in done.stderr) == ("_exit" not in end)
    assert (
        "ended with status 0 without close(): leave `with ftcomm.init()` by its end" in done.stderr
    )


def test_a_script_that_ends_all_ranks_by_sys_exit_without_close_fails_the_second_time() -> None:
    script = NEVER_CLOSES.replace("comm.barrier()", "comm.load_checkpoint(0)\ncomm.checkpoint(1)")
    done = run(script=f"{script}print('end')\nsys.exit(0)", n=2)
    assert (done.returncode, done.stdout.count("end")) == (83, 4), done.stderr
    never_closed = "failed twice by the same error while the job stood at 1.0: ended with status 0"
    assert never_closed in done.stderr


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
