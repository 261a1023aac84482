"""Spares: connected workers without a rank; which of them takes a lost worker's place (pure).

The best one runs on another host and in another zone than the lost worker: what ended that one may
end its neighbours next. Among equals the one with the newest checkpoint is taken, then the one
that has waited longest.

A member whose heartbeat names a version has committed it.  Each such heartbeat sends one spare that
holds less to that member, so several spares are served by several members (rule R17).
"""

from typing import Any

from ftcomm.protocol.position import PRELUDE
from ftcomm.protocol.spares.prefetch_messages import Prefetch, Prefetched
from ftcomm_tracker.core.events import Death, Died
from ftcomm_tracker.core.group_state import FormerPeer, GroupState, JobState, Peer
from ftcomm_tracker.core.reporting.incident_words import how_text

RETRY_S = 4.0  # after a fetch that brought nothing: its member has died, or keeps a lazy state
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
    """Remember whether this process, which has ended or lost its connection, had a rank."""
    if not group.durable.places:
        return
    ended = group.members.ended
    ended[peer.hello.worker_id, peer.hello.group] = FormerPeer(
        peer.rank is not None, peer.hello.host
    )
    while len(ended) > MAX_ENDED:
        del ended[next(iter(ended))]
    if peer.rank is None:
        group.note("info", f"spare {peer.hello.worker_id} is gone")


def note_seated(group: GroupState, peer: Peer) -> None:
    """Note that this process is a member from now on."""
    group.members.ended.pop((peer.hello.worker_id, peer.hello.group), None)


def had_rank(group: GroupState, worker_id: str, pid: int) -> bool | None:
    """Tell whether the process `pid` of that worker had a rank when its connection ended.

    None if that is not known: it has not joined, or not ended.
    """
    ended = group.members.ended.get((worker_id, pid))
    return None if ended is None else ended.had_rank


def on_died_replaced(group: GroupState, died: Died) -> None:
    """Tell how a process ended whose rank a spare has taken before its launcher knew."""
    ended = group.members.ended.get((died.worker_id, died.pid))
    if ended is None or not ended.had_rank:
        return
    incident = group.epochs.incident
    if incident is not None and died.worker_id in incident.victims:
        incident.note_death(Death(died.worker_id, died.pid, ended.host, died.how))
    else:  # its recovery has been told without
        group.note("warning", f"worker {died.worker_id} {how_text(died.how)}")


def is_wanted_as_spare(group: GroupState, worker_id: str) -> bool:
    """True if the group is complete without that worker, and the job lacks a spare."""
    others = sum(
        peer.rank is None and peer.hello.worker_id != worker_id
        for peer in group.members.peers.values()
    )
    has_rank = group.durable.rank_of(worker_id) is not None
    return bool(group.durable.places) and not has_rank and others < group.settings.spares


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


def order_prefetch(group: GroupState, member: Peer) -> None:
    """Send a spare that holds less to this member, if there is one."""
    version, hello = member.position.version, member.hello
    is_possible = group.state is JobState.RUNNING and member.position.past_load
    if not is_possible or member.rank is None:
        return
    for peer in group.members.peers.values():
        if peer.rank is None and _lacks(peer, version, group.now):
            peer.prefetch.ordered = version
            address = (hello.host, hello.address, hello.port)
            group.send(peer.conn, Prefetch(version, member.rank, *address))
            if peer.prefetch.version == PRELUDE:
                words = f"spare {peer.hello.worker_id} fetches checkpoint {version}"
                group.note("info", f"{words} from rank {member.rank}")
            return


def _lacks(peer: Peer, version: int, now: float) -> bool:
    state = peer.prefetch
    if state.ordered != PRELUDE or version <= state.version or peer.hello.plan_epoch:
        return False
    return version > state.failed or now >= state.retry_at


def on_prefetched(group: GroupState, peer: Peer, said: Prefetched) -> None:
    """A spare says what it holds."""
    state = peer.prefetch
    if said.version < state.ordered:
        state.failed, state.retry_at = state.ordered, group.now + RETRY_S
    if said.version != state.version:
        if state.version == PRELUDE:
            group.note("info", f"spare {peer.hello.worker_id} holds checkpoint {said.version}")
        state.version, state.nbytes, state.since = said.version, said.nbytes, group.now
    state.ordered = PRELUDE
