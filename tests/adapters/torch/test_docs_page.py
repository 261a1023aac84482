"""The scripts of docs/torch.md and README.md: few lines change, and a kill changes nothing."""

import difflib
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.adapters.jobs import launch, victims_in  # noqa: E402 - skipped before, without torch
from tests.conformance.plans import ROOT  # noqa: E402 - likewise

PAGE = (ROOT / "docs" / "torch.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"```python\n# (?:before|after)\n(.*?)```", PAGE, re.DOTALL)
PACKAGES = ("torch", "accelerate")  # which the scripts need
PAIRS = dict(zip(PACKAGES, zip(SCRIPTS[::2], SCRIPTS[1::2], strict=True), strict=True))
README = (ROOT / "README.md").read_text(encoding="utf-8")
(OF_README,) = re.findall(r"```python\n(import torch\n.*?)```", README, re.DOTALL)
WITH_FTCOMM = {"README": OF_README, **{package: after for package, (_, after) in PAIRS.items()}}
MAX_CHANGED_LINES = 10


@pytest.mark.parametrize("package", PAIRS)
def test_at_most_ten_lines_change(package: str) -> None:
    lines = [[line for line in text.splitlines() if line.strip()] for text in PAIRS[package]]
    matcher = difflib.SequenceMatcher(None, *lines, autojunk=False)
    opcodes = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    indented = 1  # below `if comm.rank == 0`, the same but for its indentation
    changed = sum(max(b - a, d - c) for _, a, b, c, d in opcodes) - indented
    assert changed <= MAX_CHANGED_LINES


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WITH_FTCOMM)
def test_the_script_writes_the_same_weights_whoever_dies(name: str, tmp_path: Path) -> None:
    if name in PACKAGES:
        pytest.importorskip(name, reason=f"the package {name} is not installed")
    script = tmp_path / "train.py"
    script.write_text(WITH_FTCOMM[name])
    models = []
    for faults in ("", "1.2.3.0@half_sent"):
        folder = tmp_path / f"job{faults}"
        said = launch(script, folder, workers=2, faults=faults)
        assert victims_in(said) == [f[0] for f in faults.split(",") if f], said
        models.append(torch.load(folder / "model.pth"))
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
