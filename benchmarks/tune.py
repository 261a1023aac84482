"""Measure which algorithm is the fastest here, and write a table that a job can be given.

    ftcomm-tracker run -n 4 python benchmarks/tune.py --into table.toml
    ftcomm-tracker run -n 8 python benchmarks/tune.py --into table.toml     # adds to it
    ftcomm-tracker run -n 8 --algorithm-table table.toml python train.py    # uses it

It is a training script like any other: every worker of a job runs it, on one machine or on a
cluster (`ftcomm-tracker serve`, and `supervise` on each machine). The algorithms take turns, a few
calls each and in another order every round, so that a busy moment meets them all; a figure is the
median of the slowest rank's, of a broadcast with a barrier behind it. Another algorithm is taken
only where it is faster by the margin.

The file gets rows for the number of ranks of this job; rows for others stay, and where there is no
file yet they are those of the built-in table. Measure on machines that do nothing else, as many
ranks as your jobs have; look at the file, and change it as you like. Nothing is measured while a
job runs: the table is a constant of the job, and its results depend on nothing but that.
docs/algorithms.md describes the algorithms and the file.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _machine import machine_facts
from _tuning import Figures, report, rules_from, with_row

import ftcomm
from ftcomm.config.algorithm_table import CHOICES, DEFAULT_TABLE, AlgorithmTable, table_in_file
from ftcomm.config.environment import read_algorithm_table

SIZES = tuple(4096 << (2 * power) for power in range(7))  # 4 KiB to 16 MiB
ROUNDS = 7
MARGIN = 0.05
TURN_S = 0.1  # what a turn should take, if three calls take less
FEWEST_CALLS, MOST_CALLS = 3, 200
TURN_BYTES = 200_000_000  # a turn's results are kept until the checkpoint behind it
DISTURBED = "a worker or a link was lost meanwhile: the figures say nothing, measure again"


class Tuning:
    """Turns of one job; every rank goes through the same ones."""

    def __init__(self, comm: ftcomm.Communicator, rounds: int) -> None:
        """Measure with an open communicator."""
        self._comm = comm
        self._rounds = rounds

    def measure(self, kind: str, nbytes: int) -> dict[str, float]:
        """Microseconds of a call by algorithm: medians, of the slowest rank."""
        names = CHOICES[kind]
        calls = {name: self._calls(kind, name, nbytes) for name in names}
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for number in range(self._rounds):
            start = number % len(names)
            for name in names[start:] + names[:start]:
                seconds[name] += self._turn(kind, name, nbytes, calls[name])
        medians = np.array([statistics.median(seconds[name]) for name in names])
        slowest = self._comm.allreduce(medians, op="max") * 1e6
        return {name: round(float(us), 1) for name, us in zip(names, slowest, strict=True)}

    def _calls(self, kind: str, name: str, nbytes: int) -> int:
        """Estimate the calls that fit a turn, the same on all ranks, from an uncounted try."""
        found = statistics.median(self._turn(kind, name, nbytes, FEWEST_CALLS))
        slowest = float(self._comm.allreduce(found, op="max"))
        most = min(MOST_CALLS, TURN_BYTES // nbytes)
        return max(FEWEST_CALLS, min(most, int(TURN_S / slowest)))

    def _turn(self, kind: str, name: str, nbytes: int, calls: int) -> list[float]:
        """Seconds of each call."""
        call = self._call(kind, name, np.ones(nbytes // 4, np.float32))
        self._comm.barrier()
        seconds = []
        for _ in range(calls):
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
        self._comm.checkpoint(None)
        return seconds

    def _call(self, kind: str, name: str, x: "np.ndarray[Any, Any]") -> Callable[[], object]:
        if kind == "allreduce":
            return lambda: self._comm.allreduce(x, algorithm=name, copy=False)

        def until_all_have_it() -> None:  # the root is done before the others
            self._comm.broadcast(x, algorithm=name, copy=False)
            self._comm.barrier()

        return until_all_have_it


def tune(arguments: argparse.Namespace, comm: ftcomm.Communicator) -> dict[str, Figures]:
    """Figures by kind, the same on all ranks."""
    tuning = Tuning(comm, arguments.rounds)
    figures: dict[str, Figures] = {}
    for kind in arguments.kinds:
        rows = []
        for nbytes in arguments.sizes:
            if comm.rank == 0:
                print(f"{kind}, {nbytes:,} bytes", file=sys.stderr, flush=True)
            rows.append((nbytes, tuning.measure(kind, nbytes)))
        figures[kind] = rows
    return figures


def table_with(
    figures: dict[str, Figures], ranks: int, margin: float, into: Path | None
) -> AlgorithmTable:
    """Return the table in `into`, or the built-in one, with rows for `ranks`."""
    table = DEFAULT_TABLE
    if into is not None and into.exists():
        table = table_in_file(into.read_bytes(), str(into))
    for kind, found in figures.items():
        table = with_row(table, kind, ranks, rules_from(found, margin))
    return table


def write(figures: dict[str, Figures], ranks: int, arguments: argparse.Namespace) -> None:
    """Print what was measured, and write the table.

    Raises:
        ConfigError: the file has so many rows by now that no job can be given it.
    """
    table = table_with(figures, ranks, arguments.margin, arguments.into)
    text = table.to_toml()
    table_in_file(text.encode(), str(arguments.into))
    if arguments.json:
        print(json.dumps({"machine": machine_facts()}))
        for kind, found in figures.items():
            for nbytes, times in found:
                line = {"kind": kind, "world_size": ranks, "nbytes": nbytes, "us": times}
                print(json.dumps(line))
        print(json.dumps({"table": table.to_text()}))
    else:
        for kind, found in figures.items():
            print(report(kind, ranks, found), end="\n\n")
    if arguments.into is not None:
        arguments.into.write_text(text, encoding="utf-8")
    elif not arguments.json:
        print(text)


def _toml(text: str) -> Path:
    if text.endswith(".json"):
        raise argparse.ArgumentTypeError("the file is written in TOML; give it another name")
    return Path(text)


def _sizes(text: str) -> list[int]:
    sizes = sorted({int(size) for size in text.split(",")})
    if sizes[0] < 4 or sizes[-1] > TURN_BYTES:
        raise argparse.ArgumentTypeError(f"sizes are from 4 to {TURN_BYTES} bytes")
    return sizes


def _kinds(text: str) -> list[str]:
    kinds = text.split(",")
    if set(kinds) - set(CHOICES):
        raise argparse.ArgumentTypeError(f"kinds are {' and '.join(CHOICES)}")
    return kinds


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=_toml, help="the table's file, TOML [default: print it]")
    parser.add_argument(
        "--sizes",
        type=_sizes,
        default=list(SIZES),
        help=f"bytes, by commas [default: {','.join(map(str, SIZES))}]",
    )
    parser.add_argument(
        "--kinds", type=_kinds, default=list(CHOICES), help=f"by commas [{','.join(CHOICES)}]"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of each [{ROUNDS}]")
    parser.add_argument(
        "--margin", type=float, default=MARGIN, help=f"part that is worth a change [{MARGIN}]"
    )
    parser.add_argument(
        "--json", action="store_true", help="figures as JSON lines (`run` puts [0] before each)"
    )
    return parser


def main() -> None:
    """Measure on every rank; rank 0 prints and writes."""
    arguments = parser().parse_args()
    if arguments.into is not None and arguments.into.exists():
        read_algorithm_table(arguments.into)  # a file that cannot be added to is refused now
    with ftcomm.init() as comm:
        if comm.world_size < 2:
            sys.exit("one rank has nothing to measure: start this under ftcomm-tracker run -n 2")
        version, _ = comm.load_checkpoint()
        if version:
            raise RuntimeError(DISTURBED)
        figures = tune(arguments, comm)
        epoch = comm.epoch
    if epoch > 1:
        sys.exit(DISTURBED)
    if comm.rank == 0:
        write(figures, comm.world_size, arguments)


if __name__ == "__main__":
    main()
