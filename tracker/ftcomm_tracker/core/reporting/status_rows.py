"""Rows of a status document, one for each member's connection: pure."""

from typing import Any

from ftcomm.protocol.messages import Heartbeat
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import signature_text
from ftcomm_tracker.core.group_state import Peer

MAX_NAMED_PEERS = 16  # of one blocked rank, so that a document of 1,024 ranks stays bounded


def peer_row(peer: Peer | None, *, epoch: int, furthest: Position, now: float) -> dict[str, Any]:
    """Fields of a member that only its own connection can tell; all None without one.

    Args:
        peer: the member's connection.
        epoch: of the plan in force; who was blocked in an older one is not any more.
        furthest: the highest position of any member.
        now: on the clock of `Peer.last_heard`.
    """
    if peer is None:
        unknown = ("pid", "start", "position", "lag", "silent_s", "blocked", "log_bytes")
        return {**dict.fromkeys(unknown), "late": False}
    return {
        "pid": peer.hello.pid,
        "start": peer.hello.start,
        "position": str(peer.position),
        "lag": lag(peer.position, furthest),
        "late": peer.late,
        "silent_s": round(now - peer.last_heard, 3),
        "blocked": _blocked_row(peer.heartbeat, epoch),
        "log_bytes": None if peer.heartbeat is None else peer.heartbeat.log_bytes,
    }


def lag(position: Position, furthest: Position) -> str:
    """Format the lag of a member: ``"0"``, ``"3"`` collectives, or ``"2v"`` checkpoints."""
    versions = furthest.version - position.version
    return f"{versions}v" if versions > 0 else str(max(furthest.seqno - position.seqno, 0))


def _blocked_row(beat: Heartbeat | None, epoch: int) -> dict[str, Any] | None:
    if beat is None or beat.blocked is None or beat.epoch != epoch:
        return None
    blocked = beat.blocked
    return {
        "on": list(blocked.peers[:MAX_NAMED_PEERS]),
        "call": signature_text(blocked.signature),
        "site": blocked.site,
        "for_s": round(blocked.blocked_ms / 1000, 3),
    }
