"""Epochs: announce the next one, collect reports, decide, and end the job (rules R1, R8, R13)."""

from dataclasses import replace

from ftcomm.errors import CollectiveMismatchError, JobLostError, RankLostError, RolledBackError
from ftcomm.protocol.durable.store_messages import MarkVersion, Restore
from ftcomm.protocol.messages import (
    AllClosed,
    AskCalls,
    Calls,
    FatalDecision,
    Leaves,
    Refused,
    Revoke,
    Settled,
)
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.recovery.replica_placement import keep_order, keep_stride
from ftcomm_tracker.core.durable.attempts import GOES_ON
from ftcomm_tracker.core.durable.last_will import LastWill, PendingEnd
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import IncidentClosed, JobEnded
from ftcomm_tracker.core.group_state import GroupState, JobState, Members
from ftcomm_tracker.core.mismatch_inquiry import Evidence, Inquiry, ranks_to_ask
from ftcomm_tracker.core.plan import Decided, Facts, plan
from ftcomm_tracker.core.recovery_record import Loss, OpenIncident
from ftcomm_tracker.core.relay_routing import REPAIRED_AFTER, decide_routes, members_of
from ftcomm_tracker.core.reporting.mismatch import explain
from ftcomm_tracker.core.standby.group_permits import end_without_store, may_plan, must_record_end

# After the end: for workers to hang up before the tracker leaves. Who was cut off just then needs
# `detect_within` to notice and a redial to come back and hear how the job ended.
FAREWELL_S = 5.0
REMIND_EVERY_S = 60.0
# Ends that a later attempt may follow; what ends a job by its script or its operator is final.
WITH_LAST_WILL = (JobLostError.__name__, RankLostError.__name__)


def begin_epoch(
    group: GroupState,
    reason: str,
    *,
    victim: str | None = None,
    suspects: tuple[int, ...] = (),
    silent_s: float = 0.0,
    loss: Loss = Loss.DIED,
) -> None:
    """Announce the next epoch: above all that anyone knows, journalled before it is sent."""
    if group.end.inquiry is not None:  # the job ends anyway: those who are there shall hear why
        conclude(group, group.end.inquiry)
        return
    known = [group.durable.epoch]
    known += [max(p.hello.revoke_epoch, p.hello.plan_epoch) for p in group.members.peers.values()]
    epoch = 1 + max(known)
    group.persist(epoch=epoch)
    close_incident(group, completed=False)
    group.state = JobState.COLLECTING
    group.epochs.begin_collecting()
    group.links.begin_collecting()
    if group.durable.first_nonces:  # before the first plan the group forms: nothing was broken
        group.epochs.incident = OpenIncident(
            epoch, reason, group.driver_now, silent_s=silent_s, loss=loss, suspects=set(suspects)
        )
        if victim is not None:
            group.epochs.incident.note_victim(victim, group.members.deaths.of(victim))
    group.note("info", f"epoch {epoch}: {reason}")
    for rank, conn in group.members.slots.items():
        order_restore(group, rank)
        group.send(conn, Revoke(epoch, reason[:500]))


def order_restore(group: GroupState, rank: int) -> None:
    """Have the first holders of an attempt's parent read it from the store (rule R16).

    Once a plan was sent the members have it, and the ordinary recovery holds.
    """
    durable = group.durable
    copies = group.settings.replicas
    stride = keep_stride(durable.world_size, copies)  # on different hosts, as far as there are some
    holders = keep_order(durable.grouping)[::stride][:copies]
    if durable.restore and rank in holders and not _has_begun(group):
        group.send(group.members.slots[rank], Restore(durable.restore))


def _has_begun(group: GroupState) -> bool:
    """True if a member may have what the attempt begins from: it has taken a plan."""
    if not group.durable.first_nonces:
        return False
    # R19: an older tracker may have recorded the first epoch, and have died before its plan
    took_one = any(peer.hello.plan_epoch for peer in group.members.in_slots())
    return not group.permits.is_on or took_one or group.epochs.in_force > 0


def try_plan(group: GroupState) -> None:
    """Decide once every place has reported; a closed one that has left is not awaited."""
    if not _is_ready(group):
        return
    incident = group.epochs.incident
    if incident is not None:
        incident.decided_at = group.driver_now
    facts = Facts(
        epoch=group.durable.epoch,
        all_replaced=_all_replaced(group.durable, group.members),
        grouping=group.durable.grouping,
        replicas=group.settings.replicas,
        local_replicas=group.settings.local_replicas,
        highest_version=group.epochs.highest_version,
    )
    lost = decide_routes(group, facts)
    if group.members.empty_since:  # somebody had to go
        return
    facts = replace(facts, routes=group.links.routes)
    members = members_of(group.durable, group.members)
    decision = lost or plan(members, facts, group.epochs.reports)
    if not isinstance(decision, Decided):
        if decision.error == JobLostError.__name__ and _is_in_grace(group):
            return
        if decision.evidence is not None:
            inquire(group, decision.evidence)
            return
        cause = decision.cause
        if decision.error == JobLostError.__name__ and incident is not None:
            cause = incident.explain_loss(cause)
        end_with_error(group, decision.error, cause, decision.position, decision.rank)
        return
    if not group.durable.first_nonces:
        group.persist(first_nonces=tuple(place.nonce for place in group.durable.places))
    group.epochs.heard_version(decision.frontier.version)
    if group.epochs.highest_version > group.durable.version:
        group.persist(version=group.epochs.highest_version)
    group.state = JobState.RUNNING
    group.epochs.grace_until = float("inf")
    group.epochs.in_force = group.durable.epoch
    group.links.begin_plan(group.now, REPAIRED_AFTER * group.settings.detect_within)
    group.epochs.awaiting_fetch = {
        rank
        for rank, order in decision.plans.items()
        if order.fetches or order.load_from or order.locals
    }
    committed = any(order.commit > PRELUDE for order in decision.plans.values())
    mark = group.versions.on_plan(committed, decision.frontier.version)
    for rank, order in decision.plans.items():
        group.send(group.members.slots[rank], replace(order, mark=mark))
    if incident is not None:
        incident.planned_at = group.driver_now
        incident.frontier = decision.frontier
        incident.routes = group.links.routes
    group.note("info", f"epoch {group.epochs.in_force} runs: {decision.reason}")
    try_settle(group)


