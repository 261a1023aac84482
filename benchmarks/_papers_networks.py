"""Networks and samples of `papers.py`: a DNN in numpy, a CNN and an RNN in torch, trained alike.

A sample is a row of float32: its features, and behind them its class.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "examples"))  # scripts, not a package

import digits
import mushroom

Array = np.ndarray[Any, Any]
TESTED, batches = digits.TESTED, digits.batches
SEED = 0  # of the first weights
DENSE, CONVOLUTIONAL, RECURRENT = MODELS = ("dnn", "cnn", "rnn")
HIDDEN = (200, 100)  # units of a DNN's hidden layers
UNITS = 64  # of the LSTM


class Network(Protocol):
    """A classifier, into whose weights of float32 a training writes."""

    weights: list[Array]

    def gradient(self, rows: Array) -> list[Array]:
        """Gradient of the mean cross entropy of these rows, by each of the weights."""

    def right(self, rows: Array) -> int:
        """Number of these rows that are classified correctly."""


class Dense:
    """Layers of ReLU and a last one of softmax, in numpy."""

    def __init__(self, sizes: Sequence[int]) -> None:
        rng = np.random.default_rng(SEED)
        self.weights: list[Array] = []
        for inputs, outputs in itertools.pairwise(sizes):
            matrix = rng.standard_normal((inputs, outputs), np.float32)
            self.weights += [matrix * np.float32((2 / inputs) ** 0.5), np.zeros(outputs, "f4")]

    def gradient(self, rows: Array) -> list[Array]:
        """By backpropagation."""
        *active, scores = self._forward(rows)
        error = np.exp(scores - scores.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(rows)), rows[:, -1].astype(int)] -= 1.0
        error /= len(rows)
        found: list[Array] = []
        for level in reversed(range(len(active))):
            found = [active[level].T @ error, error.sum(axis=0), *found]
            if level:
                error = (error @ self.weights[2 * level].T) * (active[level] > 0.0)
        return found

    def right(self, rows: Array) -> int:
        """By the highest score."""
        return int(np.sum(self._forward(rows)[-1].argmax(axis=1) == rows[:, -1]))

    def _forward(self, rows: Array) -> list[Array]:
        """Input of each layer, and the scores."""
        active = [rows[:, :-1]]
        *inner, last = zip(self.weights[::2], self.weights[1::2], strict=True)
        for matrix, bias in inner:
            active.append(np.maximum(active[-1] @ matrix + bias, 0.0))
        return [*active, active[-1] @ last[0] + last[1]]


class Torch:
    """A module of torch, whose parameters are seen as arrays."""

    def __init__(self, shape: tuple[int, ...], build: Callable[[Any], tuple[Any, Any]]) -> None:
        """Make a module for features of this shape; `build` gives it, and how it scores."""
        import torch  # noqa: PLC0415 - optional, and slow to import

        torch.manual_seed(SEED)
        self._torch, self._shape = torch, shape
        self._module, self._score = build(torch.nn)
        self.weights = [x.detach().numpy() for x in self._module.parameters()]

    def gradient(self, rows: Array) -> list[Array]:
        """By autograd."""
        self._module.zero_grad()
        labels = self._torch.tensor(rows[:, -1].astype(np.int64))
        self._torch.nn.functional.cross_entropy(self._scores(rows), labels).backward()
        return [x.grad.numpy() for x in self._module.parameters()]

    def right(self, rows: Array) -> int:
        """By the highest score."""
        with self._torch.no_grad():
            return int(np.sum(self._scores(rows).argmax(dim=1).numpy() == rows[:, -1]))

    def _scores(self, rows: Array) -> Any:
        return self._score(self._torch.tensor(rows[:, :-1]).reshape(len(rows), *self._shape))


def dense(inputs: int, outputs: int) -> Network:
    """The DNN."""
    return Dense((inputs, *HIDDEN, outputs))


def convolutional(channels: int, side: int) -> Network:
    """Convolutions of 5 x 5 with 32 and 64 filters, pooled by two, and 1,024 units."""

    def build(nn: Any) -> tuple[Any, Any]:
        module = nn.Sequential(
            *(nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(64 * (side // 4) ** 2, 1024), nn.ReLU(), nn.Linear(1024, 10)),
        )
        return module, module

    return Torch((channels, side, side), build)


def recurrent() -> Network:
    """An LSTM that reads a digit's eight rows one after the other."""

    def build(nn: Any) -> tuple[Any, Any]:
        lstm, last = nn.LSTM(8, UNITS, batch_first=True), nn.Linear(UNITS, 10)
        return nn.ModuleList([lstm, last]), lambda x: last(lstm(x)[0][:, -1])

    return Torch((8, 8), build)


def read_digits() -> Array:
    """scikit-learn's digits."""
    return digits.read_digits().astype(np.float32)


def read_mushrooms() -> Array:
    """The training rows of the Mushroom data."""
    rows = mushroom.load_rows(mushroom.DATA / "agaricus.train.svm", rank=0, world_size=1)
    return np.column_stack(rows).astype(np.float32)


@dataclass(frozen=True)
class Experiment:
    """A model, its network with the first weights, all samples, and the rate of SGD."""

    model: str
    build: Callable[[], Network]
    read: Callable[[], Array]
    rate: float


EXPERIMENTS = {
    "DNN, digits": Experiment(DENSE, lambda: dense(64, 10), read_digits, 0.1),
    "DNN, mushrooms": Experiment(DENSE, lambda: dense(127, 2), read_mushrooms, 0.1),
    "CNN, digits": Experiment(CONVOLUTIONAL, lambda: convolutional(1, 8), read_digits, 0.1),
    "RNN, digits": Experiment(RECURRENT, recurrent, read_digits, 0.5),
}


@dataclass(frozen=True)
class Shape:
    """A training set of the paper by its shape alone, and a network for it."""

    model: str
    samples: int
    features: int
    build: Callable[[], Network]


SHAPES = {
    "Adult-DNN": Shape(DENSE, 32_561, 123, lambda: dense(123, 2)),
    "Acoustic-DNN": Shape(DENSE, 78_823, 50, lambda: dense(50, 3)),
    "MNIST-DNN": Shape(DENSE, 60_000, 784, lambda: dense(784, 10)),
    "CIFAR10-DNN": Shape(DENSE, 50_000, 3072, lambda: dense(3072, 10)),
    "HIGGS-DNN": Shape(DENSE, 11_000_000, 28, lambda: Dense((28, 1024, 2))),
    "MNIST-CNN": Shape(CONVOLUTIONAL, 60_000, 784, lambda: convolutional(1, 28)),
    "CIFAR10-CNN": Shape(CONVOLUTIONAL, 50_000, 3072, lambda: convolutional(3, 32)),
}
