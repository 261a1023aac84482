"""Layers: the commands that must notice a mutant.

A layer is written as

* ``sim``, or ``sim SEED``: simulated jobs from seed 0 on until one fails, those near SEED first;
* ``explorer LETTERS RANKS CRASHES``: every order of events of a small job;
* ``conformance ID``: one scenario of real processes;
* the addresses of tests, with blanks between them.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

SIM_SEEDS = 4000  # a third more than every test run has: what a seed does may change
NEAR = 40  # seeds that are tried first where one is named: it saves time, nothing depends on it
LIMIT_S = 300.0  # for one command; the slowest takes a fifth of it on an idle machine
TEST_LIMIT_S = 60  # for one test: where a mutant makes it wait, half of what it has else is enough
NOTHING_FOUND, FOUND, TOO_LONG = 0, 1, -1  # exit statuses; any other is a broken program
TOO_FEW_FAULTS = 3  # of the simulator, in so few seeds by chance: it has found nothing

# By the folder of a test: what the table says. Others are tests of single pieces.
_FOLDERS = {
    "tests/security/": "security",
    "tests/unit/tracker/": "tracker",
    "tests/integration/": "integration",
    "tests/adapters/": "adapters",
}


def name_of(layer: str) -> str:
    """One word for the table."""
    first = layer.split(maxsplit=1)[0]
    if not first.startswith("tests/"):
        return first
    return next((name for folder, name in _FOLDERS.items() if first.startswith(folder)), "unit")


def run_layer(layer: str, tree: Path) -> tuple[int, str]:
    """Run the layer in `tree`; exit status and output of its first command that finds something."""
    status, output = NOTHING_FOUND, ""
    for arguments in _commands(layer):
        status, output = _run(arguments, tree)
        if status == TOO_FEW_FAULTS:
            status = NOTHING_FOUND
        if status != NOTHING_FOUND:
            break
    return status, output


def run_unmutated(layers: Iterable[str], tree: Path) -> tuple[int, str]:
    """Run all tests and scenarios of `layers` in an unchanged copy, where they must pass.

    The simulator and the explorer are left out: a test run has more of both.
    """
    parts = [layer.split() for layer in sorted(set(layers))]
    tests = sorted({test for part in parts if part[0].startswith("tests/") for test in part})
    scenarios = sorted({part[1] for part in parts if part[0] == "conformance"})
    status, output = _run(_pytest(*tests), tree) if tests else (NOTHING_FOUND, "")
    if status == NOTHING_FOUND and scenarios:
        status, output = _run(_soak(",".join(scenarios)), tree)
    return status, output


def _commands(layer: str) -> list[list[str]]:
    kind, *rest = layer.split()
    if kind == "sim":
        near = [_sim(int(seed), NEAR) for seed in rest]
        return [*near, _sim(0, SIM_SEEDS)]
    if kind == "explorer":
        return [["ftcomm_chaos", "explore", *rest]]
    if kind == "conformance":
        return [_soak(*rest)]
    return [_pytest(kind, *rest)]


def _sim(first: int, seeds: int) -> list[str]:
    arguments = ["--first", str(first), "--seeds", str(seeds), "--stop-after", "1"]
    return ["ftcomm_chaos", "sim", *arguments]


def _soak(scenarios: str) -> list[str]:
    return ["tests.conformance.soak", "--times", "1", "--only", scenarios]


def _pytest(*addresses: str) -> list[str]:
    options = ["-qx", "--tb=short", "-p", "no:cacheprovider", "--timeout", str(TEST_LIMIT_S)]
    options += ["-m", "not slow"]
    fixed = "--hypothesis-seed=0"  # a mutant that is caught by chance is not caught
    return ["pytest", *options, fixed, *addresses]


def _run(arguments: list[str], tree: Path) -> tuple[int, str]:
    paths = [str(tree), str(tree / "tracker"), str(tree / "chaos")]
    environment = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
    environment["TMPDIR"] = str(tree)  # what a broken job leaves behind goes with the copy
    with subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return TOO_LONG, "took too long"
        finally:
            _end_group(process.pid)
    return process.returncode, output


def _end_group(pid: int) -> None:
    """A mutant may leave workers behind that nothing ends any more."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