def _is_ready(group: GroupState) -> bool:
    """True if all have reported, and the epoch is recorded where a standby may read it (R19)."""
    if group.members.empty_since or group.awaits_reports or group.end.is_decided:
        return False
    return may_plan(group)


def _is_in_grace(group: GroupState) -> bool:
    """Tell whether a closed member that lost its connection may still have the missing result.

    Nobody waits for such a one, except as the last resort, and as long as a restarted tracker
    waits for its workers.
    """
    names = [group.durable.places[rank].worker_id for rank in group.closed_and_away()]
    if not names or group.epochs.had_grace:
        return False
    if group.epochs.grace_until == float("inf"):
        group.epochs.grace_until = group.now + group.settings.reattach_within
        group.note(
            "warning",
            f"what is missing may be with worker {', '.join(names)}, which has closed and lost"
            f" its connection: awaited for {group.settings.reattach_within:g} s",
        )
    return True


def end_grace(group: GroupState) -> None:
    """It did not come back."""
    group.epochs.grace_until, group.epochs.had_grace = float("inf"), True
    try_plan(group)


def _all_replaced(durable: Durable, members: Members) -> bool:
    """A plan was journalled as sent, and nobody of those incarnations is left."""
    firsts = durable.first_nonces
    places = durable.places
    # Who has closed and gone keeps its place for ever, and nothing that it held.
    return bool(firsts) and all(firsts[r] != places[r].nonce for r in members.slots)


def try_settle(group: GroupState) -> None:
    """Tell the members that the plan is settled, once nobody fetches any more."""
    if not group.epochs.awaiting_fetch:
        for conn in group.members.slots.values():
            group.send(conn, Settled(group.epochs.in_force))


def close_incident(group: GroupState, *, completed: bool) -> None:
    """Write the record of the recovery under way, if there is one."""
    if group.epochs.incident is None:
        return
    record = group.epochs.incident.close(group.driver_now, completed=completed)
    group.epochs.incident = None
    group.epochs.incidents = [*group.epochs.incidents[-99:], record.to_dict()]
    group.effects.append(IncidentClosed(record))


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
    close_incident(group, completed=True)
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


def end_with_error(
    group: GroupState, error: str, cause: str, position: Position, rank: int = -1
) -> None:
    """Terminal: journalled, then said to all; the first fatal decision sticks."""
    if group.state is JobState.OVER or group.permits.end is not None:
        return
    if _begin_last_will(group, PendingEnd(error, cause, position, rank)):
        return
    if error == JobLostError.__name__ and group.versions.is_on:
        error, cause = _rolled_back(group, cause)
        group.end.untold = set()  # who is away meets the next attempt
    fatal_decision = FatalDecision(error, cause[:4000], group.durable.epoch, position, rank)
    if not must_record_end(group, fatal_decision):
        tell_end(group, fatal_decision)


def _begin_last_will(group: GroupState, end: PendingEnd) -> bool:
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


def tell_end(group: GroupState, fatal_decision: FatalDecision) -> None:
    """Journal the end of the job, and tell all members."""
    group.persist(fatal_decision=fatal_decision)
    close_incident(group, completed=False)
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


# --- mismatches -----------------------------------------------------------------------------


def inquire(group: GroupState, evidence: Evidence) -> None:
    """The job is going to end by a mismatch: ask what the ranks have called, to name it."""
    if group.end.inquiry is not None or group.state is JobState.OVER:
        return
    asked = ranks_to_ask(evidence, sorted(group.members.slots))
    group.end.inquiry = Inquiry(evidence, frozenset(asked), group.now)
    for rank in asked:
        group.send(group.members.slots[rank], AskCalls(evidence.version))


def on_answer(group: GroupState, rank: int, answer: Calls | Leaves) -> None:
    """A rank has said what it has called, or what is in its state."""
    inquiry = group.end.inquiry
    if inquiry is None or group.state is JobState.OVER or rank not in inquiry.asked:
        return
    if isinstance(answer, Calls):
        inquiry.calls.setdefault(rank, answer)
    elif answer.version == inquiry.evidence.version:
        inquiry.leaves.setdefault(rank, answer)


def conclude(group: GroupState, inquiry: Inquiry) -> None:
    """The fatal decision, with the answers that are there."""
    found = explain(inquiry.evidence, inquiry.calls, inquiry.leaves, _restarted(group.durable))
    end_with_error(group, CollectiveMismatchError.__name__, found.cause, found.position, found.rank)


def _restarted(durable: Durable) -> dict[int, str]:
    """Ranks whose process is known not to be that of the first plan, with their workers' names."""
    firsts = durable.first_nonces
    return {
        rank: place.worker_id
        for rank, place in enumerate(durable.places)
        if firsts and firsts[rank] not in (b"", place.nonce)
    }


def report_end(group: GroupState) -> None:
    """Tell the driver how the job has ended."""
    group.end.is_reported = True
    fatal_decision = group.durable.fatal_decision
    if fatal_decision is None:
        group.effects.append(JobEnded(True))
    else:
        group.effects.append(JobEnded(False, fatal_decision.error, fatal_decision.cause))
