"""The contribution log: this rank's own inputs, kept for ranks that replay a call (rule R20).

A contribution enters the log when the call is made, before anything of it is sent.  It stays until
its version commits: a rank that lacks its result then loads the newer version.
"""

from dataclasses import dataclass
from typing import Any

from ftcomm.protocol.position import Position


@dataclass(frozen=True, slots=True)
class Contribution:
    """One rank's input to one call.

    Attributes:
        signature: the 48 bytes of the call.
        digest: of the whole input.
        value: the input as the engine keeps it; opaque here, and never written any more.
        extents: for each rank, which rows ``[lo, hi)`` of the value are its part; empty where the
            value itself tells.
    """

    signature: bytes
    digest: bytes
    value: Any
    extents: tuple[tuple[int, int], ...] = ()


class ContributionLog:
    """Contributions by position."""

    def __init__(self) -> None:
        self._held: dict[Position, Contribution] = {}

    def __len__(self) -> int:
        return len(self._held)

    def put(self, position: Position, contribution: Contribution) -> None:
        """Hold what was given to the call at `position`; a call made again gives it anew."""
        self._held[position] = contribution

    def get(self, position: Position) -> Contribution | None:
        """The contribution to the call at `position`, if held."""
        return self._held.get(position)

    def commit(self, version: int) -> list[Any]:
        """Checkpoint `version` is committed: release what older ones have; return the values."""
        outdated = [position for position in self._held if position.version < version]
        return [self._held.pop(position).value for position in outdated]
