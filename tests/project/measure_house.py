"""Measure the form of the project, and compare each measure with its bound.

    python tests/project/measure_house.py [--json]

Each bound is what was reached, or the goal where that is met. `test_measure_house.py` fails above
it, so a measure can only get better: lower the bound with the code.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from ftcomm.config.job_settings import SETTINGS
from ftcomm.protocol.codec import MESSAGES
from ftcomm.recovery import events as worker_events
from ftcomm_tracker.core import events as tracker_events
from tests.project import code_measures as code
from tests.project.prose_measures import sentence_percentile, wide_lines
from tests.project.visited_modules import measure

ROOT = Path(__file__).parents[2]
FOLDERS = ("ftcomm", "tracker/ftcomm_tracker", "chaos/ftcomm_chaos")
COLUMNS = 110
C_COLUMNS = 100  # lines of Python are kept to it by ruff
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


# Lines of the product by package. A commit that raises one adds a row that names the feature.
PRODUCT_LINES = {
    "ftcomm": [
        (40780, "the first bound"),
        (40820, "addresses that other machines cannot dial"),
        (40850, "the command that installs an extra"),
        (40890, "dials that end within detect_within"),
        (41010, "facts about processes in one place; a worker that ends with its launcher"),
        (41190, "the digest behind the newest durable checkpoint; close() at exit"),
        (41400, "errors of scripts: their line is told, their traceback stays, none grows"),
        (41740, "parts of a state that are one object; means of float16 in float32"),
        (41775, "a relay that names the end which acknowledges nothing"),
        (41870, "a thread in reserve behind the end of a script; a notebook's cells by number"),
        (41760, "a segment for all of a host in place of the shared window; a core in Python"),
        (41270, "two levels of one algorithm in place of halving, hierarchies and tables"),
        (41640, "direct exchanges over links in rounds; large results into log and `out` at once"),
        (42520, "LightGBM's network and trainings on it (830); the open communicator of a process"),
        (43140, "XGBoost in rounds that survive losses"),
        (43730, "averaging, gossip and the parameter server, beside the core"),
        (43785, "requirements of frameworks in one place; the doors of Dask and Ray"),
        (44200, "repeated small reductions that the compiled core completes and logs by itself"),
        (44628, "a callback by which a fit of Keras survives losses"),
        (44648, "state machines as tables of edges"),
        (44176, "no rings of shared memory for pairs of ranks"),
        (44159, "one archive in place of four stores"),
    ],
    "ftcomm_tracker": [
        (20600, "the first bound"),
        (20690, "bad ends by evidence, lost links in explain"),
        (20820, "workers that advertise loopback to other machines"),
        (20980, "errors of scripts: one on all ranks ends the job, and is shown once"),
        (21300, "grace, start scripts, background processes and standard input of workers"),
        (21600, "the digest behind the newest durable checkpoint; the last word of a job"),
        (22360, "the console in a user's words, the end of a job, doctor without a tracker"),
        (22385, "a script that ends by sys.exit(0) without close(), again and again"),
        (22410, "doctor says which core reduces arrays within a host; workers without a terminal"),
        (22421, "`ftcomm` says which core this Python has; no relay behind a known cut"),
        (23131, "ranks as tasks of Dask and actors of Ray, and the wait for all of them"),
        (23165, "how a worker ended whose rank a spare took before its launcher knew"),
        (23308, "parts: an optional matter of the tracker in one file, which no core names"),
        (23355, "spares as a part: the candidates for an empty place, and what they hold"),
        (23404, "states of the job and of a standby as tables of edges"),
    ],
    "ftcomm_chaos": [
        (15505, "one table of the kinds of faults, one text of a session's report"),
        (15520, "direct exchanges of simulated ranks"),
        (15526, "reductions of two levels of simulated ranks"),
        (16840, "a second simulator, which runs the drivers: its virtual kernel"),
        (17390, "its seams; the tracker and the workers in one run"),
        (17800, "its faults, rules and command"),
        (17845, "deaths of a simulated tracker between two effects; silence one way"),
    ],
}
# Optional matters of the two cores. A module outside that imports one must change with it.
FEATURES = {
    "worker": ("ftcomm.recovery", ("contributions", "copies", "messages", "spares")),
    "tracker": ("ftcomm_tracker.core", ("durable", "parts", "rebuild", "standby")),
}
SMALL_FILE = 60  # lines below which a file with one importer is a jump for little
# Small files with one importer whose name is worth the jump, and why.
WORTH_THE_JUMP = {
    "chaos/ftcomm_chaos/cli.py": "imported when a command runs; its importer stays light",
    "chaos/ftcomm_chaos/commands/check.py": "a command of its own, beside run",
    "chaos/ftcomm_chaos/history/harness_recorder.py": "what the harness writes, beside the reader",
    "chaos/ftcomm_chaos/entry.py": "the entry point of the installed command",
    "ftcomm/control/fetching/orders.py": "shared by all kinds of fetching",
    "ftcomm/execution/fp_errors.py": "numpy's state of a thread, which no other module touches",
    "ftcomm/recovery/contributions/peer_parts.py": "a store of its own (R20)",
    "ftcomm/transport/pushback_link.py": "a kind of link",
    "ftcomm/collectives/schedules/pipelined_chain.py": "an algorithm of its own",
    "ftcomm/collectives/schedules/recursive_doubling.py": "an algorithm of its own",
    "ftcomm/config/peak_usage.py": "a rule of its own: what was used, and may be kept",
    "ftcomm/diagnostics/output_buffering.py": "a reason of its own: one system call for each line",
    "ftcomm/engine/runs/closing.py": "the last collective, beside the other runs",
    "ftcomm/recovery/known_roster.py": "a law of its own (R19)",
    "ftcomm/torch/distributed/ddp_guard.py": "the one place that reads frames of torch",
    "ftcomm/torch/lightning/metrics.py": "imports torchmetrics, which may be missing",
    "tracker/ftcomm_tracker/cli/documents.py": "the list that pyproject.toml repeats for the wheel",
    "tracker/ftcomm_tracker/operator/machine_checks.py": "what doctor asks of the system",
    "tracker/ftcomm_tracker/cli/ftcomm_group.py": "the other command, imported when it runs",
    "tracker/ftcomm_tracker/launcher/spare_roles.py": "a rule with a reason of its own",
}

BOUNDS = {
    **{f"lines, {name}": Bound(rows[-1][0], rows[-1][1]) for name, rows in PRODUCT_LINES.items()},
    "lines of C": Bound(
        1325,
        "the compiled core; 125 of them complete repeated calls, which took three times as long",
    ),
    "wide lines of C": Bound(0, f"over {C_COLUMNS} columns"),
    "settings": Bound(18, "of a job; each is an option, a variable and a row"),
    "control messages": Bound(64, "kinds that the codec knows; the last is NextDigest"),
    "events and effects": Bound(
        83, "of both cores: what can happen, and what follows; the last is PutNextDigest"
    ),
    "importers of features, worker": Bound(25, "modules times features"),
    "importers of features, tracker": Bound(35, "modules times features"),
    "small files with one importer": Bound(0, f"under {SMALL_FILE} lines, without a reason"),
    "root modules": Bound(
        8, "files in the folder of ftcomm itself; a reader begins there; frameworks stand beside"
    ),
    "import cycles": Bound(0, "groups of modules, none of which can be read first"),
    "inheritance depth": Bound(2, "own classes in one chain, errors and protocols left out"),
    "private members": Bound(35, "non-public names that one object has, inherited ones too"),
    "class names used twice": Bound(0, "a name that is searched for leads to one class"),
    "lines of a function": Bound(60, "a function is seen at once"),
    "lines of README": Bound(153, "read in some minutes; the last are the rows of frameworks"),
    "README sentence": Bound(25, "words of a sentence that 90 % do not pass"),
    "lines of a document": Bound(600, "a page that is read to its end"),
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
    roots = code.root_modules(packages[0])
    return {
        **{
            f"lines, {package.name}": Measured(sum(module.lines for module in package.modules))
            for package in packages
        },
        **imports_of(packages),
        "root modules": Measured(len(roots), tuple(roots)),
        "import cycles": counted(" ".join(g) for p in packages for g in code.import_cycles(p)),
        "inheritance depth": highest(
            {f"{item.place} {item.name}": code.depth(item, above) for item in found}
        ),
        "private members": highest(members),
        "class names used twice": counted(name for name, times in names.items() if times > 1),
        "lines of a function": highest(
            {name: size for p in packages for name, size in code.function_sizes(p).items()}
        ),
    }


def imports_of(packages: list[code.Package]) -> dict[str, Measured]:
    """The measures of who imports whom."""
    by_module = code.importers(packages)
    measured = {}
    for core, (folder, features) in FEATURES.items():
        each = {
            name: len(code.importers_of_folder(f"{folder}.{name}", by_module)) for name in features
        }
        places = tuple(f"{name} {count}" for name, count in each.items())
        measured[f"importers of features, {core}"] = Measured(sum(each.values()), places)
    small = (
        module.path
        for package in packages
        for module in package.modules
        if module.is_named and module.lines < SMALL_FILE and len(by_module[module.name]) == 1
    )
    unexplained = counted(path for path in small if path not in WORTH_THE_JUMP)
    return {**measured, "small files with one importer": unexplained}


def words_of(settings: int, messages: int, events: int) -> dict[str, Measured]:
    """The measures of what a reader has to know by name."""
    return {
        "settings": Measured(settings),
        "control messages": Measured(messages),
        "events and effects": Measured(events),
    }


def own_words() -> dict[str, Measured]:
    """`words_of` this project."""
    kinds = (
        module for core in (worker_events, tracker_events) for module in (core.Event, core.Effect)
    )
    return words_of(len(SETTINGS), len(MESSAGES), sum(len(get_args(kind)) for kind in kinds))


def prose_of(root: Path) -> dict[str, Measured]:
    """The measures of the documents."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    documents = [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]
    sizes = {
        path.relative_to(root).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in documents
    }
    return {
        "lines of README": Measured(len(readme.splitlines())),
        "README sentence": Measured(sentence_percentile(readme, 90)),
        "lines of a document": highest(sizes),
        "wide lines of documents": counted(
            line for path in documents for line in wide_lines(path, COLUMNS)
        ),
    }


