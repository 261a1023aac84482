"""Pipelined chain broadcast: the ranks in a row behind the root, the bytes in segments.

Each rank passes a segment on while it receives the next one, so for k segments n - 2 + k steps of
a k-th of the bytes are all; each rank but the last sends the bytes once, and nobody twice.  A step
has the number of the moment at which it is taken: place p gets segment s in step p - 1 + s.  Like
every broadcast this proves nothing to its root.
"""

from ftcomm.collectives.schedules.schedule import NOBODY, Copy, Schedule, Step, block_bounds
from ftcomm.protocol.signature import Algorithm, Kind

SEGMENT_BYTES = 256 * 1024
MOST_SEGMENTS = 1024  # steps cost memory; larger payloads have larger segments


def chain_broadcast(world_size: int, rank: int, count: int, root: int, itemsize: int) -> Schedule:
    """The schedule of `rank`; the root's sendbuf goes to everyone's recvbuf."""
    place = (rank - root) % world_size
    bounds = block_bounds(count, segments_of(count * itemsize))
    at_root, at_end = place == 0, place == world_size - 1
    first = 0 if at_root else place - 1
    end = place + len(bounds) - 1 - at_end  # the last place passes nothing on
    steps = tuple(_step(world_size, rank, place, bounds, tag) for tag in range(first, end))
    return Schedule(
        Kind.BROADCAST,
        Algorithm.CHAIN,
        world_size,
        rank,
        count if at_root else 0,
        count,
        steps if world_size > 1 else (),
        (Copy(0, 0, count),) if at_root else (),
    )


def segments_of(nbytes: int) -> int:
    """Into how many segments a payload is cut; an empty one still has a header to send."""
    return min(max(1, -(-nbytes // SEGMENT_BYTES)), MOST_SEGMENTS)


def _step(world_size: int, rank: int, place: int, bounds: tuple[int, ...], tag: int) -> Step:
    coming, leaving = tag - place + 1, tag - place
    segments = len(bounds) - 1
    receives = place > 0 and coming < segments
    sends = place < world_size - 1 and leaving >= 0
    return Step(
        tag=tag,
        send_to=(rank + 1) % world_size if sends else NOBODY,
        send_lo=bounds[leaving] if sends else 0,
        send_hi=bounds[leaving + 1] if sends else 0,
        send_from_sendbuf=place == 0,
        recv_from=(rank - 1) % world_size if receives else NOBODY,
        recv_lo=bounds[coming] if receives else 0,
        recv_hi=bounds[coming + 1] if receives else 0,
    )
