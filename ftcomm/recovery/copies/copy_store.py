"""The copy store: results of single ranks, this rank's own and those kept for others (rule R20).

A copy is named by position and owner, and has the epoch in which the call was executed.  Copies
stay until their version commits: a rank that lacks its result then loads the newer version.
"""

from typing import Any, NamedTuple

from ftcomm.protocol.link_messages import CopyName
from ftcomm.protocol.position import Position


class ResultCopy(NamedTuple):
    """One rank's result of one call.

    Attributes:
        epoch: in which the call was executed.
        digest: of the result.
        value: the result as the engine keeps it; opaque here, and never written any more.
    """

    epoch: int
    digest: bytes
    value: Any


class CopyStore:
    """Copies by position and owner, and the names of those that should be here and are not."""

    def __init__(self) -> None:
        self._held: dict[Position, dict[int, ResultCopy]] = {}
        self._wanted: dict[CopyName, bytes] = {}  # the digest
        self.made_last = False  # the checkpoint committed last was computed from some

    def __len__(self) -> int:
        return sum(len(copies) for copies in self._held.values())

    def put(self, name: CopyName, copy: ResultCopy) -> None:
        """Hold a copy; those of an older execution of the call go, whose ever they are."""
        held = self._held.get(name.position, {})
        newer = {rank: other for rank, other in held.items() if other.epoch >= copy.epoch}
        self._held[name.position] = dict(sorted({**newer, name.owner: copy}.items()))
        if self._wanted.get(name) == copy.digest:
            del self._wanted[name]

    def get(self, name: CopyName) -> ResultCopy | None:
        """The copy of that name, if held."""
        return self._held.get(name.position, {}).get(name.owner)

    def expect(self, name: CopyName, digest: bytes) -> None:
        """A copy with this digest should be here: others have completed the call with it."""
        copy = self.get(name)
        if copy is None or copy.digest != digest:
            self._wanted[name] = digest

    @property
    def wanted(self) -> tuple[CopyName, ...]:
        """Names of copies that are expected and not here."""
        return tuple(self._wanted)

    def fits(self, name: CopyName, copy: ResultCopy) -> bool:
        """Tell whether that is the copy which is wanted."""
        return self._wanted.get(name) == copy.digest

    def commit(self, version: int) -> list[Any]:
        """Checkpoint `version` is committed: release what older ones have; return the values."""
        outdated = [position for position in self._held if position.version < version]
        self._wanted = {n: d for n, d in self._wanted.items() if n.position.version >= version}
        self.made_last = bool(outdated)
        return [copy.value for p in outdated for copy in self._held.pop(p).values()]
