"""mutation testing: what a mutant is, and a copy of the tree with one in it."""

import importlib.util
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COPIED = ("ftcomm", "tracker", "chaos", "tests", "examples", "pyproject.toml", "hatch_build.py")


@dataclass(frozen=True)
class Edit:
    """One exact replacement."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """One mutant.

    Attributes:
        name: of its file.
        layer: what must notice it; see `layers`.
        why: the damage that it does, in words.
        edits: what is replaced.
        needs: optional packages and commands without which its tests are skipped.
    """

    name: str
    layer: str
    why: str
    edits: tuple[Edit, ...]
    needs: tuple[str, ...] = ()

    @property
    def missing_packages(self) -> list[str]:
        """Those of `needs` that are not installed: without them its tests tell nothing."""
        return [
            name
            for name in self.needs
            if importlib.util.find_spec(name) is None and shutil.which(name) is None
        ]


def all_mutants() -> list[Mutant]:
    """Every file of this folder, by name."""
    return [_read(path) for path in sorted(HERE.glob("*.toml"))]


def _read(path: Path) -> Mutant:
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    edits = tuple(Edit(edit["file"], edit["old"], edit["new"]) for edit in raw["edit"])
    return Mutant(path.stem, raw["layer"], raw["why"], edits, needs=tuple(raw.get("needs", ())))


def files_changed_since(commit: str, root: Path = ROOT) -> set[str]:
    """Files of the tree at `root` that differ from those of `commit`, as paths from there."""
    command = ["git", "diff", "--name-only", commit, "--"]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return set(done.stdout.splitlines())


def misplaced(mutant: Mutant, root: Path = ROOT) -> str:
    """Explain why the mutant no longer applies; empty if it does."""
    for edit in mutant.edits:
        count = (root / edit.file).read_text(encoding="utf-8").count(edit.old)
        if count != 1:
            return f"its old text occurs {count} times in {edit.file}"
    return ""


def copy_tree(tree: Path) -> None:
    """Copy into the empty folder `tree` what the layers run."""
    ignore = shutil.ignore_patterns("__pycache__")
    for part in COPIED:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, tree / part, ignore=ignore)
        else:
            shutil.copy(source, tree / part)


def apply(mutant: Mutant, tree: Path) -> None:
    """Carry out the mutant's edits in a copy."""
    for edit in mutant.edits:
        path = tree / edit.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
    if any(edit.file.endswith(".c") for edit in mutant.edits):
        subprocess.run([sys.executable, "hatch_build.py"], cwd=tree, check=True)
