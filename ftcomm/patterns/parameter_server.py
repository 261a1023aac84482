"""A parameter server without servers: each rank holds a shard of each table, and trains as well.

A push adds up what all ranks give, and each rank applies the sums to its own rows; a pull gets rows
of all shards.  Both are collectives (bulk synchronous parallel), so no result depends on which rank
came first.

A shard is the local state of its rank, of which other ranks keep copies.  So a rank may die as
server and as worker: its next process loads the shard of the last checkpoint, and replays the
pushes behind it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import ftcomm
from ftcomm.patterns.shard import Array, Shard, cut


class ParameterServer:
    """Tables whose rows are divided among all ranks, with `push` and `pull`.

    Source: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", 2014, with
    the first of its three kinds of consistency.
    """

    def __init__(
        self,
        comm: ftcomm.Communicator,
        tables: Mapping[str, Array],
        update: Callable[[Array, Array], Array],
        *,
        consistency: str = "bsp",
    ) -> None:
        """Take this rank's rows of each table; no call is made.

        Args:
            comm: whose ranks hold the tables.
            tables: by name, arrays with rows; names, dtypes and shapes are the same on all ranks,
                which each push and pull checks. This rank's rows are copied.
            update: ``update(rows, sums)`` returns the new rows, of the dtype and shape of `rows`:
                for SGD ``rows - rate * sums``. `sums` is what was pushed for these rows, added up
                over all ranks. It handles each row by itself, since it gets all rows of a shard,
                or those alone that an index names.
            consistency: ``bsp``. With ``async`` or ``bounded:S`` an answer would follow from
                timing, which a restarted rank cannot repeat.

        Raises:
            NotImplementedError: `consistency` is ``async`` or ``bounded:S``.
            ValueError: it is something else, or a table has no rows to divide.
        """
        if consistency == "async" or consistency.startswith("bounded:"):
            raise NotImplementedError(
                f"ParameterServer: consistency {consistency!r} is not implemented, as its answers"
                " would follow from timing: use 'bsp'"
            )
        if consistency != "bsp":
            raise ValueError(f"ParameterServer: consistency is {consistency!r}, must be 'bsp'")
        self._comm, self._update = comm, update
        self._shards = {
            name: cut(name, table, comm.rank, comm.world_size) for name, table in tables.items()
        }

    @property
    def shards(self) -> dict[str, Array]:
        """This rank's rows of each table, not copied: for the `local` state of a checkpoint."""
        return {name: shard.rows for name, shard in self._shards.items()}

    def load(self, shards: Mapping[str, Array]) -> None:
        """Take over the rows of a checkpoint, which are copied; raises ValueError."""
        if shards.keys() != self._shards.keys():
            raise ValueError(f"the checkpoint has {[*shards]}, the server {[*self._shards]}")
        for name, shard in self._shards.items():
            shard.check("the checkpoint's rows", shards[name], len(shard.rows))
            shard.rows[...] = shards[name]

    def push(self, name: str, values: Array, index: Any = None) -> None:
        """Add `values` up over all ranks, and update the table by the sums; a collective.

        Without `index` it is a `reduce_scatter`, with it two `alltoallv`: positions, logs and bits
        are theirs.  With it, sums are formed in rank order, then in the order of each index, and
        rows that no rank names stay as they are.

        Args:
            name: of the table, the same on all ranks.
            values: of the table's dtype, a row for each of the table or for each of `index`.
            index: row numbers, also several times the same; None on all ranks for all rows. A rank
                without values passes an empty one.

        Raises:
            TypeError, ValueError, IndexError: a local mistake, nothing is sent; or `update`
                returned something else than such rows.
            FtcommError: see `Communicator.reduce_scatter`.
        """
        shard = self._named("push", name)
        given, comm = np.asarray(values), self._comm
        if index is None:
            shard.check("the values", given, shard.size)
            sums = comm.reduce_scatter(given, counts=shard.counts, tag=name)
            self._apply(shard, slice(None), sums)
            return
        numbers = shard.numbers_in(index)
        shard.check("the values", given, len(numbers))
        places = shard.places_by_owner(numbers)
        named = comm.alltoallv([numbers[place] for place in places], tag=name)
        pushed = comm.alltoallv([given[place] for place in places], tag=shard.size)
        rows, inverse = np.unique(np.concatenate(named) - shard.first, return_inverse=True)
        sums = np.zeros((len(rows), *given.shape[1:]), given.dtype)
        np.add.at(sums, inverse, np.concatenate(pushed))  # their order is part of the bits
        self._apply(shard, rows, sums)

    def pull(self, name: str, index: Any = None) -> Array:
        """The table, or rows of it, behind all pushes so far; a collective.

        Without `index` it is an `allgatherv`, with it two `alltoallv`.

        Args:
            name: as for `push`.
            index: likewise; ranks may name different rows.

        Returns:
            an own array: the table, or a row for each of `index`, in its order.

        Raises:
            TypeError, ValueError, IndexError: a local mistake; nothing is sent.
            FtcommError: see `Communicator.allgatherv`.
        """
        shard = self._named("pull", name)
        comm = self._comm
        if index is None:
            return comm.allgatherv(shard.rows, counts=shard.counts, tag=name)
        numbers = shard.numbers_in(index)
        places = shard.places_by_owner(numbers)
        asked = comm.alltoallv([numbers[place] for place in places], tag=name)
        answers = comm.alltoallv([shard.rows[rows - shard.first] for rows in asked], tag=shard.size)
        pulled = np.empty((len(numbers), *shard.rows.shape[1:]), shard.rows.dtype)
        pulled[np.concatenate(places)] = np.concatenate(answers)
        return pulled

    def _named(self, call: str, name: str) -> Shard:
        if name not in self._shards:
            raise ValueError(f"{call}({name!r}): there are only the tables {[*self._shards]}")
        return self._shards[name]

    def _apply(self, shard: Shard, rows: Any, sums: Array) -> None:
        new = np.asarray(self._update(shard.rows[rows], sums))
        shard.check("the rows that update() returned", new, len(sums))
        shard.rows[rows] = new
