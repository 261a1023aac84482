"""The group's last will: when it is begun, and who can still write it."""

from ftcomm.errors import JobLostError, RankLostError
from ftcomm.protocol.durable.store_messages import MarkVersion
from ftcomm_tracker.core.durable.last_will import LastWill, PendingEnd
from ftcomm_tracker.core.group_state import GroupState

# Ends that a later attempt may follow; what ends a job by its script or its operator is final.
WITH_LAST_WILL = (JobLostError.__name__, RankLostError.__name__)


def begin_last_will(group: GroupState, end: PendingEnd) -> bool:
    """Have the newest committed checkpoint written first; False if there is none to write."""
    if not group.versions.is_on or end.error not in WITH_LAST_WILL:
        return False
    if group.end.last_will is not None:  # the first end is the one that is told
        return True
    version = group.members.progress().version
    within_s = group.settings.last_will
    if group.end.had_last_will or version <= max(group.versions.newest, 0):
        return False
    asked = set(group.members.slots)
    group.end.last_will = LastWill(version, group.now + within_s, asked, end)
    group.end.had_last_will = True
    for conn in group.members.slots.values():
        group.send(conn, MarkVersion(version))
    group.note(
        "warning",
        f"{end.cause}: before the job ends, checkpoint {version} is written to its store, for"
        f" {within_s:g} s at most",
    )
    return True


def cannot_write(group: GroupState, rank: int, version: int) -> None:
    """Note that a member does not hold the version."""
    will = group.end.last_will
    if will is not None and will.version == version:
        will.asked.discard(rank)
