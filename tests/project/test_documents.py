"""The parts of the documents that are made from the code are up to date."""

import dataclasses
import re
from pathlib import Path

import pytest

from docs.generate import PARTS, RAISED_BY, error_classes, parts_in, up_to_date
from ftcomm.api.public_values import KindStats, Stats
from ftcomm.config.environment import VARIABLES

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_made_part_is_stale(path: Path) -> None:
    """If it fails: python docs/generate.py --write."""
    text = path.read_text(encoding="utf-8")
    assert up_to_date(text) == text


def test_every_part_is_in_a_document() -> None:
    found = [name for path in DOCUMENTS for name in parts_in(path.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(PARTS)


def test_of_every_error_it_is_said_who_raises_it() -> None:
    assert set(error_classes()) == set(RAISED_BY)


def test_every_variable_is_in_the_operators_tables() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert [name for name in VARIABLES if f"| `{name}` |" not in text] == []


def test_no_other_variable_is_spoken_of() -> None:
    """A user who sets a variable that nothing reads is told nothing."""
    folders = ("ftcomm", "tracker", "chaos", "examples")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = {
        name
        for path in [*sources, *DOCUMENTS, *ROOT.glob("*.md")]
        for name in re.findall(r"(?<!_)FTCOMM_[A-Z]+(?:_[A-Z]+)*", path.read_text(encoding="utf-8"))
    }
    assert named - VARIABLES.keys() == set()


def test_all_counters_are_named() -> None:
    text = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    part = text.partition("## What a script can count")[2].partition("\n## ")[0]
    names = [field.name for kind in (Stats, KindStats) for field in dataclasses.fields(kind)]
    assert [name for name in names if f"`{name}`" not in part] == []


def test_nobody_is_taught_to_kill_by_a_pattern() -> None:
    """A pattern also matches whatever has the script's name among its arguments."""
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    assert any("ftcomm-tracker kill" in text for text in texts)
    assert [found for text in texts for found in re.findall(r"(?:pkill|killall) .*", text)] == []


@pytest.mark.parametrize("path", [ROOT / "CONTRIBUTING.md", *DOCUMENTS], ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []
