"""A group whose tracker waits beside another one: workers that come, and what the store says (R19).

Workers that come are held and not asked anything: one that was asked would follow this tracker and
no older one.  The group is made when this tracker leads, as from a journal.
"""

from dataclasses import replace

from ftcomm.config.job_settings import JobSettings
from ftcomm.protocol.messages import Hello, KnownRoster, RosterEntry
from ftcomm_tracker.core.admission import on_joined
from ftcomm_tracker.core.events import (
    Claimed,
    Disconnect,
    JobEnded,
    Persist,
    PutClaim,
    StartAttempt,
    StoreSeen,
    TakeGeneration,
)
from ftcomm_tracker.core.group_state import GroupState
from ftcomm_tracker.core.rebuild.decision import Rebuild
from ftcomm_tracker.core.standby.watch import Phase, Standby


def hold(group: GroupState, rebuild: Rebuild, conn: int, hello: Hello) -> None:
    """Take a worker that has come; ask it only if this tracker leads."""
    standby = rebuild.standby
    assert standby is not None
    standby.floor = max(standby.floor, hello.generation)
    if standby.sends_away:  # or the store is not read yet
        standby.note_call(hello, group.now)
        group.effects.append(Disconnect(conn, "another tracker leads the job"))
        return
    rebuild.waiting[conn] = hello
    if standby.phase is not Phase.ASKING or standby.claim is None:
        return
    own = (hello.generation, hello.tracker) == (rebuild.generation, rebuild.tracker)
    if hello.generation < rebuild.generation or own:
        group.send(conn, rebuild.question)
    else:  # it follows another one, whose record may be there by now
        lose_claim(group, rebuild, standby)


def lose_claim(group: GroupState, rebuild: Rebuild, standby: Standby) -> None:
    """Wait again, since another tracker may lead; its workers dial anew."""
    standby.enter("another one leads", Phase.WAITING)
    standby.claim = None
    rebuild.answers = {}
    send_away(group, rebuild)


def send_away(group: GroupState, rebuild: Rebuild) -> None:
    """End the connections of the workers that wait; they dial again, another tracker first."""
    for conn, hello in list(rebuild.waiting.items()):
        if rebuild.standby is not None:
            rebuild.standby.note_call(hello, group.now)
        group.effects.append(Disconnect(conn, "another tracker leads the job"))
        rebuild.forget(conn)


def hear_store(group: GroupState, rebuild: Rebuild, event: StoreSeen | Claimed) -> None:
    """Take what the store says."""
    standby = rebuild.standby
    assert standby is not None
    match event:
        case StoreSeen():
            if event.leader != standby.leader:
                standby.leader = event.leader
                if event.leader:
                    group.note("info", f"{event.leader} leads the job; this tracker waits")
            was_silent, standby.now_us = standby.is_silent, event.now_us
            standby.note_store(event.chain, is_silent=event.is_silent, now=group.now)
            if standby.is_silent and not was_silent and event.leader:
                group.note("warning", f"{event.leader} does not beat in the store any more")
            standby.trouble = event.trouble
            if standby.sends_away:
                send_away(group, rebuild)
        case Claimed(None):  # it was made from what is old by now
            standby.enter("another record was first", Phase.WAITING)
            standby.chain = None
        case Claimed(record):
            assert record is not None
            standby.enter("claim is there", Phase.ASKING)
            standby.claim, standby.claimed_at = record, group.now
            rebuild.generation = record.generation
            group.note("warning", f"this tracker leads the job, in generation {record.generation}")
            for conn in rebuild.waiting:
                group.send(conn, rebuild.question)


