"""Measure the form of the project, and compare each measure with its bound.

    python tests/project/measure_house.py [--json]

Each bound is what was reached, or the goal where that is met. `test_measure_house.py` fails above
it, so a measure can only get better: lower the bound with the code.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.project import code_measures as code
from tests.project.prose_measures import sentence_percentile, wide_lines
from tests.project.visited_modules import Visit, measure

ROOT = Path(__file__).parents[2]
FOLDERS = ("ftcomm", "tracker/ftcomm_tracker", "chaos/ftcomm_chaos")
COLUMNS = 110
WORST = 3  # offenders that the table names


@dataclass(frozen=True)
class Bound:
    """One measure's bound.

    Attributes:
        limit: the highest value that passes.
        why: what the measure is good for.
    """

    limit: float
    why: str


BOUNDS = {
    "root modules": Bound(5, "files in the folder of ftcomm itself; a reader begins there"),
    "modules in a folder": Bound(16, "files of one folder; subfolders count for themselves"),
    "import cycles": Bound(0, "groups of modules, none of which can be read first"),
    "inheritance depth": Bound(2, "own classes in one chain, errors and protocols left out"),
    "private members": Bound(35, "non-public names that one object has, inherited ones too"),
    "class names used twice": Bound(0, "a name that is searched for leads to one class"),
    "lines of a function": Bound(60, "a function is seen at once"),
    "lines of a file": Bound(600, "a file holds one idea"),
    "one caller, ftcomm": Bound(40, "percent of private functions that one line calls"),
    # Of the tracker's, those that several modules call are public since its core is functions.
    "one caller, ftcomm_tracker": Bound(67, "the same of the tracker"),
    "one caller, ftcomm_chaos": Bound(47, "the same of the chaos harness"),
    # One of them only where the call waits for a peer, as this one always does.
    "modules, cold allreduce": Bound(30, "files that a first allreduce of a form goes through"),
    "modules, repeated allreduce": Bound(12, "files that a repeated allreduce goes through"),
    "lines of README": Bound(130, "read in some minutes"),
    "README sentence": Bound(25, "words of a sentence that 90 % do not pass"),
    "wide lines of documents": Bound(0, f"lines over {COLUMNS} columns, tables and code left out"),
}


@dataclass(frozen=True)
class Measured:
    """One measure's value.

    Attributes:
        value: compared with the bound.
        worst: the places that have the highest values, with them.
    """

    value: float
    worst: tuple[str, ...] = ()


def highest(values: dict[str, int]) -> Measured:
    """The largest of several values."""
    ordered = sorted(values.items(), key=lambda item: -item[1])
    return Measured(ordered[0][1], tuple(f"{name} {value}" for name, value in ordered[:WORST]))


def counted(offenders: Iterable[str]) -> Measured:
    """Count the offenders, and name the first ones."""
    found = list(offenders)
    return Measured(len(found), tuple(found[:WORST]))


def code_of(root: Path, folders: Iterable[str]) -> dict[str, Measured]:
    """The measures of the packages in `folders`."""
    packages = [code.read_package(root, folder) for folder in folders]
    found = code.classes(packages)
    above = code.inherited(found)
    names = Counter(item.name for item in found)
    members = {
        f"{item.place} {item.name}": len(item.members.union(*(b.members for b in above[item])))
        for item in found
    }
    sizes = {
        module.path: len((root / module.path).read_text(encoding="utf-8").splitlines())
        for package in packages
        for module in package.modules
    }
    roots = code.root_modules(packages[0])
    measured = {
        "root modules": Measured(len(roots), tuple(roots)),
        "modules in a folder": highest(_merged(code.modules_by_folder, packages)),
        "import cycles": counted(" ".join(g) for p in packages for g in code.import_cycles(p)),
        "inheritance depth": highest(
            {f"{item.place} {item.name}": code.depth(item, above) for item in found}
        ),
        "private members": highest(members),
        "class names used twice": counted(name for name, times in names.items() if times > 1),
        "lines of a function": highest(_merged(code.function_sizes, packages)),
        "lines of a file": highest(sizes),
    }
    for package in packages:
        share = round(code.single_caller_share(package), 1)
        measured[f"one caller, {package.name}"] = Measured(share)
    return measured


def _merged(
    sizes: Callable[[code.Package], dict[str, int]], packages: list[code.Package]
) -> dict[str, int]:
    return {name: size for package in packages for name, size in sizes(package).items()}


def visits_of(visits: dict[str, Visit]) -> dict[str, Measured]:
    """The measures of one allreduce's way."""
    return {
        f"modules, {name} allreduce": Measured(len(visit.modules)) for name, visit in visits.items()
    }


def prose_of(root: Path) -> dict[str, Measured]:
    """The measures of the documents."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    documents = [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]
    return {
        "lines of README": Measured(len(readme.splitlines())),
        "README sentence": Measured(sentence_percentile(readme, 90)),
        "wide lines of documents": counted(
            line for path in documents for line in wide_lines(path, COLUMNS)
        ),
    }


def measure_all(root: Path = ROOT, folders: Iterable[str] = FOLDERS) -> dict[str, Measured]:
    """Every measure; a job of two ranks runs for those of an allreduce."""
    return {**code_of(root, folders), **visits_of(measure()), **prose_of(root)}


def above_bound(measured: dict[str, Measured]) -> dict[str, Measured]:
    """The measures that pass their bounds."""
    return {name: m for name, m in measured.items() if m.value > BOUNDS[name].limit}


def as_table(measured: dict[str, Measured]) -> str:
    """One line for each measure, and below it where the highest values are."""
    lines = []
    for name, bound in BOUNDS.items():
        found = measured[name]
        mark = "above" if found.value > bound.limit else "ok"
        lines.append(f"{name:30} {found.value:>7g}  of {bound.limit:>4g}  {mark:5}  {bound.why}")
        lines += [f"{'':34}{place}" for place in found.worst]
    return "\n".join(lines)


def main() -> int:
    """Print the table; 1 if a measure is above its bound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    measured = measure_all()
    document = {
        name: {**asdict(found), "bound": BOUNDS[name].limit} for name, found in measured.items()
    }
    sys.stdout.write((json.dumps(document) if options.json else as_table(measured)) + "\n")
    return 1 if above_bound(measured) else 0


if __name__ == "__main__":
    sys.exit(main())
