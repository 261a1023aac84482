"""Hearing: what members say, what they see of each other, and what their silence says."""

from dataclasses import replace

from ftcomm.diagnostics.script_failures import without_addresses
from ftcomm.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    JobLostError,
    LogLimitError,
    RankLostError,
    ScriptFailedError,
    StateChangedError,
)
from ftcomm.protocol.durable.store_messages import (
    Marked,
    NextDigest,
    ObjectWritten,
    RestoreFailed,
    WriteFailed,
)
from ftcomm.protocol.messages import (
    Blocked,
    Calls,
    Closed,
    FatalReport,
    Fetched,
    Heartbeat,
    HeartbeatAck,
    Leave,
    Leaves,
    Mismatch,
    Report,
    Resumed,
    Suspect,
    WorkerMessage,
)
from ftcomm.protocol.position import MAX_SEQNO, MAX_VERSION, PRELUDE, Position, can_be_held
from ftcomm.protocol.signature import agree, is_open
from ftcomm_tracker.core.admission import assign_spare
from ftcomm_tracker.core.durable.group_versions import MemberWrote, on_member_wrote
from ftcomm_tracker.core.ending import end_with_error, on_closed
from ftcomm_tracker.core.epochs import begin_epoch, inquire, on_answer, try_plan, try_settle
from ftcomm_tracker.core.events import Death, Died, GivenUp
from ftcomm_tracker.core.group_state import GroupState, Members, Peer
from ftcomm_tracker.core.job_states import JobState
from ftcomm_tracker.core.mismatch_inquiry import Evidence, Side
from ftcomm_tracker.core.recovery_record import Loss
from ftcomm_tracker.core.relay_routing import awaited_in_a_collective, note_failed_pair
from ftcomm_tracker.core.reporting.incident_words import how_text
from ftcomm_tracker.core.reporting.lost_hosts import host_text
from ftcomm_tracker.core.silent_links import CLOSED, RankProgress, starving_pairs

# What one rank may find that ends the job for all. All ranks reach the log's limit at one position;
# but one that is still before it could not get there without the one that has left.
FATAL_REPORTS = frozenset(
    kind.__name__
    for kind in (
        CollectiveMismatchError,
        CollectiveTimeoutError,
        JobLostError,
        LogLimitError,
        StateChangedError,
    )
)


def on_said(group: GroupState, peer: Peer, message: WorkerMessage) -> None:
    """Dispatch a worker's message; any message is a sign of activity."""
    group.refresh(peer)
    rank = group.members.rank_of_conn(peer.conn)
    match message:
        case Heartbeat():
            _on_heartbeat(group, peer, rank, message)
        case Report() if rank is not None:
            _on_report(group, peer, rank, message)
        case Suspect() if rank is not None:
            _on_suspect(group, rank, message)
        case Mismatch() if rank is not None:
            _on_mismatch(group, peer, rank, message)
        case Fetched(epoch) if rank is not None:
            peer.fetched = epoch
            _on_fetched(group, rank, epoch)
        case Resumed() if rank is not None:
            _on_resumed(group, rank, message)
        case Closed(version) if rank is not None:
            on_closed(group, rank, version)
        case Calls() | Leaves() if rank is not None:
            on_answer(group, rank, message)
        case FatalReport() if rank is not None:
            _on_fatal_report(group, peer, rank, message)
        case Marked() | NextDigest() | ObjectWritten() | WriteFailed() | RestoreFailed() if (
            rank is not None
        ):
            _on_member_wrote(group, peer, rank, message)
        case Leave():
            _on_leave(group, peer, rank, message)
        case _:  # what only parts take, or is not for this moment
            pass


def _on_leave(group: GroupState, peer: Peer, rank: int | None, message: Leave) -> None:
    """A worker has heard that the job has finished, or its script has ended without having closed.

    If the scripts of all ranks have ended by the same error, so does the job.  A restart could help
    nobody: each process would come to the same line.
    """
    worker_id = peer.hello.worker_id
    if group.durable.final_version >= 0 and not group.end.awaits_record:
        group.end.told(worker_id)
        group.drop(peer.conn, message.reason)
        return
    group.members.hear_position(peer, message.position)
    group.launches.note_left(worker_id, peer.hello.group)
    group.drop(peer.conn, message.reason)
    error = f"{message.reason} ({message.site})" if message.site else message.reason
    _after_loss(group, rank, f"worker {worker_id} left: {error}", loss=Loss.LEFT)
    incident = group.epochs.incident
    if rank is None or incident is None or not message.site:
        return
    failed = incident.note_failure(rank, without_addresses(error), message.position)
    if failed == group.durable.world_size > 1:
        end_with_error(
            group,
            ScriptFailedError.__name__,
            f"the script failed by the same error on all ranks at {message.position}: {error}",
            message.position,
        )


