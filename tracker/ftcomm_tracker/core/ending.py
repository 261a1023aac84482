"""The end of a job: all have closed, or an error that every rank raises (rules R8, R13).

An end by an error passes the parts in their order.  Each may change it, or hold it once and release
it later to those behind.  Then it is recorded for a standby, journalled, and told.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ftcomm.errors import JobLostError, RolledBackError
from ftcomm.protocol.messages import AllClosed, FatalDecision, Refused
from ftcomm.protocol.position import Position
from ftcomm_tracker.core.durable.attempts import GOES_ON
from ftcomm_tracker.core.events import JobEnded
from ftcomm_tracker.core.group_state import GroupState
from ftcomm_tracker.core.job_states import JobState
from ftcomm_tracker.core.part import Part
from ftcomm_tracker.core.standby.group_permits import end_without_store, must_record_end

# After the end: for workers to hang up before the tracker leaves. Who was cut off just then needs
# `detect_within` to notice and a redial to come back and hear how the job ended.
FAREWELL_S = 5.0
REMIND_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class PendingEnd:
    """An end of the job that has yet to be told.

    Attributes:
        error: name of the class that every rank raises.
        cause: in words.
        position: where the job stood.
        rank: whose fault it is, -1 for nobody's.
    """

    error: str
    cause: str
    position: Position
    rank: int = -1


def end_with_error(
    group: GroupState, error: str, cause: str, position: Position, rank: int = -1
) -> None:
    """Terminal: journalled, then said to all; the first fatal decision sticks."""
    _pass_on(group, PendingEnd(error, cause, position, rank), group.parts)


def release_end(group: GroupState, part: Part, end: PendingEnd) -> None:
    """Go on with an end that `part` has held, with the parts behind it."""
    _pass_on(group, end, group.parts[group.parts.index(part) + 1 :])


def _pass_on(group: GroupState, end: PendingEnd, parts: Sequence[Part]) -> None:
    if group.state is JobState.OVER or group.permits.end is not None:
        return
    for part in parts:
        passed = part.on_end(group, end)
        if passed is None:
            return
        end = passed
    error, cause = end.error, end.cause
    if error == JobLostError.__name__ and group.versions.is_on:
        error, cause = _rolled_back(group, cause)
        group.end.untold = set()  # who is away meets the next attempt
    decision = FatalDecision(error, cause[:4000], group.durable.epoch, end.position, end.rank)
    if not must_record_end(group, decision):
        tell_end(group, decision)


def tell_end(group: GroupState, fatal_decision: FatalDecision) -> None:
    """Journal the end of the job, and tell all members."""
    group.persist(fatal_decision=fatal_decision)
    group.close_incident(completed=False)
    for conn, peer in sorted(group.members.peers.items()):
        group.send(conn, fatal_decision)
        group.end.told(peer.hello.worker_id)
    # The command says at its end how the job has ended; a later attempt may follow.
    group.note("info", f"{fatal_decision.error}: {fatal_decision.cause}")
    _note_write_trouble(group)
    group.over(group.now + FAREWELL_S + group.settings.detect_within)


def _note_write_trouble(group: GroupState) -> None:
    """Say beside the end of the job that its newest checkpoints are not in the store."""
    for level, text in group.versions.write_trouble.at_the_end(group.versions.newest):
        group.note(level, text)


def _rolled_back(group: GroupState, cause: str) -> tuple[str, str]:
    """The job is lost to its members, not to its store: an attempt follows (rule R16)."""
    newest = group.versions.newest
    where = "the beginning" if newest < 0 else f"checkpoint {newest}"
    text = f"{cause}{GOES_ON} {where} of its store: start this worker again"
    return RolledBackError.__name__, text


def on_closed(group: GroupState, rank: int, version: int) -> None:
    """A rank has closed; when all have, that is journalled before anyone is told (R8)."""
    if rank in group.durable.closed_ranks or group.state is JobState.OVER:
        return
    closed_ranks = tuple(sorted({*group.durable.closed_ranks, rank}))
    closed = f"worker {group.durable.places[rank].worker_id} has closed"
    if len(closed_ranks) < group.durable.world_size:
        group.persist(closed_ranks=closed_ranks)
        group.note("info", closed)
        return
    final = max(version, group.epochs.highest_version, 0)
    # in one: half of it would never end
    group.persist(closed_ranks=closed_ranks, final_version=final)
    group.close_incident(completed=True)
    group.note("info", closed)
    if group.versions.is_on:  # R16: journalled, then recorded, then told
        group.record_end()
    else:
        tell_finished(group)


def tell_finished(group: GroupState) -> None:
    """The job's end is durable: tell all members."""
    final = group.durable.final_version
    if group.end.awaits_record:
        group.end.awaits_record, group.permits.since = False, float("inf")
        group.persist()  # again, for those who wait to hear of the job's end
    for conn, peer in sorted(group.members.peers.items()):
        in_slots = group.members.rank_of_conn(conn) is not None
        finished = Refused("JobFinishedError", f"the job finished at version {final}", final)
        group.send(conn, AllClosed(final) if in_slots else finished)
        if not in_slots:  # a member answers
            group.end.told(peer.hello.worker_id)
    group.note("info", f"all ranks have closed at version {final}")
    _note_write_trouble(group)
    group.over(group.now + FAREWELL_S + group.settings.detect_within)
    group.end.patience_s = group.settings.replace_within


def tell_finished_at_last(group: GroupState) -> None:
    """The store stays away: the job has ended well all the same (rule R16)."""
    if group.permits.is_on:  # R19: another tracker may lead, and tell another end
        end_without_store(group)
    elif group.now >= group.end.over_at:
        within_s = group.settings.replace_within
        group.note("warning", f"the store did not take the job's end in {within_s:g} s")
        tell_finished(group)
    if group.end.awaits_record and not group.end.is_reported:
        _remind_of_record(group)


def _remind_of_record(group: GroupState) -> None:
    """Say that all have closed, and the store keeps them waiting."""
    end = group.end
    if group.now < end.remind_at:
        return
    end.remind_at = group.now + REMIND_EVERY_S
    trouble = group.versions.trouble
    group.note(
        "warning",
        f"all ranks have closed; the job ends when its store has the record of that, in"
        f" {max(end.over_at - group.now, 0):.0f} s at most{': ' if trouble else ''}{trouble}",
    )


def look_whether_everyone_knows(group: GroupState) -> None:
    """The job is over: the driver hears of it once everyone has, or could have."""
    end = group.end
    if end.is_reported:
        return
    if group.now >= end.over_at:
        end.untold -= end.gone
    # Before the group has formed nobody can be missed by name: who is on its way has until the
    # farewell's end to hear why there is no job.
    if group.durable.places and not (group.members.peers or end.untold or end.unheard):
        report_end(group)
    elif group.now >= end.over_at and end.untold and end.patience_s:
        # R8: to a member that was cut off just then, no answer at all would be a failure
        names = ", ".join(sorted(end.untold))
        group.note(
            "warning",
            f"worker {names} may not know that the job has finished: staying for its call, for"
            f" {end.patience_s:g} s at most",
        )
        end.over_at, end.patience_s = group.now + end.patience_s, 0.0
    elif group.now >= end.over_at:
        report_end(group)


def report_end(group: GroupState) -> None:
    """Tell the driver how the job has ended."""
    group.end.is_reported = True
    fatal_decision = group.durable.fatal_decision
    if fatal_decision is None:
        group.effects.append(JobEnded(True))
    else:
        group.effects.append(JobEnded(False, fatal_decision.error, fatal_decision.cause))
