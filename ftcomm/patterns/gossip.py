"""Gossip: decentralised SGD, in which each step averages with one other rank.

The exchange of a step is under way while the rank computes its gradient, and no call waits for all
ranks.  A rank's partner of a step does not follow from timing, but from a keyed permutation of the
ranks.  So a restarted rank asks for the messages that it had got, and comes to the same bits.
"""

import contextlib
import hashlib
import operator
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import numpy as np

import ftcomm

Array = np.ndarray[Any, Any]
TAG: Final = "ftcomm.patterns.Gossip"
HALF: Final = 0.5  # of a mean of two


def partner_of(rank: int, world_size: int, key: str) -> int | None:
    """The rank that `rank` is paired with; None for the one that is left over of an odd number.

    The ranks are put into the order of their digests, and each two neighbours are a pair.
    """

    def digest(number: int) -> bytes:
        return hashlib.blake2b(f"{key} {number}".encode(), digest_size=16).digest()

    order = sorted(range(world_size), key=digest)
    other = order.index(rank) ^ 1
    return order[other] if other < world_size else None


class Gossip:
    """Decentralised SGD with partners drawn by a seed.

    In each step a rank sends its weights to its partner of the step, computes a gradient, averages
    its weights with the partner's, and then applies the gradient.  So the gradient is of weights
    before the average, as in AD-PSGD.  There a rank averages with any that is free; here it waits
    for its partner's message of the same step, and for no other rank.

    Each rank's weights are its own: they belong into the `local` state of a checkpoint.
    `average_weights` makes one model of them at the end.

    Source: Lian, Zhang, Zhang, Liu, "AD-PSGD", 2018; matchings as in Boyd et al., "Randomized
    Gossip Algorithms", 2006.
    """

    def __init__(
        self,
        comm: ftcomm.Communicator,
        seed: int = 7,
        *,
        deadline: float | timedelta | None = None,
    ) -> None:
        """Compare the seed with the other ranks' by a barrier in the prelude.

        Args:
            comm: whose ranks train.
            seed: of all partners; the same on all ranks.
            deadline: of the wait for a partner, as for `Communicator.recv`. Without one, a rank
                that makes more exchanges than its partner waits for ever.

        Raises:
            TypeError: `seed` is no whole number.
            ValueError: `load_checkpoint` was called already: a restarted rank would make the
                barrier where the others did not.
            CollectiveMismatchError: the seeds of two ranks differ.
        """
        self._comm, self._seed, self._deadline = comm, operator.index(seed), deadline
        if comm.version >= 0:
            raise ValueError("make Gossip() before load_checkpoint(), on every rank")
        comm.barrier(tag=self._seed)
        self._version, self._steps = 0, 0

    @contextlib.contextmanager
    def exchange(self, arrays: Sequence[Array]) -> Iterator[int | None]:
        """Send weights to this step's partner, run the body, and average with the partner's.

        The body computes the gradient and does not write into `arrays`; the gradient is applied
        behind it.  All ranks make as many exchanges between two checkpoints, of as many arrays.
        Each array is kept for a restart until the next checkpoint (``--log-limit``).

        Args:
            arrays: weights, writable and of floating dtypes; the same dtypes and shapes on all
                ranks. Each becomes half the sum of its own and the partner's, the same bytes on
                both. Unchanged where the rank has no partner in this step.

        Yields:
            the partner, or None.

        Raises:
            TypeError: an array is of whole numbers; nothing is sent.
            ValueError: before `load_checkpoint`, or the partner's weights have another form.
            FtcommError: see `Communicator.recv`.
        """
        if whole := [str(x.dtype) for x in arrays if x.dtype.kind in "biu"]:
            raise TypeError(f"Gossip: arrays of {whole[0]} have no mean: pass x.astype(float)")
        partner = self._next_partner()
        if partner is None:
            yield None
            return
        handles = [self._comm.irecv(partner, TAG, like=x, deadline=self._deadline) for x in arrays]
        for x in arrays:
            self._comm.isend(x, partner, TAG)
        yield partner
        for x, handle in zip(arrays, handles, strict=True):
            x += handle.wait()
            x *= HALF

    def _next_partner(self) -> int | None:
        """Follow from version and step, so that a restarted rank counts as it did before."""
        version = self._comm.version
        if version < 0:
            raise ValueError("Gossip.exchange() must come after load_checkpoint()")
        if version != self._version:
            self._version, self._steps = version, 0
        key = f"{self._seed} {version} {self._steps}"
        self._steps += 1
        return partner_of(self._comm.rank, self._comm.world_size, key)
