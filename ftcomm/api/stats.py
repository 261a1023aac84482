"""Counters of one communicator: what was called, what it cost, what was recovered."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ftcomm.protocol.signature import Kind


@dataclass(frozen=True, slots=True)
class KindStats:
    """The calls of one kind that returned.

    Attributes:
        count: how many, replayed ones included.
        nbytes: bytes of their results, or of the states of checkpoints.
        seconds: time spent in them, waiting for others included; of nonblocking ones from their
            turns on, whatever the script did meanwhile.
    """

    count: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot, made by ``comm.stats()``; counts from `init` on.

    Attributes:
        kinds: by the name of the kind; only those that were called.
        replays: results that came from a log instead of being executed.
        fetched: results that this worker got from others to replay or to keep.
        epochs: memberships that this worker has been part of; 1 where nothing ever failed.
        corrupted: times that bytes from another worker did not match their checksum.
        links: the ranks to which links are open now, and what each is made of: ``shm`` (shared
            memory), ``unix`` or ``tcp``. Links are made when a collective first needs them.
    """

    kinds: dict[str, KindStats]
    replays: int
    fetched: int
    epochs: int
    corrupted: int = 0
    links: dict[int, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a log line or a JSON document."""
        return dataclasses.asdict(self)


class CallStats:
    """Counts calls by kind; written in every call, so it does as little as possible."""

    def __init__(self) -> None:
        # by the kind's number: the hash of an enumeration's member costs more than all the rest
        self._rows: list[list[float]] = [[0, 0, 0.0] for _ in range(max(Kind) + 1)]

    def add(self, kind: Kind, nbytes: int, seconds: float) -> None:
        """Count one call that returned."""
        row = self._rows[kind]
        row[0] += 1
        row[1] += nbytes
        row[2] += seconds

    def row(self, kind: Kind) -> list[float]:
        """Count, bytes and seconds of a kind, to be added to."""
        return self._rows[kind]

    def snapshot(self) -> dict[str, KindStats]:
        """Return the counts so far."""
        return {
            kind.name.lower(): KindStats(int(count), int(nbytes), seconds)
            for kind in Kind
            for count, nbytes, seconds in [self._rows[kind]]
            if count
        }
