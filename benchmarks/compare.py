"""Calls of float32 beside Open MPI, gloo and XGBoost, or beside an earlier commit, in one run.

    python benchmarks/compare.py                # allreduce and messages, 2 and 4 ranks
    python benchmarks/compare.py -n 8 --sizes 4,1048576 --libraries "ftcomm,Open MPI" --json
    python benchmarks/compare.py --base v0.1.0  # this tree and that commit alone
    python benchmarks/compare.py --quick

Every library has a group of processes of its own for each transport.  The groups take turns, a few
calls each and in another order every round, so that a busy moment of the machine meets them all.
All are started `--starts` times, because where a process lies in memory changes its speed for as
long as it lives.  ftcomm makes a checkpoint, outside the timed part, after every 5 calls.

A figure is the median of all calls at all ranks.  A ratio is the time of a library over ftcomm's:
the median over rounds of the ratio of their medians.  Where ftcomm is measured with `copy=False`
too, a second ratio is to that.  That of a commit has the interval that holds the true median with
95 % confidence, whatever the distribution.  Sizes are those of one rank's input.  A send_recv is
there and back between two ranks.  gloo has TCP alone, and is in the tables of both transports.
"""

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _groups import Groups, PeerFailed, in_order
from _machine import machine_facts
from _memory import memory_bytes
from _peers import BASE, OURS, TRANSPORTS, Side, sides
from _report import calls_table
from _spread import paired_ratio, ratio, summary

ROOT = Path(__file__).parents[1]
SIZES = (4, 1024, 16_384, 65_536, 262_144, 1 << 20, 4 << 20, 16 << 20, 100_000_000)
MESSAGE_SIZES = (64, 1024, 4096, 65_536, 1 << 20, 100_000_000)
KINDS = ("allreduce", "send_recv", "reduce_scatter", "alltoall")
VIEW = f"{OURS} copy=False"
FEWEST_CALLS, MOST_CALLS = 3, 400
MOST_OF_MEMORY = 10  # all inputs together are a tenth of it at most: several times that is in use
Case = tuple[str, int]  # kind, bytes
Rounds = list[list[float]]  # of each round, seconds of every call


@dataclass(frozen=True)
class Pace:
    """Amount of measuring.

    Attributes:
        starts: of every group.
        rounds: of each start and size.
        turn_s: what a turn should take, if `FEWEST_CALLS` take less.
        size_s: no round of a start and size begins after it, but the first.
    """

    starts: int
    rounds: int
    turn_s: float
    size_s: float


FULL = Pace(5, 2, 0.04, 1.5)
QUICK = Pace(1, 2, 0.02, 0.5)


class Contest:
    """The sides of one world size.  Who fails once is out, with the reason."""

    def __init__(self, entrants: list[Side], world_size: int, pace: Pace) -> None:
        """Begin without figures."""
        self._entrants = entrants
        self._world_size = world_size
        self._pace = pace
        self._calls: dict[tuple[Case, str, str], int] = {}
        self._rounds: dict[Case, dict[tuple[str, str], Rounds]] = defaultdict(
            lambda: defaultdict(list)
        )
        self.reasons: dict[str, str] = {}

    def run(self, cases: list[Case]) -> None:
        """Start every side once, and measure all cases."""
        with ExitStack() as stack:
            groups = Groups()
            groups.reasons = self.reasons
            for side in self._entrants:
                if side.NAME not in self.reasons:
                    groups.start(stack, side, self._world_size)
            for case in cases:
                self._measure(groups, case)

    def _measure(self, groups: Groups, case: Case) -> None:
        orders = [
            (side.NAME, order)
            for side in self._entrants
            for order in side.variants(case[0]).values()
        ]
        for name, order in orders:
            self._warm_up(groups, case, name, order)
        until = time.monotonic() + self._pace.size_s
        for number in range(self._pace.rounds):
            if number and time.monotonic() > until:
                break
            for name, order in in_order(orders, number):
                seconds = self._turn(groups, case, name, order, self._calls[case, name, order])
                self._rounds[case][name, order].append(seconds)

    def _warm_up(self, groups: Groups, case: Case, name: str, order: str) -> None:
        """Make a turn that is not counted; at the first start another one before, to size it."""
        if (case, name, order) not in self._calls:
            seconds = self._turn(groups, case, name, order, FEWEST_CALLS)
            fitting = int(self._pace.turn_s / min(seconds)) if seconds else 0
            self._calls[case, name, order] = max(FEWEST_CALLS, min(MOST_CALLS, fitting))
        self._turn(groups, case, name, order, self._calls[case, name, order])

    def _turn(self, groups: Groups, case: Case, name: str, order: str, calls: int) -> list[float]:
        if name not in groups.running:
            return []
        try:
            return groups.running[name].turn(order, case[1], calls)
        except PeerFailed as failed:
            groups.drop(name, str(failed))
            return []

    def lines(self) -> Iterator[dict[str, Any]]:
        """One line for each case and transport."""
        for (kind, nbytes), rounds in self._rounds.items():
            for transport in TRANSPORTS:
                found = {
                    label: rounds[side.NAME, order]
                    for side in self._entrants
                    if transport in side.transports and side.NAME not in self.reasons
                    for label, order in side.variants(kind).items()
                }
                yield {
                    "kind": kind,
                    "world_size": self._world_size,
                    "transport": transport,
                    "nbytes": nbytes,
                    "peers": {label: _figures(label, found) for label in found},
                }


