"""A job with a store whose journal is lost: what its workers know, and its chain (R16, R19).

The chain says which attempt its workers must be of, and which versions are durable.  So a job with
a store is never taken up without it.  A tracker that was given the store and has no journal hears
the members of the newest attempt first: an attempt that begins fences whoever lives.
"""

from dataclasses import replace

from ftcomm.config.job_settings import JobSettings
from ftcomm.errors import ConfigError, FtcommError, TrackerLostError
from ftcomm.protocol.messages import Refused
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm_tracker.core.durable.chain_facts import ChainFacts
from ftcomm_tracker.core.durable.store_facts import StoreFacts
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    ChainRead,
    Disconnect,
    ReadStore,
    RefuseRebuild,
    Send,
    StartAttempt,
    TakeGeneration,
)
from ftcomm_tracker.core.group_state import GroupState
from ftcomm_tracker.core.rebuild.decision import Rebuild, Rebuilt, attempt_of, how_to_start_again
from ftcomm_tracker.core.rebuild.journal_loss import take_up


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
    if rebuild.is_over:
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
    _end(group, rebuild, refusal)
    return None


def hear_in_time(group: GroupState, rebuild: Rebuild) -> None:
    """Wait no longer than for a replacement: begin the next attempt, or give the job up."""
    if rebuild.is_over or rebuild.standby is not None:
        return
    rebuild.note_time(group.now, group.settings)
    store = rebuild.store
    if store.is_asked:  # all members are here
        return
    new = {hello.worker_id for hello in rebuild.waiting.values() if not hello.spare}
    all_new = bool(store.job_id) and not rebuild.knows_a_plan
    if all_new and len(new) >= group.durable.world_size:
        _begin_attempt(group, rebuild, "all its workers have been started anew")
    elif group.now >= rebuild.ends_at and store.job_id:
        reason = "no member of it has come" if all_new else rebuild.lacks()
        _begin_attempt(group, rebuild, reason)
    elif group.now >= rebuild.ends_at:
        _give_up(group, rebuild)


def _begin_attempt(group: GroupState, rebuild: Rebuild, reason: str) -> None:
    group.note("warning", f"{rebuild.store.job_id} is not taken up: {reason}")
    if rebuild.generation > group.generation:  # workers have answered in it
        group.effects.append(TakeGeneration(rebuild.generation, ()))
    group.effects.append(StartAttempt())
    rebuild.is_over, rebuild.remind_at = True, float("inf")


def _give_up(group: GroupState, rebuild: Rebuild) -> None:
    """Tell those that wait that this tracker ends.

    It is no decision about the job: another tracker may lead the others.
    """
    waited_s = group.now - rebuild.since
    cause = f"this tracker has no journal of the job: {rebuild.lacks()}, after {waited_s:.0f} s"
    for conn in rebuild.waiting:
        group.effects += [
            Send(conn, Refused(TrackerLostError.__name__, cause)),
            Disconnect(conn, "this tracker ends"),
        ]
    newest = rebuild.newest_answer()
    store = JobSettings.from_wire(newest[0].settings).checkpoint if newest else ""
    remedy = how_to_start_again(newest[0].world_size if newest else 0, store)
    _end(group, rebuild, TrackerLostError(cause, remedy=remedy))


def _end(group: GroupState, rebuild: Rebuild, error: FtcommError) -> None:
    group.effects.append(RefuseRebuild(error))
    rebuild.is_over = True
    group.leave()


# --- does the store fit the workers? ------------------------------------------------------------


def refusal_of(found: Rebuilt, chain: ChainFacts) -> ConfigError | None:
    """Explain why the workers' job cannot go on with this chain; None if it can."""
    job_id, url = found.durable.job_id, found.settings.checkpoint
    series, attempt = attempt_of(job_id)
    if chain.series not in ("", series):
        text = f"the workers are of job {job_id}, and the store {url} has job {chain.series}"
        return ConfigError(text, remedy="give the workers' job its own store back")
    if chain.newest_attempt > attempt:
        text = f"attempt {chain.newest_attempt} of the workers' job {job_id} has begun from {url}"
        return ConfigError(text, remedy=how_to_start_again(found.durable.world_size, url))
    if chain.epochs or chain.ended is not None:
        text = f"job {job_id} was started with --standby: its store {url} says who leads"
        return ConfigError(text, remedy="start the tracker with --standby, without --rebuild")
    is_recorded = attempt in [each.attempt for each in chain.attempts]
    if not is_recorded and attempt != 1:
        text = f"the store {url} has no record of the workers' job {job_id}"
        return ConfigError(text, remedy="see why the store lacks its newest records")
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
