"""Function probe: try a user's function on two small arrays before its first use.

A function that sorts, sums or normalises gives one result in a group of one, where it is never
called, and wrong ones in larger groups, where it is given pieces of arrays in any order.
"""

from typing import Any

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.collectives.op_argument import Array, Reduction, described

# Neither operand is the larger one throughout, and the two parts have other sums, products, least
# and largest values: so have the sums, products and larger ones of both operands.
_LEFT, _RIGHT = (9, 1, 5, 2, 6), (3, 4, 2, 7, 5)
_LEFT_BOOLS, _RIGHT_BOOLS = (1, 1, 0, 0, 1), (1, 0, 0, 1, 0)
_PARTS = (slice(0, 3), slice(3, 5))  # of different lengths; a sort moves something over the cut
_SCALE = 4  # floats stay small: exp() of a float16 is finite up to 11
MAX_TRIED = 256  # a program that makes ever new functions keeps no more


class FunctionProbe:
    """Remembers which functions have passed for which dtype; used by one thread."""

    def __init__(self) -> None:
        self._passed: set[tuple[int, AnyDtype]] = set()

    def check(self, reduction: Reduction, op_hash: int, dtype: AnyDtype) -> None:
        """Try an undeclared function, unless the one of this hash has passed.

        Raises:
            TypeError: it is not what an op must be; the message says what to do.
        """
        if reduction.is_declared or (op_hash, dtype) in self._passed:
            return
        _try(reduction.function, dtype)
        if len(self._passed) >= MAX_TRIED:
            self._passed.clear()
        self._passed.add((op_hash, dtype))


def _try(function: Any, dtype: AnyDtype) -> None:
    values = (_LEFT_BOOLS, _RIGHT_BOOLS) if dtype.kind == "b" else (_LEFT, _RIGHT)
    left, right = (_operand(side, dtype) for side in values)
    whole = _result(function, left, right)
    parts = [_result(function, left[part], right[part]) for part in _PARTS]
    name = described(function)
    if not _alike(whole, np.concatenate(parts)):
        raise TypeError(
            f"op {name} is not elementwise: of two arrays it gives something else than of their "
            "parts one after the other; declare it with ftcomm.reduction(f, elementwise=False) "
            "if it needs whole arrays"
        )
    if not _alike(whole, _result(function, right, left)):
        raise TypeError(
            f"op {name} is not commutative: it gives something else when its operands are "
            "swapped; declare it with ftcomm.reduction(f, commutative=False) if the order of "
            "ranks is meant"
        )


def _operand(values: tuple[int, ...], dtype: AnyDtype) -> Array:
    array = np.array(values)
    if dtype.kind in "fc":
        array = array / _SCALE
    if dtype.kind == "c":
        array = array + 1j * array[::-1]
    operand = array.astype(dtype)
    operand.flags.writeable = False  # as in a collective (R4)
    return operand


def _result(function: Any, accumulator: Array, operand: Array) -> Array:
    """Apply `function` to two arrays; accept only a result of the same dtype and shape."""
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(function(accumulator, operand))
    except Exception as error:
        raise TypeError(
            f"op {described(function)} was tried on two arrays of {len(operand)} "
            f"{operand.dtype.name} and raised {type(error).__name__}: {error}; an op takes two "
            "read-only arrays and returns a new one; ftcomm.reduction(f) takes it untried"
        ) from error
    if result.shape != operand.shape or result.dtype != operand.dtype:
        raise TypeError(
            f"reduction function {described(function)} returned {result.dtype.name}"
            f"{list(result.shape)}, expected {operand.dtype.name}{list(operand.shape)}"
        )
    return result


def _alike(one: Array, other: Array) -> bool:
    """Equal but for rounding: vector code may round another way at an array's end."""
    if one.dtype.kind not in "fc":
        return bool(np.array_equal(one, other))
    tolerance = float(np.finfo(one.dtype).eps) ** 0.5
    return bool(np.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True))
