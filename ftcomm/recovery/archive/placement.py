"""Replica holders: who holds a stable result until the next checkpoint commits (rule R3).

A pure function of the seqno and of the host map at job start.  Ranks are laid out host by host
and every `stride`-th of them keeps a result, so that the copies of one result are on different
hosts as long as no host has more than ``n // replicas`` ranks.  Neighbours on the ring are usually
on one host and would die together.  The grouping numbers hosts zone by zone: the same holds for
zones.
"""

from collections.abc import Sequence

from ftcomm.protocol.host_groups import Grouping


def keep_order(grouping: Grouping) -> tuple[int, ...]:
    """Ranks sorted by zone and host, then rank."""
    return tuple(sorted(range(len(grouping)), key=lambda rank: (grouping[rank], rank)))


def keep_stride(world_size: int, replicas: int) -> int:
    """Every how many seqnos a rank is a replica holder; 1 means that it keeps everything."""
    return max(world_size // replicas, 1)


def is_replica_holder(index: int, seqno: int, stride: int) -> bool:
    """Tell whether the rank at `index` of the keep order keeps `seqno`; at least `replicas` do."""
    return index % stride == seqno % stride


def kept_seqnos(index: int, end: int, stride: int) -> range:
    """Those below `end` that the rank at `index` keeps."""
    return range(index % stride, end, stride)


# --- local states: they differ from rank to rank, so that each has holders of its own -----------


def local_copies(world_size: int, local_replicas: int) -> int:
    """Return the number of other ranks that hold a copy of each rank's local state."""
    return min(local_replicas, world_size - 1)


def local_distances(world_size: int, local_replicas: int) -> tuple[int, ...]:
    """Return each replica holder's distance behind the owner of a local state in the keep order.

    As far apart as they can be: owner and replica holders are on different hosts as long as no host
    has more than ``n // (local_replicas + 1)`` ranks.
    """
    copies = local_copies(world_size, local_replicas)
    stride = world_size // (copies + 1)
    return tuple(stride * (copy + 1) for copy in range(copies))


def local_replica_holders(order: Sequence[int], owner: int, local_replicas: int) -> tuple[int, ...]:
    """The ranks that hold a copy of `owner`'s local state beside it."""
    size, index = len(order), order.index(owner)
    distances = local_distances(size, local_replicas)
    return tuple(order[(index + distance) % size] for distance in distances)


def local_owners(order: Sequence[int], replica_holder: int, local_replicas: int) -> tuple[int, ...]:
    """The other ranks whose local states `replica_holder` holds a copy of."""
    size, index = len(order), order.index(replica_holder)
    distances = local_distances(size, local_replicas)
    return tuple(order[(index - distance) % size] for distance in distances)
