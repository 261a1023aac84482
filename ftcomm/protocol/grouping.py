"""Grouping: which ranks shared a host when the group formed.

By rank, the number of its host; hosts are numbered in the order of their lowest ranks, so that no
name enters.  It is journalled when the group forms and never changes, wherever a later life of a
rank runs: who keeps what, and the bits of hierarchical collectives, follow from it (rules R3, R5).
"""

from collections.abc import Sequence

Grouping = tuple[int, ...]


def grouping_of(hosts: Sequence[str]) -> Grouping:
    """The grouping of ranks whose hosts have these names."""
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(host, len(numbers)) for host in hosts)


def is_grouping(numbers: Sequence[int]) -> bool:
    """Whether `numbers` could come from `grouping_of`."""
    return tuple(numbers) == grouping_of([str(number) for number in numbers])


def members_of(grouping: Grouping) -> tuple[tuple[int, ...], ...]:
    """By host, its ranks, ascending."""
    groups: dict[int, list[int]] = {}
    for rank, host in enumerate(grouping):
        groups.setdefault(host, []).append(rank)
    return tuple(tuple(groups[host]) for host in sorted(groups))


def is_hierarchical(grouping: Grouping) -> bool:
    """Several hosts, and several ranks on one of them: anything else is flat."""
    return 1 < len(set(grouping)) < len(grouping)


def are_neighbours(grouping: Grouping) -> bool:
    """Whether the ranks of each host follow one another."""
    return list(grouping) == sorted(grouping)
