"""Counts: how many rows of an array each rank gets."""

import hashlib
import operator
from collections.abc import Sequence

from ftcomm.config.plurals import counted


def checked_counts(
    counts: Sequence[int] | None, shape: tuple[int, ...], world_size: int, kind: str
) -> tuple[int, ...]:
    """Rows of an array of `shape` for each rank; raises TypeError or ValueError.

    `counts` is the caller's, by rank; None cuts the rows into equal parts.
    """
    if not shape:
        raise ValueError(f"{kind} cuts an array along its first dimension, and x has none")
    if counts is None:
        each, left = divmod(shape[0], world_size)
        if left:
            raise ValueError(
                f"{kind} cuts x into equal parts: {counted(shape[0], 'row')} are no multiple of"
                f" {counted(world_size, 'rank')}{_other_way(kind)}"
            )
        return (each,) * world_size
    rows = listed_counts(counts, world_size)
    if sum(rows) != shape[0]:
        raise ValueError(f"counts add up to {sum(rows)}, x has {counted(shape[0], 'row')}")
    return rows


def listed_counts(counts: Sequence[int], world_size: int) -> tuple[int, ...]:
    """The caller's counts as numbers, one for each rank; raises TypeError or ValueError."""
    try:
        rows = tuple(operator.index(count) for count in counts)
    except TypeError:
        raise TypeError("counts must be whole numbers, one for each rank") from None
    if len(rows) != world_size or min(rows) < 0:
        raise ValueError(
            f"counts must be {world_size} numbers from 0 on, one for each rank, got {list(rows)}"
        )
    return rows


def _other_way(kind: str) -> str:
    return "; pass counts=" if kind == "reduce_scatter" else "; use alltoallv"


def counts_hash(counts: tuple[int, ...]) -> int:
    """64 bits that stand for uneven counts in a signature; 0 for equal ones."""
    return 0 if len(set(counts)) == 1 else given_counts_hash(counts)


def given_counts_hash(counts: tuple[int, ...]) -> int:
    """64 bits that stand for counts in a signature, where a call without any is another call."""
    return int.from_bytes(hashlib.sha256(repr(counts).encode()).digest()[:8], "little")
