"""Keepers: who holds a stable result until the next checkpoint commits (rule R3).

A pure function of the seqno and of the host map at job start.  Ranks are laid out host by host
and every `stride`-th of them keeps a result, so that the copies of one result are on different
hosts as long as no host has more than ``n // replicas`` ranks.  Neighbours on the ring are usually
on one host and would die together.
"""

from collections.abc import Sequence


def keep_order(hosts: Sequence[str]) -> tuple[int, ...]:
    """Ranks sorted by host, then rank: `hosts[r]` is the host of rank r at job start."""
    return tuple(sorted(range(len(hosts)), key=lambda rank: (hosts[rank], rank)))


def keep_stride(world_size: int, replicas: int) -> int:
    """Every how many seqnos a rank is a keeper; 1 means that it keeps everything."""
    return max(world_size // replicas, 1)


def is_keeper(index: int, seqno: int, stride: int) -> bool:
    """Whether the rank at `index` of the keep order keeps `seqno`; at least `replicas` do."""
    return index % stride == seqno % stride
