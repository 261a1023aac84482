"""Reductions: which operation on which dtype, and how two operands become one.

A `Reducer` combines 1-D cells and keeps the order of its operands, because ``x + y`` and ``y + x``
differ in NaN payloads.  Integers wrap, the sum of bools is *or* and their product *and*, the mean
is the sum divided once at the end.
"""

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype, dtype_code
from ftcomm.protocol.signature import Op

Array = np.ndarray[Any, AnyDtype]
Combine = Callable[[Array, Array, Array], object]
Divide = Callable[[Array, int], object]
UserFunction = Callable[[Array, Array], Any]

_ALL = "biufc"
_KINDS_OF_OP: dict[str, str] = {
    "sum": _ALL,
    "prod": _ALL,
    "min": "biuf",
    "max": "biuf",
    "mean": "fc",
    "band": "biu",
    "bor": "biu",
    "bxor": "biu",
    "land": "biu",
    "lor": "biu",
}


def _minimum(accumulator: Array, operand: Array, out: Array) -> None:
    np.minimum(accumulator, operand, out=out)  # a positional out is deprecated for these two


def _maximum(accumulator: Array, operand: Array, out: Array) -> None:
    np.maximum(accumulator, operand, out=out)


def _divide(work: Array, world_size: int) -> None:
    np.true_divide(work, work.dtype.type(world_size), work)


def _add_inexact(accumulator: Array, operand: Array, out: Array) -> None:
    if len(out) == 1:
        _apart(np.add, accumulator, operand, out)
    else:
        np.add(accumulator, operand, out)


def _multiply_complex(accumulator: Array, operand: Array, out: Array) -> None:
    if len(out) == 1:
        _apart(np.multiply, accumulator, operand, out)
    else:
        np.multiply(accumulator, operand, out)


def _apart(ufunc: np.ufunc, accumulator: Array, operand: Array, out: Array) -> None:
    """One element, never in place: numpy would take another path, and prefer the other NaN.

    Which rank works in place depends on its place in the schedule, so ranks would differ.
    """
    out[:] = ufunc(accumulator, operand)


_COMBINES: dict[str, Combine] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": _minimum,
    "max": _maximum,
    "mean": np.add,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "land": np.logical_and,
    "lor": np.logical_or,
}
# By the kind of dtype, where it is another one.
_SPECIAL: dict[tuple[str, str], Combine] = {
    ("sum", "b"): np.logical_or,
    ("prod", "b"): np.logical_and,
    ("sum", "f"): _add_inexact,
    ("sum", "c"): _add_inexact,
    ("mean", "f"): _add_inexact,
    ("mean", "c"): _add_inexact,
    ("prod", "c"): _multiply_complex,
}


@dataclass(frozen=True, slots=True)
class Reduction:
    """A user's reduction function and what it needs; made by `reduction`."""

    function: UserFunction
    elementwise: bool
    commutative: bool

    def __call__(self, accumulator: Array, operand: Array) -> Any:
        """What the function itself returns."""
        return self.function(accumulator, operand)

    @property
    def whole(self) -> bool:
        """True if the function must be given whole arrays, in rank order."""
        return not (self.elementwise and self.commutative)


def reduction(
    function: UserFunction, *, elementwise: bool = True, commutative: bool = True
) -> Reduction:
    """An ``op`` for `allreduce` and `reduce` made of a function that is not as functions must be.

    Args:
        function: of (accumulator, operand), which returns their combination as an array of the
            same shape and dtype and changes neither; the same on all ranks; associative.
        elementwise: False if it must see whole arrays of the shape that was passed in.
        commutative: False if the accumulator must come from lower ranks than the operand.

    Raises:
        TypeError: `function` is no function.
    """
    if not callable(function):
        raise TypeError(f"a reduction is made of a function, not of a {type(function).__name__}")
    return Reduction(function, elementwise, commutative)