def _on_heartbeat(group: GroupState, peer: Peer, rank: int | None, beat: Heartbeat) -> None:
    """Answer; look whether those who are blocked disagree, or all wait on a silent link."""
    if peer.heartbeat is None or beat.position != peer.heartbeat.position:
        peer.stands_since = group.now
    peer.heartbeat = beat
    group.members.hear_position(peer, beat.position)
    group.send(peer.conn, HeartbeatAck(beat.number))
    if rank is not None:
        group.epochs.heard_version(beat.position.version)
    if beat.blocked is not None and beat.blocked.peers:
        group.blocked.is_long |= _is_long_blocked(beat, group.settings.detect_within)
        look_at_blocked(group)


def look_at_blocked(group: GroupState) -> None:
    """Look at all who are blocked, at once in a small group and later in a large one."""
    if not group.blocked.begin(group.now, len(group.members.slots)):
        return
    compare_blocked(group)
    if group.state is JobState.RUNNING and group.blocked.is_long:
        _look_for_silent_links(group)
    group.blocked.is_long = False


def compare_blocked(group: GroupState) -> None:
    """Compare the calls that blocked ranks stand in; two that differ begin an inquiry."""
    if group.state is not JobState.RUNNING:
        return
    blocked = _blocked_ranks(group.members, group.epochs.in_force)
    sides = [
        (rank, beat.position, beat.blocked)
        for rank, beat in blocked.items()
        if beat.blocked is not None
    ]
    firsts: dict[Position, tuple[int, Blocked]] = {}
    for rank, position, theirs in sides:
        other, first = firsts.setdefault(position, (rank, theirs))
        if is_open(first.signature):  # which tells less of what the others must have called
            firsts[position] = rank, theirs
        if not agree(theirs.signature, first.signature):
            calls = (
                Side(other, position, first.signature, first.site),
                Side(rank, position, theirs.signature, theirs.site),
            )
            inquire(group, Evidence(position, calls))
            return


def _look_for_silent_links(group: GroupState) -> None:
    """Somebody has waited long without a byte: find the links, if links it is (rule R12)."""
    if not starving_pairs(_stands(group, group.settings.detect_within)):
        return
    # One failure is seldom alone: what has lasted for half as long by now is of the same cut,
    # or of another one that came with it. Each that is left for later costs an epoch more.
    pairs = starving_pairs(_stands(group, group.settings.detect_within / 2))
    named = ", ".join(f"{one} and {other}" for one, other in pairs)
    reason = f"silent link: ranks {named} wait, and nothing comes between them"
    for one, other in pairs:
        note_failed_pair(group, one, other, "no byte comes, though one has sent")
    _suspicion(group, reason, tuple(sorted({rank for pair in pairs for rank in pair})))


def _stands(group: GroupState, limit_s: float) -> dict[int, RankProgress]:
    """Return the progress of ranks whose position has not changed for `limit_s` seconds."""
    stands = {}
    for rank, conn in group.members.slots.items():
        stand = _stand(group, group.members.peers[conn], limit_s)
        if stand is not None:
            stands[rank] = stand
    # Who has closed and is gone has sent all that it owed; what was on the way may be lost.
    stands.update(
        {rank: CLOSED for rank in group.durable.closed_ranks if rank not in group.members.slots}
    )
    return stands


def _is_long_blocked(beat: Heartbeat, limit_s: float) -> bool:
    """Tell whether it has waited so long for ranks in a collective.

    A message need never be sent, and its link is watched by the two ranks themselves.
    """
    if not _is_in_a_collective(beat):
        return False
    assert beat.blocked is not None, "it is blocked in one"
    return beat.blocked.blocked_ms >= limit_s * 1000


def _is_in_a_collective(beat: Heartbeat) -> bool:
    """R7: who waits for a record or a message has called nothing at its position."""
    return bool(awaited_in_a_collective(beat))


