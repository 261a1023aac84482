"""Reductions: which operation on which dtype, and how two operands become one.

A `Reducer` combines segments and keeps the order of its operands, because ``x + y`` and ``y + x``
differ in NaN payloads.  Integers wrap, and the mean is the sum divided once at the end; of float16
the caller widens it first (`requests.arguments.as_operands`).  Numpy adds bools by *or*: whoever
sums them wants to count, so it is refused.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype, dtype_code
from ftcomm.collectives.op_argument import (
    Reduction,
    UncheckedOp,
    UserFunction,
    described,
    resolve_op,
)
from ftcomm.config.plurals import kind_of
from ftcomm.protocol.signature import OpCode

Array = np.ndarray[Any, AnyDtype]
Combine = Callable[[Array, Array, Array], object]
Divide = Callable[[Array, int], object]

_KINDS_OF_OP: dict[str, str] = {
    "sum": "iufc",
    "prod": "iufc",
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


_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "mean": np.add,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "land": np.logical_and,
    "lor": np.logical_or,
}
_COMBINES: dict[str, Combine] = {**_UFUNCS, "min": _minimum, "max": _maximum}
# By the kind of dtype, where it is another one.
_SPECIAL: dict[tuple[str, str], Combine] = {
    ("sum", "f"): _add_inexact,
    ("sum", "c"): _add_inexact,
    ("mean", "f"): _add_inexact,
    ("mean", "c"): _add_inexact,
    ("prod", "c"): _multiply_complex,
}


@dataclass(frozen=True, slots=True, eq=False)
class Reducer:
    """One operation on one dtype."""

    op: OpCode  # its wire code
    op_hash: int  # names a user's function in the signature, else 0
    # ``combine(accumulator, operand, out)``; `out` is neither of the two, or exactly one of them.
    combine: Combine
    whole: bool = False  # the operation must see whole arrays in rank order, not segments
    # May raise floating-point warnings, which are the same on no two machines and so are silenced.
    floating: bool = False
    divide: Divide = _divide  # ``divide(work, world_size)`` turns a sum into the mean, in place
    ufunc: np.ufunc | None = None  # whose inner loop `combine` is; None if there is no such loop

    def fold(self, rows: Sequence[Array] | Array, out: Array) -> None:
        """Combine arrays, or the rows of one, in their order into `out`, the first two first."""
        if not out.size:  # a function is not called for an empty block
            return
        if len(rows) == 1:
            out[:] = rows[0]
            return
        self.combine(rows[0], rows[1], out)
        for row in rows[2:]:
            self.combine(out, row, out)

    def finish(self, work: Array, world_size: int) -> None:
        """Turn the combination of all ranks' operands into the result, in place."""
        if self.op is OpCode.MEAN:
            self.divide(work, world_size)
        elif world_size == 1 and self.op in (OpCode.LAND, OpCode.LOR):
            np.not_equal(work, 0, work)

    @property
    def finishes(self) -> bool:
        """False where `finish` has nothing to do for more than one rank."""
        return self.op is OpCode.MEAN


def op_code(op: str | Reduction) -> tuple[OpCode, int]:
    """The wire code of a resolved operation, and the hash of a user's function, else 0."""
    if isinstance(op, str):
        return OpCode[op.upper()], 0
    return OpCode.FUNCTION, op.hash


def make_reducer(
    op: UncheckedOp, dtype: AnyDtype, *, shape: tuple[int, ...] | None = None
) -> Reducer:
    """The reducer of `op` on arrays of `dtype`.

    Args:
        op: a name, a builtin that stands for one, or a function that `reduction` declared.
        dtype: the operands' dtype.
        shape: the shape that whole arrays are handed over in; None means 1-D.

    Raises:
        TypeError: the operation is not defined for the dtype, or `op` is neither name nor declared.
        ValueError: no operation has this name.
    """
    resolved = resolve_op(op)
    if isinstance(resolved, str):
        return _named_reducer(resolved, dtype)
    code, op_hash = op_code(resolved)
    dtype_code(dtype)
    if resolved.itemsize and dtype != np.uint8:
        raise TypeError(
            f"op {described(resolved.function)} combines elements of {resolved.itemsize} bytes in "
            f"arrays of uint8, and the input is {dtype.name}; pass x.view(numpy.uint8)"
        )
    combine_by = _call_in_place if resolved.in_place else _call_user
    combine = combine_by(resolved.function, shape if resolved.whole else None)
    return Reducer(code, op_hash, combine, whole=resolved.whole)


def float_combine(op: str) -> Combine:
    """Return the function that combines two arrays of floats for a named operation."""
    return _COMBINES[op]


@functools.lru_cache(maxsize=256)
def _named_reducer(op: str, dtype: AnyDtype) -> Reducer:
    code, _ = op_code(op)
    dtype_code(dtype)
    if dtype.kind not in _KINDS_OF_OP[op]:
        remedy = _remedy(op, dtype.kind)
        raise TypeError(f"op {op!r} is not defined for dtype {dtype.name}{remedy and '; '}{remedy}")
    combine = _SPECIAL.get((op, dtype.kind), _COMBINES[op])
    ufunc = _UFUNCS[op] if _has_loop(_UFUNCS[op], dtype) else None
    return Reducer(code, 0, combine, floating=dtype.kind in "fc", ufunc=ufunc)


def _has_loop(ufunc: np.ufunc, dtype: AnyDtype) -> bool:
    """Tell whether numpy combines two such arrays without converting them."""
    return f"{dtype.char}{dtype.char}->{dtype.char}" in ufunc.types


def _remedy(op: str, kind: str) -> str:
    """Name a replacement for `op` on a kind of dtype that does not support it."""
    match op, kind:
        case "sum" | "prod", "b":
            logical = "or" if op == "sum" else "and"
            return (
                f"numpy would make it a logical {logical}: pass op='lor' (is any true) or "
                "op='land' (are all), or x.astype(int), int(x) of a Python bool, to count"
            )
        case "mean", "b" | "i" | "u":
            return (
                "a mean is no whole number: pass x.astype(float), float(x) of a Python number, or "
                "op='sum', and divide by comm.world_size"
            )
        case "min" | "max", "c":
            return "complex numbers have no order: pass abs(x), or x.real and x.imag"
        case "land" | "lor", "f" | "c":
            return "pass x != 0"
    return ""


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


def _call_in_place(function: UserFunction, shape: tuple[int, ...] | None) -> Combine:
    def combine(accumulator: Array, operand: Array, out: Array) -> None:
        if _address(out) == _address(operand):  # it is read while the other is written over it
            operand = operand.copy()
        if _address(out) != _address(accumulator):
            np.copyto(out, accumulator)
        destination = out if shape is None else out.reshape(shape)
        returned = function(_guarded(operand, shape), destination)
        if returned is not None and returned is not destination:
            raise TypeError(
                f"reduction function returned {kind_of(returned)}, and it is declared "
                "in_place: it must write into its second array, and return that or None"
            )

    return combine


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _guarded(array: Array, shape: tuple[int, ...] | None) -> Array:
    """A view that nobody can make writable.

    A function that works in place would spoil the user's own input (R4), the log, or memory that
    other ranks have too.  The base is a read-only memoryview: numpy asks it before it sets a flag.
    """
    raw = array.view(np.uint8).data.toreadonly()  # of bytes: not every dtype has a memoryview
    view = np.frombuffer(raw, array.dtype)
    return view if shape is None else view.reshape(shape)
