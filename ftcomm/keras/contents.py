"""The content of a training's checkpoint: variables of model and optimizer, and other callbacks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

# Of attributes that a checkpoint can hold: counters, best values, lists of weights.
_PLAIN = {type(None), bool, int, float, str, bytes, np.ndarray, np.float32, np.float64}

# Keras sets its sign together with `monitor_op`, a function, which a restarted rank sets again.
_NOT_KEPT = {"min_delta"}


class TrainingContent:
    """Variables and attributes that one fit changes.

    Attributes:
        trained: weights that gradients change.
        others: weights that a step changes otherwise, such as the means of a batch norm, or not.
        names: of the variables that are equal on all ranks, with their shapes.
    """

    def __init__(self, model: Any, callbacks: Iterable[Any], average: str) -> None:
        """Find the variables of a model that is built, and of its optimizer.

        With ``average="weights"`` each rank has an optimizer's state of its own.
        """
        self.trained, self.others = model.trainable_weights, model.non_trainable_weights
        optimizer = model.optimizer.variables
        self._shared = [*self.trained, *self.others]
        if average == "gradients":
            self._shared += optimizer
        self.names = [f"{each.path} {tuple(each.shape)}" for each in self._shared]
        # Seeds of dropout and the like, and metrics since the epoch began.
        found = {id(v): v for v in [*optimizer, *model.variables, *model.metrics_variables]}
        shared = set(map(id, self._shared))
        self._own = [variable for key, variable in found.items() if key not in shared]
        self._callbacks = list(callbacks)

    def shared(self) -> list[Any]:
        """Arrays that are equal on all ranks."""
        return arrays_of(self._shared)

    def restore_shared(self, arrays: Sequence[Any]) -> None:
        """The inverse of `shared`."""
        assign(self._shared, arrays)

    def own(self) -> dict[str, Any]:
        """Content that each rank has for itself."""
        callbacks = [
            {
                name: value
                for name, value in vars(each).items()
                if name not in _NOT_KEPT and _is_plain(value)
            }
            for each in self._callbacks
        ]
        return {"variables": arrays_of(self._own), "callbacks": callbacks}

    def restore_own(self, content: Mapping[str, Any]) -> None:
        """The inverse of `own`."""
        assign(self._own, content["variables"])
        for callback, attributes in zip(self._callbacks, content["callbacks"], strict=True):
            vars(callback).update(attributes)


def arrays_of(variables: Iterable[Any]) -> list[Any]:
    """The variables' values, copied."""
    return [np.array(variable.numpy()) for variable in variables]


def assign(variables: Sequence[Any], arrays: Sequence[Any]) -> None:
    """Give each variable its array."""
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _is_plain(each) for key, each in value.items())
    if type(value) in {list, tuple}:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN
