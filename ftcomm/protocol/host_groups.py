"""Grouping: which ranks shared a host when the group formed.

By rank, the number of its host.  Hosts are numbered zone by zone, and zones and the hosts of one in
the order of their lowest ranks, so that no name enters.  It is journalled when the group forms and
never changes, wherever a later incarnation of a rank runs: who keeps what, and the bits of
reductions, follow from it (rules R3, R5).
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


@functools.lru_cache(maxsize=8)  # a job has one grouping
def members_of(grouping: Grouping) -> tuple[tuple[int, ...], ...]:
    """By host, its ranks, ascending."""
    groups: dict[int, list[int]] = {}
    for rank, host in enumerate(grouping):
        groups.setdefault(host, []).append(rank)
    return tuple(tuple(groups[host]) for host in sorted(groups))


def is_one_host(grouping: Grouping) -> bool:
    """Tell whether all ranks share a host; nothing is known of an empty grouping."""
    return bool(grouping) and not any(grouping)


def has_two_levels(grouping: Grouping) -> bool:
    """Tell whether there are several hosts, and several ranks on one of them."""
    return 1 < len(set(grouping)) < len(grouping)


@functools.lru_cache(maxsize=8)
def largest_level(grouping: Grouping, world_size: int) -> int:
    """The most ranks that meet in an exchange: on one host, or one rank of each host."""
    if not has_two_levels(grouping):
        return world_size
    return max(len(set(grouping)), *Counter(grouping).values())


def ranks_by_host(grouping: Sequence[int], first: int = 0) -> tuple[int, ...]:
    """All ranks from `first` on: those of its host, then host by host, and ascending in each."""
    hosts = len(set(grouping))
    return tuple(
        sorted(
            range(len(grouping)),
            key=lambda rank: ((grouping[rank] - grouping[first]) % hosts, rank != first, rank),
        )
    )
