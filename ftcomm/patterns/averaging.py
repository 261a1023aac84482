"""Averaged weights, local SGD and DiLoCo: ranks train alone, and average every so many steps.

Weights are a list of arrays of floating dtypes, which these calls write into.  A CPU tensor of
torch is such an array by ``tensor.detach().numpy()``, which shares its memory.

Between two averages each rank has weights of its own.  So checkpoints are made where `step` has
returned True: there the weights are equal on all ranks.  A restarted rank makes the local steps
since then again, and must come to the same weights.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

import ftcomm

Array = np.ndarray[Any, Any]


def average_weights(
    comm: ftcomm.Communicator, arrays: Sequence[Array], *, tag: int | str | None = None
) -> None:
    """Put the mean over all ranks into each of `arrays`: the same bytes on every rank.

    It is one `bucketed` call, so its positions, log and bits are those of `allreduce`.

    Source: Vishnu et al., "Distributed TensorFlow with MPI", 2016.

    Args:
        comm: whose ranks average.
        arrays: writable, of floating dtypes; the same number, dtypes and shapes on all ranks.
            Unchanged if the call raises.
        tag: compared between the ranks, as of any collective.

    Raises:
        TypeError, ValueError: a local mistake; nothing is sent.
        CollectiveMismatchError: the arrays or tags of two ranks differ.
        FtcommError: see `Communicator.allreduce`.
    """
    comm.bucketed(arrays, "mean", out=arrays, tag=tag)


class InnerSteps:
    """Counter of the steps between two averages, which no checkpoint may divide."""

    def __init__(self, comm: ftcomm.Communicator, every: int, user: str) -> None:
        """Begin to count.

        Args:
            comm: whose checkpoints are watched.
            every: steps from one average to the next.
            user: class that counts, for errors.

        Raises:
            TypeError, ValueError: `every` is no whole number of at least 1.
        """
        self.every = operator.index(every)
        if self.every < 1:
            raise ValueError(f"{user}: every is {every}, must be at least 1")
        self._comm, self._user = comm, user
        self._done, self._version = 0, -1

    def is_last(self) -> bool:
        """Count a step, and tell whether an average is due.

        Raises:
            ValueError: before `load_checkpoint`, or a checkpoint was made between two averages.
        """
        version = self._comm.version
        if version < 0:
            raise ValueError(f"{self._user}.step() must come after load_checkpoint()")
        if self._done and version != self._version:
            raise ValueError(
                f"rank {self._comm.rank} made checkpoint {version} after {self._done} of"
                f" {self.every} steps of {self._user}, and a restarted rank would count from 0:"
                " make checkpoints only where step() has returned True"
            )
        self._version = version
        self._done = (self._done + 1) % self.every
        return self._done == 0


class LocalSGD:
    """Local SGD: each rank makes `every` steps alone, then all average their weights.

    Each rank's optimizer may have a state of its own, such as a momentum.  It belongs into the
    `local` state of a checkpoint, or into the arrays, to be averaged too.

    Source: Stich, "Local SGD Converges Fast and Communicates Little", 2018.
    """

    def __init__(self, comm: ftcomm.Communicator, every: int = 50) -> None:
        """Begin behind an average.

        Args:
            comm: whose ranks train.
            every: steps between two averages, the same on all ranks. It is the tag of the average.

        Raises:
            TypeError, ValueError: `every` is no whole number of at least 1.
        """
        self._comm = comm
        self._inner = InnerSteps(comm, every, "LocalSGD")

    def step(self, arrays: Sequence[Array]) -> bool:
        """Count a step that this rank has made; average if it was the last of `every`.

        Args:
            arrays: the weights behind this rank's step, as of `average_weights`.

        Returns:
            True if they are averaged now. Only there a checkpoint may be made.

        Raises:
            ValueError: before `load_checkpoint`, or a checkpoint was made elsewhere.
            FtcommError: see `average_weights`.
        """
        if not self._inner.is_last():
            return False
        average_weights(self._comm, arrays, tag=self._inner.every)
        return True


class DiLoCo:
    """DiLoCo: as local SGD, but the mean change of `every` steps is a gradient to an outer step.

    The outer step is SGD with Nesterov's momentum, in torch's form: with d the mean of the ranks'
    ``start - weights``, ``v = momentum * v + d`` and ``start -= outer_lr * (d + momentum * v)``.
    All ranks compute it from the same bytes.  The state of the inner optimizer stays with its rank,
    as in local SGD.

    Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
    2023, whose inner optimizer is AdamW.

    Attributes:
        velocity: of the outer step, an array for each of the weights, equal on all ranks. It
            belongs into the checkpoint, beside the weights.
    """

    def __init__(
        self,
        comm: ftcomm.Communicator,
        every: int = 500,
        outer_lr: float = 0.7,
        momentum: float = 0.9,
    ) -> None:
        """Begin behind an outer step.

        Args:
            comm: whose ranks train.
            every: inner steps between two outer steps, the same on all ranks. It is the tag of the
                average.
            outer_lr: learning rate of the outer step, the same on all ranks: or the checkpoint
                behind it finds other weights.
            momentum: of the outer step, likewise.

        Raises:
            TypeError, ValueError: `every` is no whole number of at least 1, `outer_lr` not above 0,
                or `momentum` not in [0, 1).
        """
        if not 0.0 < outer_lr < float("inf"):
            raise ValueError(f"DiLoCo: outer_lr is {outer_lr}, must be a number above 0")
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"DiLoCo: momentum is {momentum}, must be at least 0 and below 1")
        self._comm, self._outer_lr, self._momentum = comm, float(outer_lr), float(momentum)
        self._inner = InnerSteps(comm, every, "DiLoCo")
        self._start: list[Array] = []
        self.velocity: list[Array] = []

    def begin(self, arrays: Sequence[Array], velocity: Sequence[Array] | None = None) -> None:
        """Take the weights from which the next inner steps start; call it behind the load.

        Args:
            arrays: the weights that `load_checkpoint` has returned, so equal on all ranks; copied.
            velocity: of the same checkpoint; copied. None begins with zeros.

        Raises:
            ValueError: `velocity` has other shapes than `arrays`.
        """
        zeros = [np.zeros_like(x) for x in arrays] if velocity is None else velocity
        _check_shapes("the velocity of begin()", zeros, arrays)
        self._start = [np.array(x) for x in arrays]
        self.velocity = [np.array(v) for v in zeros]

    def step(self, arrays: Sequence[Array]) -> bool:
        """Count a step that this rank has made; make the outer step if it was the last of `every`.

        Args:
            arrays: the weights behind this rank's step, of the shapes of `begin`.

        Returns:
            True if an outer step was made: `arrays` have its weights, equal on all ranks. Only
            there a checkpoint may be made.

        Raises:
            ValueError: before `begin`, other shapes, or a checkpoint was made elsewhere.
            FtcommError: see `average_weights`.
        """
        _check_shapes("the weights of step()", arrays, self._start)
        if not self._inner.is_last():
            return False
        changes = [start - x for start, x in zip(self._start, arrays, strict=True)]
        average_weights(self._comm, changes, tag=self._inner.every)
        for x, start, v, change in zip(arrays, self._start, self.velocity, changes, strict=True):
            v *= self._momentum
            v += change
            start -= self._outer_lr * (change + self._momentum * v)
            x[...] = start
        return True


def _check_shapes(what: str, arrays: Sequence[Array], wanted: Sequence[Array]) -> None:
    got, needed = [x.shape for x in arrays], [x.shape for x in wanted]
    if got != needed or not needed:
        raise ValueError(
            f"DiLoCo: {what} have the shapes {got}, and the weights of begin() {needed}: call"
            " begin() with the weights behind load_checkpoint(), and pass the same arrays on"
        )