@dataclass(frozen=True, slots=True, eq=False)
class Reducer:
    """One operation on one dtype.

    Attributes:
        op: its wire code.
        op_hash: names a user's function in the signature, else 0.
        combine: ``combine(accumulator, operand, out)``; `out` is neither of the two, or exactly
            one of them.
        whole: the operation must see whole arrays in rank order, not cells.
        floating: may raise floating-point warnings, which are the same on no two machines and
            so are silenced.
        divide: ``divide(work, world_size)`` turns a sum into the mean, in place.
    """

    op: Op
    op_hash: int
    combine: Combine
    whole: bool = False
    floating: bool = False
    divide: Divide = _divide

    def finish(self, work: Array, world_size: int) -> None:
        """Turn the combination of all ranks' operands into the result, in place."""
        if self.op is Op.MEAN:
            self.divide(work, world_size)
        elif world_size == 1 and self.op in (Op.LAND, Op.LOR):
            np.not_equal(work, 0, work)

    @property
    def finishes(self) -> bool:
        """False where `finish` has nothing to do for more than one rank."""
        return self.op is Op.MEAN


def op_code(op: str | UserFunction) -> tuple[Op, int]:
    """The wire code of an operation, and the hash of a user's function, else 0.

    Raises:
        TypeError: `op` is neither name nor function.
        ValueError: no operation has this name.
    """
    if isinstance(op, str):
        if op not in _COMBINES:
            raise ValueError(f"no operation is called {op!r}; use one of {', '.join(_COMBINES)}")
        return Op[op.upper()], 0
    if not callable(op):
        raise TypeError(f"op is a name or a function, not {type(op).__name__}")
    return Op.FUNCTION, function_hash(op)


def needs_whole(op: str | UserFunction) -> bool:
    """True if the operation must be given whole arrays, in rank order."""
    return isinstance(op, Reduction) and op.whole


def make_reducer(
    op: str | UserFunction, dtype: AnyDtype, *, shape: tuple[int, ...] | None = None
) -> Reducer:
    """The reducer of `op` on arrays of `dtype`.

    Args:
        op: a name, or a function of (accumulator, operand) that returns the combination as an
            array of the same shape and dtype and changes neither; see `reduction`.
        dtype: the operands' dtype.
        shape: the shape that whole arrays are handed over in; None means 1-D.

    Raises:
        TypeError: the operation is not defined for the dtype, or `op` is neither name nor function.
        ValueError: no operation has this name.
    """
    if isinstance(op, str):
        return _named_reducer(op, dtype)
    code, op_hash = op_code(op)
    dtype_code(dtype)
    whole = needs_whole(op)
    combine = _call_user(op, shape if whole else None)
    return Reducer(code, op_hash, combine, whole=whole)


def float_combine(op: str) -> Combine:
    """What a named operation does with two arrays of floats."""
    return _COMBINES[op]


@functools.lru_cache(maxsize=256)
def _named_reducer(op: str, dtype: AnyDtype) -> Reducer:
    code, _ = op_code(op)
    dtype_code(dtype)
    if dtype.kind not in _KINDS_OF_OP[op]:
        raise TypeError(f"op {op!r} is not defined for dtype {dtype.name}")
    combine = _SPECIAL.get((op, dtype.kind), _COMBINES[op])
    return Reducer(code, 0, combine, floating=dtype.kind in "fc")


def function_hash(function: UserFunction) -> int:
    """First 8 bytes of a digest of the function's module and qualified name, and of its needs."""
    needs = ""
    if isinstance(function, Reduction):
        needs = f":{function.elementwise}:{function.commutative}" if function.whole else ""
        function = function.function
    module = getattr(function, "__module__", "")
    name = getattr(function, "__qualname__", type(function).__qualname__)
    digest = hashlib.sha256(f"{module}:{name}{needs}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def _call_user(function: UserFunction, shape: tuple[int, ...] | None) -> Combine:
    def combine(accumulator: Array, operand: Array, out: Array) -> None:
        left, right = _guarded(accumulator, shape), _guarded(operand, shape)
        result = np.asarray(function(left, right))
        if result.shape != left.shape or result.dtype != out.dtype:
            raise TypeError(
                f"reduction function returned {result.dtype.name}{list(result.shape)}, "
                f"expected {out.dtype.name}{list(left.shape)}"
            )
        np.copyto(out, result.reshape(-1))

    return combine


def _guarded(array: Array, shape: tuple[int, ...] | None) -> Array:
    """A read-only view: a function that works in place would spoil the user's own input (R4)."""
    view = array[:] if shape is None else array.reshape(shape)
    view.flags.writeable = False
    return view
