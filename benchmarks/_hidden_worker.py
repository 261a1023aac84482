"""One rank of `hidden.py`: steps with and without communication, and how long each took."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ftcomm

WARM_UP = 2
SOME_PRODUCTS = 4  # a layer's work while it is found out how long one takes
WIDTH = 256  # a product of such matrices takes about a millisecond and releases the interpreter
Array = np.ndarray[Any, Any]


class Step:
    """One step of training: work for each layer, then its gradient is summed."""

    def __init__(self, comm: ftcomm.Communicator, options: argparse.Namespace) -> None:
        self.comm = comm
        self.away: bool = options.compute == "away"
        self.gradients = [
            np.ones(options.nbytes // 4, np.float32) * (comm.rank + layer)
            for layer in range(options.layers)
        ]
        self.sums = [np.empty_like(gradient) for gradient in self.gradients]
        self.factor: Array = np.full((WIDTH, WIDTH), 1.0 / WIDTH, np.float32)
        self.product = np.empty_like(self.factor)
        self.work_s = 0.0
        self.products = 1

    def calibrate(self, ratio: float) -> None:
        """Let a layer's work take `ratio` times as long as its gradient's sum, on all ranks."""
        self.products = SOME_PRODUCTS
        some = self.agreed(self.alone) / len(self.gradients)
        sums = self.agreed(lambda: self.synchronous(works=False)) / len(self.gradients)
        self.work_s = ratio * sums
        self.products = max(round(SOME_PRODUCTS * self.work_s / some), 1)

    def agreed(self, run: Callable[[], None]) -> float:
        """Seconds that `run` takes on the slowest rank, as a rule."""
        times = []
        for _ in range(5):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        return float(self.comm.allreduce(statistics.median(times), op="max"))

    def work(self) -> None:
        """One layer's work: on this processor, or as if it were done on another device."""
        if self.away and self.work_s:
            time.sleep(self.work_s)
            return
        for _ in range(self.products):
            np.matmul(self.factor, self.factor, out=self.product)

    def alone(self) -> None:
        """No communication."""
        for _ in self.gradients:
            self.work()

    def synchronous(self, *, works: bool = True) -> None:
        """Each gradient is summed before the next layer's work begins."""
        for gradient, out in zip(self.gradients, self.sums, strict=True):
            if works:
                self.work()
            self.comm.allreduce(gradient, out=out)

    def nonblocking(self) -> None:
        """Each gradient is summed during the work of the layers behind it."""
        handles = []
        for gradient, out in zip(self.gradients, self.sums, strict=True):
            self.work()
            handles.append(self.comm.iallreduce(gradient, out=out))
        for handle in handles:
            handle.wait()


def main() -> None:
    """Take the three steps in turns; rank 0 writes the times of the slowest rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--nbytes", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--ratio", type=float, required=True)
    parser.add_argument("--compute", required=True)
    options = parser.parse_args()
    with ftcomm.init() as comm:
        comm.load_checkpoint()
        step = Step(comm, options)
        step.synchronous()
        step.calibrate(options.ratio)
        runs = {"alone": step.alone, "sync": step.synchronous, "async": step.nonblocking}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(WARM_UP + options.rounds):
            for name, run in runs.items():
                comm.checkpoint(None)  # lets the results go, outside of what is timed
                comm.barrier()
                began = time.perf_counter()
                run()
                own = time.perf_counter() - began
                slowest = float(comm.allreduce(own, op="max"))
                if number >= WARM_UP:
                    times[name].append(slowest)
        if comm.rank == 0:
            options.out.write_text(json.dumps(times))


if __name__ == "__main__":
    main()
