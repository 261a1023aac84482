"""Spares: connected workers without a rank; which of them takes a lost worker's place (pure).

The best one runs on another host and in another zone than the lost worker: what ended that one may
end its neighbours next. Among equals the one with the newest checkpoint is taken, then the one
that has waited longest.

A member whose heartbeat names a version has committed it.  Each such heartbeat sends one spare that
holds less to that member, so several spares are served by several members (rule R17).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from ftcomm.config.plurals import counted
from ftcomm.protocol.messages import Heartbeat
from ftcomm.protocol.position import PRELUDE
from ftcomm.protocol.spares.prefetch_messages import Prefetch, Prefetched
from ftcomm_tracker.core.group_state import GroupState, Peer
from ftcomm_tracker.core.job_states import JobState
from ftcomm_tracker.core.part import Part, Row

RETRY_S = 4.0  # after a fetch that brought nothing: its member has died, or keeps a lazy state


@dataclass(slots=True)
class HeldCheckpoint:
    """The checkpoint that a spare holds in advance, and the one that it was sent for.

    Attributes:
        version: that it holds; `PRELUDE` for none.
        nbytes: of its packed state.
        since: when it said so.
        ordered: that it fetches now; `PRELUDE` for none.
        failed: the newest that it could not get.
        retry_at: from when on it may be sent for that one again.
    """

    version: int = PRELUDE
    nbytes: int = 0
    since: float = 0.0
    ordered: int = PRELUDE
    failed: int = PRELUDE
    retry_at: float = 0.0


class Spares(Part):
    """Workers that may take an empty place, and the checkpoint that each holds."""

    hears: ClassVar[tuple[type, ...]] = (Heartbeat, Prefetched)

    def __init__(self) -> None:
        self._held: dict[int, HeldCheckpoint] = {}  # by connection

    def candidate(self, group: GroupState, rank: int) -> Peer | None:
        """The spare that shall take the place of `rank`, None without one."""
        members = group.members
        if len(members.peers) == len(members.slots):  # in a large group, to look takes long
            return None
        spares = [peer for peer in members.peers.values() if peer.rank is None]
        host, zone = group.durable.places[rank].host, members.zones.get(rank, "")

        def disadvantages(peer: Peer) -> tuple[bool, bool, int, int]:
            same_zone = bool(zone) and peer.hello.zone == zone
            return same_zone, peer.hello.host == host, -self._of(peer).version, peer.conn

        return min(spares, key=disadvantages, default=None)

    def on_seated(self, group: GroupState, peer: Peer) -> None:
        """It has a rank: what it held in advance is in its report."""
        self._held.pop(peer.conn, None)

    def on_gone(self, group: GroupState, peer: Peer) -> None:
        """Forget what it held."""
        self._held.pop(peer.conn, None)

    def on_message(self, group: GroupState, peer: Peer, message: Any) -> None:
        """Send a spare to a member that has newer state, or hear what a spare holds."""
        if isinstance(message, Prefetched):
            self._on_prefetched(group, peer, message)
        elif peer.rank is not None:
            self._order(group, peer, peer.rank)

    def rows(self, group: GroupState, now: float) -> dict[str, Any]:
        """The connected workers without a rank, also before the group forms."""
        waiting = [peer for _, peer in sorted(group.members.peers.items()) if peer.rank is None]
        return {"spares": [self._row(group, peer, now) for peer in waiting]}

    @staticmethod
    def lines(document: Row) -> Iterable[str]:
        """One line for each spare, and one if there are fewer than the job is to have."""
        lines, wanted = [], document["spares_wanted"]
        for row in [row for row in document["spares"] if row["is_spare"]]:
            zone = f", zone {row['zone']}" if row["zone"] else ""
            held = "holds no checkpoint yet"
            if row["age_s"] is not None:
                size = f"{row['nbytes'] / 1e6:.1f} MB"
                held = f"holds checkpoint {row['version']} ({row['age_s']:.0f} s old), {size}"
            lines.append(
                f"spare {row['worker_id']} (pid {row['pid']}) on {row['host']}{zone}, {held}"
            )
        if len(lines) < wanted and document["final_version"] < 0:
            lines.append(f"{len(lines)} of {counted(wanted, 'spare')} are here")
        return ["", *lines] if lines else []

    def _of(self, peer: Peer) -> HeldCheckpoint:
        return self._held.get(peer.conn) or HeldCheckpoint()

    def _row(self, group: GroupState, peer: Peer, now: float) -> dict[str, Any]:
        held = self._of(peer)
        return {
            "worker_id": peer.hello.worker_id,
            "host": peer.hello.host,
            "zone": peer.hello.zone,
            "pid": peer.hello.pid,
            "is_spare": peer.hello.spare or bool(group.durable.places),
            "version": held.version,
            "nbytes": held.nbytes,
            "age_s": None if held.version == PRELUDE else round(now - held.since, 1),
        }

    def _order(self, group: GroupState, member: Peer, rank: int) -> None:
        """Send a spare that holds less to this member, if there is one."""
        version, hello = member.position.version, member.hello
        if group.state is not JobState.RUNNING or not member.position.past_load:
            return
        for peer in group.members.peers.values():
            if peer.rank is None and self._lacks(peer, version, group.now):
                held = self._held.setdefault(peer.conn, HeldCheckpoint())
                held.ordered = version
                address = (hello.host, hello.address, hello.port)
                group.send(peer.conn, Prefetch(version, rank, *address))
                if held.version == PRELUDE:
                    words = f"spare {peer.hello.worker_id} fetches checkpoint {version}"
                    group.note("info", f"{words} from rank {rank}")
                return

    def _lacks(self, peer: Peer, version: int, now: float) -> bool:
        held = self._of(peer)
        if held.ordered != PRELUDE or version <= held.version or peer.hello.plan_epoch:
            return False
        return version > held.failed or now >= held.retry_at

    def _on_prefetched(self, group: GroupState, peer: Peer, said: Prefetched) -> None:
        """A spare says what it holds."""
        held = self._held.setdefault(peer.conn, HeldCheckpoint())
        if said.version < held.ordered:
            held.failed, held.retry_at = held.ordered, group.now + RETRY_S
        if said.version != held.version:
            if held.version == PRELUDE:
                group.note("info", f"spare {peer.hello.worker_id} holds checkpoint {said.version}")
            held.version, held.nbytes, held.since = said.version, said.nbytes, group.now
        held.ordered = PRELUDE