def _figures(label: str, found: dict[str, Rounds]) -> dict[str, float]:
    """Say what `summary` does, and the ratios to ours where that takes part."""
    figures = summary([seconds for turn in found[label] for seconds in turn])
    if label != OURS and OURS in found:
        figures["ratio"] = ratio(found[label], found[OURS])
    if label == BASE and OURS in found:
        figures |= paired_ratio(list(zip(found[label], found[OURS], strict=True)))
    if label not in (OURS, VIEW) and VIEW in found:
        figures["view_ratio"] = ratio(found[label], found[VIEW])
    return figures


def measure(
    options: argparse.Namespace, base: Path | None, world_size: int
) -> list[dict[str, Any]]:
    """One line for each case and transport, and one for each library that is not in them."""
    cases = _cases(options, world_size)
    wanted = options.libraries or (f"{OURS},{BASE}" if base else "")
    kinds = {kind for kind, _ in cases}
    entrants = [
        side
        for side in sides(base)
        if kinds.intersection(side.kinds) and (not wanted or side.library in wanted.split(","))
    ]
    pace = QUICK if options.quick else FULL
    contest = Contest(entrants, world_size, pace)
    starts = options.starts or pace.starts
    for start in range(starts):
        print(f"{world_size} ranks, start {start + 1} of {starts}", file=sys.stderr)
        contest.run(cases)
    missing = [
        {"world_size": world_size, "peer": name, "missing": reason}
        for name, reason in contest.reasons.items()
    ]
    return [*contest.lines(), *missing]


def _cases(options: argparse.Namespace, world_size: int) -> list[Case]:
    cases = []
    for kind in options.kinds.split(","):
        usual = MESSAGE_SIZES if kind == "send_recv" else SIZES
        sizes = map(int, options.sizes.split(",")) if options.sizes else usual
        if kind != "send_recv" or world_size == 2:
            cases += [(kind, nbytes) for nbytes in sizes]
    most = memory_bytes() // MOST_OF_MEMORY // world_size
    for kind, nbytes in cases:
        if nbytes > most:
            print(f"{kind}, {nbytes:,} bytes: too little memory", file=sys.stderr)
    return [(kind, nbytes) for kind, nbytes in cases if nbytes <= most]


@contextmanager
def checkout_of(commit: str) -> Iterator[Path]:
    """A temporary checkout of `commit`, with its core if that can be compiled.

    Raises:
        SystemExit: there is no such commit.
    """
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run(
        [*git, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found.returncode != 0:
        raise SystemExit(f"--base {commit}: this repository has no such commit")
    with tempfile.TemporaryDirectory(prefix="ftcomm-base-") as folder:
        archive, checkout = Path(folder, "base.tar"), Path(folder, "base")
        subprocess.run(
            [*git, "archive", "--output", str(archive), found.stdout.strip()], check=True
        )
        with tarfile.open(archive) as packed:
            packed.extractall(checkout, filter="data")
        if (checkout / "ftcomm" / "core").exists():  # else the commit is older than the core
            built = subprocess.run([sys.executable, "hatch_build.py"], cwd=checkout, check=False)
            if built.returncode:
                raise SystemExit("the core of the base does not compile: no fair comparison")
        yield checkout


def take(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then what was measured."""
    lines: list[dict[str, Any]] = [{"machine": machine_facts(), "quick": options.quick}]
    with ExitStack() as stack:
        base = stack.enter_context(checkout_of(options.base)) if options.base else None
        for world_size in map(int, options.world_sizes.split(",")):
            lines += measure(options, base, world_size)
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--world-sizes", default="2,4", help="ranks, by commas")
    parser.add_argument("--kinds", default="allreduce,send_recv", help=f"some of {','.join(KINDS)}")
    parser.add_argument("--sizes", help="bytes, by commas")
    parser.add_argument("--libraries", help="some of those in the tables, by commas")
    parser.add_argument("--base", help="commit, tag or branch to compare with")
    parser.add_argument("--starts", type=int, help=f"of each group ({FULL.starts})")
    parser.add_argument("--quick", action="store_true", help="one start, fewer and shorter turns")
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> None:
    """Measure and print."""
    options = parser().parse_args()
    lines = take(options)
    print("\n".join(map(json.dumps, lines)) if options.json else calls_table(lines))


if __name__ == "__main__":
    main()
