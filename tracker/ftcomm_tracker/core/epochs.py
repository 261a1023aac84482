"""Epochs: announce the next one, collect reports, and decide (rules R1, R13)."""

from dataclasses import replace

from ftcomm.errors import CollectiveMismatchError, JobLostError
from ftcomm.protocol.durable.store_messages import Restore
from ftcomm.protocol.messages import AskCalls, Calls, Leaves, Revoke, Settled
from ftcomm.protocol.position import PRELUDE
from ftcomm.recovery.archive.placement import keep_order, keep_stride
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.ending import end_with_error
from ftcomm_tracker.core.group_state import GroupState, Members
from ftcomm_tracker.core.job_states import JobState
from ftcomm_tracker.core.mismatch_inquiry import Evidence, Inquiry, ranks_to_ask
from ftcomm_tracker.core.plan import Decided, Facts, plan
from ftcomm_tracker.core.recovery_record import Loss, OpenIncident
from ftcomm_tracker.core.relay_routing import REPAIRED_AFTER, decide_routes, members_of
from ftcomm_tracker.core.reporting.mismatch import explain
from ftcomm_tracker.core.standby.group_permits import may_plan


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
    group.close_incident(completed=False)
    group.enter("epoch", JobState.COLLECTING)
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
    group.enter("plan", JobState.RUNNING)
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
    if group.members.empty_since or group.awaits_reports:
        return False
    return group.end.inquiry is None and not group.has_end and may_plan(group)


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
