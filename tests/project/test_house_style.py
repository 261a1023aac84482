"""Rules of the house that no tool checks; they only ever get stricter."""

import ast
import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("ftcomm", "tracker/ftcomm_tracker", "chaos/ftcomm_chaos")
MAX_FUNCTION_LINES = 60
ENVIRONMENT_READER = "ftcomm/config/environment.py"

# A suppression names its code and, after it, its reason.
UNEXPLAINED = re.compile(
    r"#\s*(?:noqa(?!: [A-Z]+\d+(?:, ?[A-Z]+\d+)*\s+\S)"
    r"|type:\s*ignore(?!\[[a-z-]+(?:, ?[a-z-]+)*\]\s+#\s*\S))"
)
MARKED_FOR_LATER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Nodes = Callable[[Path], list[ast.AST]]


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def nodes() -> Nodes:
    """All nodes of a file, parsed and walked once for the tests of this module.

    Behind it a million objects are given back: each collection of garbage would look at them.
    """
    return functools.cache(lambda path: list(ast.walk(ast.parse(path.read_text("utf-8")))))


def lines_matching(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{name(path)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def called(node: ast.AST) -> str:
    """Dotted text of what a call calls, empty for anything else."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def test_no_function_is_too_long_to_see_at_once(nodes: Nodes) -> None:
    found = [
        f"{name(path)}:{node.lineno} {node.name} has {size} lines"
        for path in sources(*PACKAGES, "tests", "benchmarks", "examples")
        for node in nodes(path)
        if isinstance(node, Function)
        and (size := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert found == []


def test_every_suppression_names_its_code_and_reason() -> None:
    paths = sources(*PACKAGES, "tests", "benchmarks", "examples")
    assert lines_matching(UNEXPLAINED, [p for p in paths if p != Path(__file__)]) == []


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("x = 1  # noqa", True),
        ("x = 1  # noqa: E501", True),
        ("x = 1  # noqa: E501 - a table", False),
        ("x = 1  # type: ignore", True),
        ("x = 1  # type: ignore[misc]", True),
        ("x = 1  # type: ignore[misc]  # stub says int", False),
    ],
)
def test_the_suppression_rule_itself(line: str, wanted: bool) -> None:
    assert bool(UNEXPLAINED.search(line)) == wanted


def test_nothing_is_left_for_later() -> None:
    paths = sources(*PACKAGES, "tests", "benchmarks", "examples")
    assert lines_matching(MARKED_FOR_LATER, paths) == []


def test_only_config_reads_the_environment(nodes: Nodes) -> None:
    readers = {
        name(path)
        for path in sources(*PACKAGES)
        for node in nodes(path)
        if (isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"})
        or (isinstance(node, ast.alias) and node.name in {"environ", "environb", "getenv"})
    }
    assert readers <= {ENVIRONMENT_READER}


def test_no_error_is_swallowed_whole(nodes: Nodes) -> None:
    found = [
        f"{name(path)}:{node.lineno}"
        for path in sources(*PACKAGES)
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"})
        and all(isinstance(step, ast.Pass) for step in node.body)
    ]
    assert found == []


def test_tests_do_not_sleep(nodes: Nodes) -> None:
    """`trio.sleep_forever` waits to be cancelled and is allowed; trio.sleep(0) only yields."""
    found = [
        f"{name(path)}:{node.lineno} {ast.unparse(node)}"
        for path in sources("tests")
        for node in nodes(path)
        if re.fullmatch(r"(?:\w+\.)?sleep(?:_until)?", called(node))
        and ast.unparse(node) != "trio.sleep(0)"
    ]
    assert found == []
