"""Folding: a group of any size becomes one of a power of two places, and back again.

With p the largest power of two up to n and e = n - p: ranks 0..2e-1 form pairs, of which the even
one hands its operand to the odd one above it and gets the result back at the end.  The other n - e
ranks have the p places, in rank order.
"""

from collections.abc import Callable, Sequence

from ftcomm.collectives.schedules.schedule import Reduce, Step


def is_power_of_two(world_size: int) -> bool:
    """True of 1, 2, 4, 8 and so on."""
    return world_size & (world_size - 1) == 0


class Fold:
    """Mapping of the ranks of a group of `world_size` to places."""

    def __init__(self, world_size: int) -> None:
        self.rounds = world_size.bit_length() - 1  # log2 of the number of places
        self._extra = world_size - (1 << self.rounds)

    def is_fresh(self, rank: int) -> bool:
        """True if the rank brings its own operand to its place, and nobody else's."""
        return rank >= 2 * self._extra

    def place(self, rank: int) -> int:
        """The place of a rank that has one."""
        return rank - self._extra if self.is_fresh(rank) else rank // 2

    def rank_at(self, place: int) -> int:
        """Return the rank at a place; places and their ranks are in one order."""
        return 2 * place + 1 if place < self._extra else place + self._extra

    def steps(
        self, rank: int, count: int, inner: Callable[[], Sequence[Step]], back: int
    ) -> tuple[Step, ...]:
        """All steps of `rank`: 0 folds, the places then take those of `inner`, `back` unfolds.

        Args:
            rank: whose they are.
            count: elements of an operand.
            inner: makes the steps of a rank that has a place, numbered from 1.
            back: the number that follows these.
        """
        if self.is_fresh(rank):
            return tuple(inner())
        if rank % 2 == 0:
            out = Step(tag=0, send_to=rank + 1, send_hi=count, send_from_sendbuf=True)
            return out, Step(tag=back, recv_from=rank + 1, recv_hi=count)
        return _fold(rank - 1, count), *inner(), Step(tag=back, send_to=rank - 1, send_hi=count)


def lower_first(count: int, *, incoming_first: bool) -> Reduce:
    """The order of two operands of `count` elements; without elements nothing is reduced."""
    if count == 0:
        return Reduce.NONE  # a barrier has no reducer, and a function may expect an element
    return Reduce.INCOMING_FIRST if incoming_first else Reduce.OWN_FIRST


def _fold(peer: int, count: int) -> Step:
    return Step(
        tag=0,
        recv_from=peer,
        recv_hi=count,
        reduce=lower_first(count, incoming_first=True),
        own_in_sendbuf=True,
    )
