"""The sent log: this rank's messages of the present version, kept until it commits (rule R21)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftcomm.recovery.messages.names import (
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
        running: digest of the stream up to here.
        digest: of its content.
        value: the content as the engine keeps it; opaque here, and never written any more.
        site: where the user sent it.
    """

    stream: Stream
    number: int
    running: bytes
    digest: bytes
    value: Any
    site: str


class SentLog:
    """Messages by destination, in the order in which they were sent.

    A rank that was restarted sends anew what it had sent.  Receivers say how far they have come,
    and what it was; that is compared as soon as the log has come as far.

    Attributes:
        nbytes: what its messages take, as their sender counts it.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._to: dict[int, list[SentMessage]] = {}
        self._streams: dict[Stream, list[SentMessage]] = {}
        self._claims: dict[Stream, Mark] = {}  # of receivers that have come farther than the log

    def add(self, stream: Stream, digest: bytes, value: Any, site: str) -> bool:
        """Keep one more message.

        Returns:
            False if its receiver has got other messages of this stream, up to this number, from an
            earlier process of this rank. It is kept all the same: the job is over.
        """
        sent = self._streams.get(stream)
        if sent is None:
            sent = self._streams[stream] = []
            self._to.setdefault(stream.destination, [])
        mark = behind(_end_of(sent), digest)
        message = SentMessage(stream, *mark, digest, value, site)
        sent.append(message)
        self._to[stream.destination].append(message)
        claim = self._claims.get(stream)
        if claim is None or claim.number != mark.number:
            return True
        del self._claims[stream]
        return claim.running == mark.running

    @property
    def weight(self) -> int:
        """The weight of all that was sent in this version."""
        return weight((stream, _end_of(sent)) for stream, sent in self._streams.items())

    def has_room_for(self, stream: Stream, limit: int) -> bool:
        """False where `stream` would be one more than `limit` to its destination."""
        if stream in self._streams or len(self._streams) < limit:
            return True
        return sum(other.destination == stream.destination for other in self._streams) < limit

    def claim(self, stream: Stream, mark: Mark) -> bool:
        """Take a receiver's word for how far it has come; False if that contradicts the log."""
        sent = self._streams.get(stream, [])
        if mark.number > len(sent):
            self._claims[stream] = mark
            return True
        known = sent[mark.number - 1].running if mark.number else START.running
        return known == mark.running

    def behind(
        self, destination: int, at: int, marks: Mapping[bytes, int], count: int
    ) -> tuple[int, list[SentMessage]]:
        """Messages that `destination` lacks, in the order of sending.

        Args:
            destination: the receiver.
            at: how many entries of its list it has been sent or does not need.
            marks: by tag, the number up to which it has the messages.
            count: at most so many.

        Returns:
            how many entries that are now, and the messages.
        """
        messages, found = self._to.get(destination, ()), list[SentMessage]()
        while at < len(messages) and len(found) < count:
            message = messages[at]
            at += 1
            if message.number > marks.get(message.stream.tag, 0):
                found.append(message)
        return at, found

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
        streams = self._streams.items()
        return total_of((s.tag, _end_of(m)) for s, m in streams if s.destination == destination)

    def site_of(self, destination: int, index: int) -> str:
        """The line of one message to `destination`, or of the last one before."""
        messages = self._to.get(destination, ())
        return messages[min(index, len(messages) - 1)].site if messages else ""

    def commit(self) -> list[Any]:
        """The version is committed: nobody needs its messages; return their values."""
        values = [message.value for messages in self._to.values() for message in messages]
        self.nbytes = 0
        self._to.clear()
        self._streams.clear()
        self._claims.clear()
        return values

    def newest(self, stream: Stream) -> SentMessage | None:
        """The newest message of a stream; None if there is none."""
        sent = self._streams.get(stream)
        return sent[-1] if sent else None


def _end_of(sent: Sequence[SentMessage]) -> Mark:
    """The mark behind the last of these messages of one stream."""
    return Mark(sent[-1].number, sent[-1].running) if sent else START
