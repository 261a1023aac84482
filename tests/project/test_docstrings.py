"""Rules for docstrings: each opens with an imperative verb or a noun phrase."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("ftcomm", "tracker", "chaos", "tests", "docs", "benchmarks", "examples")
QUESTION = re.compile(
    r"(?:What|Who|Whom|Whose|Which|Whether|Where|When|Why|How|Whatever|Whoever|Whichever"
    r"|Is|Are|Was|Does|Did|Has|Can|Could|May|Must|Should|Will)\b"
)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring in a module's source."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Documented) and (found := ast.get_docstring(node)):
            yield node.body[0].lineno, found


def opening_with_a_question(text: str) -> list[str]:
    """List the lines, and first lines of text, of docstrings that open with a question word."""
    return [
        f"{line}: {found.splitlines()[0]}"
        for line, found in docstrings(text)
        if QUESTION.match(found)
    ]


def test_no_docstring_opens_with_a_question_word() -> None:
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{place}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for place in opening_with_a_question(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""What a module holds."""', ["1: What a module holds."]),
        ('class A:\n    """Who calls."""', ["2: Who calls."]),
        ('def f():\n    """Whether it runs."""', ["2: Whether it runs."]),
        ('async def f():\n    """Is it there?"""', ["2: Is it there?"]),
        ('"""Whatever comes."""', ["1: Whatever comes."]),
        ('def f():\n    """Tell whether it runs."""', []),
        ('"""Isolation of arrays."""', []),
        ('"""Settings of the job: what it holds."""', []),
        ("x = 'What'", []),
    ],
)
def test_the_rule_itself(source: str, found: list[str]) -> None:
    assert opening_with_a_question(source) == found
