"""Arguments of a collective: as elements, and as the signature that all ranks compare."""

import operator
from typing import Any

import numpy as np

from ftcomm.collectives.bfloat16 import round_to_bfloat16
from ftcomm.collectives.dtypes import AnyDtype, dtype_code, dtype_text
from ftcomm.collectives.op_argument import Reduction
from ftcomm.config.plurals import kind_of
from ftcomm.memory.pool import Array
from ftcomm.protocol.signature import (
    MAX_NAMED_DIMS,
    RAGGED,
    Algorithm,
    Kind,
    LogMode,
    OpCode,
    Scalar,
    Signature,
    Wire,
)
from ftcomm.state.registered_types import array_of

_PYTHON_NUMBERS = (int, float, bool, complex)
_FLOAT32: AnyDtype = np.dtype(np.float32)
_WIRES = {None: Wire.SAME, "bf16": Wire.BF16}


def as_elements(x: Any) -> tuple[Array, tuple[int, ...]]:
    """A user's argument as 1-D contiguous, aligned, native elements, and its shape.

    It is copied only if needed.

    Raises:
        TypeError, ValueError: it is no array of plain elements, or would lose something as one.
    """
    array = x if type(x) is np.ndarray else _as_array(x)
    shape = array.shape
    if not (array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative):
        array = np.require(array, array.dtype.newbyteorder("="), ("C", "A"))
    return array.reshape(-1), shape


def as_rows(x: Any, kind: str) -> tuple[Array, tuple[int, ...]]:
    """`as_elements` of an argument whose rows are joined with those of other ranks.

    Raises:
        TypeError, ValueError: likewise, or it has no rows.
    """
    sendbuf, shape = as_elements(x)
    dtype_code(sendbuf.dtype)
    if not shape:
        raise ValueError(
            f"{kind} joins arrays along their first dimension, and x has none; "
            "pass [x], or use allgather"
        )
    return sendbuf, shape


def scalar_type(x: Any) -> Scalar:
    """The type of a user's argument as a number: a subclass of Python's own counts as an array."""
    if type(x) in _PYTHON_NUMBERS:  # exactly: numpy's float64 is a float of Python too
        return Scalar.PYTHON
    return Scalar.NUMPY if isinstance(x, np.generic) else Scalar.ARRAY


def _as_array(x: Any) -> Array:
    """Convert `x` with numpy, if the result represents all of it."""
    if x is None:
        raise TypeError(
            "the input is None; pass an array: every rank needs one of the same dtype and shape, "
            "where the call does not say otherwise"
        )
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            "the input is a masked array, whose mask no collective carries; "
            "pass x.filled(value), or data and mask in two calls"
        )
    registered = array_of(x)
    if registered is not None:
        return registered
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ValueError(
            f"the input, {kind_of(x)}, does not become one array: {error}; make its parts equally "
            "long, or use allgather_object"
        ) from None
    if array.dtype == object:
        raise TypeError(
            f"the input is {kind_of(x)}, which numpy takes as dtype object, which is not carried "
            "by collectives; make a dense array of numbers of it, or use allgather_object"
        )
    return array


def wire_code(name: str | None) -> Wire:
    """The format that a user's ``wire=`` names; raises ValueError."""
    if name not in _WIRES:
        raise ValueError(f"no wire format is called {name!r}; use 'bf16', or None for x as it is")
    return _WIRES[name]


def rounded(sendbuf: Array, wire: str) -> Array:
    """A user's elements as they travel in the format `wire`: a new array.

    Raises:
        ValueError: no format has this name.
        TypeError: the format is not for elements of this dtype.
    """
    wire_code(wire)
    if sendbuf.dtype != np.float32:
        raise TypeError(f"wire='bf16' is for float32, x is {sendbuf.dtype.name}; convert it")
    bits: Array = np.empty(len(sendbuf), np.uint16)
    round_to_bfloat16(sendbuf, bits)
    return bits


def as_operands(sendbuf: Array, op: str | Reduction, wire: str | None) -> Array:
    """A user's elements as they travel in a reduction: rounded, widened, or as they are.

    The sum of float16 may be too large for float16 where the mean is not, so a mean is made in
    float32 and rounded once.

    Raises:
        TypeError, ValueError: the format `wire` is unknown, or not for this dtype.
    """
    if wire is not None:
        return rounded(sendbuf, wire)
    if op == "mean" and sendbuf.dtype == np.float16:
        return sendbuf.astype(np.float32)
    return sendbuf


def result_dtype(elements: AnyDtype, wire: str | None) -> AnyDtype:
    """Return the user's dtype for elements of this dtype that travelled in the format `wire`."""
    return elements if wire is None else _FLOAT32


def is_input_function(x: Any) -> bool:
    """True if `x` is to be called for the input, and only if the collective is executed."""
    return callable(x) and not hasattr(x, "__array__")


def check_out(
    out: np.ndarray[Any, Any] | None,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    *,
    strided: bool = False,
) -> None:
    """Refuse an `out` that cannot take a result of `dtype` and `shape`, before anything happens.

    Raises:
        TypeError, ValueError: naming what does not fit.
    """
    if out is None:
        return
    check_memory(out, strided=strided)
    if out.dtype != dtype or out.shape != shape:
        raise ValueError(
            f"out is {dtype_text(out.dtype)}{list(out.shape)},"
            f" the result is {dtype_text(dtype)}{list(shape)}"
        )


