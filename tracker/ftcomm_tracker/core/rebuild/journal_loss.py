"""A tracker without its journal: it hears workers, and takes their job up once they agree (R19).

Workers that come are asked what they know and are not welcomed yet.  They go on with collectives
meanwhile, which need no tracker.  Once `Rebuild` decides, a new group is made as from a journal,
and the workers are admitted to it like to a restarted tracker.
"""

from dataclasses import replace

from ftcomm.protocol.messages import Heartbeat, HeartbeatAck, Hello, KnownRoster, Refused
from ftcomm_tracker.core.admission import on_joined
from ftcomm_tracker.core.durable.store_facts import NO_STORE, StoreFacts
from ftcomm_tracker.core.events import (
    ChainRead,
    Claimed,
    ConnectionLost,
    Died,
    Disconnect,
    Event,
    GivenUp,
    Joined,
    Said,
    Send,
    StopAsked,
    StoreSeen,
    Superseded,
)
from ftcomm_tracker.core.group_state import GroupState, Members
from ftcomm_tracker.core.job_states import JobState
from ftcomm_tracker.core.rebuild.decision import (
    MAX_EPOCH,
    MAX_GENERATION,
    REMIND_EVERY_S,
    Rebuild,
    Rebuilt,
)
from ftcomm_tracker.core.standby.waiting import hear_store, hold, stop_waiting, succeed


def must_step_down(group: GroupState, event: Event) -> bool:
    """True if a worker follows a newer tracker: this one has ended without having noticed it."""
    match event:
        case Superseded(job_id, generation) if group.rebuild is not None:
            # Workers have answered both, and the other one leads; its job is known from them.
            return generation > group.rebuild.generation and job_id in group.rebuild.jobs
        case Superseded(job_id, generation):
            found = generation > group.generation
        case Joined(_, hello):
            job_id, generation = hello.job_id, hello.generation
            other = bool(hello.tracker) and hello.tracker != group.tracker
            newer = generation > group.generation or (generation == group.generation and other)
            # Without a plan it proves nothing: the tracker that welcomed it may be gone.
            found = newer and bool(hello.plan_epoch)
        case _:
            return False
    possible = generation <= MAX_GENERATION
    return found and possible and job_id == group.durable.job_id and _serves(group)


def _serves(group: GroupState) -> bool:
    """True once this tracker has a job: before that it only takes a higher generation."""
    return group.state is not JobState.REBUILDING and bool(group.durable.places)


def step_down(group: GroupState, event: Event) -> None:
    """End this tracker: it may decide nothing any more."""
    job_id = event.job_id if isinstance(event, Superseded) else group.durable.job_id
    group.step_down(f"the workers of job {job_id} follow a newer tracker")


def must_rebuild(group: GroupState, event: Event) -> bool:
    """True if a worker comes with a plan to a tracker that knows of none."""
    # R16: with a store, a new attempt has begun, and fences who comes from an earlier one
    if group.versions.is_on:
        return False
    no_plan_known = group.state is JobState.FORMING and not group.durable.places
    return no_plan_known and isinstance(event, Joined) and bool(event.hello.plan_epoch)


def begin_rebuilding(group: GroupState, rebuild: Rebuild) -> None:
    """Hear workers before anything is decided; those that have joined meanwhile wait too."""
    group.enter("journal lost", JobState.REBUILDING)
    group.rebuild = rebuild
    if rebuild.standby is None:
        rebuild.remind_at = group.now + REMIND_EVERY_S
    rebuild.generation = max(rebuild.generation, group.generation)
    waiting, group.members = list(group.members.peers.values()), Members()
    for peer in waiting:
        _ask(group, rebuild, peer.conn, replace(peer.hello, job_id=group.durable.job_id))
    if rebuild.store.job_id:
        group.note("warning", f"the journal of {rebuild.store.job_id} is not here; its store is")
    elif not rebuild.is_asked and rebuild.standby is None:
        group.note("warning", "a worker knows a plan, and the journal of its job is not here")


