"""Names of messages: numbers within a version, running digests, and the balance of a cut (R21)."""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

RUNNING_BYTES = 16
NOTHING_YET = bytes(RUNNING_BYTES)  # the running digest before the first message
MODULUS = 1 << 64


class Stream(NamedTuple):
    """The messages of one tag from one rank to another; they keep their order."""

    source: int
    destination: int
    tag: bytes


# What a stream is looked up by: a plain tuple equals it, and is made in a tenth of the time.
StreamKey = tuple[int, int, bytes]


class Mark(NamedTuple):
    """Place in a stream: so many messages of this version, and the running digest of them."""

    number: int
    running: bytes


START = Mark(0, NOTHING_YET)


class Total(NamedTuple):
    """All streams from one rank to another: how many messages, and a digest of 8 bytes."""

    number: int
    digest: bytes


TOTAL_BYTES = 8  # of a total's digest


def total_of(marks: Iterable[tuple[bytes, Mark]]) -> Total:
    """The total of streams by tag, in any order; of none that has not begun."""
    digest, number = hashlib.blake2b(digest_size=TOTAL_BYTES), 0
    for tag, mark in sorted(marks):
        if mark.number:
            number += mark.number
            digest.update(b"%d %d " % (mark.number, len(tag)) + tag + mark.running)
    return Total(number, digest.digest())


def behind(mark: Mark, digest: bytes) -> Mark:
    """The place behind one more message, whose content has `digest`."""
    return Mark(mark.number + 1, running_behind(mark.running, digest))


def running_behind(running: bytes, digest: bytes) -> bytes:
    """The running digest behind one more message, whose content has `digest`."""
    return xxhash.xxh3_128_digest(running + digest)


def weight(ends: Iterable[tuple[StreamKey, Mark]]) -> int:
    """64 bits that stand for streams up to these places; 0 of streams that have not begun."""
    return sum(_weight(stream, mark) for stream, mark in ends if mark.number) % MODULUS


def _weight(stream: StreamKey, mark: Mark) -> int:
    source, destination, tag = stream
    text = b"%d %d %d " % (source, destination, mark.number)
    return xxhash.xxh3_64_intdigest(text + tag + mark.running)
