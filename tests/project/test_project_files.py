"""Files for people and services around the code agree with it."""

import re
from pathlib import Path

import pytest

import ftcomm

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / ".pre-commit-config.yaml"
FOR_PEOPLE = ("SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff")
# Besides the two actions by name, these files name no place outside the repository.
ADDRESS = re.compile(r"https?://|[\w.]+@[\w-]+\.\w+|img\.shields")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {ftcomm.__version__}\n" in text_of(ROOT / "CITATION.cff")


def steps_of(workflow: str) -> list[str]:
    steps = re.findall(r"run: (.*)", text_of(ROOT / ".github" / "workflows" / workflow))
    targets = [re.fullmatch(r"make (.+) PYTHON=python", step) for step in steps]
    return [target[1] if target else "no target" for target in targets]


def test_workflows_run_make_targets_alone() -> None:
    assert steps_of("check.yml") == ["test", "test-jobs", "docs"]
    assert set(steps_of("check.yml")) <= make_targets()
    assert steps_of("night.yml") == ["${{ matrix.target }}"]


def test_every_part_of_the_night_is_run_at_night() -> None:
    of_make = re.search(r"^test-night: ([a-z -]+) ##", text_of(ROOT / "Makefile"), re.MULTILINE)
    of_workflow = re.search(r"target: \[(.*)\]", text_of(ROOT / ".github/workflows/night.yml"))
    assert of_make is not None
    assert of_workflow is not None
    assert of_make[1].split() == of_workflow[1].split(", ")
    assert set(of_make[1].split()) <= make_targets()


def test_hooks_run_the_tools_of_make_lint() -> None:
    tools = set(re.findall(r"\$\(BIN\)/([\w-]+)", text_of(ROOT / "Makefile")))
    entries = re.findall(r"entry: .*?\.venv/bin/([\w-]+)", text_of(HOOKS))
    assert entries == ["ruff", "ruff", "mypy", "lint-imports", "python"]
    assert set(entries) <= tools


@pytest.mark.parametrize("name", [*FOR_PEOPLE, ".pre-commit-config.yaml", "README.md"])
def test_no_address_is_invented(name: str) -> None:
    assert ADDRESS.findall(text_of(ROOT / name)) == []