def hear(group: GroupState, rebuild: Rebuild, event: Event) -> bool:
    """Take what workers say while the job is not known; False if `event` is nothing of that."""
    match event:
        case Joined(conn, hello):
            _ask(group, rebuild, conn, hello)
        case Said(conn, KnownRoster() as part) if conn in rebuild.waiting:
            flaw = rebuild.answer(conn, part)
            if flaw:
                _refuse(group, rebuild, conn, f"worker {_name(rebuild, conn)}: {flaw}")
            elif part.epoch and rebuild.standby is None and rebuild.missing():
                came = f"worker {_name(rebuild, conn)} has said what it knows"
                group.note("info", f"{came}; missing: worker {', '.join(rebuild.missing()[:8])}")
        case Said(conn, Heartbeat()) if conn in rebuild.waiting:
            group.send(conn, HeartbeatAck(0))
        case ConnectionLost(conn):
            rebuild.forget(conn)
        case StoreSeen() | Claimed():
            hear_store(group, rebuild, event)
        case ChainRead():
            rebuild.store.note_read(event)
        case StopAsked() if rebuild.standby is not None:
            stop_waiting(group, rebuild)
        case Died() | GivenUp():
            rebuild.later.append(event)
        case _:
            return isinstance(event, Said)
    return True


def tell_waiting(group: GroupState) -> None:
    """Tell those that wait how the job ended."""
    rebuild, group.rebuild = group.rebuild, None
    if rebuild is not None and group.durable.fatal_decision is not None:
        for conn in rebuild.waiting:
            group.send(conn, group.durable.fatal_decision)


def end_rebuilding(group: GroupState, rebuild: Rebuild) -> None:
    """Form a group after all: no worker that knew a plan is here any more."""
    group.enter("no plan known", JobState.FORMING)
    group.rebuild = None
    for conn, hello in rebuild.waiting.items():
        on_joined(group, conn, hello)


def _name(rebuild: Rebuild, conn: int) -> str:
    return rebuild.waiting[conn].worker_id


def _ask(group: GroupState, rebuild: Rebuild, conn: int, hello: Hello) -> None:
    if max(hello.plan_epoch, hello.revoke_epoch) > MAX_EPOCH or hello.generation > MAX_GENERATION:
        text = f"worker {hello.worker_id} is in an impossible epoch or generation"
        _refuse(group, rebuild, conn, text)
        return
    if rebuild.standby is not None:
        hold(group, rebuild, conn, hello)
        return
    if hello.plan_epoch and rebuild.store.job_id not in ("", hello.job_id):
        # of an attempt that is over, or of another job: the attempt that begins here fences it
        group.effects.append(Disconnect(conn, f"it is a member of {hello.job_id}"))
        return
    for each, question in rebuild.join(conn, hello):
        group.send(each, question)


def _refuse(group: GroupState, rebuild: Rebuild, conn: int, reason: str) -> None:
    group.effects += [Send(conn, Refused("ProtocolError", reason)), Disconnect(conn, reason)]
    group.note("warning", f"refused a worker: {reason}")
    rebuild.forget(conn)


def remind(group: GroupState, rebuild: Rebuild) -> None:
    """Tell the operator again and again what keeps the job."""
    if group.now >= rebuild.remind_at:
        rebuild.remind_at = group.now + REMIND_EVERY_S
        group.note("warning", f"the job's journal is not here, and {rebuild.needs()}")


def take_up(
    group: GroupState, rebuild: Rebuild, found: Rebuilt, store: StoreFacts = NO_STORE
) -> GroupState:
    """Make the group as from a journal, journal it, and admit all who wait."""
    new = GroupState(
        found.settings,
        found.durable,
        generation=found.generation,
        tracker=group.tracker,
        now=group.now,
        parts=group.make_parts,
        store=store,
    )
    end = found.durable.end
    goes_on = f"goes on in generation {found.generation} from what its workers know"
    goes_on += " and its store" if store.attempt else ""
    text = f"job {found.durable.job_id} {f'{end}, as its store says' if end else goes_on}"
    return succeed(group, rebuild, new, found.old_trackers, "warning", text)
