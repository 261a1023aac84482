"""Statistics as users get them: what was called, what it cost, what was recovered."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any


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
