"""The programs of docs/mpi4py.md: they run, and a killed worker changes nothing."""

import re
from pathlib import Path

import pytest

from tests.conformance.plans import ROOT
from tests.integration.test_examples import run, victims_in

pytestmark = pytest.mark.process

PAGE = (ROOT / "docs" / "mpi4py.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n# (mpi4py|ftcomm)\n(.*?)```", PAGE, re.DOTALL)
OURS = [text for library, text in PROGRAMS if library == "ftcomm"]
# Where rank 1 dies in each, and what is said in the end.
PLACES = ("1.0.0.0@received", "1.0.0.0@sent", "1.7.0.0@half_sent")
SAID = (
    "rank 1 got {'title': 'results'",
    "sum over the ring [3. 3. 3. 3.]",
    "largest eigenvalue 7.",
)


def test_each_program_is_there_in_both_libraries() -> None:
    assert [library for library, _ in PROGRAMS] == ["mpi4py", "ftcomm"] * 3
    for _, text in PROGRAMS:
        compile(text, "docs/mpi4py.md", "exec")


@pytest.mark.parametrize("at", range(3))
def test_a_killed_worker_changes_nothing(at: int, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(OURS[at])
    undisturbed = run(script, cwd=tmp_path)
    killed = run(script, cwd=tmp_path, faults=PLACES[at])
    assert victims_in(killed) == ["1"]
    lines = [re.findall(rf"^\[\d\] (.*{re.escape(SAID[at])}.*)$", said, re.MULTILINE)
             for said in (undisturbed, killed)]  # fmt: skip
    assert lines[0], undisturbed
    assert set(lines[1]) == set(lines[0]), killed
