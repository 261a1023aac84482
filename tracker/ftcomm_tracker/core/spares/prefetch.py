"""Prefetch: the newest committed checkpoint goes to each spare before it is needed (rule R17).

A member whose heartbeat names a version has committed it.  Each such heartbeat sends one spare that
holds less to that member, so several spares are served by several members.
"""

from ftcomm.protocol.position import PRELUDE
from ftcomm.protocol.spares.prefetch_messages import Prefetch, Prefetched
from ftcomm_tracker.core.group_state import GroupState, JobState, Peer

RETRY_S = 4.0  # after a fetch that brought nothing: its member has died, or keeps a lazy state


def order_prefetch(group: GroupState, member: Peer) -> None:
    """Send a spare that holds less to this member, if there is one."""
    version, hello = member.position.version, member.hello
    is_possible = group.state is JobState.RUNNING
    if not is_possible or member.rank is None or not member.position.past_load:
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
