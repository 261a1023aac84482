"""Direct exchange over links: every rank folds what all ranks have, in rank order.

Where that is little, all inputs go whole to all ranks.  Of more, each rank folds a block: that
block of all inputs comes to it, and its result goes to all.  Both pass in pieces, and one is spread
while the next one is gathered.  Each element is the left fold of all inputs in rank order either
way, as in the segment of a host (`ftcomm.core`), which such a schedule stands for.

Two levels: left folds in rank order within each host, then over the hosts' results, in the order of
the job's grouping (`ftcomm.protocol.host_groups`).  The array is cut into a block for each rank
that the smallest host has.  The i-th ranks of all hosts combine block i, so that each of them sends
its part of a host's bytes.  Little goes in one block, by the lowest ranks.

Numbers of steps rise on every rank, and are alike at both ends of each (rule R12).
"""

from collections.abc import Sequence
from itertools import pairwise, zip_longest

from ftcomm.collectives.schedules.allgather import ring_allgatherv
from ftcomm.collectives.schedules.binomial_tree import binomial_broadcast
from ftcomm.collectives.schedules.schedule import NOBODY, Levels, Round, Schedule, Step
from ftcomm.protocol.host_groups import Grouping, members_of
from ftcomm.protocol.signature import Algorithm, Kind

# Most ranks that meet, and most bytes of a rank's input that fit into its slot of a segment.
DIRECT_RANKS, DIRECT_BYTES = 64, 8 * 1024
GATHERED_BYTES = 512 * 1024  # sent by a rank: more costs more than the steps of an exchange
PIECE_BYTES = 256 * 1024  # of a block: what is folded at once lies in the caches
MOST_PIECES = 1024  # of a block: beyond that pieces are larger, and schedules are not
LINE_BYTES = 64
# The numbers of the first steps between hosts, and of the last part: no part before has as many.
ACROSS_TAG, SPREAD_TAG = 1 << 18, 1 << 19
assert 2 * (DIRECT_RANKS - 1) * (MOST_PIECES + 1) < ACROSS_TAG == SPREAD_TAG - ACROSS_TAG

_Range = tuple[int, int]


def direct_allreduce(world_size: int, rank: int, count: int, itemsize: int) -> Schedule:
    """The schedule of `rank` for `count` elements, in rounds."""
    is_whole = (world_size - 1) * count * itemsize <= GATHERED_BYTES
    bounds = line_bounds(count, world_size, itemsize)
    blocks = [(0, count)] * world_size if is_whole else list(pairwise(bounds))
    return _in_rounds(rank, count, itemsize, blocks, spreads=not is_whole)


def direct_reduce(rank: int, itemsize: int, bounds: Sequence[int]) -> Schedule:
    """The schedule of `rank` for blocks of these bounds, of which each rank folds its own."""
    return _in_rounds(rank, bounds[-1], itemsize, list(pairwise(bounds)), spreads=False)


def _in_rounds(
    rank: int, count: int, itemsize: int, blocks: Sequence[_Range], *, spreads: bool
) -> Schedule:
    size = len(blocks)
    pieces = list(zip_longest(*(_pieces(*block, itemsize) for block in blocks), fillvalue=(0, 0)))
    row = max(hi - lo for lo, hi in pieces[0]) + LINE_BYTES // itemsize
    rounds = []
    for number in range(len(pieces) + spreads):
        coming = pieces[number] if number < len(pieces) else ()
        leaving = pieces[number - 1] if number and spreads else ()
        lo, hi = coming[rank] if coming else (0, 0)
        rows = [(of * row, of * row + hi - lo) for of in range(len(coming))]
        own = [leaving[rank]] * len(leaving) if leaving else ()
        tag = 2 * (size - 1) * number
        gather = _exchange(rank, coming, rows, tag, from_sendbuf=True, always=not count)
        spread = _exchange(rank, own, leaving, tag + size - 1, from_sendbuf=False, always=not count)
        rounds.append(Round(gather, spread, rank, lo, hi, row))
    return Schedule(
        Kind.ALLREDUCE, Algorithm.DIRECT, size, rank, count, count, (), rounds=tuple(rounds)
    )


def two_level_allreduce(grouping: Grouping, rank: int, count: int, itemsize: int) -> Schedule:
    """The schedule of `rank` for `count` elements, of two `Levels`."""
    hosts = members_of(grouping)
    host, ranks = grouping[rank], hosts[grouping[rank]]
    index, size = ranks.index(rank), len(ranks)
    blocks = min(map(len, hosts)) if count * itemsize > DIRECT_BYTES else 1
    bounds = (*line_bounds(count, blocks, itemsize), *(count,) * (size - blocks))
    counts = tuple(bounds[at + 1] - bounds[at] for at in range(size))
    across = None
    if index < blocks:
        flat = direct_allreduce(len(hosts), host, counts[index], itemsize)
        across = flat.among([members[index] for members in hosts], ACROSS_TAG)
    if blocks == 1:
        spread = binomial_broadcast(size, index, count, 0)
    else:
        spread = ring_allgatherv(size, index, counts)
    levels = Levels(
        direct_reduce(index, itemsize, bounds).among(ranks),
        across,
        spread.among(ranks, SPREAD_TAG),
        bounds[index],
        bounds[index + 1],
    )
    return Schedule(
        Kind.ALLREDUCE, Algorithm.DIRECT, len(grouping), rank, count, count, (), levels=levels
    )


def _pieces(lo: int, hi: int, itemsize: int) -> list[_Range]:
    """Pieces of a block; one of less than a line goes with the piece before."""
    line = LINE_BYTES // itemsize or 1
    most = max(PIECE_BYTES // itemsize or 1, -(-(hi - lo) // MOST_PIECES // line) * line)
    return list(pairwise((*range(lo, max(hi - line, lo) + 1, most), hi)))


def _exchange(
    rank: int,
    sent: Sequence[_Range],
    received: Sequence[_Range],
    tag: int,
    *,
    from_sendbuf: bool,
    always: bool,
) -> Schedule:
    """A pairwise exchange of these elements to and from each rank; of none only if `always`."""
    size = len(sent)
    steps = []
    for distance in range(1, size):
        receiver, sender = (rank + distance) % size, (rank - distance) % size
        send_lo, send_hi = sent[receiver]
        recv_lo, recv_hi = received[sender]
        step = Step(
            tag + distance - 1,
            receiver if always or send_lo < send_hi else NOBODY, send_lo, send_hi, from_sendbuf,
            sender if always or recv_lo < recv_hi else NOBODY, recv_lo, recv_hi,
        )  # fmt: skip
        if (step.send_to, step.recv_from) != (NOBODY, NOBODY):
            steps.append(step)
    most = max((hi for _, hi in (*sent, *received)), default=0)
    return Schedule(Kind.ALLTOALLV, Algorithm.PAIRWISE, size, rank, most, most, tuple(steps))


def line_bounds(count: int, parts: int, itemsize: int) -> tuple[int, ...]:
    """`parts` + 1 offsets that cut `count` elements at whole cache lines.

    What is behind the last whole line goes with the block before: where it is alone, numpy may keep
    the other one of two NaN, and the cuts must not show in the bits (rule R5).
    """
    line = LINE_BYTES // itemsize or 1  # an element of the simulator stands for many bytes
    lines = count // line
    block = -(-lines // parts)
    cuts = (count if block * part >= lines else block * part * line for part in range(1, parts + 1))
    return (0, *cuts)
