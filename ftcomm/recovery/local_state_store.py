"""Local states: what differs from rank to rank in a checkpoint, and the copies held for others.

A version that this store knows has local states, whether any of them is held yet or not; of any
other version there are none.  At most two are known at a time: the committed and the tentative.
"""

from collections.abc import Mapping
from typing import Any

from ftcomm.protocol.field_types import MAX_LOCAL_VERSIONS
from ftcomm.protocol.messages import LocalStates


class LocalStore:
    """Local states by version and rank. All methods are for the holder of the core's lock."""

    def __init__(self) -> None:
        self._held: dict[int, dict[int, Any]] = {}

    def offer(self, version: int, rank: int, value: Any) -> None:
        """Hold one's own of a tentative version; copies of an earlier attempt at it go."""
        self._held[version] = {rank: value}

    def expect(self, version: int) -> None:
        """`version` is committed and has local states: they are being fetched."""
        self._held.setdefault(version, {})

    def put(self, version: int, rank: int, value: Any) -> bool:
        """Hold one more; False, and nothing is held, if the version is not known."""
        held = self._held.get(version)
        if held is not None:
            self._held[version] = dict(sorted({**held, rank: value}.items()))
        return held is not None

    def get(self, version: int, rank: int) -> Any | None:
        """The local state of `rank` in `version`, None if it is not held or never was."""
        return self._held.get(version, {}).get(rank)

    def of(self, version: int) -> Mapping[int, Any] | None:
        """The local states of `version` that are held by rank, None if it has none."""
        return self._held.get(version)

    def lacks(self, version: int, rank: int) -> bool:
        """Tell whether `version` has local states and that of `rank` is not here yet."""
        return version in self._held and rank not in self._held[version]

    def commit(self, version: int) -> None:
        """`version` is committed: local states of older ones are not needed again."""
        self._held = {v: held for v, held in self._held.items() if v >= version}

    def abandon(self, version: int, rank: int) -> None:
        """A plan did not commit the tentative `version`: it is made again, from one's own on.

        What others gave goes: another incarnation of theirs may offer something else.
        """
        held = self._held.get(version)
        if held is not None:
            self._held[version] = {rank: held[rank]}

    def report(self) -> tuple[LocalStates, ...]:
        """List the ranks whose local states are held, by version."""
        assert len(self._held) <= MAX_LOCAL_VERSIONS, (
            f"local states of versions {sorted(self._held)}"
        )
        return tuple(LocalStates(v, tuple(self._held[v])) for v in sorted(self._held))
