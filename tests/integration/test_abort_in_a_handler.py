"""A signal handler may leave the job wherever it interrupts its thread."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.interrupted_call import CASES

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
LIMIT_S = 20.0  # a hang is a failure; it takes two seconds


@pytest.mark.parametrize("name", CASES)
def test_a_handler_that_leaves_the_job_ends_the_call_that_it_has_interrupted(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.interrupted_call", name],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    wanted = "ClosedError" if name == "alone" else "ClosedError RankLostError"
    assert (done.returncode, done.stdout) == (0, wanted), done.stderr
