"""docs/design/states.md shows the edges that the worker machine really has."""

from pathlib import Path

from docs.generate import state_diagram
from ftcomm.recovery.states import TRANSITIONS

TEXT = (Path(__file__).parents[3] / "docs" / "design" / "states.md").read_text(encoding="utf-8")


def test_the_documented_diagram_is_that_of_the_code() -> None:
    """If it fails: python docs/generate.py --write."""
    assert f"```mermaid\n{state_diagram()}\n```" in TEXT


def test_the_diagram_has_every_edge_and_no_other() -> None:
    drawn = {
        (source, cause, target)
        for line in state_diagram().splitlines()
        if ": " in line
        for source, target in [line.strip().partition(":")[0].split(" --> ")]
        for cause in line.partition(": ")[2].split(", ")
    }
    assert drawn == {(source.value, cause, target.value) for source, cause, target in TRANSITIONS}
