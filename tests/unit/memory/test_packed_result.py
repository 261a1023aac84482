"""Results as other ranks keep them: what comes back is what was packed, and nothing else does."""

import numpy as np
import pytest

from ftcomm.errors import ProtocolError
from ftcomm.memory.packed_result import (
    most_packed_bytes,
    pack_result,
    packed_bytes,
    result_digest,
    unpack_result,
)
from ftcomm.memory.pool import Array, LoggedResult


def packed(result: LoggedResult) -> Array:
    place: Array = np.empty(packed_bytes(result), np.uint8)
    pack_result(result, place)
    return place


@pytest.mark.parametrize(
    "result",
    [
        LoggedResult(np.arange(6.0), (3, 2)),
        LoggedResult(np.arange(3, dtype=np.uint8), (3,)),  # words that are not aligned
        LoggedResult(np.arange(6, dtype=np.complex64), (6, 1), rows=(1, 0, 5)),
        LoggedResult(np.empty(0, np.int16), (0, 7)),
        LoggedResult(np.array([True]), ()),
    ],
    ids=str,
)
def test_a_result_comes_back_with_its_dtype_shape_and_rows(result: LoggedResult) -> None:
    place = packed(result)
    assert len(place) <= most_packed_bytes(result.flat.nbytes, 3)
    back = unpack_result(place)
    assert back.flat.tobytes() == result.flat.tobytes()
    assert (back.flat.dtype, back.shape, back.rows) == (
        result.flat.dtype,
        result.shape,
        result.rows,
    )


def test_results_that_differ_in_shape_alone_have_other_digests() -> None:
    one, other = (LoggedResult(np.arange(6.0), shape) for shape in ((3, 2), (2, 3)))
    assert result_digest(packed(one)) != result_digest(packed(other))


@pytest.mark.parametrize("changed", [slice(0, 8), slice(-24, -16), slice(-8, None)])
def test_bytes_that_are_no_result_are_refused(changed: slice) -> None:
    raw = packed(LoggedResult(np.arange(6.0), (3, 2)))
    raw = raw[8:] if changed == slice(0, 8) else raw
    raw[changed] = 0 if changed == slice(0, 8) else 200
    with pytest.raises(ProtocolError):
        unpack_result(raw)
    with pytest.raises(ProtocolError, match="a result packed in 9 bytes"):
        unpack_result(np.zeros(9, np.uint8))
