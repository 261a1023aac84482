"""Count the modules that one allreduce visits: cold, and repeated on the fast path.

    python tests/project/visited_modules.py

A module counts if one of its functions runs in the calling thread.  The figures come from a job
of two ranks, after `load_checkpoint`, so that the links are open.  In each call rank 0 waits for
rank 1, which begins only then and finds rank 0's part there: with or without a wait, as it happens,
the figures would vary.  So the cold call is rank 0's, and the repeated one rank 1's.  Of several
calls of each kind the one with the fewest steps counts: a heartbeat may fall into a call.
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

import numpy as np

import ftcomm
from ftcomm.core import python_core

ROOT = Path(__file__).parents[2]
PACKAGE = str(Path(ftcomm.__file__).parent)
WITHIN_S = 120.0  # a job of two ranks on a loaded machine is over in a tenth of this
ELEMENTS = 256  # of float32: 1 KiB
ROUNDS = 10
WAITS = ("Form.run", "Form.repeat")  # of the compiled core


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

    def note(frame: FrameType, event: str, called: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            seen.append((code.co_filename, code.co_name, code.co_firstlineno))
            if code.co_filename == python_core.__file__:
                at_wait()
        elif event == "c_call" and getattr(called, "__qualname__", "").endswith(WAITS):
            at_wait()

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    modules = sorted({str(Path(file).relative_to(PACKAGE)) for file, _, _ in seen})
    return Visit(tuple(modules), len(set(seen)), len(seen))


def visits_of_a_rank(pipe: Path) -> Visit:
    """The cold allreduce of rank 0, or the repeated one of rank 1.

    Args:
        pipe: a FIFO, by which rank 0 says that it waits.
    """
    with ftcomm.init() as comm, pipe.open(("wb", "rb")[comm.rank], buffering=0) as turn:
        comm.load_checkpoint()

        def visit_in_turn(elements: int) -> Visit:
            x, untold = np.ones(elements, np.float32), [b"."]

            def tell() -> None:
                if untold:
                    turn.write(untold.pop())

            if comm.rank:
                turn.read(1)
            return visit(lambda: comm.allreduce(x), nothing if comm.rank else tell)

        cold = [visit_in_turn(ELEMENTS + number) for number in range(ROUNDS)]
        repeated = [visit_in_turn(ELEMENTS) for _ in range(ROUNDS)]
        return min((repeated if comm.rank else cold), key=lambda found: found.calls)


def measure() -> dict[str, Visit]:
    """Both visits, from a job of two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder, "pipe")
        os.mkfifo(pipe)
        worker = [sys.executable, __file__, "--worker", str(pipe)]
        run = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", "2", "--", *worker]
        output = subprocess.run(
            run, cwd=ROOT, capture_output=True, text=True, check=True, timeout=WITHIN_S
        ).stdout
    said = sorted(line for line in output.splitlines() if "VISIT" in line)  # "[0] ..." first
    found = [json.loads(line.partition("VISIT ")[2]) for line in said]
    names = ("cold", "repeated")
    return {
        name: Visit(tuple(modules), *rest)
        for name, (modules, *rest) in zip(names, found, strict=True)
    }


def _work(pipe: Path) -> None:
    found = visits_of_a_rank(pipe)
    sys.stdout.write(f"VISIT {json.dumps((found.modules, found.functions, found.calls))}\n")


def main() -> None:
    """Print both visits."""
    for name, found in measure().items():
        counts = f"{len(found.modules)} modules, {found.functions} functions, {found.calls} calls"
        modules = "".join(f"    {module}\n" for module in found.modules)
        sys.stdout.write(f"{name} allreduce: {counts}\n{modules}")


if __name__ == "__main__":
    _work(Path(sys.argv[2])) if "--worker" in sys.argv else main()
