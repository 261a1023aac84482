"""A fit of Keras learns to read handwritten digits, on several workers.

    pip install '.[keras,examples]'
    python examples/keras_digits.py                                 # alone
    ftcomm-tracker run -n 2 python examples/keras_digits.py      # two workers

One callback averages the gradients of all ranks, or now and then their weights, and keeps the
checkpoints.  Kill any worker at any time: the weights are the same to the bit.  docs/keras.md says
what is promised, and what is refused.
"""

import argparse
import hashlib
from typing import Any

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import ftcomm
import ftcomm.keras

DIGITS = 10


def made(kind: str) -> Any:
    """A network for images of 8 x 8 pixels, compiled."""
    layers = keras.layers
    if kind == "cnn":
        first = [layers.Conv2D(32, 3, activation="relu"), layers.Conv2D(64, 3, activation="relu")]
    else:
        first = [layers.Flatten(), layers.Dense(128, activation="relu")]
    last = [layers.Flatten(), layers.Dropout(0.3), layers.Dense(DIGITS)]
    model = keras.Sequential([*first, layers.BatchNormalization(), *last])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.001), loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Train, and let rank 0 say what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=["cnn", "dnn"], default="cnn", help="(%(default)s)")
    parser.add_argument(
        "--average", choices=["gradients", "weights"], default="gradients", help="(%(default)s)"
    )
    parser.add_argument("--every", type=int, default=20, help="steps of a version (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="times through (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="rows per rank (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and rows (%(default)s)")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)  # ranks share the processors
    with ftcomm.init() as comm:
        keras.utils.set_random_seed(options.seed + comm.rank)  # each rank has its own dropout
        images, labels = load_digits(return_X_y=True)
        model = made(options.model)
        training = ftcomm.keras.Training(
            images.reshape(-1, 8, 8, 1) / 16.0, labels, batch_size=options.batch,
            seed=options.seed, average=options.average, every=options.every, comm=comm,
        )  # fmt: skip
        history = model.fit(
            training.data, epochs=options.epochs, callbacks=[training], shuffle=False, verbose=0
        )
        if comm.rank == 0:
            right = history.history["accuracy"][-1]
            digest = hashlib.sha256(b"".join(each.tobytes() for each in model.get_weights()))
            print(f"{100.0 * right:.2f} % right in the last epoch")
            print(f"model {digest.hexdigest()}")


if __name__ == "__main__":
    main()
