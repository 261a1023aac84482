"""Task arguments: what tasks read and mutate, checked when they are pushed."""

import operator
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MAX_WORKERS = 64  # a wrong number is found before it is as many threads


class Variable:
    """Something that tasks read and mutate, where no array stands for it."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<ftcomm variable {self._name}>"


def key(variable: Any) -> Hashable:
    """Return the key of an object among the dependencies, valid while the object is kept alive."""
    if isinstance(variable, Variable):
        return variable
    if isinstance(variable, np.ndarray):
        return id(variable)
    name = type(variable).__name__
    raise TypeError(f"read= and mutate= take arrays or variables from var(), not {name}")


def listed(variables: Iterable[Any]) -> tuple[Any, ...]:
    """List the objects that `read` or `mutate` names."""
    if isinstance(variables, (np.ndarray, Variable)):  # an array of arrays would be taken for many
        raise TypeError("read and mutate are lists: put brackets around a single one")
    return tuple(variables)


def checked_array(array: Any) -> Array:
    """An array whose content is read when its turn comes, so it may not be copied before."""
    if not isinstance(array, np.ndarray):
        name = type(array).__name__
        raise TypeError(f"the input is a {name}, must be a numpy array that tasks can mutate")
    if not (array.flags.c_contiguous and array.dtype.isnative):
        raise ValueError("the array is not C-contiguous in native byte order; copy it in a task")
    return array


def checked_workers(workers: Any) -> int:
    """Check the number of threads that a user wants."""
    try:
        count = operator.index(workers)
    except TypeError:
        raise TypeError(f"workers is a {type(workers).__name__}, must be a number") from None
    if not 1 <= count <= MAX_WORKERS:
        raise ValueError(f"workers is {count}, must be 1 to {MAX_WORKERS}")
    return count
