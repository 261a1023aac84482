"""A callback by which ``model.fit`` trains one model on all ranks: `Training`.

A checkpoint is made before a step, behind all callbacks of the step before it.  A restarted rank
restores it before the same step, behind all that callbacks have done there till then.  So nothing
is done twice, such as what a scheduler does when an epoch begins.
"""

import operator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ftcomm
from ftcomm.keras.batches import RankBatches
from ftcomm.keras.contents import TrainingContent, arrays_of, assign
from ftcomm.keras.fit import callbacks_of_fit, check_fit, other_data

WAYS = "gradients", "weights"


class Training(keras.callbacks.Callback):
    """One rank's part in a training by one ``model.fit``, which survives the death of any rank.

    ``fit`` gets `data`, and this as its first callback.  On a fresh start all ranks get rank 0's
    weights.  A checkpoint has model, optimizer, seeds, metrics, position, and counters and lists of
    the other callbacks.  A restarted rank goes on from there, in the middle of an epoch too.

    The logs of an epoch become means over all ranks.  Weights that no gradient changes, such as the
    means of a batch norm, are taken from rank 0 where weights are averaged or a checkpoint follows.

    Source: Vishnu et al., "Distributed TensorFlow with MPI", 2016, for both averages.

    Attributes:
        data: a ``tf.data.Dataset`` of this rank's batches.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int = 0,
        average: str = "gradients",
        every: int = 50,
        comm: ftcomm.Communicator | None = None,
    ) -> None:
        """Take this rank's share of the data; no call is made.

        It turns on ``tf.config.experimental.enable_op_determinism``.

        Args:
            x: an array with rows, or a tuple, list or dict of such; the same on all ranks. Or a
                `keras.utils.PyDataset`: its batches are shared out, and are read by number in this
                process.
            y: labels, likewise.
            sample_weight: a number for each row.
            batch_size: rows of one rank's batch; a PyDataset has its own. Rows that do not fill a
                batch on every rank are left out of the epoch.
            shuffle: another order in each epoch, else the data's own.
            seed: of the order.
            average: ``gradients`` in each step; or ``weights`` every so many steps, where each rank
                has an optimizer's state of its own.
            every: steps from one checkpoint, or average of weights, to the next. They are counted
                from the beginning of each epoch, whose last step is one of them too.
            comm: whose ranks train, by default `ftcomm.current`.

        Raises:
            ConfigError: the data cannot be read from the middle of an epoch on, or there is no
                communicator.
            TypeError: `seed` or `every` is no whole number.
            ValueError: another argument is none of these, or there is not a batch for each rank.
        """
        super().__init__()
        if average not in WAYS:
            raise ValueError(f"average is {average!r}, must be one of {WAYS}")
        if operator.index(every) < 1:
            raise ValueError(f"every is {every}, must be at least 1")
        if y is None and sample_weight is not None:
            raise ValueError("there is sample_weight without y")
        tf.config.experimental.enable_op_determinism()
        self._comm, self._average, self._every = comm or ftcomm.current(), average, every
        content = tuple(part for part in (x, y, sample_weight) if part is not None)
        self._batches = RankBatches(
            self._comm, content, batch_size=batch_size, shuffle=shuffle, seed=seed
        )
        self.data = self._batches.data
        self._epoch = self._batch = 0  # of the next step
        self._begin = -1, -1  # epoch and batch where the checkpoint is restored
        self._loaded: Any = None  # until then
        self._error: BaseException | None = None  # of a call in TensorFlow's graph

    # --- the hooks of Keras -----------------------------------------------------------------------

    def on_train_begin(self, _logs: Any = None) -> None:
        """Load the job's checkpoint, and have ``fit`` make its steps here.

        Raises:
            ConfigError: the fit is refused, or differs from that of rank 0 or of the checkpoint.
        """
        model, callbacks = self.model, callbacks_of_fit()
        check_fit(model, callbacks, self, self._average)
        if self.params["steps"] != self._batches.steps:
            raise other_data()
        if self._comm.version >= 0:
            raise ftcomm.ConfigError(
                "Training loads the job's checkpoint, which was loaded before",
                remedy="call fit() once in a job, and load_checkpoint() never",
            )
        model._symbolic_build(data_batch=self._batches.sample)  # noqa: SLF001 - no public call makes the variables of metrics
        others = [callback for callback in callbacks if callback is not self]
        self._content = TrainingContent(model, others, self._average)
        self._load()
        self._take_means_into(model.optimizer)
        model.make_train_function(force=True)
        self._train, model.train_function = model.train_function, self._step

    def on_epoch_begin(self, epoch: int, _logs: Any = None) -> None:
        """Read it from its first batch, or from that of the checkpoint."""
        self._epoch = self._batches.epoch = epoch
        self._batch = 0
        self._batches.first = self._begin[1] if epoch == self._begin[0] else 0

    def on_epoch_end(self, _epoch: int, logs: Any = None) -> None:
        """Give the callbacks behind this one the means over all ranks."""
        if not self._is_due():  # a callback has stopped the epoch in its middle
            self._make_equal()
        numbers = {name: float(value) for name, value in logs.items() if np.ndim(value) == 0}
        means = self._comm.allreduce(np.array([*numbers.values()]), "mean", tag="logs")
        logs.update(zip(numbers, means.tolist(), strict=True))

    def on_train_end(self, _logs: Any = None) -> None:
        """Leave the model to the script: it is one of this rank alone again."""
        self.model.train_function = None
        self.model._initial_epoch = None  # noqa: SLF001 - as in `_load`
        vars(self.model.optimizer).pop("apply", None)

    # --- a step -----------------------------------------------------------------------------------

    def _step(self, iterator: Any) -> Any:
        """Make the next step of the epoch, with what comes before and behind it."""
        at = self._epoch, self._batch
        if at < self._begin:  # it is in the checkpoint, and no batch is read
            self._batch += 1
            return {}
        if at == self._begin:
            self._restore()
        elif self._batch % self._every == 0:
            self._comm.checkpoint(*self._state())
        try:
            logs = self._train(iterator)
        except tf.errors.OpError:
            if self._error is not None:  # of which TensorFlow has the text alone
                raise self._error from None
            raise
        if not self._batches.is_read:
            raise other_data()
        self._batch += 1
        if self._is_due():
            self._make_equal()
        return logs

    def _is_due(self) -> bool:
        """Tell whether ranks have equal weights behind the last step."""
        return self._batch % self._every == 0 or self._batch == self._batches.steps

    def _make_equal(self) -> None:
        """Average what ranks have trained apart, and take the rest from rank 0."""
        content = self._content
        if self._average == "weights":
            means = self._comm.bucketed(arrays_of(content.trained), "mean", tag="weights")
            assign(content.trained, means)
        if content.others:
            assign(content.others, self._comm.broadcast_object(arrays_of(content.others)))

    def _take_means_into(self, optimizer: Any) -> None:
        """Have the optimizer apply what `_means` returns."""
        apply = optimizer.apply

        def apply_means(gradients: Sequence[Any], trainable_variables: Any = None) -> None:
            apply(self._means(gradients), trainable_variables)

        vars(optimizer)["apply"] = apply_means

    def _means(self, gradients: Sequence[Any]) -> list[Any]:
        """Dense gradients, or their means over all ranks, in a step's graph; None stays None."""
        found = [tf.convert_to_tensor(each) for each in gradients if each is not None]
        means = found  # dense, as Keras updates a row that is there twice in any order
        if self._average == "gradients":
            # One stateful operation, so each step makes the same calls in the same order.
            means = tf.numpy_function(self._reduce, found, [each.dtype for each in found])
            for mean, each in zip(means, found, strict=True):
                mean.set_shape(each.shape)
        rest = iter(means)
        return [None if each is None else next(rest) for each in gradients]

    def _reduce(self, *gradients: Any) -> list[Any]:
        try:
            return self._comm.bucketed(gradients, "mean", tag="gradients")
        except BaseException as error:
            self._error = error
            raise

    # --- the checkpoint ---------------------------------------------------------------------------

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """State before the next step: that of all ranks, and that of this one."""
        position = self._epoch, self._batch
        shared = {**self._facts, "position": position, "variables": self._content.shared()}
        return shared, self._content.own()

    def _load(self) -> None:
        self._facts = {
            **self._batches.facts, "average": self._average, "every": self._every,
            "variables' names": self._content.names,
        }  # fmt: skip
        version, shared, own = self._comm.load_checkpoint(*self._state())
        for name, value in self._facts.items():
            if shared[name] != value:
                raise ftcomm.ConfigError(
                    f"the {name} of rank {self._comm.rank}: {value}; of the job: {shared[name]}",
                    remedy="use the same data, arguments and model on all ranks, in all attempts",
                )
        self._content.restore_shared(shared["variables"])
        if version:
            self._begin, self._loaded = shared["position"], (shared, own)
            self.model._initial_epoch = self._begin[0]  # noqa: SLF001 - as BackupAndRestore does

    def _restore(self) -> None:
        shared, own = self._loaded
        self._content.restore_shared(shared["variables"])
        self._content.restore_own(own)
        self._loaded = None
