"""The sent log: this rank's messages of the present version, kept until it commits (rule R21)."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ftcomm.recovery.messages.names import (
    MODULUS,
    START,
    Mark,
    Stream,
    Total,
    behind,
    total_of,
    weight,
)


class SentMessage(NamedTuple):
    """One message in the log.

    Attributes:
        stream: that it belongs to.
        number: within its stream and version, from 1.
        digest: of its content.
        value: the content as the engine keeps it; opaque here, and never written any more.
        site: where the user sent it.
    """

    stream: Stream
    number: int
    digest: bytes
    value: Any
    site: str


class SentLog:
    """Messages by destination, in the order in which they were sent.

    A rank that was restarted sends anew what it had sent.  Receivers say how far they have come,
    and what it was; that is compared as soon as the log has come as far.

    Attributes:
        balance: weights of all that was sent in this version, added up.
        nbytes: what its messages take, as their sender counts it.
    """

    def __init__(self) -> None:
        self.balance = self.nbytes = 0
        self._to: dict[int, list[SentMessage]] = {}
        self._marks: dict[Stream, Mark] = {}
        self._claims: dict[Stream, Mark] = {}  # of receivers that have come farther than the log

    def add(self, stream: Stream, digest: bytes, value: Any, site: str) -> bool:
        """Keep one more message.

        Returns:
            False if its receiver has got other messages of this stream, up to this number, from an
            earlier process of this rank. It is kept all the same: the job is over.
        """
        mark = self._marks[stream] = behind(self._marks.get(stream, START), digest)
        self.balance = (self.balance + weight(stream, mark)) % MODULUS
        message = SentMessage(stream, mark.number, digest, value, site)
        self._to.setdefault(stream.destination, []).append(message)
        claim = self._claims.get(stream)
        if claim is None or claim.number != mark.number:
            return True
        del self._claims[stream]
        return claim.running == mark.running

    def has_room_for(self, stream: Stream, limit: int) -> bool:
        """False where `stream` would be one more than `limit` to its destination."""
        if stream in self._marks or len(self._marks) < limit:
            return True
        return sum(other.destination == stream.destination for other in self._marks) < limit

    def claim(self, stream: Stream, mark: Mark) -> bool:
        """Take a receiver's word for how far it has come; False if that contradicts the log."""
        known = self._mark_at(stream, mark.number)
        if known is None:
            self._claims[stream] = mark
            return True
        return known.running == mark.running

    def _mark_at(self, stream: Stream, number: int) -> Mark | None:
        """The mark behind that number; None if the log has not come so far."""
        mark = START
        for message in self._to.get(stream.destination, ()):
            if mark.number == number:
                break
            if message.stream == stream:
                mark = behind(mark, message.digest)
        return mark if mark.number == number else None

    def behind(
        self, destination: int, at: int, marks: Mapping[bytes, int]
    ) -> Iterator[tuple[int, SentMessage]]:
        """Messages that `destination` lacks, each with the index of the entry behind it.

        Args:
            destination: the receiver.
            at: how many entries of its list it has been sent or does not need.
            marks: by tag, the number up to which it has the messages.
        """
        for index, message in enumerate(self._to.get(destination, ())[at:], at + 1):
            if message.number > marks.get(message.stream.tag, 0):
                yield index, message

    def newest_behind(
        self, destination: int, at: int, marks: Mapping[bytes, int]
    ) -> SentMessage | None:
        """The newest message to `destination`, if it lacks it and `at` counts all before it."""
        messages = self._to.get(destination, ())
        if len(messages) != at + 1:
            return None
        message = messages[at]
        return message if message.number > marks.get(message.stream.tag, 0) else None

    def total(self, destination: int) -> Total:
        """All that was sent to `destination`."""
        return total_of((s.tag, m) for s, m in self._marks.items() if s.destination == destination)

    def site_of(self, destination: int, index: int) -> str:
        """The line of one message to `destination`, or of the last one before."""
        messages = self._to.get(destination, ())
        return messages[min(index, len(messages) - 1)].site if messages else ""

    def commit(self) -> list[Any]:
        """The version is committed: nobody needs its messages; return their values."""
        values = [message.value for messages in self._to.values() for message in messages]
        self.balance = self.nbytes = 0
        self._to.clear()
        self._marks.clear()
        self._claims.clear()
        return values

    def newest(self, stream: Stream) -> SentMessage | None:
        """The newest message of a stream; None if there is none."""
        messages = reversed(self._to.get(stream.destination, []))
        return next((message for message in messages if message.stream == stream), None)
