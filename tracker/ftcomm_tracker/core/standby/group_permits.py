"""The group's permits: which record a plan or a fatal decision waits for (rule R19)."""

from ftcomm.durable.records import EndedRecord, EpochMember, EpochRecord
from ftcomm.protocol.messages import FatalDecision
from ftcomm_tracker.core.events import PutEnded, PutEpoch
from ftcomm_tracker.core.group_state import GroupState

# All members are away for so long: either all have died, or this tracker alone is cut off.
CUT_OFF_S = 15.0
STORE_AWAY = "see why the store takes no record; then start the trackers again"


def epoch_record(group: GroupState) -> EpochRecord:
    """The record of the present epoch and roster; who has closed and left is absent in it."""
    durable, slots = group.durable, group.members.slots
    roster = tuple(
        EpochMember(place.worker_id, place.incarnation, place.nonce, rank in slots)
        for rank, place in enumerate(durable.places)
    )
    return EpochRecord(durable.attempt, group.generation, durable.epoch, roster)


def may_plan(group: GroupState) -> bool:
    """True if the chain has the record of this epoch and roster; else the record is put."""
    permits = group.permits
    if permits.end is not None or not permits.is_on:
        return permits.end is None
    wanted = epoch_record(group)
    if permits.granted == wanted:
        return True
    if permits.ask(wanted, group.now):
        group.effects.append(PutEpoch(wanted))
    return False


def must_record_end(group: GroupState, decision: FatalDecision) -> bool:
    """True if the decision is told later, once it is recorded; the first one sticks."""
    permits = group.permits
    if not permits.is_on:
        return False
    if permits.end is None:
        permits.end = decision
        permits.since = min(permits.since, group.now)
        durable = group.durable
        group.effects.append(
            PutEnded(
                EndedRecord(
                    attempt=durable.attempt,
                    generation=group.generation,
                    error=decision.error,
                    cause=decision.cause,
                    epoch=decision.epoch,
                    position=decision.position,
                    rank=decision.rank,
                )
            )
        )
    return True


def end_without_store(group: GroupState) -> None:
    """End a tracker whose store takes no record: another one may lead by now."""
    waits_s = group.settings.replace_within
    if group.now >= group.permits.since + waits_s:
        group.step_down(f"the store took no record for {waits_s:g} s", STORE_AWAY)


def is_cut_off(group: GroupState, now: float) -> bool:
    """True if all members have been away for long, and no worker comes: it beats no longer."""
    away = group.members.empty_since.values()
    return bool(away) and not group.members.peers and now >= max(away) + CUT_OFF_S