def _stand(group: GroupState, peer: Peer, limit_s: float) -> RankProgress | None:
    """Return a member's progress if unchanged for `limit_s`; else, or outside the plan, None."""
    beat = peer.heartbeat
    if beat is None or beat.epoch != group.epochs.in_force:
        return None
    if beat.blocked is not None and _is_long_blocked(beat, limit_s):
        return RankProgress(beat.position, beat.blocked.step, beat.blocked.peers)
    if group.now >= peer.stands_since + limit_s:
        return RankProgress(beat.position)
    return None


def _blocked_ranks(members: Members, epoch: int) -> dict[int, Heartbeat]:
    beats = {}
    for rank, conn in sorted(members.slots.items()):
        beat = members.peers[conn].heartbeat
        if beat is None or beat.blocked is None or beat.epoch != epoch:
            continue
        if _is_in_a_collective(beat):
            beats[rank] = beat
    return beats


def _on_report(group: GroupState, peer: Peer, rank: int, report: Report) -> None:
    """Only a report of the epoch being collected counts; an older one is dropped (R1)."""
    if group.state is not JobState.COLLECTING or report.epoch != group.durable.epoch:
        return
    if not _is_possible(report):
        _drop_for(group, peer, rank, "an impossible report")
        return
    group.members.hear_position(peer, report.position)
    group.epochs.heard_version(max(report.position.version, report.committed))
    group.epochs.reports[rank] = report
    if group.epochs.incident is not None:
        group.epochs.incident.note_report(peer.hello.worker_id, group.driver_now)
    try_plan(group)


def _on_member_wrote(group: GroupState, peer: Peer, rank: int, message: MemberWrote) -> None:
    """Take what a member says of the store, if an honest one can say it."""
    runs = message.prelude if isinstance(message, Marked | ObjectWritten) else ()
    length = message.prelude_length if isinstance(message, Marked) else 0
    if length > MAX_SEQNO or not can_be_held(runs):
        _drop_for(group, peer, rank, "an impossible list of results")
        return
    on_member_wrote(group, rank, message)


def _drop_for(group: GroupState, peer: Peer, rank: int, what: str) -> None:
    """Hang up on a member that sent `what`; the decisions rely on what is possible."""
    group.drop(peer.conn, f"it sent {what}")
    _after_loss(group, rank, f"worker {peer.hello.worker_id} sent {what}")


def _on_suspect(group: GroupState, rank: int, message: Suspect) -> None:
    """A data link broke: the next epoch at once, unless this one is already stopping."""
    if group.state is JobState.REATTACHING:
        peer = group.members.peers[group.members.slots[rank]]
        peer.hello = replace(peer.hello, suspects=message.ranks)
    if group.state is not JobState.RUNNING or message.epoch != group.epochs.in_force:
        return
    for other in message.ranks:
        note_failed_pair(group, rank, other, message.reason)
    names = ", ".join(str(other) for other in message.ranks if other != rank)
    lost = f"lost its link to rank {names}" if names else "needs new links"
    _suspicion(group, f"rank {rank} {lost}: {message.reason}", message.ranks)


def _suspicion(group: GroupState, reason: str, ranks: tuple[int, ...]) -> None:
    """At most one epoch per `detect_within` for links alone; a later one is held back."""
    if group.now >= group.links.epoch_at + group.settings.detect_within:
        link_epoch(group, reason, ranks)
    else:
        group.links.suspicion = (reason, ranks)


def link_epoch(group: GroupState, reason: str, ranks: tuple[int, ...]) -> None:
    """Begin an epoch for links alone, or end the job if that goes on without end."""
    if group.state is not JobState.RUNNING:
        return
    progress = group.members.progress()
    failing_s = group.links.failing_for(progress, group.now)
    is_series = failing_s > 0
    if is_series and failing_s >= group.settings.replace_within:
        end_with_error(group, "RankLostError", f"links keep failing: {reason}", progress)
        return
    group.links.epoch_at = group.now
    begin_epoch(group, reason, suspects=ranks)


def _on_mismatch(group: GroupState, peer: Peer, rank: int, seen: Mismatch) -> None:
    """The job ends: nobody's report is awaited (rule R7), only answers, for a short while."""
    if seen.epoch != group.epochs.in_force and group.state is not JobState.REATTACHING:
        return  # of an older epoch: who still sees it says so again (rule R1)
    if seen.states and seen.position.version == MAX_VERSION:  # no checkpoint follows that one
        _drop_for(group, peer, rank, "an impossible mismatch")
        return
    own = Side(rank, seen.position, seen.signature, seen.site)
    other = Side(
        seen.peer, seen.peer_position, seen.peer_signature, seen.peer_site, seen.peer == rank
    )
    version = seen.position.version + 1 if seen.states else PRELUDE
    inquire(group, Evidence(seen.position, (own, other), version))


