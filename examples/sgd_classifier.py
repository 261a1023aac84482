"""A linear classifier of scikit-learn learns digits on several workers, by averaged weights.

    pip install '.[examples]'
    python examples/sgd_classifier.py                                # alone
    ftcomm-tracker run -n 4 python examples/sgd_classifier.py     # four workers

In each epoch every rank goes once over its own rows with `partial_fit`; then one allreduce averages
`coef_` and `intercept_`.  Whatever has `partial_fit` and such arrays can be trained so.  Kill any
worker at any time: the weights are the same to the bit.
"""

import argparse
import hashlib
from typing import Any

import numpy as np

import ftcomm

DIGITS = np.arange(10)
TESTED = 5  # every fifth row is not learnt from, but tested with
Array = np.ndarray[Any, Any]
State = dict[str, Any]


def read_digits() -> tuple[Array, Array]:
    """scikit-learn's digits in a fixed order: pixels from 0 to 1, and labels."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - a slow import

    images, labels = load_digits(return_X_y=True)
    return images / 16.0, labels


def learn(state: State, rows: Array, labels: Array, seed: int) -> State:
    """The state after one epoch of this rank's rows; `partial_fit` goes on from its weights.

    A model is made anew in each epoch, so nothing else than the state has an effect.
    """
    from sklearn.linear_model import SGDClassifier  # noqa: PLC0415 - likewise

    model = SGDClassifier(alpha=1e-3, random_state=(seed + state["epochs"]) % 2**32)
    model.partial_fit(rows[:1], labels[:1], classes=DIGITS)  # makes the arrays
    model.coef_[...], model.intercept_[...] = state["coef"], state["intercept"]
    model.t_ = 1.0 + state["epochs"] * len(rows)  # of which its rate of learning is made
    model.partial_fit(rows, labels)
    return {"epochs": state["epochs"] + 1, "coef": model.coef_, "intercept": model.intercept_}


def train(comm: ftcomm.Communicator, options: argparse.Namespace) -> State:
    """Train to the last epoch, from wherever the job stands."""
    images, labels = read_digits()
    tested = np.arange(len(labels)) % TESTED == 0
    mine = np.flatnonzero(~tested)[comm.rank :: comm.world_size]
    zero = {"epochs": 0, "coef": np.zeros((10, 64)), "intercept": np.zeros(10)}
    state: State = comm.load_checkpoint(default=zero).state
    while state["epochs"] < options.epochs:
        own = learn(state, images[mine], labels[mine], options.seed + comm.rank)
        coef, intercept = comm.bucketed([own["coef"], own["intercept"]], op="mean")
        state = {"epochs": own["epochs"], "coef": coef, "intercept": intercept}
        comm.checkpoint(state)
    if comm.rank == 0:
        told = (images[tested] @ state["coef"].T + state["intercept"]).argmax(axis=1)
        print(f"test {100 * np.mean(told == labels[tested]):.2f} %")
    return state


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--epochs", type=int, default=20, help="times through the images (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (%(default)s)")
    return parser.parse_args(arguments)


def main() -> None:
    """Train, and let rank 0 say what came out."""
    options = parse()
    with ftcomm.init() as comm:
        state = train(comm, options)
        if comm.rank == 0:
            raw = state["coef"].tobytes() + state["intercept"].tobytes()
            print(f"model {hashlib.sha256(raw).hexdigest()}")


if __name__ == "__main__":
    main()
