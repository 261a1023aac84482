"""Values that the public API returns, beside arrays."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

RestoredFrom = Literal["default", "memory"]


class Restored(NamedTuple):
    """Place at which a job continues, as ``load_checkpoint`` returns it.

    Attributes:
        version: number of checkpoints committed before; 0 on a fresh start.
        state: of that version; on a fresh start rank 0's default. This rank's own copy.
    """

    version: int
    state: Any


class RestoredLocal(NamedTuple):
    """The same where ``load_checkpoint`` was given a ``local_default``.

    Attributes:
        version: as in `Restored`.
        state: as in `Restored`.
        local: this rank's own local state of that version, or the default where it has none.
    """

    version: int
    state: Any
    local: Any


@dataclass(frozen=True, slots=True, order=True)
class CallPosition:
    """Position of a communicator: the collective that it will complete next.

    Positions are ordered as the program runs.  Text is as in errors and logs: ``version.seqno``.

    Attributes:
        version: number of committed checkpoints; -1 before ``load_checkpoint``.
        seqno: number of collectives since the version began.
    """

    version: int
    seqno: int

    def __str__(self) -> str:
        return f"{self.version}.{self.seqno}"


class MessageInfo(NamedTuple):
    """Description of a message that waits, as ``probe`` returns it.

    Attributes:
        dtype: of the elements; of an object uint8.
        shape: of the array; of an object its packed length.
        nbytes: that were sent.
        is_object: it is to be received with ``recv_object``.
    """

    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]
    nbytes: int
    is_object: bool


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
        links: the ranks to which links are open now, and what each is made of: ``unix`` or
            ``tcp``. Links are made when a collective first needs them, beside the memory that the
            ranks of a host share.
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
