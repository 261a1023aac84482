"""The group's durable versions: what members and the store say, and what is sent to members."""

from ftcomm.errors import CollectiveMismatchError, ConfigError, JobLostError
from ftcomm.protocol.durable.store_messages import (
    Marked,
    NextDigest,
    ObjectWritten,
    RestoreFailed,
    WriteFailed,
)
from ftcomm.protocol.messages import Fenced
from ftcomm_tracker.core.durable.versions import ALL, Outbox
from ftcomm_tracker.core.ending import end_with_error, tell_end, tell_finished
from ftcomm_tracker.core.epochs import try_plan
from ftcomm_tracker.core.events import (
    EndedPut,
    EpochPut,
    FinishedPut,
    JobEnded,
    ObjectsMissing,
    Overtaken,
    PutDelayed,
    SeriesPut,
    VersionPut,
)
from ftcomm_tracker.core.group_state import GroupState
from ftcomm_tracker.core.job_states import JobState

MemberWrote = Marked | NextDigest | ObjectWritten | WriteFailed | RestoreFailed


def on_member_wrote(group: GroupState, rank: int, message: MemberWrote) -> None:
    """A member holds a marked version, has written an object, or could not."""
    out = Outbox()
    match message:
        case Marked():
            group.versions.on_marked(rank, message, group.now, out)
        case NextDigest():
            group.versions.on_next_digest(message, out)
        case ObjectWritten():
            group.versions.on_written(rank, message)
        case WriteFailed(unusable=True, reason=reason) if group.versions.newest_at is None:
            # Nothing is durable yet.  Later on other holders write for a host that came since.
            words = f"the checkpoint store of rank {rank}: {reason}"
            end_with_error(group, ConfigError.__name__, words, group.members.progress(), rank)
        case WriteFailed():
            group.versions.on_failed(rank, message, group.now, out)
        case RestoreFailed(record, reason):
            words = f"rank {rank} could not read record {record} of the store: {reason}"
            end_with_error(group, JobLostError.__name__, words, group.members.progress(), rank)
    _send(group, out)


def on_store_event(
    group: GroupState,
    event: SeriesPut
    | VersionPut
    | ObjectsMissing
    | FinishedPut
    | EpochPut
    | EndedPut
    | PutDelayed
    | Overtaken,
) -> None:
    """The store has taken a record, or not."""
    out = Outbox()
    match event:
        case SeriesPut():
            group.note_records()
        case VersionPut() | ObjectsMissing() | PutDelayed():
            _on_version_event(group, event, out)
        case FinishedPut() if group.end.awaits_record:
            tell_finished(group)
        case EpochPut(record):
            group.permits.grant(record)
            if group.state is JobState.COLLECTING:
                try_plan(group)
        case EndedPut():
            if group.permits.end is not None and group.state is not JobState.OVER:
                tell_end(group, group.permits.end)
        case Overtaken(reason, by_tracker=True):  # R19: the workers are members of that one
            group.step_down(reason)
        case Overtaken(reason):
            _fence_all(group, reason)
    _send(group, out)


def _on_version_event(
    group: GroupState, event: VersionPut | ObjectsMissing | PutDelayed, out: Outbox
) -> None:
    match event:
        case VersionPut(version):
            group.note_records()
            group.versions.on_put(version, group.now, out)
        case ObjectsMissing(version, names, reason):
            group.versions.on_missing(version, names, reason, out)
        case PutDelayed(reason):
            group.versions.on_put_delayed(reason)


def advance_versions(group: GroupState) -> None:
    """Order, record or give up what is marked, as far as that is possible now."""
    if group.versions.is_on and group.versions.pending and group.state is not JobState.OVER:
        out = Outbox()
        members = len(group.members.slots)
        group.versions.advance(members, group.durable.epoch, group.now, out)
        _send(group, out)


def _send(group: GroupState, out: Outbox) -> None:
    for rank, message in out.messages:
        conns = group.members.slots
        receivers = conns.values() if rank == ALL else [conns[rank]] if rank in conns else []
        for conn in receivers:
            group.send(conn, message)
    group.effects += [put for put in (out.put, out.put_next) if put is not None]
    if out.mismatch:
        kind = CollectiveMismatchError.__name__
        end_with_error(group, kind, out.mismatch, group.members.progress())
    for level, text in out.notes:
        group.note(level, text)


def _fence_all(group: GroupState, reason: str) -> None:
    """A later attempt goes on from the store: nothing of this one counts any more (rule R16).

    So it is where all have closed, and the record of that is awaited: nobody has heard of that end.
    """
    if group.state is JobState.OVER and not group.end.awaits_record:
        return
    group.end.awaits_record, group.end.was_overtaken = False, True
    for conn, peer in sorted(group.members.peers.items()):
        took_part = peer.hello.plan_epoch or group.epochs.in_force
        if group.permits.is_on and not took_part:  # R19: it holds nothing, and may join that one
            continue
        group.send(conn, Fenced(reason))
        group.end.told(peer.hello.worker_id)
    group.note("error", reason)
    group.over(group.now)
    group.leave()
    group.effects.append(JobEnded(False, "FencedError", reason))
