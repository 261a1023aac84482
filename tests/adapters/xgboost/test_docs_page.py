"""The scripts of the section on XGBoost: few lines change, and a kill changes nothing."""

import difflib
import re
from pathlib import Path

import pytest

pytest.importorskip("xgboost")

from tests.adapters.jobs import launch, victims_in
from tests.conformance.plans import ROOT

PAGE = (ROOT / "docs" / "boosting.md").read_text(encoding="utf-8")
(SECTION,) = re.findall(r"^## XGBoost\n(.*?)(?:^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
BEFORE, AFTER = re.findall(r"```python\n# (?:before|after)\n(.*?)```", SECTION, re.DOTALL)
MAX_CHANGED_LINES = 10


def test_at_most_ten_lines_change() -> None:
    lines = [[line for line in text.splitlines() if line.strip()] for text in (BEFORE, AFTER)]
    opcodes = difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes()
    changed = sum(max(b - a, d - c) for kind, a, b, c, d in opcodes if kind != "equal")
    assert changed <= MAX_CHANGED_LINES


@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_script_writes_the_same_booster_whoever_dies(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(AFTER)
    boosters = []
    for faults in ("", "1.7.0.0@half_sent"):
        folder = tmp_path / f"job{faults}"
        said = launch(script, folder, workers=2, faults=faults)
        assert victims_in(said) == [fault[0] for fault in faults.split(",") if fault], said
        boosters.append((folder / "model.ubj").read_bytes())
    assert boosters[0] == boosters[1]
