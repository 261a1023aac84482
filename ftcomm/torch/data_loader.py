"""A DataLoader for one rank, whose position a checkpoint can hold."""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data

import ftcomm
from ftcomm.torch.sampler import SEEDS, BatchSampler


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Batches of this rank's rows; see `BatchSampler` for which these are.

    It draws nothing from torch's default generator, so a script that begins an epoch in its middle
    goes on with the random numbers of its checkpoint.

    Attributes:
        epoch: number of complete passes.
        position: batches of this epoch that were given to the script.
        before_first_batch: called when the iteration begins, before a batch is read.
    """

    def __init__(
        self,
        dataset: Any,
        comm: ftcomm.Communicator | None = None,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        **options: Any,
    ) -> None:
        """Begin at the first batch.

        Args:
            dataset: with a length.
            comm: the communicator, default that of `ftcomm.current`.
            batch_size: rows of one rank's batch.
            seed: of the order of rows; the same on all ranks.
            shuffle: another order in each epoch, else the data set's own.
            drop_last: leave out rows that do not fill a batch on every rank; False: the epoch's
                first rows fill it.
            options: others of `torch.utils.data.DataLoader`, such as ``num_workers``.

        Raises:
            ConfigError: ``in_order=False``: batches would come as workers are done with them.
            TypeError: the seed is no integer.
            ValueError: there are not enough rows for one step.
        """
        if not options.get("in_order", True):
            raise ftcomm.ConfigError(
                "in_order=False: a restarted rank would get batches in another order",
                remedy="leave it True",
            )
        rows = BatchSampler(
            len(dataset), comm or ftcomm.current(), batch_size=batch_size, seed=seed,
            shuffle=shuffle, drop_last=drop_last,
        )  # fmt: skip
        self.before_first_batch: Callable[[], None] = _do_nothing
        generator = torch.Generator().manual_seed(operator.index(seed) % SEEDS)
        super().__init__(dataset, batch_sampler=rows, generator=generator, **options)

    @property
    def epoch(self) -> int:
        """Number of complete passes."""
        return int(self.batch_sampler.epoch)

    @property
    def position(self) -> int:
        """Batches of this epoch that were given to the script."""
        return int(self.batch_sampler.position)

    def __iter__(self) -> Iterator[Any]:
        """The batches of this epoch from `position` on."""
        # Now and not with the first batch, for which zip() does not ask behind an empty loader.
        return self._batches() if self.batch_sampler.begin_pass() else iter(())

    def _batches(self) -> Iterator[Any]:
        self.before_first_batch()
        yield from self.batch_sampler.over(super().__iter__())

    def begin_next_epoch(self) -> None:
        """End the epoch, for who stops before its end, or holds its iterator for longer."""
        self.batch_sampler.begin_next_epoch()

    def state_dict(self) -> dict[str, Any]:
        """The position, equal on all ranks."""
        return dict(self.batch_sampler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind `state`."""
        self.batch_sampler.load_state_dict(state)


def _do_nothing() -> None:
    """Stand for what an adapter does before the first batch."""
