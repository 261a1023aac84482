"""The gate: plant each mutant in a copy of the tree and see that its layer notices.

A mutant whose old text is not there exactly once, or which breaks the program instead of a rule,
fails the gate: it would prove nothing.  So does a layer that fails in a copy without any mutant.
"""

import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import Mutant, apply, copy_tree, misplaced
from tests.mutants.suites import FOUND, name_of, run_layer, run_unmutated

# The mutant broke the program, not a rule.
CRASHED = re.compile(
    r"\b(?:ImportError|SyntaxError|ModuleNotFoundError|NameError|UnboundLocalError"
    r"|IndentationError|TypeError|AttributeError|KeyError|IndexError):"
)
# How a line begins that says what was found: in a simulator's words, a test's, a scenario's.
EVIDENCE = re.compile(r"seed |violation|E   |FAILED |[\w-]+: \w*Error: ")
EVIDENCE_LENGTH = 110  # characters of such a line that a table has room for


@dataclass(frozen=True)
class MutantResult:
    """Outcome of a mutant.

    Attributes:
        name: of the mutant.
        layer: one word for it.
        caught: the layer has noticed it.
        how: the line that says so, or why it counts as not noticed.
        seconds: that this took.
        is_run: False: a package that its tests need is not installed, so nothing is known.
    """

    name: str
    layer: str
    caught: bool
    how: str
    seconds: float = 0.0
    is_run: bool = True


def check(mutant: Mutant) -> MutantResult:
    """Plant `mutant` in a copy of the tree and run its layer there."""
    missing = mutant.missing_packages
    if missing:
        how = f"its tests need {', '.join(missing)}"
        layer = name_of(mutant.layer)
        return MutantResult(mutant.name, layer, caught=False, how=how, is_run=False)
    began = time.monotonic()
    caught, how = _caught(mutant)
    return MutantResult(mutant.name, name_of(mutant.layer), caught, how, _since(began))


def check_all(mutants: Sequence[Mutant], *, jobs: int = 1) -> Iterator[MutantResult]:
    """Check `mutants`, `jobs` at a time; a finding comes as soon as it is there.

    Args:
        mutants: what to plant, one by one.
        jobs: how many at once.
    """
    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(check, mutant) for mutant in mutants]):
            yield done.result()


def check_unmutated(mutants: Sequence[Mutant]) -> str:
    """Run the layers of `mutants` without a mutant; return what they find, or nothing."""
    layers = [mutant.layer for mutant in mutants if not mutant.missing_packages]
    with tempfile.TemporaryDirectory(prefix="ftcomm-mutant-") as name:
        copy_tree(Path(name))
        status, output = run_unmutated(layers, Path(name))
    return f"{_evidence(output)} (exit status {status})" if status else ""


def _caught(mutant: Mutant) -> tuple[bool, str]:
    problem = misplaced(mutant)
    if problem:
        return False, problem
    with tempfile.TemporaryDirectory(prefix="ftcomm-mutant-", ignore_cleanup_errors=True) as name:
        copy_tree(Path(name))
        apply(mutant, Path(name))
        return judge(*run_layer(mutant.layer, Path(name)))


def judge(status: int, output: str) -> tuple[bool, str]:
    """Tell whether a layer with this exit has noticed a broken rule, and describe the outcome."""
    broken = CRASHED.search(output)
    if broken:
        return False, f"breaks the program: {broken.group()[:-1]}"
    if status != FOUND:
        return False, f"not noticed (exit status {status})"
    return True, _evidence(output)


def _evidence(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if EVIDENCE.match(line)]
    return (lines or [output.strip().rpartition("\n")[2] or "failed"])[0][:EVIDENCE_LENGTH]


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)
