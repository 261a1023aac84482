"""Cost of a fault: from the fault to the next completed collective on all survivors.

    python benchmarks/recovery.py
    python benchmarks/recovery.py -n 4 --faults 20 --only "link reset" --json
    python benchmarks/recovery.py --quick

- SIGKILL and restart: by `ftcomm-tracker run`; it includes the start of an interpreter and its
  imports, which are measured beside it, before the jobs: one at a time, and like a worker's with
  one thread for BLAS.
- SIGKILL with a spare: the same by `--spares 1`; the dead worker's successor is the next spare.  A
  worker dies once `status` shows that the spare holds the newest checkpoint.
- SIGKILL with a spare, 100 MB: the same with a state of that size.
- link reset: one rank's connections end by RST; no process dies.
- SIGSTOP past the limit: the rank is evicted after `--detect-within`, killed by the launcher after
  as much again, and started anew.
- tracker restart: SIGKILL of the tracker, started again at once; collectives do not need it.

Faults of workers are in the middle of a row of collectives, at a rank that rotates.
The phase "detect" is from the fault to the tracker's first evidence of it; the other phases are the
tracker's own record and overlap.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _tracker_restarts
from _machine import machine_facts
from _report import recovery_table

WORKER = Path(__file__).with_name("_recovery_worker.py")
SEQNO = 10  # where in its version a fault fires
SPARE = "SIGKILL with a spare"
SPARE_LARGE = "SIGKILL with a spare, 100 MB"
OPTIONS = {SPARE: ["--spares", "1"], SPARE_LARGE: ["--spares", "1"]}
STATE_BYTES = {SPARE_LARGE: 100_000_000}
ACTIONS = {
    "SIGKILL and restart": "enter=kill",
    SPARE: "",  # the worker's own: a fault's address would hit the spare at the same position
    SPARE_LARGE: "",
    "link reset": "half_sent=reset",
    "SIGSTOP past the limit": "enter=stop",
}
TRACKER = "tracker restart"
STARTS = 9
START = "import numpy, trio, ftcomm, sys; ftcomm.init; print(flush=True); sys.stdin.read()"
FAULTS, QUICK_FAULTS = 20, 4
Times = list[float]


def start_times() -> Times:
    """Milliseconds that an interpreter needs until the library is imported."""
    return [start_time() for _ in range(STARTS)]


def start_time() -> float:
    """The same for one, started as a worker is; its end, which takes time too, is not in it."""
    command = [sys.executable, "-c", START]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # as the launcher sets it
    pipe = subprocess.PIPE
    began = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        took = time.perf_counter() - began
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return took * 1000


def plan_faults(
    action: str, world_size: int, count: int, *, first_version: int = 1, seqno: int = SEQNO
) -> str:
    """One fault in each version from the first one on, at each rank in turn.

    A killed or stopped worker begins another incarnation; a reset ends none.
    """
    ends_a_process = not action.endswith("reset")
    return ",".join(
        f"{index % world_size}.{index + first_version}.{seqno}"
        f".{index // world_size if ends_a_process else 0}@{action}"
        for index in range(count)
    )


def run_job(name: str, world_size: int, faults: int, detect_within: float) -> dict[str, Times]:
    """Run one job with `faults` faults; returns milliseconds by phase, one for each fault."""
    action = ACTIONS[name]
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        # a link is suspected at most once in `detect_within`
        worker = [sys.executable, str(WORKER), "--out", folder]
        worker += ["--versions", str(faults + 2), "--pause", str(1.2 * detect_within)]
        worker += ["--kills", str(0 if action else faults)]
        worker += ["--state-bytes", str(STATE_BYTES.get(name, 0))]
        tracker = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(world_size)]
        tracker += ["--state-dir", folder, "--detect-within", str(detect_within)]
        tracker += ["--max-restarts", str(faults), *OPTIONS.get(name, []), "--"]
        plan = plan_faults(action, world_size, faults) if action else ""
        environment = {**os.environ, "FTCOMM_FAULTS": plan}
        subprocess.run(
            tracker + worker, check=True, env=environment, stdout=sys.stderr, stderr=sys.stderr
        )
        total, recorded = lost_times(Path(folder)), phases(Path(folder))
    if len(total) != faults:
        raise RuntimeError(f"{faults} faults were planned, {len(total)} were felt")
    seen = recorded.pop("total")
    if len(seen) == faults:  # each is one recovery, as a rule
        recorded = {
            "detect": [max(a - b, 0.0) for a, b in zip(total, seen, strict=True)]
        } | recorded
    return {"total": total, **recorded}


def lost_times(folder: Path) -> Times:
    """The longest loss of any surviving rank, for each version that had a fault, in order."""
    worst: dict[int, float] = {}
    for path in folder.glob("*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            if "lost_ms" in line:
                version = line["version"]
                worst[version] = max(worst.get(version, 0.0), line["lost_ms"])
    return [worst[version] for version in sorted(worst)]


def phases(folder: Path) -> dict[str, Times]:
    """Return the tracker's times of each incident."""
    lines = (folder / "incidents.jsonl").read_text().splitlines()
    incidents = [json.loads(line)["ms"] for line in lines]
    return {name: [incident[name] for incident in incidents] for name in incidents[0]}


def summary(times: Times) -> dict[str, float]:
    """Median, 99th percentile (of few: the worst) and how many."""
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"p50": round(statistics.median(ordered), 1), "p99": round(p99, 1), "n": len(ordered)}


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One line for each fault and phase."""
    settings = (arguments.world_size, arguments.faults, arguments.detect_within)
    jobs: dict[str, Callable[[], dict[str, Times]]] = {
        "start of an interpreter": lambda: {"total": start_times()}
    }
    for name in ACTIONS:
        jobs[name] = functools.partial(run_job, name, *settings)
    jobs[TRACKER] = functools.partial(_tracker_restarts.run_job, *settings)
    lines: list[dict[str, Any]] = []
    for name, job in jobs.items():
        if arguments.only and name not in arguments.only:
            continue
        found = job()
        lines += [{"fault": name, "phase": phase, **summary(found[phase])} for phase in found]
    return lines


def take(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then one line for each fault and phase."""
    arguments.faults = arguments.faults or (QUICK_FAULTS if arguments.quick else FAULTS)
    job = {"world_size": arguments.world_size, "detect_within_s": arguments.detect_within}
    return [{"machine": job | machine_facts()}, *measure(arguments)]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--world-size", type=int, default=4)
    parser.add_argument("--faults", type=int, help=f"of each kind; default {FAULTS}")
    parser.add_argument("--detect-within", type=float, default=1.0, help="seconds; default 1")
    parser.add_argument("--only", action="append", help=f"{', '.join([*ACTIONS, TRACKER])}")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_FAULTS} faults of each kind")
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> None:
    """Measure and print."""
    arguments = parser().parse_args()
    lines = take(arguments)
    print("\n".join(map(json.dumps, lines)) if arguments.json else recovery_table(lines))


if __name__ == "__main__":
    main()
