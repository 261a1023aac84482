"""Copies that this rank has asked others for, in one epoch (rule R20)."""

from collections.abc import Iterable, Mapping, Sequence

from ftcomm.protocol.link_messages import MAX_COPIES, CopyName

Lane = tuple[int, bool]  # a rank, and whether it is asked for its own results


class AskedCopies:
    """Questions that are open, by rank, and ranks that have said that they have none.

    A rank is asked for results of its own and for those that it holds by two requests: it may have
    to get the former first, and answers in order.  The latter it has or has not, so no rank waits
    for another one to get its own.  A rank is asked again when it has answered all of a request.
    All is forgotten with the epoch: links end with it, and another plan may know other ranks.
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._asked: dict[Lane, set[CopyName]] = {}
        self._without: dict[CopyName, frozenset[int]] = {}

    def turn_to(self, epoch: int) -> None:
        """The plan of `epoch` is in force."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._asked, self._without = {}, {}

    def ask(
        self, wanted: Iterable[tuple[CopyName, Sequence[int]]]
    ) -> Mapping[Lane, list[CopyName]]:
        """Choose what each idle rank is asked for; it counts as asked then.

        Args:
            wanted: names, each with the ranks that may have it, in the order in which to ask them.
        """
        orders: dict[Lane, list[CopyName]] = {}
        for name, ranks in wanted:
            left = self._left(name, ranks)
            if left and _lane(name, left[0]) not in self._asked:
                order = orders.setdefault(_lane(name, left[0]), [])
                if len(order) < MAX_COPIES:
                    order.append(name)
        self._asked |= {lane: set(names) for lane, names in orders.items()}
        return orders

    def _left(self, name: CopyName, ranks: Sequence[int]) -> list[int]:
        without = self._without.get(name, frozenset())
        return [rank for rank in ranks if rank not in without]

    def none_left(self, name: CopyName, ranks: Sequence[int]) -> bool:
        """Tell whether none of `ranks` has that copy, as each has said."""
        return not self._left(name, ranks)

    def awaits(self, epoch: int, name: CopyName, rank: int) -> bool:
        """Tell whether `rank` is asked for that copy."""
        return epoch == self._epoch and name in self._asked.get(_lane(name, rank), ())

    def answered(self, name: CopyName, rank: int, *, has_it: bool) -> bool:
        """Note the answer of `rank`, which was asked; True if that was the last of a request.

        What is missing is asked for anew then, and not for each name: a rank may lack thousands.
        """
        asked = self._asked[_lane(name, rank)]
        asked.discard(name)
        if not asked:
            del self._asked[_lane(name, rank)]
        if not has_it:
            self._without[name] = self._without.get(name, frozenset()) | {rank}
        return not asked


def _lane(name: CopyName, rank: int) -> Lane:
    return rank, name.owner == rank
