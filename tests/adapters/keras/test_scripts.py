"""The scripts of docs/keras.md and the example: few lines change, and a kill changes nothing."""

import difflib
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="the package tensorflow is not installed")

import keras
import numpy as np

from tests.adapters.jobs import launch, victims_in
from tests.adapters.page_scripts import model_of, scripts_of
from tests.conformance.plans import ROOT

BEFORE, AFTER = scripts_of("keras.md")
MAX_CHANGED_LINES = 6
FAULTS = ("", "1.2.3.0@half_sent")


def test_at_most_six_lines_change() -> None:
    lines = [
        [line.strip() for line in text.splitlines() if line.strip()] for text in (BEFORE, AFTER)
    ]
    opcodes = difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes()
    changed = sum(max(b - a, d - c) for kind, a, b, c, d in opcodes if kind != "equal")
    assert changed <= MAX_CHANGED_LINES


@pytest.mark.process
@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_the_script_of_the_page_writes_the_same_weights_whoever_dies(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(AFTER)
    models = []
    for faults in FAULTS:
        folder = tmp_path / f"job{faults}"
        said = launch(script, folder, workers=2, faults=faults)
        assert victims_in(said) == list(faults[:1]), said
        models.append(keras.models.load_model(folder / "model.keras").get_weights())
    assert len(models[0]) == 4
    assert all(np.array_equal(*pair) for pair in zip(*models, strict=True))


@pytest.mark.process
@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_the_example_finds_the_same_weights_whoever_dies(tmp_path: Path) -> None:
    script, options = ROOT / "examples" / "keras_digits.py", ("--epochs", "2", "--model", "dnn")
    models = []
    for faults in FAULTS:
        said = launch(script, tmp_path / f"job{faults}", *options, workers=2, faults=faults)
        assert victims_in(said) == list(faults[:1]), said
        models.append(model_of(said.replace("[0] ", "")))
    assert models[0] == models[1]
