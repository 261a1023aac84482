"""A job with a store whose journal is lost: what its workers know, and its chain (R16, R19).

The chain says which attempt its workers must be of, and which versions are durable.  So a job with
a store is never taken up without it.  A tracker that was given the store and has no journal hears
the members of the newest attempt first: an attempt that begins fences whoever lives.
"""

from dataclasses import dataclass, replace

from ftcomm.protocol.position import PRELUDE, Position
from ftcomm_tracker.core.durable.chain_facts import ChainFacts
from ftcomm_tracker.core.durable.store_facts import StoreFacts
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    ChainRead,
    ReadStore,
    RefuseRebuild,
    StartAttempt,
    TakeGeneration,
)
from ftcomm_tracker.core.group_state import GroupState, JobState
from ftcomm_tracker.core.rebuild.decision import Rebuild, Rebuilt, attempt_of
from ftcomm_tracker.core.rebuild.journal_loss import take_up


@dataclass(frozen=True, slots=True)
class RebuildRefusal:
    """Reason for which a job is not taken up from its workers, and what to do."""

    cause: str
    remedy: str


def attempt_to_hear(before: Durable, chain: ChainFacts) -> str:
    """The job id of the attempt whose members are heard before the next one begins.

    Empty for none.

    Args:
        before: what the journal has. If it knows an attempt, that one goes on, or is over.
        chain: of the store.
    """
    over = chain.finished > PRELUDE or chain.ended is not None
    if before.attempt or over or not chain.newest_attempt:
        return ""
    return f"{chain.series}.{chain.newest_attempt}"


def advance_rebuilding(group: GroupState, rebuild: Rebuild) -> GroupState | None:
    """Take the next step; the group once its workers have said all, and its store if it has one."""
    store = rebuild.store
    if store.is_over:
        return None
    found = rebuild.decide()
    if found is None:
        store.forget_read()
        hear_in_time(group, rebuild)
        return None
    if not found.settings.checkpoint:
        return take_up(group, rebuild, found)
    if store.read is None:
        if not store.is_asked:
            store.is_asked = True
            group.effects.append(ReadStore(found.durable.job_id, found.settings))
        return None
    refusal = refusal_of(found, store.read.chain)
    if refusal is None:
        return take_up(group, rebuild, *with_store(found, store.read))
    _refuse(group, rebuild, refusal)
    return None


def hear_in_time(group: GroupState, rebuild: Rebuild) -> None:
    """Begin the next attempt if no member of the newest one lives, as far as that can be known."""
    store, settings = rebuild.store, group.settings
    if not store.job_id or store.is_over:
        return
    has_members = rebuild.knows_a_plan
    store.note_members(
        are_here=has_members, now=group.now, reattach_within=settings.reattach_within
    )
    if store.is_asked:  # all members are here
        return
    new = {hello.worker_id for hello in rebuild.waiting.values() if not hello.spare}
    if not has_members and len(new) >= group.durable.world_size:
        _begin_attempt(group, rebuild, "all its workers have been started anew")
    elif group.now >= store.due(settings.replace_within):
        missing = f"worker {', '.join(rebuild.missing()[:8])} has not come"
        alone = rebuild.contradiction() or missing
        reason = alone if has_members else "no member of it has come"
        _begin_attempt(group, rebuild, reason)


def _begin_attempt(group: GroupState, rebuild: Rebuild, reason: str) -> None:
    group.note("warning", f"{rebuild.store.job_id} is not taken up: {reason}")
    if rebuild.generation > group.generation:  # workers have answered in it
        group.effects.append(TakeGeneration(rebuild.generation, ()))
    group.effects.append(StartAttempt())
    rebuild.store.is_over, rebuild.remind_at = True, float("inf")


def _refuse(group: GroupState, rebuild: Rebuild, refusal: RebuildRefusal) -> None:
    group.effects.append(RefuseRebuild(refusal.cause, refusal.remedy))
    rebuild.store.is_over = True
    group.state = JobState.OVER
    group.end.is_reported = True


# --- does the store fit the workers? ------------------------------------------------------------


def refusal_of(found: Rebuilt, chain: ChainFacts) -> RebuildRefusal | None:
    """Explain why the workers' job cannot go on with this chain; None if it can."""
    job_id, url = found.durable.job_id, found.settings.checkpoint
    series, attempt = attempt_of(job_id)
    anew = (
        f"start the tracker with -n {found.durable.world_size} --checkpoint {url}, without"
        " --rebuild: the next attempt begins from the newest checkpoint"
    )
    if chain.series not in ("", series):
        text = f"the workers are of job {job_id}, and the store {url} has job {chain.series}"
        return RebuildRefusal(text, "give the workers' job its own store back")
    if chain.newest_attempt > attempt:
        text = f"attempt {chain.newest_attempt} of the workers' job {job_id} has begun from {url}"
        return RebuildRefusal(text, f"{anew}, and these workers end")
    if chain.epochs or chain.ended is not None:
        text = f"job {job_id} was started with --standby: its store {url} says who leads"
        return RebuildRefusal(text, "start the tracker with --standby, without --rebuild")
    is_recorded = attempt in [each.attempt for each in chain.attempts]
    if not is_recorded and attempt != 1:
        text = f"the store {url} has no record of the workers' job {job_id}"
        return RebuildRefusal(text, "see why the store lacks its newest records")
    return None


def with_store(found: Rebuilt, read: ChainRead) -> tuple[Rebuilt, StoreFacts]:
    """The job with what its chain knows of the attempt; one that has finished is only told."""
    chain = read.chain
    _, attempt = attempt_of(found.durable.job_id)
    facts = chain.facts_of(attempt, read.now_us)
    begun = next((each for each in chain.attempts if each.attempt == attempt), None)
    # The tracker may have died before its first records were there: the nonce of the one that is
    # there makes the other one this tracker's own.
    nonce = begun.nonce if begun is not None else chain.first_nonce or read.nonce
    first_nonces = found.durable.first_nonces
    if found.frontier == Position(0, facts.parent_version, 0):
        # Nothing was completed since the attempt began: members without results have lost nothing.
        first_nonces = tuple(place.nonce for place in found.durable.places)
    durable = replace(
        found.durable,
        first_nonces=first_nonces,
        attempt=attempt,
        attempt_nonce=nonce,
        in_store=chain.length > 0,
        restore=0 if begun is None else begun.parent,
        version=max(found.durable.version, facts.durable_version),
    )
    if facts.is_finished:
        everyone = tuple(range(durable.world_size))
        durable = replace(durable, final_version=chain.finished, closed_ranks=everyone)
    return replace(found, durable=durable), facts
