"""A start script between the launcher and the worker, and what a script leaves running."""

import contextlib
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.unit.tracker.test_launcher import said_pids, started, wait_gone

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="only /proc says what is whose"),
]
START_SCRIPT = ("bash", "-c", 'export PREPARED=1; "$@"; exit', "start.sh")
SAVES_AT_SIGTERM = """
import os, select, signal
import ftcomm
end = []
signal.signal(signal.SIGUSR1, lambda *_: print("warned", flush=True))
signal.signal(signal.SIGTERM, lambda *_: end.append(1))
start_script = select.poll()
start_script.register(os.pidfd_open(os.getppid()), select.POLLIN)
with ftcomm.init() as comm:
    comm.load_checkpoint(default=0)
    print("pid", os.getpid(), flush=True)
    while not comm.allreduce(float(bool(end)), op="max"):
        pass
    start_script.poll()
    comm.allreduce(1.0)
    print("saved", flush=True)
"""
DIES_ONCE = """
import os
import ftcomm
with ftcomm.init() as comm:
    comm.load_checkpoint(default=0)
    comm.barrier()
    if (comm.rank, comm.incarnation) == (1, 1):
        os.kill(os.getpid(), 9)
    comm.barrier()
"""
TRAINS_ON = """
import os
import ftcomm
with ftcomm.init() as comm:
    print("pid", os.getpid(), flush=True)
    while True:
        comm.allreduce(1.0)
"""
LEAVES_AN_UPLOAD = """
import subprocess, sys
import ftcomm
with ftcomm.init() as comm:
    subprocess.Popen(["sh", "-c", "read line < $0 && echo uploaded > $1", FIFO, RESULT])
"""


def test_workers_of_start_scripts_get_signals_and_time_to_save() -> None:
    with started(script=SAVES_AT_SIGTERM, start_script=START_SCRIPT) as launcher:
        assert launcher.stdout is not None
        said_pids(launcher, 2)
        launcher.send_signal(signal.SIGUSR1)
        warned = sorted(launcher.stdout.readline() for _ in range(2))
        launcher.send_signal(signal.SIGTERM)
        rest, errors = launcher.communicate(timeout=60)
    assert warned == ["[0] warned\n", "[1] warned\n"]
    assert (launcher.returncode, rest.count("saved")) == (143, 2), errors


def test_a_start_script_tells_by_which_signal_its_worker_died() -> None:
    with started(script=DIES_ONCE, start_script=START_SCRIPT) as launcher:
        _, said = launcher.communicate(timeout=60)
    assert launcher.returncode == 0
    how = "worker 1 was killed by SIGKILL (its start script exited with status 137): starting it"
    assert how in said


def test_workers_of_start_scripts_die_with_a_launcher_that_is_killed() -> None:
    with started(script=TRAINS_ON, start_script=START_SCRIPT) as launcher:
        pids = said_pids(launcher, 2)
        launcher.kill()
        try:
            wait_gone(pids)
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_what_a_good_end_leaves_running_is_named_and_may_end(tmp_path: Path) -> None:
    fifo, result = tmp_path / "fifo", tmp_path / "result"
    os.mkfifo(fifo)
    script = LEAVES_AN_UPLOAD.replace("FIFO", repr(str(fifo))).replace("RESULT", repr(str(result)))
    with started(script=script, n=1) as launcher:
        assert launcher.stderr is not None
        said = next(line for line in launcher.stderr if "has ended well" in line)
        fifo.write_text("go on\n")
        launcher.communicate(timeout=60)
    assert re.search(r"worker 0 has ended well and left sh \(pid \d+\) running: what", said)
    assert (launcher.returncode, result.read_text()) == (0, "uploaded\n")
