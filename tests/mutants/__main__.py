"""``python -m tests.mutants [NAME...]``: the gate as a command."""

import argparse
import json
import sys
from dataclasses import asdict

from tests.mutants.mutant import Mutant, all_mutants, files_changed_since
from tests.mutants.run import MutantResult, check_all, check_unmutated


def main(arguments: list[str]) -> int:
    """Print what became of each mutant; 0 if every one was caught whose tests can run here."""
    given = _parser().parse_args(arguments)
    mutants = _chosen(set(given.names), given.needing, given.changed)
    if not mutants and given.changed:
        sys.stdout.write(f"no mutant is in a file that has changed since {given.changed}\n")
        return 0
    if not mutants:
        sys.stderr.write("no mutant of that name: the files of this package have the names\n")
        return 2
    problem = check_unmutated(mutants) if given.layers_first else ""
    results = []
    for result in check_all(mutants, jobs=given.jobs):
        results.append(result)
        if not given.json:
            _show(result)
    ran = [result for result in results if result.is_run]
    missed = [result.name for result in ran if not result.caught]
    not_run = [result.name for result in results if not result.is_run]
    if given.json:
        rows = [asdict(result) for result in sorted(results, key=lambda f: f.name)]
        document = {
            "findings": rows, "missed": sorted(missed), "not_run": sorted(not_run),
            "problem": problem,
        }  # fmt: skip
        sys.stdout.write(f"{json.dumps(document)}\n")
    else:
        sys.stdout.write(f"{len(ran) - len(missed)} of {len(ran)} mutants are caught\n")
        if not_run:
            sys.stdout.write(f"{len(not_run)} are not run: packages are not installed\n")
        sys.stdout.write(f"but without any mutant too: {problem}\n" if problem else "")
    return 1 if missed or problem else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=main.__doc__)
    parser.add_argument("names", nargs="*", help="mutants; without any, all")
    parser.add_argument(
        "--changed", default="", metavar="COMMIT", help="only those in files that differ from it"
    )
    parser.add_argument(
        "--needing", default="", metavar="PACKAGE", help="only those whose tests need it"
    )
    parser.add_argument(
        "--layers-first",
        action="store_true",
        help="first see that the layers pass without a mutant",
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (default 2)")
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    return parser


def _chosen(names: set[str], needing: str, commit: str) -> list[Mutant]:
    changed = files_changed_since(commit) if commit else set()
    return [
        mutant
        for mutant in all_mutants()
        if (mutant.name in names or not names)
        and (needing in mutant.needs or not needing)
        and (not commit or any(edit.file in changed for edit in mutant.edits))
    ]


def _show(result: MutantResult) -> None:
    missed = "SURVIVES" if result.is_run else "is not run"
    state = f"caught by {result.layer}" if result.caught else missed
    seconds = f"{result.seconds:6.1f} s"
    sys.stdout.write(f"{result.name:46s} {state:21s} {seconds}  {result.how}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
