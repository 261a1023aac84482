"""A recorded trace of machines, replayed on jobs: ``tracing FOLDER SEED SECONDS TRACE``.

A session is as long as the trace at 60 times its speed, or as the time that is left.  Moments at
which all machines go are put into the trace: by itself it always leaves some.
"""

import os
import sys
import time
from pathlib import Path

from ftcomm_chaos.runner.spot_trace import read_trace
from tests.soak.losing import run_losing
from tests.soak.ways import (
    NICE,
    TRACE,
    TRACE_SPEED,
    piece_of,
    trace_text,
    versions_for,
    with_losses_of_all,
)

SHORTEST_S = 20.0  # of a session; the trace begins with the coming of machines


def main() -> None:
    """Run sessions one after another until the time is over."""
    folder, seed, end = Path(sys.argv[1]), int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
    trace = read_trace(Path(sys.argv[4]))
    folder.mkdir(parents=True)
    os.nice(NICE)
    seconds = max(end - time.monotonic(), SHORTEST_S)
    while seconds >= SHORTEST_S:
        events = with_losses_of_all(piece_of(trace, seconds))
        path = folder / f"trace-{seed}.csv"
        path.write_text(trace_text(events))
        versions = versions_for(events[-1].at_s / TRACE_SPEED)
        more = ("--trace", str(path), "--versions", str(versions))
        run_losing(folder / f"session-{seed}", TRACE, seed, *more)
        seed += 1
        seconds = end - time.monotonic()


if __name__ == "__main__":
    main()
