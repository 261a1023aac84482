"""Ranks die in the middle of large reductions, which fill the user's arrays on their way."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ftcomm
from tests.conformance.plans import ROOT, worker_environment

pytestmark = pytest.mark.process

RANKS = 3
COUNT = 1_000_000
VERSION_CALLS = 10
DIES_IN = {4: 0.002, 14: 0.005}  # number of a call -> seconds from there on
CALLS = 20
WALL_S = 120


@pytest.mark.parametrize("core", ["auto", pytest.param("python", marks=pytest.mark.slow)])
def test_out_is_right_and_the_input_intact_whenever_a_rank_dies(tmp_path: Path, core: str) -> None:
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(RANKS)]
    command += ["--state-dir", str(tmp_path / "state"), "--"]
    command += [sys.executable, __file__, str(tmp_path)]
    done = subprocess.run(
        command,
        env={**worker_environment(), "FTCOMM_CORE": core},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"{len(DIES_IN)} restarts" in done.stderr


def main() -> None:
    folder = Path(sys.argv[1])
    with ftcomm.init() as comm:
        version, _ = comm.load_checkpoint(default=None)
        out, place = np.empty(COUNT, "f4"), np.empty(COUNT + 1, "f4")
        for number in range(version * VERSION_CALLS, CALLS):
            if comm.worker_id == "1" and number in DIES_IN:
                die_once(folder / f"died in {number}", DIES_IN[number])
            x = np.arange(COUNT, dtype="f4") % 100 + (comm.rank + number)
            given, wanted = x.copy(), RANKS * (x - comm.rank) + sum(range(RANKS))
            place[:-1] = x
            results = [
                comm.allreduce(x, out=out),
                comm.allreduce(x),
                comm.allreduce(place[:-1], out=place[1:]),
            ]
            assert all((result == wanted).all() for result in results), number
            assert results[0] is out
            assert (x == given).all(), number
            if (number + 1) % VERSION_CALLS == 0:
                comm.checkpoint(None)


def die_once(mark: Path, delay: float) -> None:
    if not mark.exists():
        mark.touch()
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()


if __name__ == "__main__":
    main()
