"""Processes that workers put into sessions of their own end with the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.chaos.test_run import environment

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper"),
]
# Runs a job whose launcher is played: it leaves a process behind, which has left another one.
SESSION = """
import os, subprocess, sys
from pathlib import Path
import trio
from ftcomm_chaos.faults.processes import adopt_orphans
from ftcomm_chaos.runner import launched_job
from ftcomm_chaos.runner.fault_scheduler import FaultScheduler
from ftcomm_chaos.runner.job import JobSpec
from ftcomm_chaos.runner.runner import ChaosRunOptions, run_once

adopt_orphans()
own = subprocess.Popen(["sleep", "60"])
leaves = "setsid sh -c 'setsid sleep 60 & sleep 60' > /dev/null &"
launched_job.TRACKER_COMMAND = ("sh", "-c", leaves)
spec = JobSpec("a job", Path(sys.argv[1]), 1, ("true",), (), (), os.environ)
record = trio.run(run_once, spec, FaultScheduler(), ChaosRunOptions())
print(record.status, "own runs" if own.poll() is None else "own has ended")
own.kill()
own.wait()
try:
    os.waitpid(-1, os.WNOHANG)
    print("one is left")
except ChildProcessError:
    print("none is left")
"""


@pytest.mark.smoke
def test_a_process_in_a_session_of_its_own_ends_with_the_run(tmp_path: Path) -> None:
    line = [sys.executable, "-c", SESSION, str(tmp_path / "run")]
    said = subprocess.run(
        line, env={**os.environ, **environment()}, capture_output=True, text=True, check=True
    )
    assert said.stdout == "0 own runs\nnone is left\n", said.stderr
