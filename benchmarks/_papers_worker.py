"""One rank of `papers.py`: trains a network, or measures what the model of its time needs."""

import functools
import hashlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _papers_networks import EXPERIMENTS, SHAPES, TESTED, Array, Network, Shape, batches

import ftcomm
from ftcomm.patterns import average_weights

BATCH = 32  # samples of a rank in a step
SIZES = {1 << 10: 20, 4 << 20: 1}  # bytes of the measured allreduces, and how many times the calls
GRADIENTS, WEIGHTS = AVERAGES = ("gradients", "weights")


def train(comm: ftcomm.Communicator, name: str, average: str, epochs: str) -> dict[str, Any]:
    """Train by SGD, of which each step averages the gradients, or each epoch the weights."""
    experiment = EXPERIMENTS[name]
    network = experiment.build()
    mine = deal(comm, experiment.read() if comm.rank == 0 else None)
    tested = np.arange(len(mine)) % TESTED == 0
    rows = mine[~tested]
    steps = int(comm.allreduce(len(rows), op="min")) // BATCH  # the same on every rank
    _, state = comm.load_checkpoint({"step": 0, "weights": network.weights})
    for x, loaded in zip(network.weights, state["weights"], strict=True):
        x[...] = loaded
    seconds = []
    for epoch in range(state["step"] // steps, int(epochs)):
        began = time.perf_counter()
        drawn = batches(rows, epoch, comm.rank, BATCH, seed=0)
        for batch in itertools.islice(drawn, steps):
            slopes = network.gradient(batch)
            if average == GRADIENTS:
                slopes = comm.bucketed(slopes, "mean")
            descend(network, slopes, experiment.rate)
        if average == WEIGHTS:
            average_weights(comm, network.weights)
        comm.checkpoint({"step": (epoch + 1) * steps, "weights": network.weights})
        seconds.append(time.perf_counter() - began)
    right = comm.allreduce(np.array([network.right(mine[tested]), tested.sum()]))
    digest = hashlib.sha256(b"".join(x.tobytes() for x in network.weights)).hexdigest()
    if len(set(comm.allgather_object(digest))) != 1:
        raise AssertionError("the ranks have different models")
    return {
        "epoch_s": statistics.median(seconds) if seconds else None,  # none: loaded at the end
        "steps": steps,
        "nbytes": nbytes_of(network),
        "right": round(float(right[0] / right[1]), 4),
        "model": digest,
    }


def deal(comm: ftcomm.Communicator, rows: Array | None) -> Array:
    """This rank's part of the rows that rank 0 has read; the others pass None."""
    parts = None if rows is None else np.array_split(rows, comm.world_size)
    return comm.scatterv(parts)


def descend(network: Network, slopes: list[Array], rate: float) -> None:
    """Make a step of SGD."""
    for x, slope in zip(network.weights, slopes, strict=True):
        x -= np.float32(rate) * slope


def nbytes_of(network: Network) -> int:
    """Bytes of all weights."""
    return sum(x.nbytes for x in network.weights)


def measure(comm: ftcomm.Communicator, calls: str, *names: str) -> dict[str, Any]:
    """Median seconds of an allreduce of two sizes, then of a step of one rank for each shape."""
    comm.load_checkpoint()
    allreduces = []
    for nbytes, times in SIZES.items():
        call = functools.partial(comm.allreduce, np.ones(nbytes // 4, np.float32))
        allreduces.append([nbytes, median(call, int(calls) * times)])
        comm.checkpoint(None)
    mine = names if comm.rank == 0 else ()  # the other one waits in close()
    return {"allreduces": allreduces, "shapes": {n: step_of(SHAPES[n], int(calls)) for n in mine}}


def step_of(shape: Shape, calls: int) -> dict[str, Any]:
    """Seconds of a step with random samples, and the bytes of the weights."""
    network = shape.build()
    rows = np.random.default_rng(0).random((BATCH, shape.features + 1), np.float32)
    rows[:, -1] = np.arange(BATCH) % 2
    seconds = median(lambda: descend(network, network.gradient(rows), 0.01), calls)
    return {"step_s": seconds, "nbytes": nbytes_of(network)}


def median(call: Callable[[], Any], calls: int) -> float:
    """Median seconds of a call; the first one is not counted."""
    seconds = []
    for _ in range(calls + 1):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def main() -> None:
    """Do as told; rank 0 writes what was found."""
    out, task, *words = sys.argv[1:]
    with ftcomm.init() as comm:
        found = train(comm, *words) if task == "train" else measure(comm, *words)
        if comm.rank == 0:
            Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
