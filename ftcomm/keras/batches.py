"""Batches of one rank, which begin anywhere in an epoch.

Rows follow from seed, epoch, step and rank alone.  So a restarted rank goes on with the batch
behind its checkpoint, and reads none of those before it.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ftcomm

Array = np.ndarray[Any, Any]
Reader = Callable[[Array], Any]


class RankBatches:
    """The batches that ``model.fit`` reads on one rank; all ranks have as many.

    Attributes:
        steps: batches of an epoch.
        facts: what must be equal on all ranks.
        sample: a batch.
        data: the rest of an epoch, each time that it is iterated over.
        epoch: that is read next.
        first: batch of it to begin with.
        is_read: an epoch has been begun.
    """

    def __init__(
        self,
        comm: ftcomm.Communicator,
        content: tuple[Any, ...],
        *,
        batch_size: int,
        shuffle: bool,
        seed: int,
    ) -> None:
        """Begin with the first batch; arguments and errors are those of `Training`."""
        self._rank, self._world_size, self._shuffle = comm.rank, comm.world_size, shuffle
        if isinstance(content[0], keras.utils.PyDataset):
            rows, self._read = _reader_of_dataset(*content)
            batch_size = 1  # which is a batch itself
        else:
            rows, self._read = _reader_of_arrays(content)
        self._rows, self._size, self._seed = rows, batch_size, operator.index(seed)
        self.steps = rows // (batch_size * comm.world_size) if batch_size > 0 else 0
        if not self.steps:
            raise ValueError(
                f"{rows} rows give no batch of {batch_size} to each of {comm.world_size} ranks"
            )
        self.facts = {"rows": rows, "batch_size": batch_size, "shuffle": shuffle, "seed": seed}
        self.sample = self._read(np.arange(batch_size))
        self.epoch = self.first = 0
        self.is_read = False
        self.data = self._dataset()

    def _dataset(self) -> Any:
        signature = keras.tree.map_structure(
            lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), self.sample
        )
        found = tf.data.Dataset.from_generator(self._batches, output_signature=signature)
        counted = found.apply(tf.data.experimental.assert_cardinality(self.steps))
        return counted.prefetch(tf.data.AUTOTUNE)

    def _batches(self) -> Iterator[Any]:
        self.is_read = True
        first, order = self.first, np.arange(self._rows)
        if self._shuffle:
            key = self._seed % 2**64, self.epoch  # it may be negative
            np.random.default_rng(key).shuffle(order)
        for step in range(first, self.steps):
            begin = (step * self._world_size + self._rank) * self._size
            yield self._read(order[begin : begin + self._size])


def _reader_of_arrays(content: tuple[Any, ...]) -> tuple[int, Reader]:
    """The number of rows, and what reads some of them."""
    for leaf in keras.tree.flatten(content):
        if not hasattr(leaf, "__array__"):
            raise ftcomm.ConfigError(
                f"a {type(leaf).__name__} cannot be read from the middle of an epoch on, where a"
                " restarted rank begins",
                remedy="give arrays, or a keras.utils.PyDataset",
            )
    # A list of inputs is one array to tf.data, and a tuple is several.
    parts = tuple(tuple(part) if isinstance(part, list) else part for part in content)
    arrays = keras.tree.map_structure(_as_array, parts)
    lengths = sorted({len(array) for array in keras.tree.flatten(arrays)})
    if len(lengths) != 1:
        raise ValueError(f"there are arrays of {lengths} rows, and all must have as many")
    return lengths[0], lambda rows: keras.tree.map_structure(lambda array: array[rows], arrays)


def _reader_of_dataset(dataset: Any, *others: Any) -> tuple[int, Reader]:
    """The number of batches, and what reads one of them."""
    if others:
        raise ValueError("a PyDataset has labels and weights of its own: give it alone")
    for name in ("on_epoch_begin", "on_epoch_end"):
        if getattr(type(dataset), name) is not getattr(keras.utils.PyDataset, name):
            raise ftcomm.ConfigError(
                f"{type(dataset).__name__}.{name}() may change the batches, and a restarted rank"
                " would call it less often than the others",
                remedy="leave it out; Training shuffles the batches of each epoch by its seed",
            )

    def read(numbers: Array) -> Any:
        batch = dataset[int(numbers[0])]
        parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
        return keras.tree.map_structure(_as_array, parts)

    return len(dataset), read


def _as_array(value: Any) -> Array:
    """The array as ``fit`` would take it: floating numbers are those of Keras."""
    array = np.asarray(value)
    return array.astype(keras.backend.floatx()) if array.dtype.kind == "f" else array
