"""Wire code <-> numpy dtype: the elements that collectives carry."""

from typing import Any

import numpy as np

from ftcomm.config.extras import pip_install
from ftcomm.protocol.signature import DTYPE_NAMES

AnyDtype = np.dtype[Any]

BFLOAT16 = next(code for code, name in DTYPE_NAMES.items() if name == "bfloat16")

_BY_CODE: dict[int, AnyDtype] = {
    code: np.dtype(name)
    for code, name in DTYPE_NAMES.items()
    if name != "none" and code != BFLOAT16
}
_BY_DTYPE: dict[AnyDtype, int] = {dtype: code for code, dtype in _BY_CODE.items()}


def is_bfloat16(dtype: AnyDtype) -> bool:
    """True of the bfloat16 that the package ml_dtypes adds to numpy."""
    return dtype.kind == "V" and dtype.type.__module__ == "ml_dtypes" and dtype.name == "bfloat16"


def as_executed(dtype: AnyDtype) -> AnyDtype:
    """The dtype under which elements travel and are combined: bfloat16 has no memoryviews."""
    return np.dtype(np.uint16) if dtype.kind == "V" else dtype


def dtype_text(dtype: AnyDtype) -> str:
    """Its name, as ``float32``; with the byte order where that is not the machine's."""
    return dtype.name if dtype.isnative else f"{dtype.name} of the other byte order"


def dtype_code(dtype: AnyDtype) -> int:
    """The wire code of `dtype`; its byte order is not looked at.

    Raises:
        TypeError: no collective carries this dtype; the message names it.
    """
    code = _BY_DTYPE.get(dtype)
    if code is None:
        code = _BY_DTYPE.get(dtype.newbyteorder("="))
    if code is not None:
        return code
    if is_bfloat16(dtype):
        return BFLOAT16
    raise TypeError(
        f"dtype {dtype.name} is not carried by collectives; use allgather_object, or one of"
        f" {', '.join(d.name for d in _BY_DTYPE)}, ml_dtypes.bfloat16"
    )


def dtype_of(code: int) -> AnyDtype:
    """The native dtype of a wire code.

    Raises:
        ValueError: unknown code, or 0, which names no dtype, or the package for it is missing.
    """
    if code == BFLOAT16:
        return _bfloat16()
    dtype = _BY_CODE.get(code)
    if dtype is None:
        raise ValueError(f"no dtype has the wire code {code}")
    return dtype


def _bfloat16() -> AnyDtype:
    try:
        from ml_dtypes import bfloat16  # noqa: PLC0415 - who has no such arrays need not have it
    except ImportError:
        raise ValueError(
            "bfloat16 needs the package ml_dtypes here as on the other ranks: "
            f"{pip_install('bf16')}"
        ) from None
    found: AnyDtype = np.dtype(bfloat16)
    return found
