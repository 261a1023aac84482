"""Recursive doubling allreduce, and the barrier, which is the same with nothing to carry.

With p the largest power of two up to n and e = n - p: ranks 0..2e-1 first fold in pairs, the even
one into the odd one above it; then p groups of neighbours double up, and at the end the even ranks
get the result back.  Every combination has the lower ranks' operand first and is computed with the
same operands on both sides, so all ranks hold the same bits and operands stay in rank order.
ceil(log2 n) steps when n is a power of two, two more otherwise; each step carries all the bytes.
"""

from ftcomm.collectives.schedule import Copy, Reduce, Schedule, Step
from ftcomm.protocol.signature import Algorithm, Kind


def doubling_allreduce(
    world_size: int, rank: int, count: int, kind: Kind = Kind.ALLREDUCE
) -> Schedule:
    """The schedule of `rank` for `count` elements."""
    power = 1 << (world_size.bit_length() - 1)
    extra = world_size - power
    last_tag = power.bit_length()
    if rank < 2 * extra and rank % 2 == 0:
        steps = [_send(0, rank + 1, count, source=True), _receive(last_tag, rank + 1, count)]
    else:
        steps = _group_steps(power, extra, rank, count)
        if rank < 2 * extra:
            steps.insert(0, _fold(rank - 1, count))
            steps.append(_send(last_tag, rank - 1, count, source=False))
    copies = (Copy(0, 0, count),) if world_size == 1 and count else ()
    return Schedule(
        kind,
        Algorithm.RECURSIVE_DOUBLING,
        world_size,
        rank,
        count,
        count,
        tuple(steps),
        copies,
    )


def barrier(world_size: int, rank: int) -> Schedule:
    """No elements, all the headers."""
    return doubling_allreduce(world_size, rank, 0, Kind.BARRIER)


def _group_steps(power: int, extra: int, rank: int, count: int) -> list[Step]:
    folded = rank < 2 * extra
    group = rank // 2 if folded else rank - extra
    steps = []
    for bit in range(power.bit_length() - 1):
        other = group ^ (1 << bit)
        peer = 2 * other + 1 if other < extra else other + extra
        fresh = bit == 0 and not folded  # nothing has been reduced here yet
        steps.append(
            Step(
                tag=1 + bit,
                send_to=peer,
                send_hi=count,
                send_source=fresh,
                recv_from=peer,
                recv_hi=count,
                reduce=_order(count, incoming_first=peer < rank),
                own_source=fresh,
                hold=not fresh,
            )
        )
    return steps


def _send(tag: int, peer: int, count: int, *, source: bool) -> Step:
    return Step(tag=tag, send_to=peer, send_hi=count, send_source=source)


def _receive(tag: int, peer: int, count: int) -> Step:
    return Step(tag=tag, recv_from=peer, recv_hi=count)


def _fold(peer: int, count: int) -> Step:
    return Step(
        tag=0,
        recv_from=peer,
        recv_hi=count,
        reduce=_order(count, incoming_first=True),
        own_source=True,
    )


def _order(count: int, *, incoming_first: bool) -> Reduce:
    if count == 0:
        return Reduce.NONE  # a barrier has no reducer
    return Reduce.INCOMING_FIRST if incoming_first else Reduce.OWN_FIRST
