"""Rows for each rank and step, whose position a checkpoint can hold."""

import operator
import random
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
import torch.utils.data

import ftcomm

Batch = TypeVar("Batch")
SEEDS = 2**64  # of a generator of torch


class SeededRows(list[int]):
    """The rows of a batch, by which a worker process of a loader seeds its random numbers.

    A restarted rank has new workers, which begin in the middle of an epoch.  What they draw must
    follow from the batch, not from those that they have read before.  In the process of the script
    nothing is seeded.
    """

    def __init__(self, rows: Iterable[int], *key: int) -> None:
        """Hold `rows`; `key` is another for each batch of the job, none of it negative."""
        super().__init__(rows)
        self._key = key

    def __reduce__(self) -> Any:
        """Seed where a worker takes the batch out of its queue, right before it reads the rows."""
        return _rows_of, (list(self), self._key)


def _rows_of(rows: list[int], key: tuple[int, ...]) -> list[int]:
    if torch.utils.data.get_worker_info() is not None:
        seeds = np.random.SeedSequence(key).generate_state(3)
        torch.manual_seed(int(seeds[0]))
        np.random.seed(seeds[1])  # noqa: NPY002 - data sets may draw from it
        random.seed(int(seeds[2]))
    return rows


class BatchSampler:
    """The rows of each step, for the ``batch_sampler=`` of a `torch.utils.data.DataLoader`.

    Rows follow from seed, epoch, step, rank and world size alone, so a restarted worker goes on
    with the batch behind its checkpoint.  So do the random numbers of a DataLoader's worker
    processes.  A DataLoader reads ahead: `over` counts the batches that the script was given, not
    those that were read.

    All ranks have the same number of steps.  Rows that do not fill a batch on every rank are left
    out of the epoch; with ``shuffle`` each epoch leaves out others.  With ``drop_last=False`` the
    epoch's first rows fill those batches.

    Attributes:
        epoch: number of complete passes.
        position: batches of this epoch that were given to the script.
    """

    def __init__(
        self,
        rows: int,
        comm: ftcomm.Communicator,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
    ) -> None:
        """Begin at the first batch.

        Args:
            rows: of the data set.
            comm: whose rank and world size count.
            batch_size: rows of one rank's batch.
            seed: of the order of rows; the same on all ranks.
            shuffle: another order in each epoch, else the data set's own.
            drop_last: leave out rows that do not fill a batch on every rank.

        Raises:
            TypeError: the seed is no integer.
            ValueError: there are not enough rows for one step.
        """
        self._rows, self._batch_size = rows, batch_size
        self._rank, self._world_size = comm.rank, comm.world_size
        self._seed, self._shuffle, self._drop_last = operator.index(seed), shuffle, drop_last
        self.epoch = self.position = 0
        self._pass: object | None = None  # that gives this epoch's batches, if one does
        if batch_size < 1 or not len(self):
            raise ValueError(
                f"{rows} rows give no batch of {batch_size} to each of {self._world_size} ranks"
            )

    def __len__(self) -> int:
        """Number of steps of an epoch."""
        whole, rest = divmod(self._rows, self._batch_size * self._world_size)
        return whole + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of this epoch from `position` on."""
        order = self._order()
        needed = len(self) * self._batch_size * self._world_size
        seed = self._seed % SEEDS  # which may be negative
        while len(order) < needed:
            order += order[: needed - len(order)]
        for step in range(self.position, len(self)):
            first = (step * self._world_size + self._rank) * self._batch_size
            rows = order[first : first + self._batch_size]
            yield SeededRows(rows, seed, self.epoch, step, self._rank)

    def over(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a `loader` that reads by this sampler, counted; then the epoch ends.

        A checkpoint in the loop's body is one behind the batch. The epoch ends too where the script
        asks for none behind the last batch, and drops the iterator: a loop over ``zip`` does so.
        """
        return self._counted(loader) if self.begin_pass() else iter(())

    def begin_pass(self) -> bool:
        """Prepare for a loop over batches; False: it gets none, and the epoch is over.

        That is so behind a checkpoint that was made in the body of the epoch's last batch.
        """
        is_empty = False
        if self.position == len(self):
            is_empty = self._pass is None  # else another iterator has given them, and is still held
            self.begin_next_epoch()
        return not is_empty

    def _counted(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        this = self._pass = object()
        try:
            for batch in loader:
                self.position += 1
                yield batch
        except GeneratorExit:
            if self._pass is this and self.position == len(self):
                self.begin_next_epoch()
            raise
        if self._pass is this:
            self.begin_next_epoch()

    def begin_next_epoch(self) -> None:
        """End the epoch, which `over` does when its batches were taken."""
        self.epoch, self.position, self._pass = self.epoch + 1, 0, None

    def state_dict(self) -> dict[str, Any]:
        """The position, equal on all ranks."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind `state`."""
        self.epoch, self.position, self._pass = state["epoch"], state["position"], None

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._rows))
        generator = torch.Generator()
        # As torch does with a negative one; it refuses one that is too large.
        generator.manual_seed((self._seed * 1_000_003 + self.epoch) % SEEDS)
        order: list[int] = torch.randperm(self._rows, generator=generator).tolist()
        return order
