"""Cost of durable checkpoints: training steps with a store, beside the same without, in one run.

    python benchmarks/durable_cost.py
    python benchmarks/durable_cost.py --stores good,slow --state-bytes 10000000 --json
    python benchmarks/durable_cost.py --quick

All jobs are up for the whole run and take turns.  A turn commits one checkpoint and then trains for
a second: each step computes and makes an allreduce.  With a store the checkpoint is made durable
meanwhile.  Only the steps are timed.  "costs" is the median, over the rounds, of a job's turn to
that of the job without a store beside it; memory is the peak of the larger rank.  Stores:

- good: a directory
- slow: a directory that takes 1 MB/s
- errors: each write fails
- full: each write says that the disk is full

With `--folder` the stores are elsewhere, such as on a small file system that fills up.
"""

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _groups import Group, Peer
from _machine import machine_facts
from _peers import ftcomm_job
from _report import durable_table

from ftcomm.durable.chain import Chain
from ftcomm.durable.chain_state import chain_state
from ftcomm.durable.opening import open_store

WITHOUT = "none"
STORES = ("good", "slow", "errors", "full")
WORKER = Path(__file__).with_name("_durable_worker.py")
ROUNDS, QUICK_ROUNDS = 20, 3
STEPS, QUICK_STEPS = 50, 10  # about a second
STATE_BYTES, QUICK_STATE_BYTES = 100_000_000, 1_000_000


def job(store: str, state_nbytes: int) -> Peer:
    """A job with the named store, or without one."""

    def commands(world_size: int, folder: Path) -> list[list[str]]:
        options = ["--checkpoint", ""]
        if store != WITHOUT:
            options = ["--checkpoint", str(folder / "store"), "--checkpoint-every", "1v"]
        worker = [str(WORKER), store, str(state_nbytes)]
        return [ftcomm_job(world_size, folder, worker, *options)]

    return Peer(f"store {store}", commands)


def take(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then a line for each store."""
    rounds, steps = (QUICK_ROUNDS, QUICK_STEPS) if options.quick else (ROUNDS, STEPS)
    nbytes = options.state_bytes or (QUICK_STATE_BYTES if options.quick else STATE_BYTES)
    lines: list[dict[str, Any]] = [{"machine": machine_facts(), "world_size": options.n}]
    for store in options.stores.split(","):
        print(f"store {store}, {nbytes:,} bytes", file=sys.stderr)
        lines.append(
            {
                "store": store,
                "state_nbytes": nbytes,
                **_measured(store, options, nbytes, rounds, steps),
            }
        )
    return lines


def _measured(
    store: str, options: argparse.Namespace, nbytes: int, rounds: int, steps: int
) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {WITHOUT: [], store: []}
    memory = dict.fromkeys(seconds, 0)
    with ExitStack() as stack:
        place = tempfile.TemporaryDirectory(prefix="ftcomm-bench-", dir=options.folder)
        folder = Path(stack.enter_context(place))
        jobs = {
            name: stack.enter_context(Group(job(name, nbytes), options.n, folder / name))
            for name in seconds
        }
        for number in range(rounds + 1):
            for name in sorted(jobs, reverse=bool(number % 2)):
                answers = jobs[name].ask({"steps": steps})
                memory[name] = max(answer["memory"] for answer in answers)
                if number:  # the first is to warm up
                    seconds[name].append(max(answer["seconds"] for answer in answers))
        chain = chain_state(Chain(open_store(str(folder / store / "store"))).read())
    ratios = [
        with_ / without for with_, without in zip(seconds[store], seconds[WITHOUT], strict=True)
    ]
    low, cost, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "without_ms": round(1e3 * statistics.median(seconds[WITHOUT]) / steps, 3),
        "with_ms": round(1e3 * statistics.median(seconds[store]) / steps, 3),
        "cost": round(cost, 4),
        "cost_spread": [round(low, 4), round(high, 4)],
        "turns": rounds + 1,
        "versions": len(chain.versions),
        "without_memory": memory[WITHOUT],
        "with_memory": memory[store],
    }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--stores", default=",".join(STORES), help="by commas")
    parser.add_argument("--state-bytes", type=int, help="of the state")
    parser.add_argument("--folder", type=Path, help="where the stores are")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns")
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> None:
    """Measure and print."""
    options = parser().parse_args()
    lines = take(options)
    print("\n".join(map(json.dumps, lines)) if options.json else durable_table(lines))


if __name__ == "__main__":
    main()
