"""Takes every figure, keeps it under `results/` with its plots, and prints the tables.

python benchmarks/take_all.py            # on a machine that does nothing else
python benchmarks/take_all.py --quick --results /tmp/results
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import allreduce
import alpha_beta
import between_hosts
import durable_cost
import floor
import hidden
import hierarchy
import rank_results
import recovery
import result_memory
import streams
import tracker_scale
import training
from _report import (
    allreduce_plots,
    allreduce_table,
    alpha_beta_table,
    between_hosts_table,
    durable_table,
    floor_table,
    hidden_table,
    hierarchy_table,
    rank_results_table,
    recovery_table,
    result_memory_table,
    streams_table,
    tracker_table,
    training_table,
)

RESULTS = Path(__file__).with_name("results")


Lines = list[dict[str, Any]]


def keep(lines: Lines, path: Path) -> None:
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
    takers: dict[str, tuple[Callable[[], Lines], Callable[[Lines], str]]] = {
        "allreduce": (_taker(allreduce, options), allreduce_table),
        "durable_cost": (_taker(durable_cost, options), durable_table),
        "floor": (_taker(floor, options), floor_table),
        "hidden": (_taker(hidden, options), hidden_table),
        "hierarchy": (_taker(hierarchy, options), hierarchy_table),
        "streams": (_taker(streams, options), streams_table),
        "between_hosts": (_taker(between_hosts, options), between_hosts_table),
        "training": (_taker(training, options), training_table),
        "rank_results": (_taker(rank_results, options), rank_results_table),
        "recovery": (_taker(recovery, options), recovery_table),
        "result_memory": (_taker(result_memory, options), result_memory_table),
        "tracker_scale": (_taker(tracker_scale, options), tracker_table),
    }
    found: dict[str, Lines] = {}
    texts = []
    for name, (taker, say) in takers.items():
        began = time.monotonic()
        found[name] = taker()
        keep(found[name], arguments.results / f"{name}.jsonl")
        texts.append(say(found[name]))
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    predicted = list(alpha_beta.take(found["allreduce"]))
    keep(predicted, arguments.results / "alpha_beta.jsonl")
    for name, plot in allreduce_plots(found["allreduce"]).items():
        (arguments.results / name).write_text(plot, encoding="utf-8")
    print(*texts, alpha_beta_table(predicted), sep="\n\n")


def _taker(benchmark: Any, options: list[str]) -> Callable[[], Lines]:
    return lambda: benchmark.take(benchmark.parser().parse_args(options))


if __name__ == "__main__":
    main()