def c_of(root: Path, folders: Iterable[str]) -> dict[str, Measured]:
    """The measures of the compiled core, which is not counted as lines of Python are."""
    lines = [
        f"{path.relative_to(root).as_posix()}:{number} {line}"
        for folder in folders
        for path in sorted((root / folder).rglob("*.c"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    ]
    wide = (line for line in lines if len(line.partition(" ")[2]) > C_COLUMNS)
    return {"lines of C": Measured(len(lines)), "wide lines of C": counted(wide)}


def measure_all(root: Path = ROOT, folders: Iterable[str] = FOLDERS) -> dict[str, Measured]:
    """Every measure that has a bound."""
    return {**own_words(), **code_of(root, folders), **c_of(root, folders), **prose_of(root)}


def above_bound(measured: dict[str, Measured]) -> dict[str, Measured]:
    """The measures that pass their bounds."""
    return {name: m for name, m in measured.items() if m.value > BOUNDS[name].limit}


def visits() -> str:
    """Modules that one allreduce goes through: figures without a bound, from a real job."""
    return "".join(
        f"{name} allreduce: {len(visit.modules)} modules, {visit.functions} functions\n"
        for name, visit in measure().items()
    )


def as_table(measured: dict[str, Measured]) -> str:
    """One line for each measure, and below it where the highest values are."""
    lines = []
    for name, bound in BOUNDS.items():
        found = measured[name]
        mark = "above" if found.value > bound.limit else "ok"
        lines.append(f"{name:30} {found.value:>7g}  of {bound.limit:>5g}  {mark:5}  {bound.why}")
        lines += [f"{'':35}{place}" for place in found.worst]
    return "\n".join(lines) + "\n"


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
    sys.stdout.write(json.dumps(document) + "\n" if options.json else as_table(measured) + visits())
    return 1 if above_bound(measured) else 0


if __name__ == "__main__":
    sys.exit(main())
