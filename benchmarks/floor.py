"""Parts of the floor: bytes on the wire, and time, against the lower bounds.

    python benchmarks/floor.py
    python benchmarks/floor.py -n 2 --nbytes 10000000 --json

An allreduce of S bytes over n ranks must send 2 S (n-1)/n from each rank, if every rank sends as
much.  Counted are the payloads of the schedule and what the kernel saw on the loopback (headers,
acknowledgements and all) while a job over TCP made its calls.  The least time is what these bytes
take by the loopback alone, and adding them takes by memory alone, with as many of both at a time
as there are processors.  Other traffic of the machine's loopback is counted too: keep it quiet.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from _groups import Group
from _machine import machine_facts
from _memory import added_per_s, copied_per_s, looped_per_s
from _peers import sides
from _report import floor_table
from _spread import summary

from ftcomm.collectives.schedules.schedule import NOBODY, Reduce
from ftcomm.collectives.selection import schedule_for
from ftcomm.protocol.frame_header import HEADER_BYTES
from ftcomm.protocol.signature import Kind

WORLD_SIZES = (2, 4)
NBYTES = 20_000_000
CALLS, QUICK_CALLS = 20, 4
ITEMSIZE = 4
DEVICES = Path("/proc/net/dev")


def least_bytes(world_size: int, nbytes: int) -> float:
    """Return the least bytes that each rank must send."""
    return 2 * nbytes * (world_size - 1) / world_size


def counted(world_size: int, nbytes: int) -> dict[str, int]:
    """Bytes of all ranks by the schedules: payloads, headers, and what is combined."""
    sent = headers = combined = 0
    for rank in range(world_size):
        schedule = schedule_for(Kind.ALLREDUCE, world_size, rank, nbytes // ITEMSIZE, ITEMSIZE)
        for one in schedule.rounds:
            combined += sum(step.recv_hi - step.recv_lo for step in one.gather.steps) * ITEMSIZE
        for step in schedule.all_steps:
            if step.send_to != NOBODY:
                sent += (step.send_hi - step.send_lo) * ITEMSIZE
                headers += HEADER_BYTES
            if step.reduce is not Reduce.NONE:
                combined += (step.recv_hi - step.recv_lo) * ITEMSIZE
    return {"sent": sent, "headers": headers, "combined": combined}


def looped_bytes(text: str) -> int:
    """Bytes that the loopback has carried, from the text of /proc/net/dev."""
    line = next(line for line in text.splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def measure(world_size: int, nbytes: int, calls: int, speeds: dict[str, float]) -> dict[str, Any]:
    """One line: bytes counted, carried and least; time measured and least."""
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        (job,) = (side for side in sides(None) if side.NAME == "ftcomm tcp")
        group = Group(job, world_size, Path(folder) / "group")
        with group:
            group.turn(
                "allreduce", nbytes, calls
            )  # as many: the log takes fresh memory the first time
            before = looped_bytes(DEVICES.read_text())
            seconds = group.turn("allreduce", nbytes, calls)
            carried = (looped_bytes(DEVICES.read_text()) - before) / (calls + 1)  # one is a trial
    found = counted(world_size, nbytes)
    lanes = min(os.cpu_count() or 1, world_size)
    loop_s = found["sent"] / speeds["looped"] / max(lanes / 2, 1)  # two processors carry a stream
    add_s = found["combined"] / speeds["added"] / lanes
    return {
        "ranks": world_size,
        "nbytes": nbytes,
        "least_bytes": round(least_bytes(world_size, nbytes)),
        "sent_per_rank": found["sent"] // world_size,
        "headers_per_rank": found["headers"] // world_size,
        "carried_per_rank": round(carried / world_size),
        **summary(seconds),
        "loopback_us": round(loop_s * 1e6),
        "adding_us": round(add_s * 1e6),
    }


def take(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine and its speeds, and a line for each number of ranks."""
    if not DEVICES.exists():
        raise SystemExit(f"{DEVICES} is needed, to count what the loopback carries")
    speeds = {"copied": copied_per_s(), "added": added_per_s(), "looped": looped_per_s()}
    rounded = {name: round(speed / 1e9, 2) for name, speed in speeds.items()}
    lines: list[dict[str, Any]] = [{"machine": machine_facts(), "gb_per_s": rounded}]
    calls = QUICK_CALLS if arguments.quick else CALLS
    for world_size in map(int, arguments.world_sizes.split(",")):
        print(f"floor of {world_size} ranks", file=sys.stderr)
        lines.append(measure(world_size, arguments.nbytes, calls, speeds))
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--world-sizes", default=",".join(map(str, WORLD_SIZES)))
    parser.add_argument("--nbytes", type=int, default=NBYTES, help=f"default {NBYTES:,}")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_CALLS} calls")
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> None:
    """Measure and print."""
    arguments = parser().parse_args()
    lines = take(arguments)
    print("\n".join(map(json.dumps, lines)) if arguments.json else floor_table(lines))


if __name__ == "__main__":
    main()
