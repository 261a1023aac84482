"""A large array from one host to another: messages of ftcomm beside gloo, Open MPI and Ray.

    python benchmarks/between_hosts.py                     # 100 MB, then 400 Mbit/s a connection
    python benchmarks/between_hosts.py --streams 1,16 --mbit 100 --bytes 10000000 --json
    python benchmarks/between_hosts.py --quick

Each rank is on a host that is a network namespace; needs root, or a kernel that lets users have
such, and `ip`, `tc` and `nft`.  First the network is as fast as this machine, then each connection
has a limit of its own, as in clouds.  Each library has a job that is up for the whole run.  The
jobs take turns, so that a busy moment of the machine meets them all.  A library that is not
installed, or fails, is named with the reason.

What is timed is an array from rank 0 to rank 1 and one back; a figure is half of it.  Both go into
arrays that have been used before; the first time, into a new array, is a figure of its own.

bare TCP   one connection and nothing else: what the kernel and this network take
ftcomm     `send` and `recv`, a job for each of --streams; every message is logged for a recovery
gloo       `send` and `recv` of torch.distributed
Open MPI   `Send` and `Recv` over TCP, through mpi4py
Ray        `ray.put` on one node, and `ray.get` on the other, which gives a view of the object store
"""

import argparse
import json
import shutil
import statistics
import sys
from contextlib import ExitStack
from typing import Any

from _capped_flows import NAMES, cap_flows, missing
from _groups import Groups, Peer, PeerFailed, in_order
from _host_peers import our_name, peers_on
from _machine import machine_facts
from _memory import memory_bytes
from _report import between_hosts_table
from _spread import ratio, summary

from ftcomm_chaos.faults.network_namespaces import NamespaceHosts

NBYTES = 100_000_000
STREAMS = "1,4,8"
MBIT_PER_S = 400  # two seconds for 100 MB on one connection
ROUNDS, QUICK_ROUNDS = 12, 2
CAPPED_ROUNDS, QUICK_CAPPED_ROUNDS = 5, 1
CALLS, CAPPED_CALLS = 3, 1  # of a turn, beside the first one
WARM_UP_ROUNDS = 2
# Arrays that fit the memory: those and the logs of two ranks, Ray's stores, and as many again.
MOST_OF_MEMORY = 40
Turn = dict[str, Any]


class Jobs:
    """The jobs of all libraries; one that fails once is out, with the reason."""

    def __init__(self, stack: ExitStack, peers: list[tuple[Peer, int]]) -> None:
        """Start each of them."""
        self._groups = Groups()
        self.reasons = self._groups.reasons
        for peer, answering in peers:
            self._groups.start(stack, peer, answering)

    def measure(self, nbytes: int, rounds: int, calls: int) -> dict[str, list[Turn]]:
        """Turns of each job, in another order every round."""
        turns: dict[str, list[Turn]] = {name: [] for name in self._groups.running}
        for number in range(rounds):
            for name in in_order(self._groups.running, number):
                turns[name] += self._turn(
                    name, {"kind": "send_recv", "nbytes": nbytes, "calls": calls}
                )
        return {name: turns[name] for name in self._groups.running}

    def _turn(self, name: str, order: dict[str, Any]) -> list[Turn]:
        """Seconds that rank 0 measured, there and back; nothing of a job that is out."""
        try:
            return self._groups.running[name].ask(order)[:1]
        except PeerFailed as failed:
            self._groups.drop(name, str(failed))
            return []


def _figures(turns: dict[str, list[Turn]], ours: str) -> dict[str, dict[str, float]]:
    """One way, of each library: what `summary` says, into a new array, and the ratio to ours."""
    figures = {}
    rounds = {
        name: [[seconds / 2 for seconds in turn["seconds"]] for turn in found]
        for name, found in turns.items()
    }
    for name, found in turns.items():
        figures[name] = summary([seconds for turn in rounds[name] for seconds in turn])
        first = statistics.median(turn["first"] / 2 for turn in found)
        figures[name]["new_us"] = round(first * 1e6, 1)
        if ours in rounds and name != ours:
            figures[name]["ratio"] = ratio(rounds[name], rounds[ours])
    return figures


def take(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, a line for each limit, and one for each library that is not in them."""
    lines: list[dict[str, Any]] = [{"machine": machine_facts(), "quick": arguments.quick}]
    lacking = missing() or ("" if shutil.which("setpriv") else "needs setpriv")
    if not lacking and arguments.nbytes * MOST_OF_MEMORY > memory_bytes():
        lacking = f"too little memory for {arguments.nbytes:,} bytes"
    if lacking:
        return [*lines, {"missing": lacking}]
    streams = list(map(int, arguments.streams.split(",")))
    pace = (
        ((None, QUICK_ROUNDS, 1), (arguments.mbit, QUICK_CAPPED_ROUNDS, 1))
        if arguments.quick
        else ((None, ROUNDS, CALLS), (arguments.mbit, CAPPED_ROUNDS, CAPPED_CALLS))
    )
    with NamespaceHosts(NAMES) as hosts, ExitStack() as stack:
        jobs = Jobs(stack, peers_on(hosts, streams, arguments.nbytes))
        jobs.measure(arguments.nbytes, WARM_UP_ROUNDS, CALLS)
        for mbit, rounds, calls in pace:
            if mbit is not None:
                cap_flows(hosts, mbit * 1_000_000)
            turns = jobs.measure(arguments.nbytes, rounds, calls)
            lines.append(
                {
                    "mbit_per_s": mbit,
                    "nbytes": arguments.nbytes,
                    "peers": _figures(turns, our_name(streams[0])),
                }
            )
        return [*lines, *({"peer": n, "missing": why} for n, why in jobs.reasons.items())]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bytes", dest="nbytes", type=int, default=NBYTES, help=f"of the array [{NBYTES:,}]"
    )
    parser.add_argument(
        "--streams",
        default=STREAMS,
        help=f"connections of a pair of ftcomm, by commas; ratios are to the first [{STREAMS}]",
    )
    parser.add_argument(
        "--mbit",
        type=int,
        default=MBIT_PER_S,
        help=f"limit of each connection in the second part, Mbit/s [{MBIT_PER_S}]",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few transfers: shows that it works, no figures"
    )
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> None:
    """Measure and print."""
    arguments = parser().parse_args()
    lines = take(arguments)
    print("\n".join(map(json.dumps, lines)) if arguments.json else between_hosts_table(lines))
    if "missing" in lines[-1] and "peer" not in lines[-1]:
        sys.exit(f"between_hosts.py: this machine lacks something: {lines[-1]['missing']}")


if __name__ == "__main__":
    main()
