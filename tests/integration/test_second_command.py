"""Two commands on one store: the second is refused while the first works, and goes on after it."""

import signal
from pathlib import Path

import pytest

from tests.unit.tracker.test_launcher import run, started

pytestmark = pytest.mark.process

TRAIN = """
import signal, ftcomm
with ftcomm.init() as comm:
    version, state = comm.load_checkpoint(0)
    if version == 0:
        comm.checkpoint(1, durable=True)
        print("durable", flush=True)
        signal.pause()
    print("from", version)
"""


def test_the_second_command_is_refused_while_the_first_works(tmp_path: Path) -> None:
    options = ("--checkpoint", str(tmp_path / "store"))
    with started(*options, script=TRAIN, n=2) as first:
        assert first.stdout is not None
        assert "durable" in first.stdout.readline()
        refused = run(*options, script=TRAIN, n=2)
        assert (refused.returncode, refused.stdout) == (64, "")
        assert f"process {first.pid} on " in refused.stderr
        assert "--take-over" in refused.stderr
        first.send_signal(signal.SIGKILL)
        first.wait()
    after = run(*options, script=TRAIN, n=2)
    assert after.returncode == 0, after.stderr
    assert after.stdout.count("from 1") == 2


def test_the_second_command_takes_over(tmp_path: Path) -> None:
    options = ("--checkpoint", str(tmp_path / "store"))
    with started(*options, script=TRAIN, n=2) as first:
        assert first.stdout is not None
        assert "durable" in first.stdout.readline()
        after = run(*options, "--take-over", script=TRAIN, n=2)
        assert after.returncode == 0, after.stderr
        assert after.stdout.count("from 1") == 2
