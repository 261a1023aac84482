"""One rank of `training.py`: SGD of a small network in numpy on its share of every batch."""

import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np

import ftcomm

BATCH, INPUTS, HIDDEN, OUTPUTS = 512, 256, 512, 10
RATE = 0.05
CHECKPOINT_EVERY = 20


def main() -> None:
    """Train; rank 0 writes what it cost."""
    steps, out = int(sys.argv[1]), Path(sys.argv[2])
    rng = np.random.default_rng(0)  # the same on all ranks
    images = rng.standard_normal((BATCH, INPUTS), np.float32)
    labels = rng.integers(0, OUTPUTS, BATCH)
    first = rng.standard_normal((INPUTS, HIDDEN), np.float32) * 0.05
    second = rng.standard_normal((HIDDEN, OUTPUTS), np.float32) * 0.05
    with ftcomm.init() as comm:
        version, (first, second) = comm.load_checkpoint(default=(first, second))
        own = slice(comm.rank, None, comm.world_size)
        x, y = images[own], labels[own]
        waited = 0.0
        comm.barrier()
        began = time.perf_counter()
        for step in range(version * CHECKPOINT_EVERY, steps):
            gradients = gradient(x, y, first, second)
            called = time.perf_counter()
            total = comm.allreduce(gradients)
            waited += time.perf_counter() - called
            one = first.size
            first = first - (RATE / BATCH) * total[:one].reshape(first.shape)
            second = second - (RATE / BATCH) * total[one:].reshape(second.shape)
            if (step + 1) % CHECKPOINT_EVERY == 0:
                called = time.perf_counter()
                comm.checkpoint((first, second))
                waited += time.perf_counter() - called
        seconds = time.perf_counter() - began
        digest = hashlib.sha256(first.tobytes() + second.tobytes()).hexdigest()
        digests = comm.allgather_object(digest)
        if len(set(digests)) != 1:
            raise AssertionError("the ranks have different models")
        if comm.rank == 0:
            mean = float(np.abs(first).mean())
            figures = {"seconds": seconds, "waited": waited, "model": mean, "digest": digest}
            out.write_text(json.dumps(figures), encoding="utf-8")


def gradient(x: np.ndarray, y: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Of the cross entropy, summed over these samples: both matrices behind each other."""
    hidden = np.maximum(x @ first, 0)
    scores = hidden @ second
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    scores[np.arange(len(y)), y] -= 1
    back = (scores @ second.T) * (hidden > 0)
    return np.concatenate([(x.T @ back).ravel(), (hidden.T @ scores).ravel()])


if __name__ == "__main__":
    main()
