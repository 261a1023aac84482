"""Wire code <-> numpy dtype: the elements that collectives carry."""

from typing import Any

import numpy as np

from ftcomm.protocol.signature import DTYPE_NAMES

AnyDtype = np.dtype[Any]

_BY_CODE: dict[int, AnyDtype] = {
    code: np.dtype(name) for code, name in DTYPE_NAMES.items() if name != "none"
}
_BY_DTYPE: dict[AnyDtype, int] = {dtype: code for code, dtype in _BY_CODE.items()}


def dtype_code(dtype: AnyDtype) -> int:
    """The wire code of `dtype`; its byte order is not looked at.

    Raises:
        TypeError: no collective carries this dtype; the message names it.
    """
    code = _BY_DTYPE.get(dtype)
    if code is None:
        code = _BY_DTYPE.get(dtype.newbyteorder("="))
    if code is None:
        raise TypeError(
            f"dtype {dtype.name} is not carried by collectives; "
            f"use one of {', '.join(d.name for d in _BY_DTYPE)}"
        )
    return code


def dtype_of(code: int) -> AnyDtype:
    """The native dtype of a wire code.

    Raises:
        ValueError: unknown code, or 0, which names no dtype.
    """
    dtype = _BY_CODE.get(code)
    if dtype is None:
        raise ValueError(f"no dtype has the wire code {code}")
    return dtype
