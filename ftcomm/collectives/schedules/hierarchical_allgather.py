"""Hierarchical allgather, by columns; see `hierarchical`.

Of n ranks the largest host's have H-1 steps between hosts, in which what each host brings goes to
every other one once, and n-H inside; no more in all than a ring of n ranks has.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, zip_longest

from ftcomm.collectives.schedules.hierarchical import HostLayout
from ftcomm.collectives.schedules.schedule import NOBODY, Copy, Schedule, Step
from ftcomm.protocol.host_groups import Grouping
from ftcomm.protocol.signature import Algorithm, Kind

NO_BLOCK = NOBODY  # of a group that is too small to have a rank in the column


class _Columns:
    def __init__(self, grouping: Grouping, rank: int, counts: Sequence[int]) -> None:
        self.rank = rank
        self.at = HostLayout(grouping, rank)
        self.bounds = (0, *accumulate(counts))

    def owner(self, host: int, column: int) -> int:
        """Return the rank whose block a group has in a column."""
        group = self.at.groups[host]
        return group[column] if column < len(group) else NO_BLOCK

    def held_by(self, index: int) -> list[int]:
        """List the ranks whose blocks `index` of this group has after the inter-host exchange."""
        at = self.at
        columns = range(index, at.largest, len(at.ranks))
        owners = [self.owner(host, column) for column in columns for host in range(len(at.groups))]
        return [owner for owner in owners if owner != NO_BLOCK]

    def step(self, tag: int, to: int, leaving: int | None, source: int, coming: int | None) -> Step:
        """Send one rank's block and receive another's; None is no message at all."""
        own = leaving == self.rank  # leaves straight from sendbuf
        send_lo, send_hi = self._part(leaving)
        recv_lo, recv_hi = self._part(coming)
        return Step(
            tag=tag,
            send_to=NOBODY if leaving is None else to,
            send_lo=0 if own else send_lo,
            send_hi=send_hi - send_lo if own else send_hi,
            send_from_sendbuf=own,
            recv_from=NOBODY if coming is None else source,
            recv_lo=recv_lo,
            recv_hi=recv_hi,
        )

    def _part(self, owner: int | None) -> tuple[int, int]:
        if owner is None or owner == NO_BLOCK:
            return 0, 0
        return self.bounds[owner], self.bounds[owner + 1]


def hierarchical_allgatherv(grouping: Grouping, rank: int, counts: Sequence[int]) -> Schedule:
    """`counts[r]` elements of rank r, one after the other in rank order."""
    columns = _Columns(grouping, rank, counts)
    across = (len(columns.at.groups) - 1) * columns.at.largest
    return Schedule(
        Kind.ALLGATHER,
        Algorithm.HIERARCHICAL,
        len(grouping),
        rank,
        counts[rank],
        columns.bounds[-1],
        (*_between_hosts(columns), *_inside(columns, across)),
        (Copy(columns.bounds[rank], 0, counts[rank]),),
    )


def _between_hosts(columns: _Columns) -> Iterator[Step]:
    at = columns.at
    hosts = len(at.groups)
    for column in range(at.index, at.largest, len(at.ranks)):
        drivers = [group[column % len(group)] for group in at.groups]
        after, before = drivers[(at.host + 1) % hosts], drivers[at.host - 1]
        for hop in range(hosts - 1):
            leaving = columns.owner((at.host - hop) % hosts, column)
            coming = columns.owner((at.host - hop - 1) % hosts, column)
            yield columns.step(column * (hosts - 1) + hop, after, leaving, before, coming)


def _inside(columns: _Columns, first_tag: int) -> Iterator[Step]:
    at = columns.at
    size = len(at.ranks)
    after, before = at.ranks[(at.index + 1) % size], at.ranks[at.index - 1]
    held = [columns.held_by(index) for index in range(size)]
    most = max(len(blocks) for blocks in held)
    for hop in range(size - 1):
        leaving, coming = held[(at.index - hop) % size], held[(at.index - hop - 1) % size]
        for number, (gone, come) in enumerate(zip_longest(leaving, coming)):
            yield columns.step(first_tag + hop * most + number, after, gone, before, come)
