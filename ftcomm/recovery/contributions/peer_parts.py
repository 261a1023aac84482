"""Parts that other ranks contribute to a call which this rank replays (rule R20)."""

from typing import Any

from ftcomm.protocol.position import START, Position


class PeerParts:
    """Parts of one call, by rank, in one epoch.

    They are dropped with the epoch: if all that have completed the call are lost, it is executed
    again, perhaps with other inputs.
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._position = START
        self._asked: frozenset[int] = frozenset()
        self._here: dict[int, Any] = {}

    def _turn_to(self, epoch: int, position: Position) -> None:
        if (epoch, position) != (self._epoch, self._position):
            self._epoch, self._position = epoch, position
            self._asked, self._here = frozenset(), {}

    def ask(self, epoch: int, position: Position, ranks: frozenset[int]) -> tuple[int, ...]:
        """Note that parts of `ranks` are wanted; return those that were not asked for yet."""
        self._turn_to(epoch, position)
        new = ranks - self._asked
        self._asked |= new
        return tuple(sorted(new))

    def awaits(self, epoch: int, position: Position, rank: int) -> bool:
        """Tell whether that part was asked for and is not here."""
        is_current = (epoch, position) == (self._epoch, self._position)
        return is_current and rank in self._asked and rank not in self._here

    def put(self, rank: int, value: Any) -> None:
        """Hold the part of `rank`, which was awaited."""
        self._here[rank] = value

    def of(self, epoch: int, position: Position, ranks: frozenset[int]) -> dict[int, Any] | None:
        """The parts of `ranks`, None while one of them is missing."""
        is_current = (epoch, position) == (self._epoch, self._position)
        return dict(self._here) if is_current and self._here.keys() == ranks else None
