"""The script with three phases of docs/porting.md, with and without a kill."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.plans import ROOT, worker_environment

pytestmark = pytest.mark.process

SECTION = (
    (ROOT / "docs" / "porting.md").read_text(encoding="utf-8").partition("## Several phases")[2]
)
(SCRIPT, *_) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
OUTPUT = sorted(re.findall(r"^\[\d\] .*$", SECTION, re.MULTILINE))
(FAULT, *_) = re.findall(r"FTCOMM_FAULTS=(\S+)", SECTION)


def run_job(folder: Path, **variables: str) -> tuple[list[str], str]:
    """Standard output of the workers, sorted, and the log of the launcher."""
    (folder / "phases.py").write_text(SCRIPT)
    run = [sys.executable, "-m", "ftcomm_tracker", "run", "-v", "-n", "3"]
    done = subprocess.run(
        [*run, "--state-dir", str(folder / "job"), "--", sys.executable, "phases.py"],
        env={**worker_environment(), **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(done.stdout.splitlines()), done.stderr


def test_a_kill_between_two_phases_changes_nothing(tmp_path: Path) -> None:
    lines, log = run_job(tmp_path, FTCOMM_FAULTS=FAULT)
    assert lines == OUTPUT
    assert "recovered, epoch 2" in log
