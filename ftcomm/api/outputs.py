"""Handing out: what the user gets of a result, who never gets the log's own memory writable."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ftcomm.collectives.bfloat16 import widen_bfloat16
from ftcomm.engine.interface import Engine
from ftcomm.memory.pool import Array, LoggedResult, Pool
from ftcomm.protocol.signature import Scalar
from ftcomm.requests.arguments import check_out, check_rows, result_dtype, scalar_type
from ftcomm.requests.request import CollectiveSpec, Request

Result = np.ndarray[Any, Any]
# A call of one number returns one of the same type.
Number = TypeVar("Number", bound=int | float | complex | np.generic)


class OutputPolicy:
    """Views, copies, and the user's own arrays filled."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def to(self, out: Result | None = None, *, copy: bool) -> Callable[[LoggedResult], Result]:
        """Build the output policy of a result: copies and views, never writable log memory."""
        if out is not None:
            return functools.partial(_filled, out)
        return self._copied if copy else LoggedResult.read_only

    def early(
        self, out: Result | None, sendbuf: Array, form: CollectiveSpec, *, copy: bool
    ) -> Result | None:
        """The user's array, if a call may fill it before it is complete; contiguous.

        A call that is not completed is made again from its input, so the two must be apart.
        """
        if out is not None:
            return None if np.may_share_memory(out, sendbuf) else out
        return (
            self._engine.lend(form.recvbuf_count, form.dtype).reshape(form.shape) if copy else None
        )

    def _copied(self, stored: LoggedResult) -> Result:
        flat = stored.flat
        if flat.nbytes < Pool.MIN_LENT_BYTES:
            return flat.reshape(stored.shape).copy()
        copy = self._engine.lend(len(flat), flat.dtype)
        copy[:] = flat
        return copy.reshape(stored.shape)


def shares_input(out: Result, x: Any, sendbuf: Array) -> bool:
    """Tell whether `out` is memory of the input.

    Of an `x` with gaps, or of foreign byte order, `sendbuf` is a copy; but the call is made again
    from `x`, after an error that left the communicator usable.
    """
    if np.may_share_memory(out, sendbuf):
        return True
    return isinstance(x, np.ndarray) and np.may_share_memory(out, x)


def to_own(out: Result | None) -> Callable[[LoggedResult], Result]:
    """Hand out a result that is no part of the log: the array itself, or what is put into `out`."""
    if out is None:
        return lambda stored: stored.flat.reshape(stored.shape)
    return functools.partial(_made_or_filled, out)


def as_passed(
    x: Any, hand_out: Callable[[LoggedResult], Any], out: Result | None = None
) -> Callable[[LoggedResult], Any]:
    """Hand out a number where `x` is one (Python's or numpy's), else like `hand_out`.

    An input function's result is an array: where it is replayed, nobody knows what `x` was.
    """
    scalar = scalar_type(x)
    if out is not None or scalar is Scalar.ARRAY:
        return hand_out
    return lambda stored: _as_scalar(scalar, hand_out(stored))


def as_sent(
    hand_out: Callable[[LoggedResult], Any], out: Result | None = None
) -> Callable[[LoggedResult], Any]:
    """Hand out a number where the root of a broadcast passed one, else like `hand_out`."""
    return hand_out if out is not None else lambda s: _as_scalar(s.scalar, hand_out(s))


def as_number(x: Any, result: Result) -> Any:
    """A result of no dimension as what `x` is: of Python, of numpy, or an array."""
    return _as_scalar(scalar_type(x), result)


def _as_scalar(scalar: Scalar, result: Result) -> Any:
    if scalar is Scalar.PYTHON:
        return result.item()
    return result[()] if scalar is Scalar.NUMPY else result


def _filled(out: Result, stored: LoggedResult) -> Result:
    out[...] = stored.flat.reshape(stored.shape)
    return out


def _made_or_filled(out: Result, stored: LoggedResult) -> Result:
    return out if np.may_share_memory(out, stored.flat) else _filled(out, stored)


def fits(out: Result | None, wire: str | None = None) -> Callable[[LoggedResult], None]:
    """Refuses a result for which `out` is no place."""

    def check(stored: LoggedResult) -> None:
        check_out(out, result_dtype(stored.flat.dtype, wire), stored.shape)

    return check


def with_rows(request: Request, out: Result | None) -> Request:
    """A request of which only the run tells how many rows `out` must have."""
    if out is not None:
        check_rows(out, request.form.dtype, request.form.shape)
        request.check = fits(out)
    return request


def widened_into(out: Result | None = None) -> Callable[[LoggedResult], Result]:
    """Hand out, like `OutputPolicy.to`, a result that travelled and is kept as bfloat16."""

    def widened(stored: LoggedResult) -> Result:
        wide = np.empty(len(stored.flat), np.float32)
        widen_bfloat16(stored.flat, wide)
        shaped = wide.reshape(stored.shape)
        if out is None:
            return shaped
        out[...] = shaped
        return out

    return widened


def dropped(stored: LoggedResult) -> None:
    """Give this rank nothing."""
