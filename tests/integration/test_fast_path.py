"""Calls that are made again and again take the fast path, and nothing else changes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.plans import ROOT, worker_environment
from tests.integration import repeated_calls
from tests.integration.repeated_calls import ROUNDS

pytestmark = pytest.mark.process

SCRIPT = Path(repeated_calls.__file__)
WALL_S = 120
# In a round, one form has a reduction that ends with a division, one is transposed, one a list,
# three are numbers, and one is a broadcast without an array.
ALWAYS_LONG = 7 * ROUNDS
# A heartbeat and its answer send the next call down the slow path; so does every checkpoint.
MOST_LONG = ALWAYS_LONG + ROUNDS


def train(folder: Path, *settings: str, kill: bool) -> tuple[str, int]:
    """The digest of all results, and how many calls of rank 0 took the slow path."""
    folder.mkdir()
    if kill:
        (folder / "kill").touch()
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-v", "-n", "3"]
    command += ["--state-dir", str(folder / "state"), *settings, "--"]
    command += [sys.executable, str(SCRIPT), str(folder)]
    done = subprocess.run(
        command,
        env=worker_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stderr.count("was killed by SIGKILL: starting it again") == int(kill)
    digest, long_way = (folder / "result").read_text().split()
    return digest, int(long_way)


def test_a_death_in_between_changes_no_byte(tmp_path: Path) -> None:
    undisturbed, long_way = train(tmp_path / "undisturbed", kill=False)
    killed, _ = train(tmp_path / "killed", kill=True)
    assert killed == undisturbed
    assert ALWAYS_LONG < long_way < MOST_LONG


def test_without_shared_window_large_arrays_take_it_too(tmp_path: Path) -> None:
    """Each rank makes all of them itself, by segments; the script knows what they must be."""
    _, long_way = train(tmp_path / "sockets", "--transport", "tcp", kill=False)
    assert ALWAYS_LONG < long_way < MOST_LONG
