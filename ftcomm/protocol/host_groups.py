"""Grouping: which ranks shared a host when the group formed.

By rank, the number of its host.  Hosts are numbered zone by zone, and zones and the hosts of one in
the order of their lowest ranks, so that no name enters.  It is journalled when the group forms and
never changes, wherever a later incarnation of a rank runs: who keeps what, and the bits of
hierarchical collectives, follow from it (rules R3, R5).
"""

import functools
from collections import Counter
from collections.abc import Sequence

Grouping = tuple[int, ...]


def grouping_of(hosts: Sequence[str], zones: Sequence[str] = ()) -> Grouping:
    """The grouping of ranks whose hosts have these names, and are in these zones.

    A host is in the zone that its lowest rank names; without `zones` all are in one.
    """
    zone_of: dict[str, str] = {}
    for host, zone in zip(hosts, zones or [""] * len(hosts), strict=True):
        zone_of.setdefault(host, zone)
    in_order = list(dict.fromkeys(zone_of.values()))
    placed = sorted(zone_of, key=lambda host: in_order.index(zone_of[host]))  # stable
    numbers = {host: number for number, host in enumerate(placed)}
    return tuple(numbers[host] for host in hosts)


def is_grouping(numbers: Sequence[int]) -> bool:
    """Tell whether `numbers` could come from `grouping_of`."""
    return set(numbers) == set(range(len(set(numbers))))


def members_of(grouping: Grouping) -> tuple[tuple[int, ...], ...]:
    """By host, its ranks, ascending."""
    groups: dict[int, list[int]] = {}
    for rank, host in enumerate(grouping):
        groups.setdefault(host, []).append(rank)
    return tuple(tuple(groups[host]) for host in sorted(groups))


@functools.lru_cache(maxsize=8)  # a job has one grouping, and each choice of algorithm asks
def is_hierarchical(grouping: Grouping) -> bool:
    """Several hosts, several ranks on one of them, and none too small beside the largest.

    Anything else is flat.  Too small is a host whose ranks, each standing for several of the
    largest host's, would have more steps between hosts than a ring of all ranks has.
    """
    sizes = Counter(grouping).values()
    if not 1 < len(sizes) < len(grouping):
        return False
    stands_for = -(-max(sizes) // min(sizes))
    return stands_for * (len(sizes) - 1) < len(grouping)


def are_neighbours(grouping: Grouping) -> bool:
    """Tell whether the ranks of each host follow one another."""
    places = grouping_of([str(host) for host in grouping])
    return list(places) == sorted(places)
