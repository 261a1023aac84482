"""L-BFGS: logistic regression on the Mushroom data in a few dozen steps.

    python examples/lbfgs.py                                      # alone
    ftcomm-tracker run -n 4 python examples/lbfgs.py           # four workers

Every rank runs the same optimiser on the same numbers: the loss and gradient that an allreduce
has added up.  So all ranks try the same steps in the line search, and stop in the same one.
The two-loop recursion is algorithm 7.4 of Nocedal and Wright, Numerical Optimization.
"""

import argparse
import hashlib
from collections.abc import Callable

import numpy as np
from mushroom import DATA, WIDTH, Floats, load_rows, share_of_step

import ftcomm

MEMORY = 8  # pairs of (step, change of the gradient) that describe the curvature
SLOPE_SHARE = 1e-4  # of the decrease that the slope promises, a step must bring
HALVINGS = 30  # then the step is too small to change anything
FLAT = 1e-6  # a gradient this small is none

Pairs = list[tuple[Floats, Floats]]
Objective = Callable[[Floats], Floats]  # weights to the gradient, and behind it the loss


def direction(gradient: Floats, pairs: Pairs) -> Floats:
    """Return the step: minus the gradient times the inverse curvature that the pairs describe."""
    towards = -gradient
    shares = []
    for step, change in reversed(pairs):
        share = (step @ towards) / (step @ change)
        towards = towards - share * change
        shares.append(share)
    if pairs:
        step, change = pairs[-1]
        towards = towards * ((step @ change) / (change @ change))
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        towards = towards + (share - (change @ towards) / (step @ change)) * step
    return towards


def search(objective: Objective, weights: Floats, at: Floats, towards: Floats) -> Floats | None:
    """Halve the step until the loss falls enough; None if it never does."""
    slope = at[:-1] @ towards
    for halvings in range(HALVINGS):
        length = 0.5**halvings
        tried = objective(weights + length * towards)
        if tried[-1] <= at[-1] + SLOPE_SHARE * length * slope:
            return np.append(weights + length * towards, tried)
    return None


def minimise(
    comm: ftcomm.Communicator, objective: Objective, options: argparse.Namespace
) -> Floats:
    """Go downhill from wherever the job stands, and return the weights."""
    weights = np.zeros(WIDTH)
    # The first loss and gradient belong to the prelude, and then to the state: a restarted
    # worker must not ask for them between load_checkpoint() and the step that it goes on with.
    step, state = comm.load_checkpoint(default=(weights, objective(weights), [], False))
    weights, at, pairs, done = state
    while not done and step < options.steps:
        found = search(objective, weights, at, direction(at[:-1], pairs))
        if found is not None:
            moved, changed = found[:WIDTH] - weights, found[WIDTH:-1] - at[:-1]
            if moved @ changed > 0.0:
                pairs = [*pairs, (moved, changed)][-MEMORY:]
            weights, at = found[:WIDTH], found[WIDTH:]
        done = found is None or bool(np.abs(at[:-1]).max() < FLAT)
        step = comm.checkpoint((weights, at, pairs, done))
        if comm.rank == 0:
            print(f"step {step}: loss {at[-1]:.6f}, gradient {np.abs(at[:-1]).max():.1e}")
    return np.asarray(weights)


def main() -> None:
    """Minimise, and let rank 0 say what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100, help="at most (%(default)s)")
    parser.add_argument(
        "--ridge", type=float, default=1e-3, help="weight of the squared weights (%(default)s)"
    )
    options = parser.parse_args()
    with ftcomm.init() as comm:
        rows, labels = load_rows(DATA / "agaricus.train.svm", comm.rank, comm.world_size)
        total = float(comm.allreduce(len(labels)))

        def objective(weights: Floats) -> Floats:
            mean = comm.allreduce(share_of_step(weights, rows, labels)) / total
            ridge = np.append(weights, 0.5 * weights @ weights)
            return np.asarray(mean + options.ridge * ridge)

        weights = minimise(comm, objective, options)
        if comm.rank == 0:
            print(f"model {hashlib.sha256(weights.tobytes()).hexdigest()}")


if __name__ == "__main__":
    main()
