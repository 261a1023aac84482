"""Mutants: each still applies, a few are noticed; `make mutants` plants them all."""

import subprocess
from pathlib import Path

import click
import pytest

from ftcomm_chaos.cli import main
from ftcomm_chaos.commands.explore import explore
from tests.conformance.scenarios import SCENARIOS
from tests.conformance.soak import is_named
from tests.helpers.background import run_beside
from tests.mutants.mutant import (
    ROOT,
    Edit,
    Mutant,
    all_mutants,
    files_changed_since,
    misplaced,
)
from tests.mutants.run import check, check_all, check_unmutated, judge
from tests.mutants.suites import FOUND, TOO_LONG, name_of

DEFECTS = all_mutants()
# One of each kind of layer that takes a second or two: they test the gate, not the tests.
SAMPLE = ["frontier_of_the_slowest", "pool_buffer_handed_out_twice", "prelude_log_forgotten"]


def missing(layer: str) -> str:
    """The part of `layer` that names no test, seed, script or scenario; empty if all do."""
    kind, *rest = layer.split()
    if kind == "sim":
        return next((seed for seed in rest if not seed.isdigit()), "")
    if kind == "explorer":
        try:
            # As the group does: a command keeps the help option of its first context.
            explore.make_context(kind, rest, parent=click.Context(main, **main.context_settings))
        except click.UsageError as error:
            return error.format_message()
        return ""
    if kind == "conformance":
        known = len(rest) == 1 and any(is_named(each, rest) for each in SCENARIOS)
        return "" if known else layer
    return next((address for address in layer.split() if not _is_test(address)), "")


def _is_test(address: str) -> bool:
    file, _, test = address.partition("::")
    if not file.startswith("tests/") or not (ROOT / file).exists():
        return False
    return not test or f"def {test}(" in (ROOT / file).read_text()


def test_there_are_some_in_every_layer() -> None:
    layers = {name_of(mutant.layer) for mutant in DEFECTS}
    assert layers == {
        "sim",
        "unit",
        "security",
        "tracker",
        "integration",
        "conformance",
        "explorer",
        "adapters",
    }


def test_all_still_apply() -> None:
    problems = {mutant.name: misplaced(mutant) for mutant in DEFECTS}
    assert {name: problem for name, problem in problems.items() if problem} == {}


def test_all_name_tests_that_exist() -> None:
    absent = {mutant.name: missing(mutant.layer) for mutant in DEFECTS}
    assert {name: layer for name, layer in absent.items() if layer} == {}


@pytest.mark.parametrize(
    "layer",
    [
        "test/unit/test_errors.py",
        "tests/unit/test_errors.py::test_nothing",
        "tests/unit/test_errors.py unit",
        "sim seven",
        "explorer XY 2 1",
        "explorer LS 9 1",
        "conformance F999",
        "conformance",
    ],
)
def test_a_layer_that_does_not_exist_is_noticed(layer: str) -> None:
    assert missing(layer) != ""


@pytest.mark.heavy
@pytest.mark.process
@pytest.mark.timeout(2400)  # it yields to all others
def test_three_are_noticed() -> None:
    status, output = run_beside("tests.mutants", *SAMPLE, "--jobs", "1")
    caught = sorted(line.split()[0] for line in output.splitlines() if "caught by" in line)
    assert (status, caught) == (0, SAMPLE), output


def test_files_that_differ_from_a_commit_are_known(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *author, *arguments], cwd=tmp_path, check=True)

    git("init", "--quiet")
    for name in ("changed.py", "same.py"):
        (tmp_path / name).write_text("1\n")
    git("add", "--all")
    git("commit", "--quiet", "--message", "Begin")
    (tmp_path / "changed.py").write_text("2\n")
    assert files_changed_since("HEAD", tmp_path) == {"changed.py"}


def test_a_mutant_that_no_longer_applies_fails_the_gate() -> None:
    first = DEFECTS[0]
    edit = Edit(first.edits[0].file, "no such text", "")
    result = check(Mutant(first.name, first.layer, first.why, (edit,)))
    assert (result.caught, result.how) == (False, f"its old text occurs 0 times in {edit.file}")


def test_one_whose_tests_need_a_missing_package_is_not_run() -> None:
    """It has neither survived nor been caught: a skipped test tells nothing."""
    first = DEFECTS[0]
    mutant = Mutant(first.name, "tests/adapters", first.why, first.edits, needs=("no_such_one",))
    result = check(mutant)
    assert (result.is_run, result.caught, result.how) == (
        False,
        False,
        "its tests need no_such_one",
    )
    assert check_unmutated([mutant]) == ""


def test_those_of_adapters_say_which_framework_they_need() -> None:
    for mutant in DEFECTS:
        of_adapters = name_of(mutant.layer) == "adapters"
        assert bool({"torch", "lightgbm"} & set(mutant.needs)) == of_adapters, mutant.name


def test_each_of_many_is_looked_at_once() -> None:
    gone = [Mutant(name, "sim", "", (Edit("README.md", "no such text", ""),)) for name in "abcd"]
    found = [(result.name, result.caught) for result in check_all(gone, jobs=3)]
    assert sorted(found) == [(name, False) for name in "abcd"]


@pytest.mark.parametrize(
    ("status", "output", "result"),
    [
        (FOUND, "E   AssertionError: 3 != 4\n", (True, "E   AssertionError: 3 != 4")),
        (FOUND, "seed 7: lost\n", (True, "seed 7: lost")),
        (FOUND, "F9-0: BrokenError: no end\n", (True, "F9-0: BrokenError: no end")),
        (0, "2 passed", (False, "not noticed (exit status 0)")),
        (4, "no tests ran", (False, "not noticed (exit status 4)")),
        (TOO_LONG, "", (False, "not noticed (exit status -1)")),
        (FOUND, "E   NameError: name 'x'\n", (False, "breaks the program: NameError")),
        (FOUND, "with pytest.raises(TypeError, match='a'):\nE   seen\n", (True, "E   seen")),
    ],
)
def test_only_a_broken_rule_counts(status: int, output: str, result: tuple[bool, str]) -> None:
    assert judge(status, output) == result
