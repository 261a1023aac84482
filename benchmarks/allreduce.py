"""Allreduce of float32 from 4 B to 256 MB: ftcomm beside its peers, in turn in one run.

    python benchmarks/allreduce.py                      # 2, 4 and 8 ranks, all that is installed
    python benchmarks/allreduce.py -n 2 --sizes 4,1048576 --peers ftcomm,gloo --json
    python benchmarks/allreduce.py --quick

Every library has a group of processes of its own, which is up for the whole run; the groups take
turns, a few calls each and in another order every round, so that a busy moment of the machine
meets them all.  A figure is the median of all calls at all ranks, between its quartiles; a ratio
is the median over rounds of the ratio of their medians.  A size has so many seconds for all its
rounds: where calls are slow there are fewer rounds, but three at least.
"""

import argparse
import json
import sys
import time
from contextlib import ExitStack
from typing import Any, cast

from _groups import Groups, Peer, PeerFailed
from _machine import machine_facts
from _memory import memory_bytes
from _report import OURS, allreduce_table
from _spread import ratio, summary
from peers import (
    with_ftcomm,
    with_ftcomm_tcp,
    with_gloo,
    with_open_mpi,
    with_open_mpi_shared,
    with_xgboost,
)

PEERS = tuple(
    cast("Peer", module)
    for module in (
        with_ftcomm,
        with_ftcomm_tcp,
        with_gloo,
        with_open_mpi,
        with_open_mpi_shared,
        with_xgboost,
    )
)
SIZES = (4, 1024, 16_384, 65_536, 262_144, 1_048_576, 10_000_000, 100_000_000, 256_000_000)
WORLD_SIZES = (2, 4, 8)
ROUNDS, QUICK_ROUNDS, FEWEST_ROUNDS = 8, 3, 3
SIZE_S, QUICK_SIZE_S = 20.0, 4.0  # for all rounds of all libraries, unless the fewest take longer
TURN_S, QUICK_TURN_S = 0.2, 0.05  # what a turn should take, if three calls take less
FEWEST_CALLS, MOST_CALLS = 2, 400
TURN_BYTES = 400_000_000  # ftcomm keeps a turn's results
WARM_UP_CALLS = 5  # of up to 1 MB, else one
MOST_OF_MEMORY = 10  # all inputs together are a tenth of it at most: several times that is in use


class Contest:
    """The groups of one world size; who fails once is out, with the reason."""

    def __init__(self, stack: ExitStack, peers: list[Peer], world_size: int) -> None:
        """Start every group."""
        self._groups = Groups()
        self.reasons = self._groups.reasons
        for peer in peers:
            self._groups.start(stack, peer, world_size)

    def measure(
        self, nbytes: int, rounds: int, turn_s: float, size_s: float
    ) -> dict[str, dict[str, float]]:
        """The figures of each library for one size."""
        calls = {name: self._calls(name, nbytes, turn_s) for name in list(self._groups.running)}
        seconds: dict[str, list[list[float]]] = {name: [] for name in calls}
        until = time.monotonic() + size_s
        for number in range(rounds):
            if number >= FEWEST_ROUNDS and time.monotonic() > until:
                break
            for name in self._groups.in_order(number):
                seconds[name].append(self._turn(name, nbytes, calls[name]))
        return _figures({name: seconds[name] for name in self._groups.running})

    def _calls(self, name: str, nbytes: int, turn_s: float) -> int:
        """Estimate the calls that fit a turn, from a first try that is not counted."""
        found = self._turn(name, nbytes, WARM_UP_CALLS if nbytes <= 1 << 20 else 1)
        fitting = int(turn_s / min(found)) if found else 0  # the others met something else
        most = min(MOST_CALLS, TURN_BYTES // nbytes)
        return max(FEWEST_CALLS, min(most, fitting))

    def _turn(self, name: str, nbytes: int, calls: int) -> list[float]:
        try:
            return self._groups.running[name].turn(nbytes, calls)
        except PeerFailed as failed:
            self._groups.drop(name, failed)
            return []


def _figures(rounds: dict[str, list[list[float]]]) -> dict[str, dict[str, float]]:
    """Of each library, what `summary` says, and its ratio to ours where that takes part."""
    figures = {
        name: summary([seconds for found in turns for seconds in found])
        for name, turns in rounds.items()
    }
    for name, turns in rounds.items():
        if OURS in rounds and name != OURS:
            figures[name]["ratio"] = ratio(turns, rounds[OURS])
    return figures


def measure(arguments: argparse.Namespace, world_size: int) -> list[dict[str, Any]]:
    """One line for each size, and one for each library that is not in them."""
    pace = (
        (QUICK_ROUNDS, QUICK_TURN_S, QUICK_SIZE_S) if arguments.quick else (ROUNDS, TURN_S, SIZE_S)
    )
    wanted = arguments.peers.split(",") if arguments.peers else [peer.NAME for peer in PEERS]
    lines: list[dict[str, Any]] = []
    with ExitStack() as stack:
        contest = Contest(stack, [peer for peer in PEERS if peer.NAME in wanted], world_size)
        for nbytes in map(int, arguments.sizes.split(",")):
            if nbytes * world_size > memory_bytes() // MOST_OF_MEMORY:
                print(f"{world_size} ranks, {nbytes:,} bytes: too little memory", file=sys.stderr)
                continue
            print(f"{world_size} ranks, {nbytes:,} bytes", file=sys.stderr)
            figures = contest.measure(nbytes, *pace)
            lines.append({"world_size": world_size, "nbytes": nbytes, "peers": figures})
        for name, reason in contest.reasons.items():
            lines.append({"world_size": world_size, "peer": name, "missing": reason})
    return lines


def take(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then what was measured."""
    lines: list[dict[str, Any]] = [{"machine": machine_facts(), "quick": arguments.quick}]
    for world_size in map(int, arguments.world_sizes.split(",")):
        lines += measure(arguments, world_size)
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--world-sizes", default=",".join(map(str, WORLD_SIZES)))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, by commas")
    parser.add_argument(
        "--peers", help=f"some of these, by commas: {','.join(p.NAME for p in PEERS)}"
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns")
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> None:
    """Measure and print."""
    arguments = parser().parse_args()
    lines = take(arguments)
    print("\n".join(map(json.dumps, lines)) if arguments.json else allreduce_table(lines))


if __name__ == "__main__":
    main()
