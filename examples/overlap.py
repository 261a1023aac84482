"""A network of two layers sums one layer's gradient while it computes the other's.

    python examples/overlap.py                                    # alone
    ftcomm-tracker run -n 4 python examples/overlap.py         # four workers

Every rank draws its own rows and learns what a hidden teacher makes of them.  The outer layer's
gradient is known first: its sum over all ranks is under way while the inner layer's, which takes
longer, is computed.  Kill any worker at any time: the weights are the same to the bit, and
the same as with --wait, which waits for each sum at once.
"""

import argparse
import hashlib
import time
from typing import Any

import numpy as np

import ftcomm

INPUTS, OUTPUTS = 256, 64
TEACHER = 1  # what a seed is for, beside the user's own number
STUDENT, ROWS = 2, 3

Array = np.ndarray[Any, Any]
State = dict[str, Any]


def layers(seed: int, whose: int, hidden: int) -> tuple[Array, Array]:
    """Random weights of both layers, float32; the same for the same arguments."""
    rng = np.random.default_rng((seed, whose))
    inner = rng.normal(0.0, INPUTS**-0.5, (INPUTS, hidden)).astype(np.float32)
    outer = rng.normal(0.0, hidden**-0.5, (hidden, OUTPUTS)).astype(np.float32)
    return inner, outer


def batch(options: argparse.Namespace, step: int, rank: int) -> tuple[Array, Array]:
    """This rank's rows of a step and what the teacher makes of them."""
    rng = np.random.default_rng((options.seed, ROWS, step, rank))
    rows = rng.normal(size=(options.rows, INPUTS)).astype(np.float32)
    inner, outer = layers(options.seed, TEACHER, options.hidden)
    return rows, np.maximum(rows @ inner, 0) @ outer


def train_step(
    comm: ftcomm.Communicator, state: State, options: argparse.Namespace
) -> tuple[State, float]:
    """One step of gradient descent; returns the next state and this rank's loss before it."""
    inner, outer = state["inner"], state["outer"]
    rows, wanted = batch(options, state["step"], comm.rank)
    active = np.maximum(rows @ inner, 0)
    error = (active @ outer - wanted) / options.rows

    # From here to wait() the gradients belong to the communicator, which puts the sums into them.
    of_outer = active.T @ error
    outer_sum = comm.iallreduce(of_outer, "mean", out=of_outer)
    if options.wait:
        outer_sum.wait()
    of_inner = rows.T @ ((error @ outer.T) * (active > 0))  # meanwhile
    inner_sum = comm.iallreduce(of_inner, "mean", out=of_inner)

    rate = np.float32(options.learning_rate)
    following = {
        "step": state["step"] + 1,
        "outer": outer - rate * outer_sum.wait(),
        "inner": inner - rate * inner_sum.wait(),
    }
    return following, float((error * error).sum() * options.rows)


def train(comm: ftcomm.Communicator, options: argparse.Namespace) -> State:
    """Train to the last step, from wherever the job stands, and return the state."""
    inner, outer = layers(options.seed, STUDENT, options.hidden)
    _, state = comm.load_checkpoint(default={"step": 0, "inner": inner, "outer": outer})
    began = time.monotonic()
    while state["step"] < options.steps:
        state, loss = train_step(comm, state, options)
        comm.checkpoint(state)
        if comm.rank == 0 and state["step"] % 10 == 0:
            took = time.monotonic() - began
            print(f"step {state['step']}: loss {loss:.4f} on rank 0, {took:.1f} s")
    return dict(state)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50, help="how many (%(default)s)")
    parser.add_argument("--rows", type=int, default=512, help="per rank and step (%(default)s)")
    parser.add_argument(
        "--hidden", type=int, default=512, help="units between the layers (%(default)s)"
    )
    parser.add_argument(
        "--learning-rate", type=float, default=0.02, help="length of a step (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (%(default)s)")
    parser.add_argument("--wait", action="store_true", help="compute nothing during a sum")
    return parser.parse_args(arguments)


def main() -> None:
    """Train, and let rank 0 say what came out."""
    options = parse()
    with ftcomm.init() as comm:
        state = train(comm, options)
        if comm.rank == 0:  # inside the block: after it nobody would come back to this line
            weights = state["inner"].tobytes() + state["outer"].tobytes()
            print(f"model {hashlib.sha256(weights).hexdigest()}")


if __name__ == "__main__":
    main()
