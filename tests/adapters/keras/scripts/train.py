"""A small training by ``model.fit``; it kills itself where it is told to.

    python train.py --model cnn --kill 1.7.reduce

The moments of a step: ``begin``, ``reduce`` (gradients, in TensorFlow's graph), ``equal`` (weights
are averaged or taken from rank 0), ``save`` (its checkpoint) and ``end``.  Dropout, a batch norm,
momentum, a schedule and callbacks with counters make every step depend on all before it.
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ftcomm
import ftcomm.keras

ROWS, EPOCHS, BATCH, EVERY = 96, 3, 8, 2  # with three ranks an epoch has four steps


class Kills(keras.callbacks.Callback):
    """SIGKILL for this process at a rank's step and moment, once each over all its restarts.

    At those of ``all`` it tells its number instead, and waits for the signal of the test.
    """

    def __init__(self, asked: list[str], rank: int) -> None:
        super().__init__()
        self._asked, self._rank = asked, rank
        self._epoch = self.step = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.step = self._epoch * self.params["steps"] + batch
        self.at("begin")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.at("end")

    def at(self, moment: str) -> None:
        name = f"{self._rank}.{self.step}.{moment}"
        mark = Path(f"killed-{name}")
        if name in self._asked and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if f"all.{self.step}.{moment}" in self._asked and not mark.exists():
            mark.touch()
            print("stands:", os.getpid(), flush=True)
            signal.pause()


class Training(ftcomm.keras.Training):
    """Dies inside of a step."""

    kills: Kills

    def _reduce(self, *gradients: Any) -> Any:
        self.kills.at("reduce")
        return super()._reduce(*gradients)

    def _make_equal(self) -> None:
        self.kills.at("equal")
        super()._make_equal()

    def _state(self) -> Any:
        if self._comm.version >= 0:
            self.kills.at("save")
        return super()._state()


def made(kind: str) -> Any:
    layers = keras.layers
    first = {
        "dnn": [layers.Flatten(), layers.Dense(24, activation="relu")],
        "cnn": [layers.Conv2D(6, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()],
    }
    model = keras.Sequential(
        [*first[kind], layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(3)]
    )
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def told(training: Training, history: Any) -> str:
    """A digest of all that is equal on all ranks, and of the logs of all epochs."""
    digest = hashlib.sha256()
    for array in training._content.shared():
        digest.update(array.tobytes())
    digest.update(repr(sorted(history.history.items())).encode())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["dnn", "cnn"], default="dnn")
    parser.add_argument("--average", choices=["gradients", "weights"], default="gradients")
    parser.add_argument("--kill", action="append", default=[], metavar="RANK.STEP.MOMENT")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    with ftcomm.init() as comm:
        keras.utils.set_random_seed(1 + comm.rank)
        model = made(options.model)
        x = np.random.default_rng(2).normal(size=(ROWS, 6, 6, 1))
        y = x[:, 0, :3, 0].argmax(1)
        training = Training(
            x, y, batch_size=BATCH, seed=3, average=options.average, every=EVERY, comm=comm
        )
        training.kills = Kills(options.kill, comm.rank)
        callbacks = [
            training,
            training.kills,
            keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=1.0),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate),
        ]
        history = model.fit(
            training.data, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=callbacks,
            validation_data=(x[:32], y[:32]),
        )  # fmt: skip
        print("model", told(training, history))


if __name__ == "__main__":
    main()
