"""A tracker that waits beside another one, in the status document and in words; pure."""

from collections.abc import Mapping
from typing import Any

from ftcomm_tracker.core.group_state import GroupState
from ftcomm_tracker.core.standby.watch import Phase, Standby

STANDBY = "STANDBY"


def standby_of(group: GroupState) -> Standby | None:
    """Return what a tracker that does not lead knows; None for one that leads."""
    return None if group.rebuild is None else group.rebuild.standby


def standby_row(group: GroupState, now: float) -> dict[str, Any] | None:
    """Return for whom a tracker waits, as JSON-able values; None for one that leads."""
    standby = standby_of(group)
    if standby is None:
        return None
    return {
        "job_id": standby.job_id,
        "phase": standby.phase.value,
        "leader": standby.leader,
        "since_s": round(now - standby.since, 3),
        "is_silent": standby.is_silent,
        "url": group.settings.checkpoint,
        "trouble": standby.trouble,
    }


def standby_line(row: Mapping[str, Any]) -> str:
    """Write the row in one line for a person."""
    if row["phase"] == Phase.ASKING.value:
        return "this tracker leads since its record is in the store, and awaits a worker's word"
    who = row["leader"] or "another tracker"
    silent = ", which does not beat in the store any more" if row["is_silent"] else ""
    return f"standby for {row['since_s']:.0f} s: {who} leads the job of {row['url']}{silent}"


def standby_needs(row: Mapping[str, Any]) -> str:
    """Explain in words when this tracker leads."""
    if row["trouble"]:
        return f"the store cannot be read: {row['trouble']}"
    if row["phase"] == Phase.ASKING.value:
        return "it waits for a worker that knows the job's settings, then goes on"
    if row["is_silent"]:
        return "it leads as soon as a worker dials it"
    return "it leads when that one is lost: when it beats no longer, or when all workers come here"
