"""Spares: connected workers without a rank; which of them takes a lost worker's place (pure).

The best one runs on another host and in another zone than the lost worker: what ended that one may
end its neighbours next. Among equals the one with the newest checkpoint is taken, then the one
that has waited longest.
"""

from typing import Any

from ftcomm.protocol.position import PRELUDE
from ftcomm_tracker.core.group_state import GroupState, Peer

MAX_ENDED = 256  # processes remembered; a launcher asks about one as soon as it has ended


def best_spare(group: GroupState, rank: int) -> Peer | None:
    """The spare that shall take the place of `rank`, None without one."""
    spares = [peer for peer in group.members.peers.values() if peer.rank is None]
    host, zone = group.durable.places[rank].host, group.members.zones.get(rank, "")

    def disadvantages(peer: Peer) -> tuple[bool, bool, int, int]:
        same_zone = bool(zone) and peer.hello.zone == zone
        return same_zone, peer.hello.host == host, -peer.prefetch.version, peer.conn

    return min(spares, key=disadvantages, default=None)


def note_gone(group: GroupState, peer: Peer) -> None:
    """Remember that this process has ended, or lost its connection, as a spare."""
    if peer.rank is None and group.durable.places:
        process = (peer.hello.worker_id, peer.hello.group)
        group.members.ended_spares = (*group.members.ended_spares[1 - MAX_ENDED :], process)
        group.note("info", f"spare {peer.hello.worker_id} is gone")


def note_seated(group: GroupState, peer: Peer) -> None:
    """Note that this process is a member from now on."""
    process = (peer.hello.worker_id, peer.hello.group)
    group.members.ended_spares = tuple(p for p in group.members.ended_spares if p != process)


def ended_as_spare(group: GroupState, worker_id: str, pid: int) -> bool:
    """True if the process `pid` of that worker had no rank when its connection ended."""
    return (worker_id, pid) in group.members.ended_spares


def spare_rows(group: GroupState, now: float) -> list[dict[str, Any]]:
    """The connected workers without a rank, for `status`, as JSON-able values."""
    return [
        {
            "worker_id": peer.hello.worker_id,
            "host": peer.hello.host,
            "zone": peer.hello.zone,
            "pid": peer.hello.pid,
            "is_spare": peer.hello.spare or bool(group.durable.places),
            "version": peer.prefetch.version,
            "nbytes": peer.prefetch.nbytes,
            "age_s": None
            if peer.prefetch.version == PRELUDE
            else round(now - peer.prefetch.since, 1),
        }
        for _, peer in sorted(group.members.peers.items())
        if peer.rank is None
    ]
