"""Calls of this tree beside those of an earlier commit, in turn in one run.

    python benchmarks/compare_commits.py --base v0.1.0
    python benchmarks/compare_commits.py --base v0.1.0 --kind send_recv --sizes 65536
    make bench-compare BASE=v0.1.0

The calls are allreduce, or those of `rank_results.py`.  For each world size and transport both
commits have a job of their own, which is up for all sizes; the two take turns, in another order
every round, after a round that is not counted.  A ratio is the time of this tree over that of the
base: the median over rounds of the ratio of the two medians of a round.  Its interval holds the
true median ratio with 95 % confidence, whatever the distribution (order statistics of the rounds).
Each job is started `--starts` times, because where a process lies in memory changes its speed for
as long as it lives.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from _groups import Group, Peer, PeerFailed
from _machine import machine_facts
from _memory import memory_bytes
from _report import facts_line, table
from _spread import paired_ratio, summary
from peers import with_ftcomm
from rank_results import KINDS, WORKER

ROOT = Path(__file__).parents[1]
SIZES = (4, 1024, 16_384, 65_536, 262_144, 1_048_576, 10_000_000, 100_000_000)
WORLD_SIZES = (2, 4)
TRANSPORTS = ("auto", "tcp")
ALLREDUCE = "allreduce"
STARTS = 3
ROUNDS = 9  # with one start the interval of 95 % then leaves out one round at each end
TURN_S = 0.15  # what a turn should take, if two calls take less
FEWEST_CALLS, MOST_CALLS = 2, 1000
TURN_BYTES = 400_000_000  # a turn's results are kept until its checkpoint
MEMORY_PART = 10  # all operands together may be a tenth of the memory: several times that is in use
PACKAGE_FOLDERS = ("", "tracker", "chaos")  # of a checkout, for PYTHONPATH


class Interrupted(Exception):  # noqa: N818 - ends one comparison with its reason
    """A group of processes has ended."""


@dataclass(frozen=True)
class Tree:
    """One side: a job of the code in `checkout`, run by the benchmark's own script.

    Attributes:
        NAME: of the side.
        checkout: the folder that has the packages.
        transport: the job's setting.
        kind: of the calls.
    """

    NAME: str
    checkout: Path
    transport: str
    kind: str

    def missing(self) -> str | None:
        """Nothing."""
        return None

    def commands(self, world_size: int, folder: Path) -> list[list[str]]:
        """The launcher with its tracker and all ranks, by the side's own entry point."""
        project = tomllib.loads((self.checkout / "pyproject.toml").read_text(encoding="utf-8"))
        module, function = project["project"]["scripts"]["ftcomm-tracker"].split(":")
        tracker = [sys.executable, "-c", f"from {module} import {function}; {function}()"]
        options = ["-n", str(world_size), "--state-dir", str(folder / "job")]
        options += ["--transport", self.transport]
        worker = [str(WORKER), "ftcomm", self.kind]
        if self.kind == ALLREDUCE:
            worker = [with_ftcomm.__file__]
        return [[*tracker, "run", *options, "--", sys.executable, *worker]]

    def environment(self) -> dict[str, str]:
        """The packages of this side, before those that are installed."""
        folders = [str(self.checkout / part) for part in PACKAGE_FOLDERS]
        # safe path: else `python -m` finds the packages of the folder that it is started in
        return {"PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}


@contextmanager
def checkout_of(commit: str) -> Iterator[Path]:
    """A temporary checkout of `commit`.

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
        wanted = [found.stdout.strip(), *filter(None, PACKAGE_FOLDERS), "ftcomm", "pyproject.toml"]
        subprocess.run([*git, "archive", "--output", str(archive), *wanted], check=True)
        with tarfile.open(archive) as packed:
            packed.extractall(checkout, filter="data")
        yield checkout


def compare(
    world_size: int, transport: str, base: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """One line for each size."""
    sizes = [int(size) for size in options.sizes.split(",")]
    fitting = [size for size in sizes if size * world_size * 2 <= memory_bytes() // MEMORY_PART]
    rounds: dict[int, list[tuple[list[float], list[float]]]] = {size: [] for size in fitting}
    for start in range(options.starts):
        print(f"{world_size} ranks, {transport}, start {start + 1}", file=sys.stderr)
        with ExitStack() as stack:
            sides = [
                _started(stack, Tree(name, checkout, transport, options.kind), world_size)
                for name, checkout in (("this tree", ROOT), ("base", base))
            ]
            for size in fitting:
                rounds[size] += _rounds(sides, size, options.rounds)
    return [
        {
            "kind": options.kind,
            "world_size": world_size,
            "transport": transport,
            "nbytes": size,
            **_figures(found),
        }
        for size, found in rounds.items()
    ]


def _started(stack: ExitStack, tree: Tree, world_size: int) -> Group:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftcomm-bench-")))
    try:
        return stack.enter_context(Group(cast("Peer", tree), world_size, folder / "group"))
    except PeerFailed as failed:
        raise Interrupted(f"{tree.NAME}: {failed}") from None


def _rounds(
    sides: Sequence[Group], nbytes: int, rounds: int
) -> list[tuple[list[float], list[float]]]:
    """Seconds of each call of (this tree, base), for each round."""
    try:
        calls = min(_calls(side, nbytes) for side in sides)
        found = []
        for number in range(rounds + 1):
            order = (0, 1) if number % 2 else (1, 0)
            seconds = {index: sides[index].turn(nbytes, calls) for index in order}
            found.append((seconds[0], seconds[1]))
    except PeerFailed as failed:
        raise Interrupted(f"{nbytes:,} bytes: {failed}") from None
    return found[1:]  # the first warms up


def _calls(side: Group, nbytes: int) -> int:
    seconds = min(side.turn(nbytes, FEWEST_CALLS))
    most = min(MOST_CALLS, TURN_BYTES // nbytes)
    return max(FEWEST_CALLS, min(most, int(TURN_S / seconds)))


def _figures(rounds: list[tuple[list[float], list[float]]]) -> dict[str, Any]:
    own, base = ([seconds for pair in rounds for seconds in pair[side]] for side in (0, 1))
    return {
        "us": summary(own)["us"],
        "base_us": summary(base)["us"],
        "rounds": len(rounds),
        **paired_ratio(rounds),
    }


def as_table(lines: list[dict[str, Any]]) -> str:
    """Markdown: one row for each comparison."""
    rows = [
        [
            line["kind"],
            str(line["world_size"]),
            line["transport"],
            f"{line['nbytes']:,}",
            f"{line['base_us']:,.1f}",
            f"{line['us']:,.1f}",
            f"{line['ratio']:.3f}",
            f"{line['low']:.3f} to {line['high']:.3f}",
        ]
        for line in lines
        if "nbytes" in line
    ]
    head = ["call", "ranks", "transport", "bytes", "base us", "this us", "ratio", "95 %"]
    return facts_line(lines) + "\n\n" + table(head, rows)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", required=True, help="commit, tag or branch to compare with")
    kinds = (ALLREDUCE, *KINDS)
    parser.add_argument("--kind", choices=kinds, default=ALLREDUCE, help="of call (%(default)s)")
    parser.add_argument("-n", "--world-sizes", default=",".join(map(str, WORLD_SIZES)))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, by commas")
    parser.add_argument("--transports", default=",".join(TRANSPORTS), help="by commas")
    parser.add_argument("--starts", type=int, default=STARTS, help="of each job (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="per start (%(default)s)")
    parser.add_argument(
        "--at-most", type=float, help="end with status 1 if any ratio is above this"
    )
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> None:
    """Compare, print, judge."""
    options = parser().parse_args()
    lines: list[dict[str, Any]] = [{"machine": machine_facts(), "base": options.base}]
    with checkout_of(options.base) as base:
        try:
            for world_size in map(int, options.world_sizes.split(",")):
                for transport in options.transports.split(","):
                    lines += compare(world_size, transport, base, options)
        except Interrupted as reason:
            raise SystemExit(f"a job ended: {reason}") from None
    print("\n".join(map(json.dumps, lines)) if options.json else as_table(lines))
    slower = [line for line in lines if line.get("ratio", 0) > (options.at_most or float("inf"))]
    if slower:
        raise SystemExit(f"{len(slower)} of {len(lines) - 1} ratios are above {options.at_most}")


if __name__ == "__main__":
    main()
