"""Commands that compute for long and need no quiet: their tests are the first to begin."""

import os
import subprocess
import sys
from pathlib import Path

from tests.helpers.forker import die_with_parent

ROOT = Path(__file__).parents[2]
NICE = 10  # what runs beside them has deadlines


def run_beside(*command: str) -> tuple[int, str]:
    """Exit status and output of ``python -m command``, whose memory is not that of the tests."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        preexec_fn=_be_patient,
        check=False,
    )
    return done.returncode, done.stdout


def _be_patient() -> None:
    die_with_parent()
    os.nice(NICE)
