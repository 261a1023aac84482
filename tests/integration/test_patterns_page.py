"""docs/patterns.md: few lines of a script change, its scripts survive kills, its gap is kept."""

import difflib
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from tests.conformance.plans import ROOT
from tests.integration.test_examples import needs_sklearn, run, victims_in

PAGE = (ROOT / "docs" / "patterns.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```python\n# ([^\n]+)\n(.*?)```", PAGE, re.DOTALL))
HEAD, BEFORE = re.split(r"(?m)^(?=weights = )", BLOCKS.pop("before"))
MAX_CHANGED_LINES = 10
GAP = 0.5  # percent points of wrong answers, as the page says
FAULTS = {
    "after": "1.9.0.0@half_sent",
    "diloco": "0.9.0.0@done",
    "gossip": "1.9.0.0@sent",
    "parameter server": "0.9.3.0@half_sent",
}


def test_at_most_ten_lines_change() -> None:
    lines = [
        [line.strip() for line in text.splitlines() if line] for text in (BEFORE, BLOCKS["after"])
    ]
    matcher = difflib.SequenceMatcher(None, *lines, autojunk=False)
    opcodes = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    assert sum(max(b - a, d - c) for _, a, b, c, d in opcodes) <= MAX_CHANGED_LINES


@needs_sklearn
@pytest.mark.process
@pytest.mark.parametrize(
    "name",
    [name if name == "after" else pytest.param(name, marks=pytest.mark.slow) for name in BLOCKS],
)
def test_a_script_of_the_page_writes_the_same_weights_whoever_dies(
    name: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + BLOCKS[name])
    run(script, workers=2, cwd=tmp_path)
    undisturbed = (tmp_path / "weights.npy").read_bytes()
    (tmp_path / "weights.npy").unlink()
    said = run(script, workers=2, cwd=tmp_path, faults=FAULTS[name])
    assert victims_in(said) == [FAULTS[name][0]]
    assert (tmp_path / "weights.npy").read_bytes() == undisturbed
    assert np.abs(np.load(tmp_path / "weights.npy")).max() > 1.0  # something was learned


@needs_sklearn
@pytest.mark.process
@pytest.mark.slow
def test_every_way_learns_as_much_as_synchronous_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds and twelve epochs; all follows from the seeds."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = importlib.import_module("patterns")
    _, *found = benchmark.take(benchmark.parser().parse_args(["--quick"]))
    last = {line["way"]: line["wrong"][-1] for line in found}
    synchronous = last.pop("synchronous SGD")
    assert synchronous < 5.0
    assert [*last] == ["LocalSGD", "DiLoCo", "DiLoCo, momentum 0.5", "Gossip"]
    assert {way: wrong for way, wrong in last.items() if abs(wrong - synchronous) > GAP} == {}
