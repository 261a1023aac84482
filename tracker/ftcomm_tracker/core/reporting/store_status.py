"""The job's store in the status document: how old the newest checkpoint is, what is wrong."""

from typing import Any

from ftcomm_tracker.core.group_state import GroupState


def store_row(group: GroupState, now: float) -> dict[str, Any] | None:
    """Return the job's store and its newest checkpoint as JSON-able values; None without one."""
    versions = group.versions
    if not versions.is_on:
        return None
    return {
        "url": group.settings.checkpoint,
        "attempt": versions.attempt,
        "every": group.settings.checkpoint_every,
        "newest": versions.newest,
        "age_s": None if versions.newest_at is None else round(now - versions.newest_at, 3),
        "writing": sorted(versions.pending),
        "trouble": versions.trouble,
        "last_will": None if group.end.last_will is None else group.end.last_will.version,
    }
