"""The rows of a table that one rank holds, where rows are divided among all ranks in order."""

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's rows of one table.

    Attributes:
        name: of the table.
        rows: an own array; none, where there are more ranks than rows.
        bounds: where the ranks' rows begin, in rank order, and behind them where the last end.
        first: number of the first row here.
    """

    name: str
    rows: Array
    bounds: Array
    first: int

    @property
    def size(self) -> int:
        """Rows of the whole table."""
        return int(self.bounds[-1])

    @property
    def counts(self) -> list[int]:
        """Rows of each rank."""
        return [int(count) for count in np.diff(self.bounds)]

    def check(self, what: str, rows: Array, count: int) -> None:
        """See that `rows` could be `count` rows of the table; raises ValueError."""
        wanted = (count, *self.rows.shape[1:])
        if rows.shape != wanted or rows.dtype != self.rows.dtype:
            raise ValueError(
                f"{what} of table {self.name!r} are {rows.dtype}{list(rows.shape)}, must be"
                f" {self.rows.dtype}{list(wanted)}"
            )

    def numbers_in(self, index: Any) -> Array:
        """The row numbers of an index, as int64; raises TypeError and IndexError."""
        numbers = np.asarray(index)
        if numbers.shape == (0,):
            numbers = numbers.astype(np.int64)  # an empty list is of floats
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise TypeError(
                f"the index into table {self.name!r} is {numbers.dtype}{list(numbers.shape)},"
                " must be a list of row numbers"
            )
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.size:
            raise IndexError(
                f"the index into table {self.name!r} has {numbers.min()} to {numbers.max()}, and"
                f" its rows are 0 to {self.size - 1}"
            )
        return numbers.astype(np.int64)

    def places_by_owner(self, numbers: Array) -> list[Array]:
        """For each rank the places in `numbers` of the rows that it holds, in their order."""
        owners = np.searchsorted(self.bounds, numbers, side="right") - 1
        order = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[order], np.arange(1, len(self.counts)))
        return np.split(order, ends)


def cut(name: str, table: Any, rank: int, world_size: int) -> Shard:
    """The shard of `rank`, with a copy of its rows: as many as each other has, or one more.

    Raises:
        ValueError: the table has no dimension.
    """
    given = np.asarray(table)
    if given.ndim == 0:
        raise ValueError(f"table {name!r} is one number, must have rows")
    bounds = np.arange(world_size + 1) * len(given) // world_size
    return Shard(name, given[bounds[rank] : bounds[rank + 1]].copy(), bounds, int(bounds[rank]))
