"""Allreduce on hosts with several ranks each and a slow network between: in two levels, and flat.

Hosts are network namespaces of this machine; ``tc`` makes their links slow.  The algorithms take
turns in one job, so their ratio means something on a busy machine too.

    python benchmarks/hierarchy.py                       # two hosts of two ranks, 4 MB
    python benchmarks/hierarchy.py --hosts 2 --ranks 4 --mbit 200 --nbytes 8000000 --json
    python benchmarks/hierarchy.py --quick

Needs root, or a kernel that lets users have network namespaces, and `ip` and `tc`.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _machine import machine_facts
from _report import hierarchy_table

from ftcomm_chaos.faults.network_namespaces import NamespaceHosts, missing

ALGORITHMS = ("auto", "ring", "recursive_doubling")
ROUNDS, QUICK_ROUNDS = 5, 2
END_LIMIT_S = 120.0
WORKER = Path(__file__).with_name("_hierarchy_worker.py")
Line = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--hosts", type=int, default=2)
    made.add_argument("--ranks", type=int, default=2, help="of each host")
    made.add_argument("--dealt-out", action="store_true", help="neighbours are on different hosts")
    made.add_argument(
        "--mbit", type=int, default=200, help="per second, of each host's link; 0: no limit"
    )
    made.add_argument("--nbytes", type=int, default=4_000_000)
    made.add_argument("--rounds", type=int, default=ROUNDS)
    made.add_argument(
        "--quick",
        dest="rounds",
        action="store_const",
        const=QUICK_ROUNDS,
        help=f"{QUICK_ROUNDS} rounds",
    )
    made.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return made


def take(options: argparse.Namespace) -> list[Line]:
    """The machine, then a line for each algorithm, or what the machine lacks."""
    machine: Line = {"machine": machine_facts()}
    lacking = missing(slow=options.mbit > 0)
    if lacking:
        return [machine, {"missing": lacking}]
    setting = {name: getattr(options, name) for name in ("hosts", "ranks", "mbit", "nbytes")}
    return [machine, *({**setting, **row} for row in summary(calls(options)))]


def calls(options: argparse.Namespace) -> list[Line]:
    """Run the job; one line for each call of each rank."""
    names = [f"host{number}" for number in range(options.hosts)]
    with NamespaceHosts(names) as hosts, tempfile.TemporaryDirectory() as folder:
        for name in names if options.mbit else ():
            hosts.slow(name, options.mbit * 1_000_000)
        return _run(hosts, options, folder)


def _run(hosts: NamespaceHosts, options: argparse.Namespace, folder: str) -> list[Line]:
    size, first = options.hosts * options.ranks, hosts.names[0]
    serve = [*hosts.prefix(first), sys.executable, "-m", "ftcomm_tracker", "serve"]
    serve += ["-n", str(size), "--state-dir", folder, "--host", hosts.address(first)]
    with _running(serve) as tracker:
        ready = dict(word.split("=", 1) for word in _ready_line(tracker).split() if "=" in word)
        with contextlib.ExitStack() as stack:
            workers = [
                stack.enter_context(_worker(hosts, options, rank, ready)) for rank in range(size)
            ]
            said = [worker.communicate(timeout=END_LIMIT_S)[0] for worker in workers]
    return [json.loads(line) for text in said for line in text.splitlines()]


def _ready_line(tracker: "subprocess.Popen[str]") -> str:
    assert tracker.stdout is not None
    return next(line for line in tracker.stdout if "ftcomm-tracker ready" in line)


def _worker(
    hosts: NamespaceHosts, options: argparse.Namespace, rank: int, ready: dict[str, str]
) -> contextlib.AbstractContextManager["subprocess.Popen[str]"]:
    number = rank % options.hosts if options.dealt_out else rank // options.ranks
    name = hosts.names[number]
    command = [*hosts.prefix(name), sys.executable, str(WORKER)]
    command += [str(options.nbytes), str(options.rounds), *ALGORITHMS]
    return _running(
        command,
        FTCOMM_TRACKER=ready["address"],
        FTCOMM_TOKEN_FILE=ready["token_file"],
        FTCOMM_WORKER_ID=str(rank),
        FTCOMM_HOST=name,
    )


@contextlib.contextmanager
def _running(command: list[str], **variables: str) -> Iterator["subprocess.Popen[str]"]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def summary(lines: list[Line]) -> list[Line]:
    """By algorithm: the median time of a call at its slowest rank, and what a host sent in it."""
    found = []
    for algorithm in ALGORITHMS:
        own = [line for line in lines if line["algorithm"] == algorithm]
        ranks = sorted({line["rank"] for line in own})
        of_rank = ([line for line in own if line["rank"] == rank] for rank in ranks)
        slowest = [max(line["seconds"] for line in call) for call in zip(*of_rank, strict=True)]
        sent = statistics.median(line["sent"] for line in own)
        found.append(
            {"algorithm": algorithm, "ms": 1000 * statistics.median(slowest), "sent": sent}
        )
    return found


def main() -> None:
    """Measure and print."""
    options = parser().parse_args()
    lines = take(options)
    print("\n".join(map(json.dumps, lines)) if options.json else hierarchy_table(lines))
    if "missing" in lines[-1]:
        sys.exit(f"hierarchy.py: this machine lacks something: {lines[-1]['missing']}")


if __name__ == "__main__":
    main()
