"""State machines as data; docs/design/states.md draws each table."""

import enum
from typing import Generic, TypeVar

State = TypeVar("State", bound=enum.Enum)


class StateTable(Generic[State]):
    """The edges that one machine may take; all others are defects.

    Attributes:
        edges: (from, cause, to); the first one leaves the state in which the machine begins.
    """

    def __init__(self, *edges: tuple[State, str, State]) -> None:
        self.edges = edges
        self._known = frozenset(edges)

    def take(self, state: State, cause: str, to: State) -> State:
        """`to`, if an edge leads there."""
        assert (state, cause, to) in self._known, (state, cause, to)
        return to