def _on_fatal_report(group: GroupState, peer: Peer, rank: int, found: FatalReport) -> None:
    """Decide at once: the report is about a position, so it holds in any epoch."""
    if found.error not in FATAL_REPORTS:
        group.drop(peer.conn, f"it found {found.error!r:.80}, which is not a worker's to say")
        _after_loss(group, rank, f"worker {peer.hello.worker_id} sent an impossible fatal report")
        return
    cause = found.cause
    if found.error == CollectiveTimeoutError.__name__:
        cause += _who_does_not_wait(group, rank)
    end_with_error(group, found.error, cause, found.position, rank)


def _who_does_not_wait(group: GroupState, finder: int) -> str:
    """For the error of a timeout: who is absent, and who computes while others wait."""
    waiting = {
        finder,
        *_blocked_ranks(group.members, group.epochs.in_force),
        *group.durable.closed_ranks,
    }
    absent = [rank for rank in range(group.durable.world_size) if rank not in group.members.slots]
    busy = [rank for rank in sorted(group.members.slots) if rank not in waiting]
    text = ""
    for ranks, what in ((absent, "absent"), (busy, "there and waiting for nobody")):
        if ranks:
            text += f"; {what}: rank {', '.join(map(str, ranks))}"
    return text


def _on_fetched(group: GroupState, rank: int, epoch: int) -> None:
    """Unpin the reported results when the last member has fetched what the plan gave it."""
    if (
        group.state is JobState.RUNNING
        and epoch == group.epochs.in_force
        and rank in group.epochs.awaiting_fetch
    ):
        group.epochs.awaiting_fetch.discard(rank)
        try_settle(group)


def _on_resumed(group: GroupState, rank: int, message: Resumed) -> None:
    """A member has completed its first collective of the epoch."""
    incident = group.epochs.incident
    if (
        incident is None
        or message.epoch != group.epochs.in_force
        or group.state is not JobState.RUNNING
    ):
        return
    incident.resumed[rank] = message
    if len(incident.resumed) + len(group.durable.closed_ranks) < len(group.members.slots):
        return  # said before all are compared, which each of so many would do
    if set(group.members.slots) - set(group.durable.closed_ranks) <= set(incident.resumed):
        group.close_incident(completed=True)


def _note_gone(group: GroupState, peer: Peer) -> None:
    """Remember whether this process, which has ended or lost its connection, had a rank."""
    if not group.durable.places:
        return
    group.members.former.note(peer)
    if peer.rank is None:
        group.note("info", f"spare {peer.hello.worker_id} is gone")


def on_lost(group: GroupState, conn: int, reason: str) -> None:
    """A control connection ended: its place is empty, and the epoch changes at once."""
    peer = group.members.peers.get(conn)
    if peer is None:
        return
    rank = group.members.rank_of_conn(conn)
    _note_gone(group, peer)
    group.forget(conn)
    name, is_told = peer.hello.worker_id, group.state is JobState.OVER
    if rank in group.durable.closed_ranks and (not is_told or group.end.awaits_record):
        group.end.gone |= {name} - set(group.durable.supervised)  # else its launcher knows more
    _after_loss(group, rank, f"lost worker {name}: {reason}")


def _after_loss(
    group: GroupState,
    rank: int | None,
    reason: str,
    *,
    silent_s: float = 0.0,
    loss: Loss = Loss.DIED,
) -> None:
    if rank is None or group.state is JobState.OVER:
        return
    group.epochs.reports.pop(rank, None)
    # its work is done: nobody waits for it or replaces it
    if rank in group.durable.closed_ranks:
        group.epochs.awaiting_fetch.discard(rank)
        if group.state is JobState.COLLECTING:
            try_plan(group)
        elif group.state is JobState.RUNNING:
            try_settle(group)
        return
    group.members.empty_since.setdefault(rank, group.now)
    victim = group.durable.places[rank].worker_id
    if group.state is JobState.RUNNING:
        reason = f"{reason} (rank {rank})"
        begin_epoch(group, reason, victim=victim, silent_s=silent_s, loss=loss)
    elif group.state is JobState.COLLECTING:
        if group.epochs.incident is not None:
            group.epochs.incident.note_victim(victim, group.members.deaths.of(victim))
        group.note("info", f"epoch {group.durable.epoch}, not yet planned: {reason} (rank {rank})")
        _note_lost_host(group, victim)
    assign_spare(group, rank)