def check_rows(
    out: np.ndarray[Any, Any] | None, dtype: np.dtype[Any], trailing: tuple[int, ...]
) -> None:
    """The same where only the run will tell how many rows of shape `trailing` the result has."""
    if out is None:
        return
    check_memory(out)
    if out.dtype != dtype or out.ndim == 0 or out.shape[1:] != trailing:
        rows = ", ".join(["any", *map(str, trailing)])
        raise ValueError(
            f"out is {out.dtype.name}{list(out.shape)}, the result is {dtype.name}[{rows}]"
        )


def check_memory(out: Any, *, strided: bool = False) -> None:
    """Refuse an `out` that can take no result, whatever its dtype and shape.

    Raises:
        TypeError, ValueError: it is no plain array, is read-only, or is not contiguous.
    """
    if out is None:
        return
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        is_tensor = type(out).__module__.split(".")[0] == "torch"
        remedy = ": pass ftcomm.torch.as_array(out), which is its memory" if is_tensor else ""
        raise TypeError(f"out is {kind_of(out)}, must be a numpy array{remedy}")
    if not (strided or out.flags.c_contiguous):
        raise ValueError(
            f"out is not C-contiguous: its strides are {out.strides}; pass a contiguous array, and "
            "copy from it"
        )
    if not out.flags.writeable:
        raise ValueError("out is read-only")


def checked_root(root: Any, world_size: int) -> int:
    """`root` as a rank; raises TypeError or ValueError."""
    try:
        rank = operator.index(root)
    except TypeError:
        raise TypeError(f"root is {kind_of(root)}, must be a rank") from None
    if not 0 <= rank < world_size:
        raise ValueError(f"root is {rank}, must be 0 to {world_size - 1}")
    return rank


def signature_of(
    kind: Kind,
    sendbuf: Array,
    shape: tuple[int, ...],
    *,
    dtype: AnyDtype | None = None,
    op: OpCode = OpCode.NONE,
    op_hash: int = 0,
    root: int = -1,
    algorithm: Algorithm = Algorithm.AUTO,
    wire: str | None = None,
    scalar: Scalar = Scalar.ARRAY,
    log: LogMode = LogMode.WHOLE,
) -> bytes:
    """The 48 bytes that all ranks must agree on; raises TypeError.

    `dtype` is the user's, where elements travel in another one.
    """
    return Signature(
        kind=kind,
        op=op,
        dtype=dtype_code(sendbuf.dtype if dtype is None else dtype),
        algorithm=algorithm,
        root=root,
        count=0 if kind in RAGGED else len(sendbuf),
        ndim=len(shape),
        dims=(scalar, 0, 0, 0) if scalar else _dims(shape[1:] if kind in RAGGED else shape),
        op_hash=op_hash,
        wire=wire_code(wire),
        log=log,
    ).encode()


def _dims(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """The shape in four numbers: as it is, or folded where it does not fit."""
    if len(shape) <= MAX_NAMED_DIMS and all(extent < 2**32 for extent in shape):
        first, second, third, fourth = (*shape, 0, 0, 0, 0)[:4]
        return first, second, third, fourth
    folded = 0
    for extent in shape:
        folded = (folded * 1_000_003 + extent + 1) % 2**128
    return (
        folded & 0xFFFFFFFF,
        folded >> 32 & 0xFFFFFFFF,
        folded >> 64 & 0xFFFFFFFF,
        folded >> 96 & 0xFFFFFFFF,
    )


# --- the log of a call that gives each rank a result of its own (rule R20) ---------------------
# All ranks choose alike: by values that the signature has, or by the position.

# In all: so few bytes cost little more on every rank than on one, and any script may be restarted.
WHOLE_BYTES = 64 * 1024
_NAMES = {
    "whole": LogMode.WHOLE,
    "contributions": LogMode.CONTRIBUTIONS,
    "copies": LogMode.COPIES,
}


def named_log(name: str | None) -> LogMode | None:
    """The mode that a user's ``log=`` names; None leaves it to `chosen_log`; raises ValueError."""
    if name is None:
        return None
    if name not in _NAMES:
        known = ", ".join(map(repr, _NAMES))
        raise ValueError(f"no log is called {name!r}; use {known}, or None")
    return _NAMES[name]


def chosen_log(name: str | None, nbytes: int | None, *, in_prelude: bool) -> LogMode:
    """The log of a call.

    Args:
        name: the caller's wish, None for none.
        nbytes: bytes that every rank would log; None where ranks tell each other their sizes first.
        in_prelude: the call comes before the first load. Its result is needed as long as the job
            runs, and inputs and copies are kept for a version.

    Raises:
        ValueError: no log has this name, or none of that name can be kept here.
    """
    asked = named_log(name)
    if in_prelude:
        if asked not in (None, LogMode.WHOLE):
            raise ValueError(
                f"log={name!r} is for calls after load_checkpoint(): what comes before it is"
                " replayed as long as the job runs; leave log= out"
            )
        return LogMode.WHOLE
    if asked is not None:
        return asked
    return LogMode.BY_SIZE if nbytes is None else log_of_size(nbytes)


def log_of_size(nbytes: int) -> LogMode:
    """The log of a call of which every rank would log so many bytes."""
    return LogMode.WHOLE if nbytes <= WHOLE_BYTES else LogMode.CONTRIBUTIONS
