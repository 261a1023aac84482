"""reduce_scatter, alltoall and messages of float32 beside gloo and Open MPI, in turn in one run.

    python benchmarks/rank_results.py                     # 2, 4 and 8 ranks, all that is installed
    python benchmarks/rank_results.py -n 4 --kinds alltoall --sizes 65536,1048576 --json
    python benchmarks/rank_results.py --quick

Sizes are those of one rank's input.  A send_recv is there and back between two ranks, of as many
pairs as there are; bare TCP does that with sockets in pure Python, and nothing is checked or kept:
what is above it is the library's own time.  How it is measured: see `allreduce.py`.
"""

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _groups import Peer
from _machine import machine_facts
from _memory import memory_bytes
from _report import rank_results_table
from allreduce import (
    MOST_OF_MEMORY,
    QUICK_ROUNDS,
    QUICK_SIZE_S,
    QUICK_TURN_S,
    ROUNDS,
    SIZE_S,
    TURN_S,
    WORLD_SIZES,
    Contest,
)
from peers import with_ftcomm, with_gloo, with_open_mpi

WORKER = Path(__file__).with_name("_rank_results_worker.py")
KINDS = ("reduce_scatter", "alltoall", "send_recv")
SIZES = (64, 1024, 16_384, 65_536, 262_144, 1_048_576, 10_000_000, 100_000_000)


@dataclass(slots=True)
class KindPeer:
    """One library and one kind of call; `settings` are options of ftcomm's tracker."""

    NAME: str
    library: str
    kind: str
    settings: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Name what is not installed; None if everything is."""
        lacking = {"gloo": with_gloo.missing, "mpi": with_open_mpi.missing}
        return lacking[self.library]() if self.library in lacking else None

    def commands(self, world_size: int, folder: Path) -> list[list[str]]:
        """Command lines which together start all ranks."""
        worker = [sys.executable, str(WORKER), self.library, self.kind]
        if self.library in ("gloo", "bare"):
            meeting = str(folder / "store")
            return [[*worker, str(rank), str(world_size), meeting] for rank in range(world_size)]
        if self.library == "mpi":
            return [[*with_open_mpi.launcher(world_size, "tcp,self")[:-2], *worker]]
        command = with_ftcomm.launcher(world_size, folder, *self.settings)
        return [[*command[:-2], *worker]]

    def environment(self) -> dict[str, str]:
        """Variables for these, beside our own."""
        return with_gloo.environment() if self.library == "gloo" else with_open_mpi.environment()


def peers_of(kind: str) -> list[Peer]:
    """Every library with calls of `kind`; for messages also sockets alone."""
    return [
        KindPeer("ftcomm", "ftcomm", kind),
        KindPeer("ftcomm TCP", "ftcomm", kind, ("--transport", "tcp")),
        KindPeer("gloo", "gloo", kind),
        KindPeer("Open MPI TCP", "mpi", kind),
        *([KindPeer("bare TCP", "bare", kind)] if kind == "send_recv" else []),
    ]


def measure(arguments: argparse.Namespace, kind: str, world_size: int) -> list[dict[str, Any]]:
    """One line for each size, and one for each library that is not in them."""
    pace = (
        (QUICK_ROUNDS, QUICK_TURN_S, QUICK_SIZE_S) if arguments.quick else (ROUNDS, TURN_S, SIZE_S)
    )
    place: dict[str, Any] = {"kind": kind, "world_size": world_size}
    lines: list[dict[str, Any]] = []
    with ExitStack() as stack:
        contest = Contest(stack, peers_of(kind), world_size)
        for nbytes in map(int, arguments.sizes.split(",")):
            if nbytes * world_size > memory_bytes() // MOST_OF_MEMORY:
                print(f"{world_size} ranks, {nbytes:,} bytes: too little memory", file=sys.stderr)
                continue
            print(f"{kind}, {world_size} ranks, {nbytes:,} bytes", file=sys.stderr)
            lines.append({**place, "nbytes": nbytes, "peers": contest.measure(nbytes, *pace)})
        lines += [{**place, "peer": name, "missing": why} for name, why in contest.reasons.items()]
    return lines


def take(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then what was measured."""
    lines: list[dict[str, Any]] = [{"machine": machine_facts(), "quick": arguments.quick}]
    for kind in arguments.kinds.split(","):
        for world_size in map(int, arguments.world_sizes.split(",")):
            lines += measure(arguments, kind, world_size)
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--world-sizes", default=",".join(map(str, WORLD_SIZES)))
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of these, by commas")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, by commas")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns")
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> None:
    """Measure and print."""
    arguments = parser().parse_args()
    lines = take(arguments)
    print("\n".join(map(json.dumps, lines)) if arguments.json else rank_results_table(lines))


if __name__ == "__main__":
    main()