def _note_lost_host(group: GroupState, victim: str) -> None:
    """The last worker of a host is away too: the recovery is that of a host."""
    for host, names in group.lost_hosts()[0]:
        if victim in names:
            group.note("warning", f"{host_text(host, names)} is lost")
            if group.epochs.incident is not None:
                group.epochs.incident.note_host(host_text(host, names))


def on_died_replaced(group: GroupState, died: Died) -> None:
    """Tell how a process ended whose rank a spare has taken before its launcher knew."""
    former = group.members.former.of(died.worker_id, died.pid)
    if former is None or not former.had_rank:
        return
    incident = group.epochs.incident
    if incident is not None and died.worker_id in incident.victims:
        incident.note_death(Death(died.worker_id, died.pid, former.host, died.how))
    else:  # its recovery has been told without
        group.note("warning", f"worker {died.worker_id} {how_text(died.how)}")


def on_given_up(group: GroupState, given_up: GivenUp) -> None:
    """Nobody will start this worker again: the same error for everyone."""
    group.end.told(given_up.worker_id)  # none of its incarnations is left to wait for
    rank = group.durable.rank_of(given_up.worker_id)
    if rank is None and not group.durable.places:
        rank = -1
    if group.hands_on and rank is not None:  # also one that has closed: all must come again
        group.end.hand_on(given_up)
        return
    if group.state is JobState.OVER or rank in group.durable.closed_ranks:
        return
    if rank is None:  # of a spare, or of nobody
        text = f"worker {given_up.worker_id} is given up ({given_up.reason}); it has no rank"
        group.note("info", text)
        return
    kind = ScriptFailedError if given_up.script_failed else RankLostError
    end_with_error(group, kind.__name__, given_up.reason, group.members.progress(), rank)


def evict_silent(group: GroupState) -> None:
    """Drop the peers that have said nothing for `detect_within`."""
    if group.now < group.members.look_again_at:
        return
    detect_within = group.settings.detect_within
    for peer in list(
        group.members.peers.values()
    ):  # a spare whose machine vanished says nothing too
        silent = group.now - peer.last_heard
        name = peer.hello.worker_id
        # Compared as `next_deadline` computes it: a difference may round the other way, and
        # then a tick at the deadline finds nothing due, again and again.
        if group.now >= peer.last_heard + detect_within:
            rank = group.members.rank_of_conn(peer.conn)
            _note_gone(group, peer)
            group.drop(peer.conn, f"no heartbeat for {silent:.1f} s")
            words = f"no heartbeat of worker {name} for {silent:.1f} s"
            _after_loss(group, rank, words, silent_s=silent)
        elif group.now >= peer.last_heard + detect_within / 2 and not peer.late:
            peer.late = True
            group.note("warning", f"worker {name} is late: no heartbeat for {silent:.1f} s")
    # Until then nobody who is heard of, or who joins, from now on can be due: with many
    # workers, to look at all of them at every heartbeat of one is most of the tracker's work.
    due = [
        p.last_heard + detect_within / (1 if p.late else 2) for p in group.members.peers.values()
    ]
    group.members.look_again_at = min([group.now + detect_within / 2, *due])


def replace_deadline(group: GroupState) -> None:
    """End the job if a rank was not replaced within `replace_within`."""
    if group.state in (JobState.OVER, JobState.REATTACHING) or not group.durable.places:
        return
    if group.has_end:
        return
    for rank, since in sorted(group.members.empty_since.items()):
        if group.now >= since + group.settings.replace_within:
            name = group.durable.places[rank].worker_id
            end_with_error(
                group,
                RankLostError.__name__,
                f"worker {name} (rank {rank}) is gone and was not replaced within "
                f"{group.settings.replace_within:.0f} s",
                group.members.progress(),
                rank,
            )
            return


def _is_possible(report: Report) -> bool:
    """Tell whether an honest worker can send this; the decision relies on consistent reports."""
    position = report.position
    return (
        position.branch == 0
        and max(position.seqno, report.prelude_length) <= MAX_SEQNO
        and can_be_held(report.runs)
        and (not position.past_load or report.committed == position.version)
    )
