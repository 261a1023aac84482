"""Reduce-scatter: block b of all ranks' inputs, reduced, at rank b; blocks of any lengths.

Ring: block b starts at rank b + 1 and travels upwards; each rank on the way appends its own
operand, and rank b the last one.  So the block is the left fold of the operands of ranks b+1, ...,
b+n (modulo n).  n-1 steps; a rank sends every block but its own, (n-1)/n of the bytes.  It is the
first half of the ring allreduce, begun one rank later.

Halving: recursive halving (Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH", 2005) for n a power of two.  In the step of distance d = n/2,
n/4, ..., 1 rank r and the one at r XOR d share a run of 2d blocks.  Each gives the half of the run
in which the other's block is, and reduces its own half with what comes, the lower rank's operand
first.  Before that step a rank has combined the ranks that equal it modulo 2d.  So every block is
one tree: ranks equal modulo d are the combination of their halves modulo 2d, the one with the lower
remainder first.  Of four ranks that is ((x0 x2)(x1 x3)).  log2 n steps, (n-1)/n of the bytes.

Recvbuf has a place for the whole input, in which all but the own block is scratch.  No step is
held: what it sends and what it reduces are different blocks.
"""

from collections.abc import Sequence

from ftcomm.collectives.schedules.non_power_of_two import is_power_of_two, lower_first
from ftcomm.collectives.schedules.ring import ring_reduce
from ftcomm.collectives.schedules.schedule import Copy, Schedule, Step
from ftcomm.protocol.signature import Algorithm, Kind


def ring_reduce_scatter(world_size: int, rank: int, bounds: tuple[int, ...]) -> Schedule:
    """The schedule of `rank`, for any number of ranks.

    Args:
        world_size: n ranks.
        rank: whose schedule it is; its block ends at ``recvbuf[bounds[rank] : bounds[rank + 1]]``.
        bounds: n + 1 offsets, ascending from 0; a block may be empty.
    """
    steps = tuple(ring_reduce(world_size, rank, bounds, start=1))
    return _schedule(Algorithm.RING, world_size, rank, bounds, steps)


def halving_reduce_scatter(world_size: int, rank: int, bounds: tuple[int, ...]) -> Schedule:
    """The schedule of `rank` where the number of ranks is a power of two; as the ring's.

    Raises:
        ValueError: another number of ranks.
    """
    if not is_power_of_two(world_size):
        raise ValueError(f"recursive halving of {world_size} ranks, which is no power of two")
    rounds = world_size.bit_length() - 1
    steps = tuple(_halving_step(rounds, rank, bounds, tag) for tag in range(rounds))
    return _schedule(Algorithm.HALVING_DOUBLING, world_size, rank, bounds, steps)


def _schedule(
    algorithm: Algorithm,
    world_size: int,
    rank: int,
    bounds: tuple[int, ...],
    steps: tuple[Step, ...],
) -> Schedule:
    count = bounds[-1]
    copies = (Copy(0, 0, count),) if world_size == 1 else ()
    return Schedule(Kind.REDUCE_SCATTER, algorithm, world_size, rank, count, count, steps, copies)


def _halving_step(rounds: int, rank: int, bounds: tuple[int, ...], tag: int) -> Step:
    distance = 1 << (rounds - 1 - tag)
    peer = rank ^ distance
    given, kept = (run_of(bounds, end, distance) for end in (peer, rank))
    fresh = tag == 0  # nothing has been reduced here yet
    return Step(
        tag=tag,
        send_to=peer,
        send_lo=given[0],
        send_hi=given[1],
        send_from_sendbuf=fresh,
        recv_from=peer,
        recv_lo=kept[0],
        recv_hi=kept[1],
        reduce=lower_first(kept[1] - kept[0], incoming_first=peer < rank),
        own_in_sendbuf=fresh,
    )


def run_of(bounds: Sequence[int], block: int, blocks: int) -> tuple[int, int]:
    """Elements ``[lo, hi)`` of the aligned run of so many blocks in which `block` is.

    With `blocks` a step's distance it is what that step reduces of the block, on every rank.
    """
    first = block - block % blocks
    return bounds[first], bounds[first + blocks]
