"""Known answers: the compiled core is used only if its bits are those of this process's numpy.

The core calls numpy's inner loops by a struct that numpy may change one day, and numpy may choose
other loops for its own calls.  The comparison takes half a millisecond.
"""

import itertools
import mmap
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ftcomm.core.segment import (
    DONE,
    HEAD_BYTES,
    RANK_BYTES,
    READY_AT,
    segment_bytes,
    slot_at,
)
from ftcomm.protocol.frame_header import PREFIX_BYTES, SUFFIX_BYTES, pack_prefix
from ftcomm.protocol.position import Position

Dtype = np.dtype[Any]
Array = np.ndarray[Any, Dtype]

RANKS: Final = 3  # the second combination of a fold is in place
COUNTS: Final = (1, 37)  # one element is special; the other is no multiple of a vector register
# NaN with payloads, denormals, infinities, zeros and numbers, as float32; as float16, float64 and
# complex numbers some of all.  Each rank begins 4 words behind the one before, and so with a NaN.
PATTERNS: Final = (
    *(0x7FC07E01, 0xFFC0FE02, 0x00000001, 0x7F800000),
    *(0xFFC0FE03, 0x7F807E04, 0x807FFFFF, 0xFF800000),
    *(0x7FF07E05, 0xFFC07E06, 0x80000000, 0x3F8CCCCD),
    *(0x00000000, 0xC0490FDB, 0x7F7FFFFF),
)
_BITS = np.array(PATTERNS * 12, np.uint32).tobytes()
CASES: Final = (
    *((np.add, "f4"), (np.add, "f2"), (np.add, "c8"), (np.multiply, "f8"), (np.multiply, "c16")),
    *((np.minimum, "f4"), (np.maximum, "f8"), (np.add, "i8"), (np.bitwise_xor, "u1")),
)


def first_difference(make_core: Callable[[Any, int, int], Any]) -> str:
    """Name the first case in which a core's bits are not numpy's; empty if there is none.

    Args:
        make_core: makes a `Core` of segment, ranks and rank.
    """
    segment = mmap.mmap(-1, segment_bytes(RANKS))
    for rank in range(1, RANKS):  # they have given what they will be asked for, for ever
        segment[rank * RANK_BYTES + READY_AT] = 255
    core = make_core(segment, RANKS, 0)
    cases = itertools.product(CASES, COUNTS)
    for call, ((ufunc, code), count) in enumerate(cases, 1):
        dtype = np.dtype(code)
        parts = [np.frombuffer(_BITS, dtype, count, 16 * rank) for rank in range(RANKS)]
        if _folded_by(core, segment, call, ufunc, parts) != _left_fold(ufunc, parts).tobytes():
            return f"{ufunc.__name__} of {count} {dtype.name} gave other bits than numpy"
    return ""


def _left_fold(ufunc: np.ufunc, parts: list[Array]) -> Array:
    result = parts[0]
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            result = ufunc(result, part)
    return result


def _folded_by(core: Any, segment: mmap.mmap, call: int, ufunc: Any, parts: list[Array]) -> bytes:
    """Fold the parts by a core, in its call of that number; nothing if that fails."""
    own = parts[0]
    head = pack_prefix(0, Position(0, 0, 0), 0, own.nbytes) + bytes(SUFFIX_BYTES)
    for rank in range(1, RANKS):
        at = slot_at(RANKS, rank, call)
        segment[at : at + HEAD_BYTES + own.nbytes] = head + parts[rank].tobytes()
    out = np.empty_like(own)
    form = core.form(head[PREFIX_BYTES:], ufunc, own.dtype, own.nbytes)
    return out.tobytes() if form.run(own, out, 0, 0, 0, 0, 0) == DONE else b""
