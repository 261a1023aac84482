"""The simulator on one seed after another, all in this process: ``simulating FIRST SECONDS``."""

import os
import sys
import time

from ftcomm_chaos.sim.seed_sweep import run_seeds
from tests.soak.figures import growth
from tests.soak.reporting import report, usage

SEEDS_A_REPORT = 20  # a fraction of a second


def main() -> None:
    """Simulate until the time is over; a broken rule is one report of many."""
    seed, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
    used: dict[str, list[tuple[float, float]]] = {"rss_kib": [], "fds": []}
    while time.monotonic() < end:
        sweep = run_seeds(range(seed, seed + SEEDS_A_REPORT))
        seed += SEEDS_A_REPORT
        for name, value in (usage(os.getpid()) or {}).items():
            used[name].append((time.monotonic(), value))
        grown = {f"simulator {name}": growth(series) for name, series in used.items()}
        report(
            simulated_jobs=sweep.runs,
            simulated_faults=sum(sweep.faults.values()),
            next_seed=seed,
            violations=[f"seed {f.seed}: {f.what}; again with: {f.replay}" for f in sweep.failures],
            growths={name: value for name, value in grown.items() if value is not None},
        )


if __name__ == "__main__":
    main()
