"""Takes every figure, keeps it under `results/`, and prints the tables of the README.

python benchmarks/take_all.py            # on a machine that does nothing else
python benchmarks/take_all.py --quick --results /tmp/results
"""

import argparse
import json
from pathlib import Path
from typing import Any

import allreduce
import recovery
from _report import allreduce_table, recovery_table

RESULTS = Path(__file__).with_name("results")


def keep(lines: list[dict[str, Any]], path: Path) -> None:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def main() -> None:
    """Measure, keep and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer calls, fewer faults")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON lines")
    arguments = parser.parse_args()
    options = ["--quick"] if arguments.quick else []
    calls = allreduce.take(allreduce.parser().parse_args(options))
    keep(calls, arguments.results / "allreduce.jsonl")
    faults = recovery.take(recovery.parser().parse_args(options))
    keep(faults, arguments.results / "recovery.jsonl")
    print(allreduce_table(calls), recovery_table(faults), sep="\n\n")


if __name__ == "__main__":
    main()
