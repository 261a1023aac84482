"""Hosts of several processes as workers of a job: the example, and deaths inside a host."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.conformance.plans import ROOT, worker_environment
from tests.helpers.forker import die_with_parent

pytestmark = [pytest.mark.process, pytest.mark.heavy, pytest.mark.timeout(300)]

WALL_S = 110.0  # a job takes some ten seconds on two idle cores
PROCESSES = 4


def run(folder: Path, *options: str) -> tuple[str, str]:
    """The model that all processes of both hosts told, and all that was said."""
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-v", "-n", "2", "--", sys.executable]
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "torch_hosts.py"), *options],
        env=worker_environment(), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=WALL_S, check=False, preexec_fn=die_with_parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    told = re.findall(r"host \d process \d: model (\w+)", done.stdout)
    assert (len(told), len(set(told))) == (PROCESSES, 1), done.stdout[-4000:]
    return told[0], done.stdout


@pytest.mark.parametrize(
    ("kill", "words"),
    [
        pytest.param("1.1.3", "worker 1 exited with status 1", id="another"),
        pytest.param("0.0.5", "worker 0 was kill", id="leader", marks=pytest.mark.slow),
    ],
)
def test_a_host_that_loses_its_leader_or_another_process_comes_back(
    kill: str, words: str, tmp_path: Path
) -> None:
    undisturbed, said = run(tmp_path)
    assert "starting it again" not in said
    model, said = run(tmp_path, "--kill", kill)
    restarts = re.findall(r"(worker \d .*): starting it again", said)
    assert (model, len(restarts)) == (undisturbed, 1), said[-3000:]
    assert restarts[0].startswith(words)
