"""The scripts of a page of docs/, before and after, and the examples, as a user runs them."""

import difflib
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.plans import ROOT, worker_environment

WALL_S = 240.0  # Ray starts for half a minute on a busy machine
MODEL = re.compile(r"^model ([0-9a-f]{64})$", re.MULTILINE)


def scripts_of(page: str) -> tuple[str, str]:
    """The script before, and after."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    before, after = re.findall(r"```python\n# (?:before|after)\n(.*?)```", text, re.DOTALL)
    return before, after


def new_lines(before: str, after: str) -> int:
    """Lines that only the second script has."""
    compared = difflib.ndiff(before.split("\n"), after.split("\n"))
    return sum(line.startswith("+ ") and bool(line[2:].strip()) for line in compared)


def output(script: Path, *options: str, variables: Mapping[str, str] | None = None) -> str:
    """Run a script; returns what it prints."""
    done = subprocess.run(
        [sys.executable, str(script), *options],
        env={**worker_environment(), **(variables or {})},
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=WALL_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def model_of(said: str) -> str:
    """The one model that an example tells."""
    (model,) = MODEL.findall(said)
    return str(model)
