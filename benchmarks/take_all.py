"""Takes every figure, keeps it under `results/` with its plots, and prints the tables.

python benchmarks/take_all.py            # on a machine that does nothing else
python benchmarks/take_all.py compare    # those of compare.py alone
python benchmarks/take_all.py --quick --results /tmp/results
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import alpha_beta
import between_hosts
import compare
import durable_cost
import floor
import hidden
import hierarchy
import papers
import patterns
import recovery
import result_memory
import streams
import tracker_scale
import training
from _report import (
    allreduce_plots,
    alpha_beta_table,
    between_hosts_table,
    calls_table,
    durable_table,
    floor_table,
    hidden_table,
    hierarchy_table,
    papers_plots,
    papers_table,
    patterns_plots,
    patterns_table,
    recovery_table,
    result_memory_table,
    streams_table,
    tracker_table,
    training_table,
)

RESULTS = Path(__file__).with_name("results")
KILLS = ("--kills", "2")
RANK_RESULTS = ("--kinds", "reduce_scatter,alltoall")

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
    parser.add_argument("names", nargs="*", metavar="NAME", help="some of the scripts [all]")
    parser.add_argument("--quick", action="store_true", help="fewer calls, fewer faults")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON lines")
    arguments = parser.parse_args()
    options = ["--quick"] if arguments.quick else []
    everything = [] if arguments.names else ["--world-sizes", "2,4,8"]  # alpha_beta predicts 8
    takers: dict[str, tuple[Callable[[], Lines], Callable[[Lines], str]]] = {
        "compare": (_taker(compare, [*options, *everything]), calls_table),
        "alpha_beta": (lambda: _predicted(arguments.results), alpha_beta_table),
        "durable_cost": (_taker(durable_cost, options), durable_table),
        "floor": (_taker(floor, options), floor_table),
        "hidden": (_taker(hidden, options), hidden_table),
        "hierarchy": (_taker(hierarchy, options), hierarchy_table),
        "streams": (_taker(streams, options), streams_table),
        "between_hosts": (_taker(between_hosts, options), between_hosts_table),
        "training": (_taker(training, options), training_table),
        "patterns": (_taker(patterns, options), patterns_table),
        "papers": (_taker(papers, [*options, *KILLS]), papers_table),
        "rank_results": (_taker(compare, [*options, *RANK_RESULTS]), calls_table),
        "recovery": (_taker(recovery, options), recovery_table),
        "result_memory": (_taker(result_memory, options), result_memory_table),
        "tracker_scale": (_taker(tracker_scale, options), tracker_table),
    }
    unknown = set(arguments.names) - set(takers)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(takers)}")
    found: dict[str, Lines] = {}
    texts = []
    for name in arguments.names or takers:
        taker, say = takers[name]
        began = time.monotonic()
        found[name] = taker()
        keep(found[name], arguments.results / f"{name}.jsonl")
        texts.append(say(found[name]))
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    plots = allreduce_plots(found.get("compare", []))
    plots |= patterns_plots(found.get("patterns", []))
    plots |= papers_plots(found.get("papers", []))
    for name, plot in plots.items():
        (arguments.results / name).write_text(plot, encoding="utf-8")
    print(*texts, sep="\n\n")


def _predicted(results: Path) -> Lines:
    text = (results / "compare.jsonl").read_text(encoding="utf-8")
    return list(alpha_beta.take([json.loads(line) for line in text.splitlines()]))


def _taker(benchmark: Any, options: list[str]) -> Callable[[], Lines]:
    return lambda: benchmark.take(benchmark.parser().parse_args(options))


if __name__ == "__main__":
    main()
