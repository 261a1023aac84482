"""The script of docs/ray.md computes what it did before, and the example survives a kill."""

import re
from pathlib import Path

import pytest

pytest.importorskip("ray")

from tests.adapters.page_scripts import model_of, new_lines, output, scripts_of
from tests.conformance.plans import ROOT

pytestmark = [pytest.mark.process, pytest.mark.heavy, pytest.mark.timeout(600)]

BEFORE, AFTER = scripts_of("ray.md")
RANKS = 3
OPTIONS = {"RAY_AUTH_MODE": "disabled"}  # or Ray keeps a token in the user's home


def run(script: str, folder: Path) -> str:
    """Run a script of the page for five steps; returns what it computes."""
    script = script.replace("ray.init()", f"ray.init(num_cpus={RANKS}, include_dashboard=False)")
    script = re.sub(r"\b8\b", str(RANKS), script)
    script = re.sub(r"\b100\b", "5", script)
    path = folder / "script.py"
    path.write_text(f"{script}print('weights', weights.tobytes().hex())\n")
    (weights,) = re.findall(r"^weights (.*)", output(path, variables=OPTIONS), re.MULTILINE)
    return str(weights)


def test_the_script_of_the_page_computes_the_same(tmp_path: Path) -> None:
    assert new_lines(BEFORE, AFTER) <= 10
    assert run(AFTER, tmp_path) == run(BEFORE, tmp_path)


def test_the_example_finds_the_same_weights_whoever_dies(tmp_path: Path) -> None:
    script, options = ROOT / "examples" / "ray_local_sgd.py", ("--rounds", "6")
    record = tmp_path / "faults"
    fault = {"FTCOMM_FAULTS": f"1.2.0.0@half_sent > {record}"}
    models = [
        model_of(output(script, *options, variables={**OPTIONS, **each})) for each in ({}, fault)
    ]
    assert models[0] == models[1]
    assert len(record.read_text().splitlines()) == 1, "the rank was killed"
