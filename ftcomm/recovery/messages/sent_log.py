"""The sent log: this rank's messages of the present version, kept until it commits (rule R21)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftcomm.recovery.messages.names import (
    START,
    Mark,
    Stream,
    StreamKey,
    Total,
    behind,
    running_behind,
    total_of,
    weight,
)


@dataclass(slots=True)
class SentMessage:
    """One message in the log."""

    stream: Stream  # that it belongs to
    number: int  # within its stream and version, from 1
    running: bytes  # digest of the stream up to here
    digest: bytes  # of its content
    # The content as the engine keeps it; opaque here, and never written any more.  None while the
    # thread that sends the message has yet to copy it: only that thread can send it until then.
    value: Any
    site: str  # where the user sent it
    is_missed: bool = False  # it was to be sent when it had no value

    def keep(self, value: Any) -> bool:
        """Take the value, where the message was logged without one.

        Returns:
            True if it was missed: the caller has the control thread look again.
        """
        self.value = value
        return self.is_missed


class SentLog:
    """Messages by destination, in the order in which they were sent.

    A rank that was restarted sends anew what it had sent.  Receivers say how far they have come,
    and what it was; that is compared as soon as the log has come as far.
    """

    def __init__(self) -> None:
        self.nbytes = 0  # what its messages take, as their sender counts it
        self._to: dict[int, list[SentMessage]] = {}
        self._streams: dict[StreamKey, list[SentMessage]] = {}
        self._claims: dict[StreamKey, Mark] = {}  # of receivers that have come farther than the log

    def add(self, key: StreamKey, digest: bytes, value: Any, site: str) -> bool:
        """Keep one more message.

        Returns:
            False if its receiver has got other messages of this stream, up to this number, from an
            earlier process of this rank. It is kept all the same: the job is over.
        """
        sent = self._streams.get(key)
        if sent:
            last = sent[-1]
            stream, number = last.stream, last.number + 1
            running = running_behind(last.running, digest)
        else:
            stream = Stream(*key)
            sent = self._streams.setdefault(stream, [])
            self._to.setdefault(stream.destination, [])
            number, running = behind(START, digest)
        message = SentMessage(stream, number, running, digest, value, site)
        sent.append(message)
        self._to[stream.destination].append(message)
        claim = self._claims.get(stream) if self._claims else None
        if claim is None or claim.number != number:
            return True
        del self._claims[stream]
        return claim.running == running

    @property
    def weight(self) -> int:
        """The weight of all that was sent in this version."""
        return weight((stream, _end_of(sent)) for stream, sent in self._streams.items())

    def has_room_for(self, stream: StreamKey, limit: int) -> bool:
        """False where `stream` would be one more than `limit` to its destination."""
        if stream in self._streams or len(self._streams) < limit:
            return True
        _, to, _ = stream
        return sum(destination == to for _, destination, _ in self._streams) < limit

    def claim(self, stream: StreamKey, mark: Mark) -> bool:
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

        Returns:
            how many entries that are now, and the messages.  One without a value, and what is
            behind it, waits until it is kept.
        """
        messages, found = self._to.get(destination, ()), list[SentMessage]()
        while at < len(messages) and len(found) < count:
            message = messages[at]
            if message.number > marks.get(message.stream.tag, 0):
                if message.value is None:
                    message.is_missed = True
                    break
                found.append(message)
            at += 1
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
        return total_of((tag, _end_of(sent)) for (_, to, tag), sent in streams if to == destination)

    def site_of(self, destination: int, index: int) -> str:
        """The line of one message to `destination`, or of the last one before."""
        messages = self._to.get(destination, ())
        return messages[min(index, len(messages) - 1)].site if messages else ""

    def commit(self) -> list[Any]:
        """The version is committed: nobody needs its messages; return their values."""
        messages = (message for sent in self._to.values() for message in sent)
        values = [message.value for message in messages if message.value is not None]
        self.nbytes = 0
        self._to.clear()
        self._streams.clear()
        self._claims.clear()
        return values

    def newest(self, stream: StreamKey) -> SentMessage | None:
        """The newest message of a stream; None if there is none."""
        sent = self._streams.get(stream)
        return sent[-1] if sent else None


def _end_of(sent: Sequence[SentMessage]) -> Mark:
    """The mark behind the last of these messages of one stream."""
    return Mark(sent[-1].number, sent[-1].running) if sent else START
