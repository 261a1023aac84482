"""Roles of the processes that a launcher has started: which are to count when a group forms. Pure.

A process learns at its start whether it is a spare, and keeps that while it imports. A spare may
have taken a rank since, so that the next process of the lost worker was started as a spare; then
the job begins its next attempt, in which nobody has a rank yet. Ids alone would say that both are
spares, and the group would lack a member.
"""

from collections.abc import Collection


class StartedRoles:
    """By worker id, whether the process that runs was started as a spare."""

    def __init__(self, spares: Collection[str]) -> None:
        """Begin without processes; ids in `spares` are those that usually have no rank."""
        self._ids = frozenset(spares)
        self._is_spare: dict[str, bool] = {}

    def begin(self, worker_id: str, *, spare: bool) -> None:
        """A process is being started in that role."""
        self._is_spare[worker_id] = spare

    def end(self, worker_id: str) -> None:
        """It has ended, and keeps its role from nobody any more."""
        self._is_spare.pop(worker_id, None)

    def while_forming(self, worker_id: str) -> bool:
        """True if the next process shall be a spare: as its id says, or in place of another.

        It is another's if more ids of the other kind have this one's role than the other way
        round.
        """
        usual = worker_id in self._ids
        taken = given = 0
        for other, spare in self._is_spare.items():
            if other == worker_id or spare == (other in self._ids):
                continue
            if spare == usual:
                taken += 1
            else:
                given += 1
        return usual if taken <= given else not usual
