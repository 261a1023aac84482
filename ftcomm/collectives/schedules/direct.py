"""Direct schedules: parts of any lengths go straight from the rank that has them to their rank.

The root of a gather receives from one rank after the other, in the order of ranks behind it; the
root of a scatter sends likewise.  n-1 steps at the root and one at each other rank; each byte
travels once.  A reduce is a ring reduce-scatter, whose blocks then go straight to the root
(Rabenseifner, 2004): n-1 and up to n-1 steps; each rank sends about all of its bytes once.
"""

from collections.abc import Sequence
from itertools import accumulate

from ftcomm.collectives.schedules.reduce_scatter import ring_reduce_steps
from ftcomm.collectives.schedules.schedule import Copy, Schedule, Step, block_bounds
from ftcomm.protocol.signature import Algorithm, Kind


def direct_gather(world_size: int, rank: int, counts: Sequence[int], root: int) -> Schedule:
    """Rank r's ``counts[r]`` elements, in the root's recvbuf in rank order; others have none."""
    bounds = (0, *accumulate(counts))
    is_root = rank == root
    steps = _to_root(world_size, rank, bounds, root, first_tag=0, from_sendbuf=True)
    own = (Copy(bounds[rank], 0, counts[rank]),) if is_root else ()
    received = bounds[-1] if is_root else 0
    return Schedule(
        Kind.GATHERV, Algorithm.AUTO, world_size, rank, counts[rank], received, tuple(steps), own
    )


def direct_scatter(world_size: int, rank: int, counts: Sequence[int], root: int) -> Schedule:
    """The root's sendbuf has ``counts[r]`` elements for each rank r, in rank order."""
    bounds = (0, *accumulate(counts))
    if rank == root:
        steps = [
            Step(
                tag=tag,
                send_to=peer,
                send_lo=bounds[peer],
                send_hi=bounds[peer + 1],
                send_from_sendbuf=True,
            )
            for tag, peer in enumerate(_behind(world_size, root))
        ]
        own: tuple[Copy, ...] = (Copy(0, bounds[rank], bounds[rank + 1]),)
    else:
        tag = _behind(world_size, root).index(rank)
        steps, own = [Step(tag=tag, recv_from=root, recv_hi=counts[rank])], ()
    sent = bounds[-1] if rank == root else 0
    return Schedule(
        Kind.SCATTERV, Algorithm.AUTO, world_size, rank, sent, counts[rank], tuple(steps), own
    )


def reduce_to_root(world_size: int, rank: int, count: int, root: int) -> Schedule:
    """The reduction of `count` elements in the root's recvbuf; that of others is scratch."""
    bounds = block_bounds(count, world_size)
    reduced = ring_reduce_steps(world_size, rank, bounds)
    gathered = _to_root(world_size, rank, bounds, root, first_tag=len(reduced), from_sendbuf=False)
    copies = (Copy(0, 0, count),) if world_size == 1 else ()
    return Schedule(
        Kind.REDUCE,
        Algorithm.RING,
        world_size,
        rank,
        count,
        count,
        (*reduced, *gathered),
        copies,
    )


def _to_root(
    world_size: int,
    rank: int,
    bounds: Sequence[int],
    root: int,
    *,
    first_tag: int,
    from_sendbuf: bool,
) -> list[Step]:
    """Each rank's block to the root: of its sendbuf, which is that block, or of its recvbuf."""
    behind = _behind(world_size, root)
    if rank == root:
        return [
            Step(
                tag=first_tag + at,
                recv_from=peer,
                recv_lo=bounds[peer],
                recv_hi=bounds[peer + 1],
            )
            for at, peer in enumerate(behind)
        ]
    start = bounds[rank] if from_sendbuf else 0
    return [
        Step(
            tag=first_tag + behind.index(rank),
            send_to=root,
            send_lo=bounds[rank] - start,
            send_hi=bounds[rank + 1] - start,
            send_from_sendbuf=from_sendbuf,
        )
    ]


def _behind(world_size: int, root: int) -> list[int]:
    """All other ranks in the order of ranks, from the one behind the root on."""
    return [(root + distance) % world_size for distance in range(1, world_size)]
