"""The inbox: messages of one version that have arrived, until the user takes them (R21)."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from ftcomm.errors import ProtocolError
from ftcomm.protocol.field_types import MAX_TAGS
from ftcomm.recovery.messages.names import (
    START,
    Mark,
    StreamKey,
    Total,
    behind,
    total_of,
    weight,
)


class Taker(Protocol):
    """The user's side of a message that is not held."""

    has_taken: bool  # set just before the taking


@dataclass(slots=True)
class _Arrived:
    """One stream: how far it has arrived, how far it was taken, and what lies in between."""

    arrived: Mark = START
    taken: Mark = START
    waiting: deque[tuple[Mark, Any, int]] = field(default_factory=deque)


class Inbox:
    """Streams that lead to this rank."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._streams: dict[StreamKey, _Arrived] = {}

    def put(self, stream: StreamKey, number: int, digest: bytes, value: Any, nbytes: int) -> bool:
        """Hold a message of `nbytes`; False if it is here, or is not the next of its stream.

        Raises:
            ProtocolError: its source has sent it of more tags than a rank may.
        """
        source, _, _ = stream
        found = self._streams.get(stream)
        if found is None:
            self._check_tags(source)
            found = self._streams[stream] = _Arrived()
        if number != found.arrived.number + 1:
            return False
        found.arrived = behind(found.arrived, digest)
        self._held[source] = self.held(source) + nbytes
        found.waiting.append((found.arrived, value, nbytes))
        return True

    def _check_tags(self, source: int) -> None:
        """There is room for one more: a request for messages has a mark of each."""
        if len(self._streams) < MAX_TAGS:
            return
        if sum(other == source for other, _, _ in self._streams) >= MAX_TAGS:
            raise ProtocolError(f"rank {source} sends messages of more than {MAX_TAGS} tags")

    def held(self, source: int) -> int:
        """Bytes of `source` that wait to be taken."""
        return self._held.get(source, 0)

    def arrived(self, stream: StreamKey) -> Mark:
        """The place up to which a stream has arrived."""
        found = self._streams.get(stream)
        return START if found is None else found.arrived

    def has(self, stream: StreamKey) -> bool:
        """Tell whether a message of `stream` waits to be taken."""
        found = self._streams.get(stream)
        return found is not None and bool(found.waiting)

    def next_number(self, stream: StreamKey) -> int:
        """Number of the next message of a stream; 0 where one waits to be taken."""
        found = self._streams.get(stream)
        if found is None:
            return 1
        return 0 if found.waiting else found.arrived.number + 1

    def first(self, stream: StreamKey) -> Any | None:
        """The next message of `stream`, which stays; None if it has not come."""
        found = self._streams.get(stream)
        return found.waiting[0][1] if found is not None and found.waiting else None

    def take(self, stream: StreamKey) -> Any:
        """Give the next message of `stream`, which waits here, to the user."""
        source, _, _ = stream
        found = self._streams[stream]
        found.taken, value, nbytes = found.waiting.popleft()
        self._held[source] = self.held(source) - nbytes
        return value

    def pass_on(self, stream: StreamKey, number: int, digest: bytes, taker: Taker) -> bool:
        """Take a message as it comes, without holding it; False where it must be `put`.

        That is the first one of a stream, and one before which others wait or are missing.
        """
        found = self._streams.get(stream)
        if found is None or found.waiting or number != found.arrived.number + 1:
            return False
        if taker.has_taken:  # this is the next one, in the same piece of bytes
            return False
        taker.has_taken = True
        found.arrived = found.taken = behind(found.arrived, digest)
        return True

    @property
    def weight(self) -> int:
        """The weight of all that was taken in this version."""
        return weight((stream, found.taken) for stream, found in self._streams.items())

    def sources(self) -> set[int]:
        """Ranks of which a message has come."""
        return {source for (source, _, _), found in self._streams.items() if found.arrived.number}

    def marks(self, source: int) -> tuple[tuple[bytes, Mark], ...]:
        """By tag, how far the streams of `source` have arrived."""
        return tuple(
            (tag, found.arrived)
            for (of, _, tag), found in sorted(self._streams.items())
            if of == source and found.arrived.number
        )

    def total(self, source: int) -> Total:
        """All that was taken of `source`."""
        streams = self._streams.items()
        return total_of((tag, found.taken) for (of, _, tag), found in streams if of == source)
