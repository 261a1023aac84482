"""Schedule: the steps of one collective for one rank, as plain data.

Vocabulary.  The *source* is the rank's own input and is never written.  *Work* is where the result
grows.  A *block* is a range ``[lo, hi)`` of elements of one of the two.  A *step* sends at most one
block and receives at most one, both at the same time.  A *segment* is the part of a received block
that is reduced by one call; segments begin at fixed offsets from the block's beginning (rule R5).
"""

import enum
from dataclasses import dataclass, field

from ftcomm.protocol.signature import Algorithm, Kind

NOBODY = -1

# One reduction call. Small enough that incoming bytes are still in the second-level cache when
# they are reduced, large enough that calling numpy costs nothing. Part of the canonical order.
REDUCE_SEGMENT_BYTES = 256 * 1024


class Reduce(enum.IntEnum):
    """Treatment of an incoming block."""

    NONE = 0
    INCOMING_FIRST = 1
    OWN_FIRST = 2


@dataclass(frozen=True, slots=True)
class Step:
    """Send one block and receive another, together.

    Attributes:
        tag: number of the step in the collective; sender and receiver give the same.
        send_to: rank that gets ``[send_lo, send_hi)``, or NOBODY.
        send_from_sendbuf: that block is in sendbuf, else in recvbuf.
        recv_from: rank whose block lands at ``[recv_lo, recv_hi)`` of recvbuf, or NOBODY.
        reduce: how the incoming block meets the own one.
        own_in_sendbuf: the own operand is in sendbuf, else in recvbuf.
        hold: reduce only when the send has left, because it reads what the reduction writes.
    """

    tag: int
    send_to: int = NOBODY
    send_lo: int = 0
    send_hi: int = 0
    send_from_sendbuf: bool = False
    recv_from: int = NOBODY
    recv_lo: int = 0
    recv_hi: int = 0
    reduce: Reduce = Reduce.NONE
    own_in_sendbuf: bool = False
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Elements of sendbuf that are part of the result as they are."""

    work_lo: int
    source_lo: int
    source_hi: int


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Steps of one rank in one collective; compared and hashed by identity, so cache it."""

    kind: Kind
    algorithm: Algorithm
    world_size: int
    rank: int
    sendbuf_count: int  # elements of sendbuf that are read (0: none are)
    recvbuf_count: int  # elements of recvbuf
    steps: tuple[Step, ...]
    copies: tuple[Copy, ...] = ()  # done before the steps, in any order
    # Every rank that is sent to or received from, ascending.
    peers: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        ends = {end for step in self.steps for end in (step.send_to, step.recv_from)}
        object.__setattr__(self, "peers", tuple(sorted(ends - {NOBODY})))


def block_bounds(count: int, parts: int) -> tuple[int, ...]:
    """`parts` + 1 offsets that cut `count` elements evenly, the longer blocks first."""
    base, longer = divmod(count, parts)
    return tuple(index * base + min(index, longer) for index in range(parts + 1))


def segment_elements(itemsize: int) -> int:
    """Elements of one segment."""
    return REDUCE_SEGMENT_BYTES // itemsize
