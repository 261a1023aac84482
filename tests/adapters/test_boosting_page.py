"""The scripts of the page on boosting: few lines change, and a kill changes nothing."""

import difflib
import re
from pathlib import Path

import pytest

from tests.adapters.jobs import launch, victims_in
from tests.conformance.plans import ROOT

PAGE = (ROOT / "docs" / "boosting.md").read_text(encoding="utf-8")
MAX_CHANGED_LINES = 10
TITLES = ["LightGBM", "XGBoost"]


def scripts_of(title: str) -> tuple[str, str]:
    """Both scripts of a section: before and after."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?:^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    before, after = re.findall(r"```python\n# (?:before|after)\n(.*?)```", section, re.DOTALL)
    return before, after


@pytest.mark.parametrize("title", TITLES)
def test_at_most_ten_lines_change(title: str) -> None:
    lines = [[line for line in text.splitlines() if line.strip()] for text in scripts_of(title)]
    opcodes = difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes()
    changed = sum(max(b - a, d - c) for kind, a, b, c, d in opcodes if kind != "equal")
    assert changed <= MAX_CHANGED_LINES


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("title", "kill", "model"),
    [("LightGBM", "1.30.7.0@enter", "model.txt"), ("XGBoost", "1.7.0.0@half_sent", "model.ubj")],
    ids=TITLES,
)
def test_the_script_writes_the_same_model_whoever_dies(
    title: str, kill: str, model: str, tmp_path: Path
) -> None:
    pytest.importorskip(title.lower())
    script = tmp_path / "train.py"
    script.write_text(scripts_of(title)[1])
    models = []
    for faults in ("", kill):
        folder = tmp_path / f"job{faults}"
        said = launch(script, folder, workers=2, faults=faults)
        assert victims_in(said) == [fault[0] for fault in faults.split(",") if fault], said
        models.append((folder / model).read_bytes())
    assert models[0] == models[1]
