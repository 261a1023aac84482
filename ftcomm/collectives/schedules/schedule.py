"""Schedule: the steps of one collective for one rank, as plain data.

Vocabulary.  The *source* is the rank's own input and is never written.  *Work* is where the result
grows.  A *block* is a range ``[lo, hi)`` of elements of one of the two.  A *step* sends at most one
block and receives at most one, both at the same time.  A *segment* is the part of a received block
that is reduced by one call; segments begin at fixed offsets from the block's beginning (rule R5).
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
    """Send one block and receive another, together."""

    tag: int  # number of the step in the collective; sender and receiver give the same
    send_to: int = NOBODY  # rank that gets ``[send_lo, send_hi)``, or NOBODY
    send_lo: int = 0
    send_hi: int = 0
    send_from_sendbuf: bool = False  # that block is in sendbuf, else in recvbuf
    # Rank whose block lands at ``[recv_lo, recv_hi)`` of recvbuf, or NOBODY.
    recv_from: int = NOBODY
    recv_lo: int = 0
    recv_hi: int = 0
    reduce: Reduce = Reduce.NONE  # how the incoming block meets the own one
    own_in_sendbuf: bool = False  # the own operand is in sendbuf, else in recvbuf
    # Reduce only when the send has left, because it reads what the reduction writes.
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
    # Without steps of its own, one of these.
    rounds: "tuple[Round, ...]" = ()  # of a direct exchange
    levels: "Levels | None" = None  # of two
    # Every rank that is sent to or received from, ascending.
    peers: tuple[int, ...] = field(init=False)
    first_tag: int = field(init=False)

    def __post_init__(self) -> None:
        steps = self.all_steps
        object.__setattr__(self, "first_tag", steps[0].tag if steps else 0)
        ends = {end for step in steps for end in (step.send_to, step.recv_from)}
        object.__setattr__(self, "peers", tuple(sorted(ends - {NOBODY})))

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """The steps, and those of all parts, in the order in which they are run."""
        parts = [part for one in self.rounds for part in (one.gather, one.spread)]
        if self.levels is not None:
            parts += [self.levels.within, *self.levels.behind]
        return (*self.steps, *(step for part in parts for step in part.all_steps))

    def among(self, ranks: Sequence[int], tag: int = 0) -> "Schedule":
        """The same among these ranks of a larger group, its steps numbered from `tag` on."""
        steps = tuple(
            replace(
                step,
                tag=tag + step.tag,
                send_to=NOBODY if step.send_to == NOBODY else ranks[step.send_to],
                recv_from=NOBODY if step.recv_from == NOBODY else ranks[step.recv_from],
            )
            for step in self.steps
        )
        rounds = tuple(
            replace(one, gather=one.gather.among(ranks, tag), spread=one.spread.among(ranks, tag))
            for one in self.rounds
        )
        return replace(self, rank=ranks[self.rank], steps=steps, rounds=rounds)


@dataclass(frozen=True, slots=True)
class Round:
    """Two parts of a direct exchange that are in flight together, and the fold behind them."""

    gather: Schedule  # brings what the others have of ``[lo, hi)`` of sendbuf into rows
    spread: Schedule  # carries what the round before has folded, within recvbuf
    place: int  # of this rank among those that meet
    lo: int
    hi: int
    row: int  # distance of two ranks' rows, in elements: whole cache lines, as the fold wants them

    def operands(self, sendbuf: Any, rows: Any) -> list[Any]:
        """The arrays to fold, in rank order; the own one is part of `sendbuf`."""
        length = self.hi - self.lo
        ranks = range(self.gather.world_size)
        operands = [rows[of * self.row : of * self.row + length] for of in ranks]
        operands[self.place : self.place + 1] = [sendbuf[self.lo : self.hi]] * bool(operands)
        return operands


@dataclass(frozen=True, slots=True)
class Levels:
    """A reduction within each host, then over what hosts have, and back."""

    within: Schedule  # folds what the host's ranks have of ``[lo, hi)``
    across: Schedule | None  # folds that with what other hosts have; None if others do
    spread: Schedule  # carries the blocks to all ranks of the host
    lo: int
    hi: int

    @property
    def behind(self) -> tuple[Schedule, ...]:
        """The parts that are run behind `within`."""
        return (self.spread,) if self.across is None else (self.across, self.spread)


def block_bounds(count: int, parts: int) -> tuple[int, ...]:
    """`parts` + 1 offsets that cut `count` elements evenly, the longer blocks first."""
    base, longer = divmod(count, parts)
    return tuple(index * base + min(index, longer) for index in range(parts + 1))


def segment_elements(itemsize: int) -> int:
    """Elements of one segment."""
    return REDUCE_SEGMENT_BYTES // itemsize
