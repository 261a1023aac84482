"""The README's quickstart, to the letter."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.plans import ROOT, worker_environment

pytestmark = pytest.mark.process

QUICKSTART = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Quickstart")[2]
(SCRIPT, *_) = re.findall(r"```python\n(.*?)```", QUICKSTART, re.DOTALL)
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(ftcomm-tracker .*)$", QUICKSTART, re.MULTILINE)
RUN, KILL, STATUS = COMMANDS[:3]


def environment() -> dict[str, str]:
    """The user's environment after `pip install`: both commands are found on the path."""
    ours = worker_environment()
    return {**ours, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{ours['PATH']}"}


@pytest.fixture
def job(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """The quickstart's job in its terminal."""
    # On a busy machine the commands take longer than its 200 steps; the test ends it.
    (tmp_path / "train.py").write_text(SCRIPT.replace("200", "100_000"))
    with subprocess.Popen(
        [*RUN.split()[:2], "-v", *RUN.split()[2:]],
        env=environment(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # its workers end with it


def read_until(words: str, job: "subprocess.Popen[str]") -> None:
    assert job.stdout is not None
    said = []
    for line in job.stdout:
        said.append(line)
        if words in line:
            return
    raise AssertionError(f"never said {words!r}:\n{''.join(said)}")


def ask(command: str, folder: Path) -> str:
    done = subprocess.run(
        shlex.split(command, comments=True),
        env=environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def headings(text: str) -> list[list[str]]:
    return [line.split() for line in re.findall(r"^rank  .*$|^last .*:$", text, re.MULTILINE)]


def test_the_quickstart_prints_what_the_readme_shows(
    job: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    read_until("epoch 1 runs", job)
    assert ask(KILL, tmp_path).startswith("killed worker 2: process ")
    read_until("recovered, epoch 2", job)
    said = ask(STATUS, tmp_path)
    assert re.search(r"^job \S+: running, epoch 2, 3/3 ranks up", said)
    processes = sorted(re.findall(r"^\d +\d +(\d) ", said, re.MULTILINE))
    assert processes == ["1", "1", "2"]
    assert headings(said) == headings(PAGE)
