"""Rows for each rank and step, whose position a checkpoint can hold."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch

import ftcomm

Batch = TypeVar("Batch")


class BatchSampler:
    """The rows of each step, for the ``batch_sampler=`` of a `torch.utils.data.DataLoader`.

    Rows follow from seed, epoch, step, rank and world size alone, so a restarted worker goes on
    with the batch behind its checkpoint.  A DataLoader reads ahead: `over` counts the batches that
    the script was given, not those that were read.

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
            ValueError: there are not enough rows for one step.
        """
        self._rows, self._batch_size = rows, batch_size
        self._rank, self._world_size = comm.rank, comm.world_size
        self._seed, self._shuffle, self._drop_last = seed, shuffle, drop_last
        self.epoch = self.position = 0
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
        while len(order) < needed:
            order += order[: needed - len(order)]
        for step in range(self.position, len(self)):
            first = (step * self._world_size + self._rank) * self._batch_size
            yield order[first : first + self._batch_size]

    def over(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a `loader` that reads by this sampler, counted; then the epoch ends.

        A checkpoint in the loop's body is one behind the batch.
        """
        for batch in loader:
            self.position += 1
            yield batch
        self.begin_next_epoch()

    def begin_next_epoch(self) -> None:
        """End the epoch: `over` does, for who takes batches until there are no more."""
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """The position, equal on all ranks."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind `state`."""
        self.epoch, self.position = state["epoch"], state["position"]

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._rows))
        generator = torch.Generator()
        generator.manual_seed(self._seed * 1_000_003 + self.epoch)
        order: list[int] = torch.randperm(self._rows, generator=generator).tolist()
        return order
