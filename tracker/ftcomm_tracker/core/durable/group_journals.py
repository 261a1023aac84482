"""The group's journals: what members are told to read, and when the attempt may begin."""

from dataclasses import replace

from ftcomm.protocol.durable.journal_messages import AttemptBegun, ResultsJournalled
from ftcomm.protocol.messages import Plan
from ftcomm_tracker.core.events import PutBegun
from ftcomm_tracker.core.group_state import GroupState, JobState


def order_journal(group: GroupState, rank: int) -> None:
    """Have a member read what an earlier attempt has left on its host, before it reports."""
    order = group.journals.order(rank)
    if order is not None:
        group.send(group.members.slots[rank], order)


def held_plan(group: GroupState, plan: Plan) -> Plan:
    """Return `plan` as it is before the attempt has begun, if that is so."""
    journals = group.journals
    return replace(plan, journal=journals.epoch, holds=True) if journals.holds else plan


def note_found(group: GroupState) -> None:
    """Tell people what is not computed again."""
    journals = group.journals
    if journals.holds and journals.frontier:
        text = f"{journals.frontier} results after checkpoint {journals.version} were journalled"
        group.note("warning", f"{text}: the job goes on behind them")


def on_journalled(group: GroupState, rank: int, message: ResultsJournalled) -> None:
    """A member has journalled what the attempt goes on from; it may have begun long ago."""
    if group.journals.holds:
        group.journals.on_journalled(rank, message.epoch)
        group.journals.planned = message.frontier
    else:
        group.send(group.members.slots[rank], AttemptBegun(group.durable.attempt))


def advance_journals(group: GroupState) -> None:
    """Record that the attempt begins, once all members have journalled what it goes on from."""
    journals, members = group.journals, group.members.slots
    if group.state is JobState.RUNNING and journals.may_begin(members, group.epochs.in_force):
        group.effects.append(PutBegun(group.durable.attempt, journals.planned))


def on_begun(group: GroupState) -> None:
    """The store has the record: members may execute collectives."""
    group.journals.on_begun()
    for conn in group.members.slots.values():
        group.send(conn, AttemptBegun(group.durable.attempt))
