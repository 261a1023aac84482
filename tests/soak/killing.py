"""Faults of real jobs in turn: ``killing FOLDER SEED SECONDS``.

Random kills and random schedules come for a while, then one losing session, in the next way.
"""

import itertools
import os
import shutil
import sys
import time
from pathlib import Path

from tests.conformance.bench import Bench
from tests.conformance.kills import WORLD_SIZES, Row, Way, run_calmly, run_with_kills
from tests.conformance.schedules import random_plan
from tests.soak.losing import run_losing
from tests.soak.reporting import report
from tests.soak.ways import NICE, WAYS

TURN_S = 25.0  # of kills and schedules; a losing session takes about twice as long
KILLING_JOBS_A_SCHEDULE = 2  # of the two, jobs with kills at random moments are the quicker


def main() -> None:
    """Go on until the time is over or a job did what it must not."""
    folder, seed, end = Path(sys.argv[1]), int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
    os.nice(NICE)
    bench = Bench(folder / "schedules")
    rows: dict[int, Row] = {}
    try:
        for way in itertools.cycle(WAYS):
            turn_ends = min(time.monotonic() + TURN_S, end)
            while time.monotonic() < turn_ends:
                _kill(folder / "kills", rows, seed)
                if seed % KILLING_JOBS_A_SCHEDULE == 0:
                    _schedule(bench, seed)
                seed += 1
            if time.monotonic() >= end:
                break
            run_losing(folder / f"losing-{seed}", way, seed)
    except Exception as error:  # noqa: BLE001 - whatever it was, it is the result
        report(violations=[f"seed {seed}: {type(error).__name__}: {error}"])
    finally:
        bench.close()


def _kill(folder: Path, rows: dict[int, Row], seed: int) -> None:
    size, way = WORLD_SIZES[seed % len(WORLD_SIZES)], Way()
    if size not in rows:
        rows[size] = run_calmly(folder, size, way)
    report(kills=run_with_kills(folder, size, rows[size], way.moments_a_job, seed, way))


def _schedule(bench: Bench, seed: int) -> None:
    plan = random_plan(seed)
    job = bench.run(plan)  # counts its deaths and stops itself
    report(kills=plan.deaths, stops=plan.stops, schedules=1)
    shutil.rmtree(job.folder)


if __name__ == "__main__":
    main()