def advance(group: GroupState, rebuild: Rebuild, standby: Standby) -> GroupState | None:
    """Take the next step; the group that is made once this tracker leads."""
    chain = standby.chain
    if chain is None or standby.phase is Phase.CLAIMING:
        return None
    if standby.claim is not None:
        claim = standby.claim
        later = chain.newest_generation > claim.generation
        if later or chain.newest_attempt > claim.attempt:
            lose_claim(group, rebuild, standby)
            return None
        return _taken_up(group, rebuild, standby)
    if standby.is_over:
        return _ended(group, rebuild, standby)
    if standby.has_nothing_to_take_up:
        if standby.is_silent:
            standby.enter("nobody leads", Phase.CLAIMING)
            send_away(group, rebuild)  # they come back to the attempt
            group.effects.append(StartAttempt())
        return None
    record = standby.next_claim(rebuild.waiting.values(), group.now)
    if record is not None:
        standby.enter("nobody leads", Phase.CLAIMING)
        group.effects.append(PutClaim(record, chain.length))
    return None


def _taken_up(group: GroupState, rebuild: Rebuild, standby: Standby) -> GroupState | None:
    """The group, once a worker has said the job's settings, or none that knows them comes."""
    answer, entries = _newest_answer(rebuild)
    patience_s = group.settings.reattach_within
    if answer is None and group.now < standby.claimed_at + patience_s:
        return None
    settings = group.settings if answer is None else JobSettings.from_wire(answer.settings)
    settings = replace(settings, checkpoint=group.settings.checkpoint)
    durable = standby.durable(settings, rebuild.waiting.values(), answer, entries)
    assert standby.claim is not None
    assert standby.chain is not None
    facts = standby.chain.facts_of(durable.attempt, standby.now_us)
    new = GroupState(
        settings,
        durable,
        generation=standby.claim.generation,
        tracker=group.tracker,
        now=group.now,
        parts=group.make_parts,
        store=replace(facts, has_standby=True),
    )
    new.epochs.reattach_by = standby.claimed_at + patience_s
    old = {a for parts in rebuild.answers.values() for part in parts for a in part.lost}
    text = f"goes on in generation {new.generation} under this tracker, from the store and what its"
    text = f"job {durable.job_id} {text} workers know"
    return succeed(group, rebuild, new, tuple(sorted(old)), "warning", text)


def succeed(
    group: GroupState,
    rebuild: Rebuild,
    new: GroupState,
    old_trackers: tuple[str, ...],
    level: str,
    text: str,
) -> GroupState:
    """Let `new` take the place of a group whose job was not known: journal it, admit all who wait.

    Returns:
        `new`, as from a journal.
    """
    new.launches, new.paths = group.launches, group.paths
    new.driver_now = group.driver_now
    new.effects = [
        *group.effects,
        TakeGeneration(new.generation, old_trackers),
        Persist(new.durable),
        *new.effects,
    ]
    new.note(level, text)
    waiting = sorted(rebuild.waiting.items(), key=lambda each: (-each[1].plan_epoch, each[0]))
    for conn, hello in waiting:
        on_joined(new, conn, hello)
    return new


def _ended(group: GroupState, rebuild: Rebuild, standby: Standby) -> GroupState:
    """The group of a job that has ended: workers that come are told how."""
    assert standby.chain is not None
    durable = standby.durable_of_the_end(group.settings)
    facts = standby.chain.facts_of(durable.attempt, standby.now_us)
    new = GroupState(
        group.settings,
        durable,
        generation=1 + max(standby.chain.newest_generation, standby.floor),
        tracker=group.tracker,
        now=group.now,
        parts=group.make_parts,
        store=facts,
    )
    said = f"the job {durable.end}, as its store says"
    return succeed(group, rebuild, new, (), "info", said)


def _newest_answer(rebuild: Rebuild) -> tuple[KnownRoster | None, list[RosterEntry]]:
    parts = rebuild.newest_answer()
    return (parts[0] if parts else None), [entry for part in parts for entry in part.entries]


def stop_waiting(group: GroupState, rebuild: Rebuild) -> None:
    """End this tracker alone: the job goes on under the other one."""
    for conn in rebuild.waiting:
        group.effects.append(Disconnect(conn, "this tracker was stopped"))
    group.note("warning", "this tracker was stopped while it waited; the job goes on without it")
    group.rebuild = None
    group.leave()
    group.effects.append(JobEnded(True))
