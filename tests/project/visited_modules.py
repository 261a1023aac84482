"""Count the modules that one allreduce visits: cold, and repeated on the fast path.

    python tests/project/visited_modules.py

A module counts if one of its functions runs in the calling thread.  The figures come from a job
of two ranks, after `load_checkpoint`, so that the links are open.  The cold call waits for the
other rank, which begins only then: with or without a wait, as it happens, the figure would vary.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import ftcomm
from ftcomm.transport import waiting

ROOT = Path(__file__).parents[2]
PACKAGE = str(Path(ftcomm.__file__).parent)
WITHIN_S = 120.0  # a job of two ranks on a loaded machine is over in a tenth of this
ELEMENTS = 256  # of float32: 1 KiB
REPEATS = 20  # of which one finds the other rank's part there at once


@dataclass(frozen=True, slots=True)
class Visit:
    """One call's way through the package.

    Attributes:
        modules: paths below the package, sorted.
        functions: number of distinct functions.
        calls: number of Python function calls.
    """

    modules: tuple[str, ...]
    functions: int
    calls: int


def nothing() -> None:
    """Let a wait pass unnoticed."""


def visit(call: Callable[[], object], at_wait: Callable[[], object] = nothing) -> Visit:
    """Make `call` under a profile of this thread, and say where it went.

    Args:
        call: the call.
        at_wait: called each time that it begins to wait for the other rank.
    """
    seen: list[tuple[str, str, int]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            seen.append((code.co_filename, code.co_name, code.co_firstlineno))
            if code.co_filename == waiting.__file__:
                at_wait()

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    modules = sorted({str(Path(file).relative_to(PACKAGE)) for file, _, _ in seen})
    return Visit(tuple(modules), len(set(seen)), len(seen))


def visits_of_a_rank(pipe: Path) -> tuple[int, dict[str, Visit]]:
    """The calls of one rank of a job: a cold allreduce and a repeated one.

    Args:
        pipe: a FIFO, closed by rank 0 when its cold call waits for rank 1.
    """
    x = np.ones(ELEMENTS, np.float32)
    with ftcomm.init() as comm:
        comm.load_checkpoint()

        def call() -> Any:
            return comm.allreduce(x)

        if comm.rank == 0:
            with pipe.open("wb") as signal:
                cold = visit(call, signal.close)
        else:
            pipe.read_bytes()
            cold = visit(call)
        # The one that waited least for the other rank: polls count as calls too.
        repeated = min((visit(call) for _ in range(REPEATS)), key=lambda found: found.calls)
        return comm.rank, {"cold": cold, "repeated": repeated}


def measure() -> dict[str, Visit]:
    """Rank 0's visits, from a job of two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder, "pipe")
        os.mkfifo(pipe)
        worker = [sys.executable, __file__, "--worker", str(pipe)]
        run = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", "2", "--", *worker]
        output = subprocess.run(
            run, cwd=ROOT, capture_output=True, text=True, check=True, timeout=WITHIN_S
        ).stdout
    (line,) = (line for line in output.splitlines() if "VISITS" in line)
    found = json.loads(line.partition("VISITS ")[2])
    return {name: Visit(tuple(modules), *rest) for name, (modules, *rest) in found.items()}


def _work(pipe: Path) -> None:
    rank, visits = visits_of_a_rank(pipe)
    found = {name: (v.modules, v.functions, v.calls) for name, v in visits.items()}
    if rank == 0:
        sys.stdout.write(f"VISITS {json.dumps(found)}\n")


def main() -> None:
    """Print both visits."""
    for name, found in measure().items():
        counts = f"{len(found.modules)} modules, {found.functions} functions, {found.calls} calls"
        modules = "".join(f"    {module}\n" for module in found.modules)
        sys.stdout.write(f"{name} allreduce: {counts}\n{modules}")


if __name__ == "__main__":
    _work(Path(sys.argv[2])) if "--worker" in sys.argv else main()
