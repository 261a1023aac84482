"""What a fault costs: from the fault to the next completed collective on all survivors.

    python benchmarks/recovery.py
    python benchmarks/recovery.py -n 4 --faults 20 --json

SIGKILL is followed by the launcher's restart of the worker, so it includes the start of an
interpreter and its imports, which are measured beside it.  A link reset costs no process.  Every
fault is in the middle of a row of collectives, at a rank that rotates.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _machine import machine_facts

WORKER = Path(__file__).with_name("_recovery_worker.py")
SEQNO = 10  # where in its version a fault fires
ACTIONS = {"SIGKILL and restart": "enter=kill", "link reset": "half_sent=reset"}
STARTS = 9
START = "import numpy, trio, ftcomm; ftcomm.init"
KILL_MARGIN_MS, RESET_LIMIT_MS = 200.0, 50.0
Times = list[float]


def start_times() -> Times:
    """Milliseconds that an interpreter needs until the library is imported."""
    found = []
    for _ in range(STARTS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", START], check=True)
        found.append((time.perf_counter() - began) * 1000)
    return found


def plan_faults(action: str, world_size: int, count: int) -> str:
    """One fault in each version but the first, at each rank in turn.

    A killed worker counts its lives; a reset ends none.
    """
    kills = action.endswith("kill")
    return ",".join(
        f"{index % world_size}.{index + 1}.{SEQNO}.{index // world_size if kills else 0}@{action}"
        for index in range(count)
    )


def run_job(action: str, world_size: int, faults: int, detect_within: float) -> dict[str, Times]:
    """Run one job with `faults` faults; returns milliseconds by phase, one for each fault."""
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        # a link is suspected at most once in `detect_within`
        worker = [sys.executable, str(WORKER), "--out", folder]
        worker += ["--versions", str(faults + 2), "--pause", str(1.2 * detect_within)]
        tracker = [sys.executable, "-m", "ftcomm_tracker.cli", "run", "-n", str(world_size)]
        tracker += ["--state-dir", folder, "--detect-within", str(detect_within)]
        tracker += ["--max-restarts", str(faults), "--"]
        environment = {**os.environ, "FTCOMM_FAULTS": plan_faults(action, world_size, faults)}
        subprocess.run(
            tracker + worker, check=True, env=environment, stdout=sys.stderr, stderr=sys.stderr
        )
        return {"total": lost_times(Path(folder)), **phases(Path(folder))}


def lost_times(folder: Path) -> Times:
    """The longest loss of any surviving rank, for each version that had a fault."""
    worst: dict[int, float] = {}
    for path in folder.glob("*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            if "lost_ms" in line:
                version = line["version"]
                worst[version] = max(worst.get(version, 0.0), line["lost_ms"])
    return list(worst.values())


def phases(folder: Path) -> dict[str, Times]:
    """What the tracker measured of each incident."""
    lines = (folder / "incidents.jsonl").read_text().splitlines()
    incidents = [json.loads(line)["ms"] for line in lines]
    names = [name for name in incidents[0] if name != "total"]
    return {name: [incident[name] for incident in incidents] for name in names}


def summary(times: Times) -> dict[str, float]:
    """Median, 99th percentile (of few: the worst) and how many."""
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"p50": round(statistics.median(ordered), 1), "p99": round(p99, 1), "n": len(ordered)}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All figures of one run."""
    jobs = {
        name: run_job(action, arguments.world_size, arguments.faults, arguments.detect_within)
        for name, action in ACTIONS.items()
    }
    figures = {
        name: {phase: summary(times) for phase, times in job.items()} for name, job in jobs.items()
    }
    return {"start of an interpreter": {"total": summary(start_times())}, **figures}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", "--world-size", type=int, default=4)
    parser.add_argument("--faults", type=int, default=20, help="of each kind")
    parser.add_argument("--detect-within", type=float, default=1.0, help="seconds")
    parser.add_argument("--json", action="store_true", help="figures with the machine")
    arguments = parser.parse_args()
    facts = {"world_size": arguments.world_size, **machine_facts()}
    figures = measure(arguments)
    if arguments.json:
        print(json.dumps({"machine": facts, "ms": figures}, indent=1))
        return
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    for fault, job in figures.items():
        for phase, row in job.items():
            print(f"{fault:>24} {phase:>8}  p50 {row['p50']:8.1f} ms  p99 {row['p99']:8.1f} ms")
    start = figures["start of an interpreter"]["total"]["p50"]
    print(f"limits of the p50: kill {start + KILL_MARGIN_MS:.0f} ms, reset {RESET_LIMIT_MS:.0f} ms")


if __name__ == "__main__":
    main()
