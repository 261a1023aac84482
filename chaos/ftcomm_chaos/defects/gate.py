"""The gate: plant each defect in a copy of the tree and see that its layer notices.

A layer is ``sim``, ``sim FIRST_SEED`` (an early finding saves time), ``explorer LETTERS RANKS
CRASHES``, or the address of a unit test.  A defect whose old text is not there exactly once, or
which breaks the program instead of a rule, fails the gate: it would prove nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
COPIED = ("ftcomm", "tracker", "chaos", "tests/recovery", "tests/tracker", "pyproject.toml")
SIM_SEEDS = 2000  # as many as every test run has
LIMIT_S = 240.0  # for one defect; the slowest takes a tenth on an idle machine
CRASHED = (  # the defect broke the program, not a rule
    "ImportError", "SyntaxError", "ModuleNotFoundError", "NameError", "IndentationError",
    "TypeError", "AttributeError", "KeyError", "IndexError",
)  # fmt: skip


@dataclass(frozen=True)
class Edit:
    """One exact replacement."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Defect:
    """One planted defect."""

    name: str
    layer: str
    why: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Finding:
    """What became of a defect."""

    defect: Defect
    caught: bool
    how: str


def all_defects() -> list[Defect]:
    """Every file of this folder, by name."""
    return [_read(path) for path in sorted(HERE.glob("*.toml"))]


def _read(path: Path) -> Defect:
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    edits = tuple(Edit(edit["file"], edit["old"], edit["new"]) for edit in raw["edit"])
    return Defect(path.stem, raw["layer"], raw["why"], edits)


def misplaced(defect: Defect, root: Path = ROOT) -> str:
    """Why the defect does not apply any more; empty if it does."""
    for edit in defect.edits:
        count = (root / edit.file).read_text(encoding="utf-8").count(edit.old)
        if count != 1:
            return f"its old text occurs {count} times in {edit.file}"
    return ""


def check(defect: Defect) -> Finding:
    """Plant `defect` in a copy of the tree and run its layer there."""
    problem = misplaced(defect)
    if problem:
        return Finding(defect, caught=False, how=problem)
    with tempfile.TemporaryDirectory(prefix="ftcomm-defect-") as name:
        tree = Path(name)
        _copy(tree)
        for edit in defect.edits:
            path = tree / edit.file
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
        return _judge(defect, *_run(defect.layer, tree))


def _copy(tree: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "*.toml.bak")
    for part in COPIED:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, tree / part, ignore=ignore)
        else:
            shutil.copy(source, tree / part)


def _run(layer: str, tree: Path) -> tuple[int, str]:
    """Exit status and output of the layer; status -1 if it took too long."""
    if layer.startswith("sim"):
        first = layer.partition(" ")[2] or "0"
        arguments = ["ftcomm_chaos.cli", "sim", "--first", first, "--seeds", str(SIM_SEEDS)]
        arguments += ["--stop-after", "1"]
    elif layer.startswith("explorer"):
        arguments = ["ftcomm_chaos.cli", "explore", *layer.split()[1:]]
    else:
        arguments = ["pytest", "-q", "-p", "no:cacheprovider", layer]
    paths = [str(tree), str(tree / "tracker"), str(tree / "chaos")]
    environment = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter on our own files
            [sys.executable, "-m", *arguments],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, "took too long"
    return done.returncode, done.stdout + done.stderr


def _judge(defect: Defect, status: int, output: str) -> Finding:
    words = next((w for w in CRASHED if w in output), "")
    if words:
        return Finding(defect, caught=False, how=f"breaks the program: {words}")
    if status != 1:
        return Finding(defect, caught=False, how=f"not noticed (exit status {status})")
    return Finding(defect, caught=True, how=_evidence(output))


def _evidence(output: str) -> str:
    marks = ("seed ", "violation", "E   ")
    lines = [line.strip() for line in output.splitlines() if line.startswith(marks)]
    return (lines or ["failed"])[0][:150]


def run_all() -> Iterator[Finding]:
    """Check every defect, one after the other."""
    for defect in all_defects():
        yield check(defect)
