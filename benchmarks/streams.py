"""Gain of `--streams` where the network gives one connection less than a host can send.

    python benchmarks/streams.py                       # 25 MB, 60 Mbit/s a connection
    python benchmarks/streams.py --streams 1,4 --mbit 400 --json
    python benchmarks/streams.py --quick

Two ranks, each on a host that is a network namespace; needs root, or a kernel that lets users have
such, and `ip`, `tc` and `nft`.  For each number of streams a job is up for the whole run; the jobs
take turns, an allreduce each, so that a busy moment of the machine meets them all.  What counts is
the ratio: the limit is low, so that the processors are not what limits.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _capped_flows import NAMES, cap_flows, missing
from _machine import machine_facts
from _report import streams_table

from ftcomm_chaos.faults.network_namespaces import NamespaceHosts

WORKER = Path(__file__).with_name("_capped_worker.py")
NBYTES = 25_000_000
MBIT_PER_S = 60
ROUNDS, QUICK_ROUNDS = 9, 2
WARM_UP_ROUNDS = 2
END_LIMIT_S = 20.0


class Job:
    """A job of two ranks, one on each host, that makes an allreduce when it is told to."""

    def __init__(
        self, stack: ExitStack, hosts: NamespaceHosts, streams: int, nbytes: int, folder: Path
    ) -> None:
        """Start its tracker and its ranks."""
        self._processes: list[subprocess.Popen[str]] = []
        stack.callback(self._end)
        serve = ["-m", "ftcomm_tracker", "serve", "-n", "2", "--state-dir", str(folder)]
        serve += ["--host", hosts.address(NAMES[0]), "--streams", str(streams)]
        tracker = self._start(hosts, NAMES[0], serve, {})
        assert tracker.stdout is not None
        ready = dict(word.partition("=")[::2] for word in tracker.stdout.readline().split())
        joins = {"FTCOMM_TRACKER": ready["address"], "FTCOMM_TOKEN_FILE": ready["token_file"]}
        self._ranks = [
            self._start(
                hosts, name, [str(WORKER), str(nbytes)], {**joins, "FTCOMM_WORKER_ID": name}
            )
            for name in NAMES
        ]

    def _start(
        self, hosts: NamespaceHosts, name: str, arguments: list[str], variables: dict[str, str]
    ) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*hosts.prefix(name), sys.executable, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._processes.append(process)
        return process

    def _end(self) -> None:
        """Nobody is told to go on, which ends the ranks, and they the tracker."""
        for process in self._processes:
            _close_pipes(process)
        for process in self._processes:
            try:
                process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def turn(self) -> float:
        """Seconds that the slower rank took for one allreduce."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write("go\n")
            rank.stdin.flush()
        return max(float(_line(rank)) for rank in self._ranks)


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _close_pipes(process: "subprocess.Popen[str]") -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def take(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then a line for each number of streams, or what the machine lacks."""
    lacking = missing()
    if lacking:
        return [{"machine": machine_facts()}, {"missing": lacking}]
    with NamespaceHosts(NAMES) as hosts, ExitStack() as stack:
        cap_flows(hosts, arguments.mbit * 1_000_000)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftcomm-bench-")))
        jobs = {
            streams: Job(stack, hosts, streams, arguments.nbytes, folder / str(streams))
            for streams in map(int, arguments.streams.split(","))
        }
        seconds: dict[int, list[float]] = {streams: [] for streams in jobs}
        for number in range(WARM_UP_ROUNDS + arguments.rounds):
            for streams, job in jobs.items():
                took = job.turn()
                if number >= WARM_UP_ROUNDS:
                    seconds[streams].append(took)
    medians = {streams: statistics.median(found) for streams, found in seconds.items()}
    limits = {"nbytes": arguments.nbytes, "mbit_per_s": arguments.mbit}
    return [
        {"machine": machine_facts()},
        *(
            {
                "streams": streams,
                **limits,
                "ms": round(median * 1000, 1),
                "gain": round(medians[min(medians)] / median, 2),
                "calls": arguments.rounds,
            }
            for streams, median in medians.items()
        ),
    ]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="1,2,4,8", help="numbers, by commas")
    parser.add_argument("--nbytes", type=int, default=NBYTES)
    parser.add_argument("--mbit", type=int, default=MBIT_PER_S, help="of each connection, a second")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    parser.add_argument(
        "--quick",
        dest="rounds",
        action="store_const",
        const=QUICK_ROUNDS,
        help=f"{QUICK_ROUNDS} rounds",
    )
    return parser


def main() -> None:
    """Measure and print."""
    arguments = parser().parse_args()
    lines = take(arguments)
    print("\n".join(map(json.dumps, lines)) if arguments.json else streams_table(lines))
    if "missing" in lines[-1]:
        sys.exit(f"streams.py: this machine lacks something: {lines[-1]['missing']}")


if __name__ == "__main__":
    main()
