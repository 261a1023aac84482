"""One rank of a job that trains by a pattern, and kills itself where it is told to.

    python pattern_job.py gossip --kill 1.4.exchanging

Each step follows from all before it: a momentum, a table, or the weights of the partners.
"""

import argparse
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ftcomm
from ftcomm.patterns import DiLoCo, Gossip, LocalSGD, ParameterServer, average_weights

STEPS, EVERY = 12, 3
INPUTS, OUTPUTS, ROWS = 5, 3, 8
LARGE = 3000  # rows of a table whose pushes and pulls are more than 64 KiB
RATE, MOMENTUM = 0.02, 0.9

Array = np.ndarray[Any, Any]
At = Callable[[int, str], None]  # step, moment


class Kills:
    """SIGKILL for this process at a rank's step and moment, once each over all its restarts.

    At those of ``all`` it tells its number instead, and waits for the signal of the test.
    """

    def __init__(self, asked: list[str], rank: int) -> None:
        self._asked, self._rank = asked, rank

    def at(self, step: int, moment: str) -> None:
        mark = Path(f"killed {self._rank}.{step}.{moment}")
        is_own, is_of_all = (f"{who}.{step}.{moment}" in self._asked for who in (self._rank, "all"))
        if (is_own or is_of_all) and not mark.exists():
            mark.touch()
            if is_of_all:
                sys.stdout.write(f"stands: {os.getpid()}\n")
                sys.stdout.flush()
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)


def first_weights() -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal((INPUTS, OUTPUTS), np.float32), np.zeros(OUTPUTS, np.float32)]


def gradient(weights: list[Array], rank: int, step: int) -> list[Array]:
    """Of the squared error of this rank's rows of a step."""
    rng = np.random.default_rng((rank, step))
    x = rng.standard_normal((ROWS, INPUTS), np.float32)
    error = (x @ weights[0] + weights[1] - np.sin(x[:, :OUTPUTS])) / ROWS
    return [x.T @ error, error.sum(axis=0)]


def inner_step(weights: list[Array], momenta: list[Array], rank: int, step: int) -> None:
    for x, momentum, slope in zip(weights, momenta, gradient(weights, rank, step), strict=True):
        momentum *= MOMENTUM
        momentum += slope
        x -= RATE * momentum


def averaged(comm: ftcomm.Communicator, at: At) -> list[Array]:
    """By `average_weights` after each step."""
    version, weights, momenta = comm.load_checkpoint(
        first_weights(), [np.zeros_like(x) for x in first_weights()]
    )
    for step in range(version * EVERY, STEPS):
        at(step, "step")
        inner_step(weights, momenta, comm.rank, step)
        average_weights(comm, weights)
        at(step, "averaged")
        if (step + 1) % EVERY == 0:
            comm.checkpoint(weights, local=momenta)
            at(step, "committed")
    return list(weights)


def local_sgd(comm: ftcomm.Communicator, at: At) -> list[Array]:
    pattern = LocalSGD(comm, every=EVERY)
    version, weights, momenta = comm.load_checkpoint(
        first_weights(), [np.zeros_like(x) for x in first_weights()]
    )
    for step in range(version * EVERY, STEPS):
        at(step, "step")
        inner_step(weights, momenta, comm.rank, step)
        if pattern.step(weights):
            at(step, "averaged")
            comm.checkpoint(weights, local=momenta)
            at(step, "committed")
    return list(weights)


def diloco(comm: ftcomm.Communicator, at: At) -> list[Array]:
    pattern = DiLoCo(comm, every=EVERY)
    version, (weights, velocity), momenta = comm.load_checkpoint(
        (first_weights(), None), [np.zeros_like(x) for x in first_weights()]
    )
    pattern.begin(weights, velocity)
    for step in range(version * EVERY, STEPS):
        at(step, "step")
        inner_step(weights, momenta, comm.rank, step)
        if pattern.step(weights):
            at(step, "averaged")
            comm.checkpoint((weights, pattern.velocity), local=momenta)
            at(step, "committed")
    return list(weights)


def gossip(comm: ftcomm.Communicator, at: At) -> list[Array]:
    """Return the weights of all ranks, which differ."""
    pattern = Gossip(comm, seed=7)
    version, _, weights = comm.load_checkpoint(None, first_weights())
    for step in range(version * EVERY, STEPS):
        at(step, "step")
        with pattern.exchange(weights):
            at(step, "exchanging")
            slopes = gradient(weights, comm.rank, step)
        at(step, "averaged")
        for x, slope in zip(weights, slopes, strict=True):
            x -= RATE * slope
        if (step + 1) % EVERY == 0:
            comm.checkpoint(None, local=weights)
            at(step, "committed")
    return [comm.allgather(x) for x in weights]


def adagrad(rows: Array, sums: Array) -> Array:
    """The second half of each row is the sum of squares."""
    half = rows.shape[1] // 2
    squares = rows[:, half:] + sums[:, :half] ** 2
    values = rows[:, :half] - RATE * sums[:, :half] / np.sqrt(squares + 1e-8)
    return np.concatenate([values, squares], axis=1)


def parameter_server(comm: ftcomm.Communicator, at: At) -> list[Array]:
    """A small and a large table, each with and without an index."""
    rng = np.random.default_rng(2)
    tables = {"small": rng.random((7, 4)), "large": rng.random((LARGE, 4))}
    server = ParameterServer(comm, tables, update=adagrad)
    version, _, shards = comm.load_checkpoint(None, server.shards)
    server.load(shards)
    for step in range(version * EVERY, STEPS):
        at(step, "step")
        drawn = np.random.default_rng((comm.rank, step))
        for name, table in tables.items():
            whole = server.pull(name)
            at(step, f"pulled {name}")
            server.push(name, np.cos(whole + comm.rank))
            at(step, f"pushed {name}")
            index = drawn.integers(0, len(table), len(table) // 2)
            rows = server.pull(name, index)
            at(step, f"pulled rows of {name}")
            server.push(name, np.sin(rows + step), index)
            at(step, f"pushed rows of {name}")
        if (step + 1) % EVERY == 0:
            comm.checkpoint(None, local=server.shards)
            at(step, "committed")
    return [server.pull(name) for name in tables]


PATTERNS = {
    "average_weights": averaged,
    "local_sgd": local_sgd,
    "diloco": diloco,
    "gossip": gossip,
    "parameter_server": parameter_server,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pattern", choices=PATTERNS)
    parser.add_argument("--kill", action="append", default=[], metavar="RANK.STEP.MOMENT")
    options = parser.parse_args()
    with ftcomm.init() as comm:
        digest = hashlib.sha256()
        for array in PATTERNS[options.pattern](comm, Kills(options.kill, comm.rank).at):
            digest.update(array.tobytes())
        digests = comm.allgather_object(digest.hexdigest())
        if comm.rank == 0:
            sys.stdout.write(f"model {' '.join(set(digests))}\n")


if __name__ == "__main__":
    main()
