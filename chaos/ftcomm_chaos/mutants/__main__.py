"""``python -m ftcomm_chaos.mutants [NAME...]``: the gate as a command."""

import argparse
import json
import sys
from dataclasses import asdict

from ftcomm_chaos.mutants.mutant import Defect, all_defects
from ftcomm_chaos.mutants.run import Finding, check_all, check_unplanted


def main(arguments: list[str]) -> int:
    """Print what became of each defect; 0 if every one was caught."""
    given = _parser().parse_args(arguments)
    defects = _chosen([*given.names, *given.only.split(",")], quick=given.quick)
    if not defects:
        sys.stderr.write("no defect of that name: the files of this package have the names\n")
        return 2
    problem = check_unplanted(defects) if given.layers_first else ""
    findings = []
    for finding in check_all(defects, jobs=given.jobs):
        findings.append(finding)
        if not given.json:
            _show(finding)
    missed = [finding.name for finding in findings if not finding.caught]
    if given.json:
        rows = [asdict(finding) for finding in sorted(findings, key=lambda f: f.name)]
        document = {"findings": rows, "missed": sorted(missed), "problem": problem}
        sys.stdout.write(f"{json.dumps(document)}\n")
    else:
        sys.stdout.write(f"{len(findings) - len(missed)} of {len(findings)} defects are caught\n")
        sys.stdout.write(f"but without any defect too: {problem}\n" if problem else "")
    return 1 if missed or problem else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ftcomm_chaos.mutants", description=main.__doc__
    )
    parser.add_argument("names", nargs="*", help="defects; without any, all")
    parser.add_argument("--only", default="", metavar="NAMES", help="the same, with commas")
    parser.add_argument("--quick", action="store_true", help="only those of every test run")
    parser.add_argument(
        "--layers-first",
        action="store_true",
        help="first see that the layers pass without a defect",
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (default 2)")
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    return parser


def _chosen(names: list[str], *, quick: bool) -> list[Defect]:
    wanted = {name for name in names if name}
    return [
        defect
        for defect in all_defects()
        if (defect.name in wanted or not wanted) and (defect.quick or not quick)
    ]


def _show(finding: Finding) -> None:
    state = f"caught by {finding.layer}" if finding.caught else "SURVIVES"
    seconds = f"{finding.seconds:6.1f} s"
    sys.stdout.write(f"{finding.name:46s} {state:21s} {seconds}  {finding.how}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
