"""Embedding: the steps of a flat schedule, taken by some ranks in a part of a larger collective."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ftcomm.collectives.schedules.schedule import NOBODY, Step


def embedded(
    steps: Iterable[Step], ranks: Sequence[int], tag: int, *, offset: int = 0, fresh: bool
) -> list[Step]:
    """The same steps among `ranks`, numbered from `tag` on, on elements from `offset` on.

    Args:
        steps: of a rank of a group of ``len(ranks)``.
        ranks: who has which place in that group.
        tag: added to the number of every step.
        offset: added to every element's index.
        fresh: nothing has been reduced or received here yet: what the steps read from sendbuf
            is there.  Otherwise it is in recvbuf, and so is what they write.
    """
    return [_embedded(step, ranks, tag, offset, fresh=fresh) for step in steps]


def _embedded(step: Step, ranks: Sequence[int], tag: int, offset: int, *, fresh: bool) -> Step:
    meets = step.send_lo < step.recv_hi and step.recv_lo < step.send_hi
    return replace(
        step,
        tag=tag + step.tag,
        send_to=_rank(ranks, step.send_to),
        send_lo=offset + step.send_lo,
        send_hi=offset + step.send_hi,
        send_from_sendbuf=step.send_from_sendbuf and fresh,
        recv_from=_rank(ranks, step.recv_from),
        recv_lo=offset + step.recv_lo,
        recv_hi=offset + step.recv_hi,
        own_in_sendbuf=step.own_in_sendbuf and fresh,
        deferred=step.deferred or (meets and step.send_from_sendbuf and not fresh),
    )


def _rank(ranks: Sequence[int], place: int) -> int:
    return NOBODY if place == NOBODY else ranks[place]
