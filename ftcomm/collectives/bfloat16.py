"""bfloat16 on the wire: the upper half of a float32, rounded to the nearest, ties to even.

numpy has no such dtype, so elements travel, and are logged, as the 16 bits that they are.  A
reduction widens two blocks to float32, which is exact, combines them there, and rounds once.  Of
sums and products of two bfloat16 that gives the correctly rounded result, unless a product
underflows: float32 has more than twice their precision and two bits, so to round first to 24 bits
and then to 8 changes nothing.

How far a result may be off.  bfloat16 has 8 bits of precision, so one rounding changes a number by
at most ``u = 2**-8`` of it.  Each operand is rounded once when it is converted, and once more in
each addition that it passes: ``h = n - 1`` of them in rank order and in a ring,
``h = S - 1 + H - 1`` over H hosts of up to S ranks, and ``h = ceil(log2(n))`` in recursive
doubling.  So, as long as nothing overflows, a sum is within ::

    ((1 + u)**(1 + h) - 1) * sum(abs(x_i))          about (1 + h) / 256 of sum(abs(x_i))

of the exact one, a mean (one division more) within ``((1 + u)**(2 + h) - 1) * mean(abs(x_i))``,
and a minimum or maximum is the rounded one of the inputs.  Numbers below float32's normal range
(2**-126) are rounded to multiples of 2**-133: at most 2**-134 more for each rounding.
"""

import numpy as np

from ftcomm.collectives.op_argument import Array, UncheckedOp, resolve_op
from ftcomm.collectives.reductions import Combine, Reducer, float_combine, op_code

# Elements that are widened at a time: two operands and the sum in float32 stay in a second-level
# cache. Part of the canonical order, as the segment is: at a block's end numpy's loops end too.
BLOCK = 16 * 1024
_OPS = ("sum", "prod", "min", "max", "mean")
_QUIET_BIT = np.uint16(0x40)  # of a NaN: what is left of its payload may be all zeros


def round_to_bfloat16(x: Array, out: Array) -> None:
    """The bfloat16 bits next to each float32; NaN stays NaN, what is too large becomes infinite.

    `x` is float32 and 1-D; `out` is uint16, of the same length.
    """
    rounder = _Rounder(min(len(x), BLOCK))
    with np.errstate(all="ignore"):
        for lo in range(0, len(x), BLOCK):
            rounder.round(x[lo : lo + BLOCK], out[lo : lo + BLOCK])


def widen_bfloat16(bits: Array, out: Array) -> None:
    """The float32 of bfloat16 bits, exactly; uint16 and float32, 1-D, of one length."""
    words = out.view(np.uint32)
    for lo in range(0, len(bits), BLOCK):
        block = words[lo : lo + BLOCK]
        np.copyto(block, bits[lo : lo + BLOCK])
        np.left_shift(block, 16, out=block)


class _Rounder:
    """Rounds blocks; owns the memory for it."""

    __slots__ = ("_scratch",)

    def __init__(self, elements: int) -> None:
        self._scratch = np.empty(elements, np.uint32)

    def round(self, x: Array, out: Array) -> None:
        """One block of at least one element."""
        words, scratch = x.view(np.uint32), self._scratch[: len(x)]
        np.right_shift(words, 16, out=scratch)
        np.bitwise_and(scratch, 1, out=scratch)
        np.add(scratch, 0x7FFF, out=scratch)  # below a half goes down, a tie to the even neighbour
        np.add(scratch, words, out=scratch)
        np.right_shift(scratch, 16, out=scratch)
        np.copyto(out, scratch, casting="unsafe")
        largest = x.max()
        if largest != largest:  # noqa: PLR0124 - NaN: the carry may have made a number of it
            odd = np.isnan(x)
            out[odd] = (words[odd] >> 16).astype(np.uint16) | _QUIET_BIT


class _Combine:
    """A float32 operation on bfloat16 bits; allocates nothing once it is made."""

    __slots__ = ("_combine", "_rounder", "_wide")

    def __init__(self, combine: Combine) -> None:
        self._combine = combine
        self._rounder = _Rounder(BLOCK)
        self._wide = np.empty(2 * BLOCK, np.uint32)  # both operands, shifted by one call

    def __call__(self, accumulator: Array, operand: Array, out: Array) -> None:
        left, right, result = (_bits(each) for each in (accumulator, operand, out))
        for lo in range(0, len(out), BLOCK):
            part = slice(lo, lo + BLOCK)
            self._combine_block(left[part], right[part], result[part])

    def _combine_block(self, accumulator: Array, operand: Array, out: Array) -> None:
        size = len(out)
        words = self._wide[: 2 * size]
        np.copyto(words[:size], accumulator)
        np.copyto(words[size:], operand)
        np.left_shift(words, 16, out=words)
        wide = words.view(np.float32)
        left = wide[:size]
        self._combine(left, wide[size:], left)
        self._rounder.round(left, out)


def _divide(work: Array, world_size: int) -> None:
    """The mean of a sum, in place."""
    rounder = _Rounder(BLOCK)
    wide = np.empty(BLOCK, np.float32)
    for lo in range(0, len(work), BLOCK):
        bits = _bits(work[lo : lo + BLOCK])
        block = wide[: len(bits)]
        widen_bfloat16(bits, block)
        np.true_divide(block, np.float32(world_size), block)
        rounder.round(block, bits)


def _bits(array: Array) -> Array:
    """Elements as they are combined, also where the package ml_dtypes gives them a type."""
    return array.view(np.uint16)


def bfloat16_reducer(op: UncheckedOp) -> Reducer:
    """The reducer of a named operation on bfloat16, as bits or as arrays of ml_dtypes.

    It has memory of its own, so it is used by one thread at a time.

    Raises:
        TypeError: the operation is a function, or none on numbers that are rounded.
        ValueError: no operation has this name.
    """
    name = resolve_op(op)
    if not isinstance(name, str):
        raise TypeError(
            "bfloat16 is reduced by name only; for a function pass float32, without wire="
        )
    code, _ = op_code(name)
    if name not in _OPS:
        raise TypeError(f"op {name!r} is not defined for bfloat16; use one of {', '.join(_OPS)}")
    combine = _Combine(float_combine(name))
    return Reducer(code, 0, combine, floating=True, divide=_divide)
