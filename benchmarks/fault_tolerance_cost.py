"""Cost of the log: allreduce of float32 with ``--replay on`` and ``off``, in turn in one run.

    python benchmarks/fault_tolerance_cost.py
    python benchmarks/fault_tolerance_cost.py --sizes 4,1048576 --how out --json
    python benchmarks/fault_tolerance_cost.py --quick

Two jobs are up for the whole run and take turns, a few calls each; the first round, in which the
pool gets its memory, is not counted.  A figure is the median of all calls at all ranks, its spread
the quartiles; "costs" is the median, over the rounds, of one job's median to the other's, and "at
best" compares the tenth of all calls that nothing has disturbed.  The log is released by a
checkpoint behind each turn.  Ways to call:

- view: ``copy=False``, which is the log's own memory
- new: a new array
- out: into another array
- in place: ``out`` is the operand
"""

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _groups import Group
from _machine import machine_facts
from _report import cost_table

SIZES = (4, 256, 1024, 16_384, 65_536, 262_144, 1_048_576, 10_000_000, 100_000_000)
WAYS = ("view", "new", "out", "in place")
WORKER = Path(__file__).with_name("_cost_worker.py")
ROUNDS, QUICK_ROUNDS = 10, 3
TURN_S, QUICK_TURN_S = 0.2, 0.05
FEWEST_CALLS, MOST_CALLS = 3, 400
TURN_BYTES = 400_000_000  # a turn's results are kept


class Job:
    """Job that `Group` starts: ftcomm with or without a log."""

    def __init__(self, replay: str, transport: str) -> None:
        self.NAME = f"replay {replay}"
        self._options = ["--replay", replay, "--transport", transport]

    def missing(self) -> str | None:
        """Nothing."""
        return None

    def commands(self, world_size: int, folder: Path) -> list[list[str]]:
        """The launcher with its tracker and all ranks."""
        tracker = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(world_size)]
        tracker += ["--state-dir", str(folder / "job"), *self._options]
        return [[*tracker, "--", sys.executable, str(WORKER)]]

    def environment(self) -> dict[str, str]:
        """Nothing more."""
        return {}


def measure(
    jobs: dict[str, Group], how: str, nbytes: int, rounds: int, turn_s: float
) -> dict[str, Any]:
    """One line: both jobs with one way to call and one size."""
    order = {"how": how, "nbytes": nbytes, "calls": FEWEST_CALLS}
    first = [s for answer in jobs["on"].ask(order) for s in answer["seconds"]]
    fitting = int(turn_s / statistics.median(first))
    most = min(MOST_CALLS, TURN_BYTES // nbytes)
    order["calls"] = calls = max(FEWEST_CALLS, min(most, fitting))
    seconds: dict[str, list[list[float]]] = {name: [] for name in jobs}
    faults = dict.fromkeys(jobs, 0)
    for number in range(rounds + 1):
        for name in sorted(jobs, reverse=bool(number % 2)):
            answers = jobs[name].ask(order)
            if number:  # the first is to warm up
                seconds[name].append([s for answer in answers for s in answer["seconds"]])
                faults[name] += sum(answer["faults"] for answer in answers)
    pairs = zip(seconds["on"], seconds["off"], strict=True)
    ratios = [statistics.median(on) / statistics.median(off) for on, off in pairs]
    line: dict[str, Any] = {"how": how, "nbytes": nbytes, "cost": round(quartiles(ratios)[1], 4)}
    line["cost_spread"] = [round(ratio, 4) for ratio in quartiles(ratios)[::2]]
    best = {
        name: statistics.quantiles([s for one in found for s in one], n=10)[0]
        for name, found in seconds.items()
    }
    line["cost_at_best"] = round(best["on"] / best["off"], 4)
    for name, found in seconds.items():
        each = [s * 1e6 for one in found for s in one]
        low, middle, high = quartiles(each)
        line[f"{name}_best_us"] = round(best[name] * 1e6, 2)
        line[f"{name}_us"] = round(middle, 2)
        line[f"{name}_spread_us"] = [round(low, 2), round(high, 2)]
        line[f"{name}_faults"] = round(faults[name] / len(each), 2)
    line["calls"] = calls * rounds
    return line


def quartiles(values: list[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return statistics.quantiles(values, n=4, method="inclusive")


def take(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then a line for each way to call and each size."""
    rounds, turn_s = (QUICK_ROUNDS, QUICK_TURN_S) if options.quick else (ROUNDS, TURN_S)
    lines: list[dict[str, Any]] = [{"machine": machine_facts(), "world_size": options.n}]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftcomm-bench-")))
        jobs = {
            replay: stack.enter_context(
                Group(Job(replay, options.transport), options.n, folder / replay)
            )
            for replay in ("on", "off")
        }
        for how in options.how.split(","):
            for nbytes in map(int, options.sizes.split(",")):
                print(f"{how}, {nbytes:,} bytes", file=sys.stderr)
                lines.append(measure(jobs, how, nbytes, rounds, turn_s))
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, by commas")
    parser.add_argument("--how", default=",".join(WAYS), help="ways to call, by commas")
    parser.add_argument("--transport", default="auto", help="of both jobs")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns")
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> None:
    """Measure and print."""
    options = parser().parse_args()
    lines = take(options)
    print("\n".join(map(json.dumps, lines)) if options.json else cost_table(lines))


if __name__ == "__main__":
    main()
