"""The table of rules in docs/testing.md names tests of `make test`, one at least for each rule."""

import re
from pathlib import Path

import pytest

from tests.conformance.scenarios import OF_RULES

TESTS = Path(__file__).parents[1]
BUILT = [f"R{number}" for number in (*range(1, 14), 15, 16, 17, 19, 20, 21, 24)]
ROW = re.compile(r"^\| (R\d+) \| [^|]+ \| (.+) \|$", re.MULTILINE)


def rows() -> dict[str, list[str]]:
    """Scenarios and tests that the table names, by rule."""
    text = (TESTS.parent / "docs" / "testing.md").read_text(encoding="utf-8")
    return {rule: re.findall(r"`([^`]+)`", names) for rule, names in ROW.findall(text)}


def test_every_rule_that_is_built_has_a_row() -> None:
    assert list(rows()) == BUILT
    assert all(rows().values())


def test_the_table_has_the_scenarios_of_each_rule() -> None:
    named = {rule: [name for name in names if "/" not in name] for rule, names in rows().items()}
    assert {rule: tuple(names) for rule, names in named.items() if names} == OF_RULES


@pytest.mark.parametrize(
    "address", [name for names in rows().values() for name in names if "/" in name]
)
def test_each_test_of_the_table_is_one_of_make_test(address: str) -> None:
    file, _, test = address.partition("::")
    text = (TESTS / file).read_text(encoding="utf-8")
    (marks,) = re.findall(
        rf"((?:^@.*\n(?:[ )].*\n)*)*)^(?:async )?def {test}\(", text, re.MULTILINE
    )
    assert "@pytest.mark.smoke" in marks
