"""Admission: a worker says hello; is it new, back, displaced, spare, or refused? (R1, R13)."""

import re
from collections.abc import Iterable
from dataclasses import replace

from ftcomm import __version__
from ftcomm.config.job_settings import MAX_SPARES
from ftcomm.config.plurals import counted
from ftcomm.protocol.durable.store_messages import VersionDurable
from ftcomm.protocol.host_groups import grouping_of
from ftcomm.protocol.messages import AllClosed, Fenced, Hello, Refused, Revoke, Welcome
from ftcomm.protocol.position import PRELUDE
from ftcomm_tracker.core.durable_state import Durable, RankOwner
from ftcomm_tracker.core.ending import end_with_error
from ftcomm_tracker.core.epochs import begin_epoch, order_restore, try_settle
from ftcomm_tracker.core.events import Disconnect, Send
from ftcomm_tracker.core.group_state import GroupState, Peer
from ftcomm_tracker.core.job_states import JobState

# Worker ids that a job may ever see. Each is journalled for good, so that its processes stay
# numbered; with all of them the document is a megabyte. More means ids that are made anew at every
# start.
MAX_WORKER_IDS = 10_000
# Epochs by which a worker may be ahead of the journal: a disk that lost writes loses seconds of
# them. A number far above is a broken worker's, and would use up the epochs of the job.
MAX_EPOCHS_AHEAD = 10_000
# Processes of a worker that a tracker without a journal may not know of, likewise.
MAX_INCARNATIONS_AHEAD = 10_000


def on_joined(group: GroupState, conn: int, hello: Hello) -> None:
    """Number this incarnation, or recognise it; refuse what cannot be a member."""
    group.end.gone.discard(hello.worker_id)
    if group.awaits_next_attempt and not hello.job_id:
        group.effects.append(Disconnect(conn, "the next attempt is about to begin"))
        return
    if group.durable.fatal_decision is not None:  # the same words for everyone, however late
        group.end.told(hello.worker_id)
        group.effects += [
            Send(conn, group.durable.fatal_decision),
            Disconnect(conn, "the job is over"),
        ]
        return
    took_part = hello.plan_epoch and hello.job_id != group.durable.job_id
    if took_part and _is_of_another_leader(group, hello):
        name, job_id = hello.worker_id, hello.job_id
        group.step_down(f"worker {name} is a member of {job_id}: another tracker leads")
        return
    if group.versions.is_on and took_part:
        _fence_of_other_attempt(group, conn, hello)
        return
    if group.end.awaits_record and not hello.closed:
        group.effects.append(Disconnect(conn, "the job's end is being recorded"))
        return
    if hello.job_id not in ("", group.durable.job_id) and not hello.plan_epoch:
        hello = replace(hello, incarnation=0)  # it was numbered for a job that has not begun
    if _is_refused(group, conn, hello):
        return
    if not group.durable.tables:
        group.durable = replace(group.durable, tables=hello.tables)
    group.launches.note_joined(hello)
    rank = group.durable.rank_of(hello.worker_id)
    if _owns_a_place(group.durable, hello):
        assert rank is not None
        _come_back(group, conn, hello, rank)
    elif _is_displaced(group, hello):
        _fence(group, conn, hello)
    elif hello.incarnation and rank is None:
        _come_back_as_spare(group, conn, hello)
    else:
        _new_incarnation(group, conn, hello, rank)


def _is_of_another_leader(group: GroupState, hello: Hello) -> bool:
    """True if the worker's attempt has been begun by a tracker that has overtaken this one (R19).

    Before the first record is there, another one may have begun the same attempt.
    """
    durable = group.durable
    if not group.permits.is_on:
        return False
    series, _, number = hello.job_id.rpartition(".")
    attempt = int(number) if number.isdecimal() and number.isascii() else 0
    if series == durable.job_id.rpartition(".")[0]:
        return attempt > durable.attempt
    has_begun = group.permits.granted is not None or bool(durable.first_nonces)
    return durable.attempt == attempt == 1 and not has_begun


def _fence_of_other_attempt(group: GroupState, conn: int, hello: Hello) -> None:
    """A process of an attempt that is over: it would bring what this one does not have (R16)."""
    reason = f"worker {hello.worker_id} is of {hello.job_id}; the job goes on as"
    reason += f" {group.durable.job_id}"
    group.effects += [Send(conn, Fenced(reason)), Disconnect(conn, "fenced")]


def _owns_a_place(durable: Durable, hello: Hello) -> bool:
    rank = durable.rank_of(hello.worker_id)
    # An empty nonce marks a place whose owner was given up: it is nobody's.
    nonce = b"" if rank is None else durable.places[rank].nonce
    return bool(nonce) and nonce == hello.nonce


def _is_displaced(group: GroupState, hello: Hello) -> bool:
    """A numbered process that has been a member, or that a later one of its id has followed."""
    if not hello.incarnation or _owns_a_place(group.durable, hello):
        return False
    newest = group.durable.incarnation_of(hello.worker_id)
    # the journal has lost its last write: a later incarnation wins
    if hello.incarnation > newest:
        return False
    # R19: a rank that was given without a plan may be unknown to the next tracker
    was_revoked = hello.revoke_epoch and not group.permits.is_on
    was_member = bool(hello.plan_epoch or was_revoked)
    return was_member or hello.incarnation < newest or group.state is JobState.OVER


def _is_refused(group: GroupState, conn: int, hello: Hello) -> bool:
    refusal = _refusal(group, hello) or _refusal_of_address(group, conn, hello)
    if refusal is None:
        return False
    _refuse(group, conn, refusal)
    if group.durable.final_version >= 0:  # it follows a process that has closed and died
        group.end.told(hello.worker_id)
    return True


def _refusal(group: GroupState, hello: Hello) -> Refused | None:
    durable = group.durable
    if durable.final_version >= 0:
        if hello.closed:
            return None
        return Refused(
            "JobFinishedError",
            f"job {durable.job_id} has finished at version {durable.final_version}",
            durable.final_version,
        )
    if hello.release != __version__:
        return Refused(
            "ProtocolVersionError",
            f"worker {hello.worker_id} is ftcomm {hello.release}, its tracker ftcomm {__version__}",
        )
    difference = group.settings.differences(hello.asked)
    if difference:
        return Refused("ConfigError", difference)
    if durable.tables and durable.tables != hello.tables:
        return Refused(
            "ConfigError",
            "this worker chooses algorithms by another table than the job's other workers",
        )
    if max(hello.plan_epoch, hello.revoke_epoch) > durable.epoch + MAX_EPOCHS_AHEAD:
        return Refused("ProtocolError", f"worker {hello.worker_id} is in an impossible epoch")
    numbered = durable.incarnation_of(hello.worker_id)
    if hello.incarnation > numbered + MAX_INCARNATIONS_AHEAD:
        # Taken at its word it would use up the numbers of its id, in the journal too.
        return Refused(
            "ProtocolError",
            f"worker {hello.worker_id} says that it is incarnation {hello.incarnation}; the"
            f" tracker knows of {numbered}",
        )
    if not numbered and len(durable.incarnations) >= MAX_WORKER_IDS:
        return Refused("ConfigError", f"the job has seen {MAX_WORKER_IDS} worker ids, its limit")
    new = not hello.incarnation and not _owns_a_place(group.durable, hello)
    if new and group.durable.rank_of(hello.worker_id) is None and _is_full(group):
        return Refused("ConfigError", "the job has all the spares it can take")
    return None


def _refusal_of_address(group: GroupState, conn: int, hello: Hello) -> Refused | None:
    """Loopback is advertised to another machine: by this worker, or by one that came before.

    While no group has formed, the one that advertises it is refused, whichever came first.
    """
    # a member has its links
    while not hello.plan_epoch and (found := group.paths.unreachable(conn, group.members.peers)):
        refusal = Refused("ConfigError", found.cause)
        if found.conn == conn or group.durable.places:
            return refusal
        _refuse(group, found.conn, refusal)
        group.forget(found.conn)
    return None


def _refuse(group: GroupState, conn: int, refusal: Refused) -> None:
    group.effects += [Send(conn, refusal), Disconnect(conn, refusal.reason)]
    group.note("warning", f"refused a worker: {refusal.reason}")


def _come_back(group: GroupState, conn: int, hello: Hello, rank: int) -> None:
    """The incarnation that owns the place has a new connection."""
    old = group.members.slots.get(rank)
    if old is not None:
        group.drop(old, "replaced by a newer connection of the same process")
    place = group.durable.places[rank]
    _fill_slot(group, conn, hello, place.incarnation, rank)
    if group.durable.final_version >= 0:  # a `Closed` that is not journalled follows the welcome
        if not group.end.awaits_record:
            group.send(conn, AllClosed(group.durable.final_version))
        return
    _after_filling_slot(group, conn, rank)


def _come_back_as_spare(group: GroupState, conn: int, hello: Hello) -> None:
    """A numbered incarnation that has never been a member has a new connection."""
    for old in [p.conn for p in group.members.peers.values() if p.hello.nonce == hello.nonce]:
        group.drop(old, "replaced by a newer connection of the same process")
    if hello.incarnation > group.durable.incarnation_of(hello.worker_id):
        # R19: a tracker that began without a journal does not know the numbers of spares
        incarnations = group.durable.with_incarnation(hello.worker_id, hello.incarnation)
        group.persist(incarnations=incarnations)
    _fence_older(group, hello.worker_id)  # or one that has got the same number meanwhile
    _add_spare(group, conn, hello, hello.incarnation)


def _fence(group: GroupState, conn: int, hello: Hello) -> None:
    """Its place belongs to a later process or to a spare: it may not act any more (rule R1)."""
    rank = group.durable.rank_of(hello.worker_id)
    place = None if rank is None else group.durable.places[rank]
    if place and not place.nonce and place.incarnation == hello.incarnation:
        reason = f"worker {hello.worker_id} was given up: others could not reach it"
        _refuse(group, conn, Refused("EvictedError", reason))
        return
    reason = f"the place of worker {hello.worker_id}'s incarnation {hello.incarnation} is taken"
    group.effects += [Send(conn, Fenced(reason)), Disconnect(conn, "fenced")]


def _new_incarnation(group: GroupState, conn: int, hello: Hello, rank: int | None) -> None:
    if rank in group.durable.closed_ranks and group.versions.is_on:
        # R16: if all is lost before all have closed, this worker is needed in the next attempt
        reason = f"worker {hello.worker_id} has closed, and others have not yet"
        group.effects.append(Disconnect(conn, reason))
        return
    if rank in group.durable.closed_ranks:
        words = f"worker {hello.worker_id} has already closed"
        _refuse(group, conn, Refused("JobFinishedError", words))
        if rank not in group.members.slots:  # R8: who has closed is dead, and this one has heard
            group.end.gone |= {hello.worker_id} - set(group.durable.supervised)
        return
    if not hello.incarnation and _is_one_too_many(group, conn, hello, rank):
        return
    newest = group.durable.incarnation_of(hello.worker_id)
    incarnation = hello.incarnation or newest + 1
    incarnations = group.durable.with_incarnation(hello.worker_id, incarnation)
    places = list(group.durable.places)
    if rank is not None:  # journalled before the predecessor hears that it is fenced
        places[rank] = RankOwner(hello.worker_id, incarnation, hello.nonce, hello.host)
    group.persist(incarnations=incarnations, places=tuple(places))
    group.members.starts.note(group.members.furthest, hello.worker_id)
    again = f" as its incarnation {incarnation}" if incarnation > 1 else ""
    group.note("info", f"worker {hello.worker_id} has joined from {hello.host}{again}")
    if newest:  # else no other can be here
        _fence_older(group, hello.worker_id)
    if rank is not None:
        _take_place(group, conn, hello, incarnation, rank)
    else:
        _add_spare(group, conn, hello, incarnation)


def _is_one_too_many(group: GroupState, conn: int, hello: Hello, rank: int | None) -> bool:
    """Refuse a worker that was started again and again, and the job is where it was.

    If its rank is empty the job ends: nothing else would end the wait for it.
    """
    members, name = group.members, hello.worker_id
    count = members.starts.at(members.furthest, name)
    if count < group.settings.max_incarnations:
        return False
    reason = (
        f"worker {name} has been started {counted(count, 'time')} while the job stood at"
        f" {members.furthest}: so often it fails for a reason that stays"
    )
    _refuse(group, conn, Refused("RankLostError", reason))
    if rank in members.vacant():
        end_with_error(group, "RankLostError", reason, members.progress(), rank)
    return True


def _fence_older(group: GroupState, worker_id: str) -> None:
    """A later incarnation always wins over an earlier one."""
    for peer in [p for p in group.members.peers.values() if p.hello.worker_id == worker_id]:
        group.send(peer.conn, Fenced(f"a newer process has joined as worker {worker_id}"))
        group.drop(peer.conn, "fenced by a newer incarnation")


def _take_place(group: GroupState, conn: int, hello: Hello, incarnation: int, rank: int) -> None:
    """A new incarnation fills `rank`: its predecessor is fenced for good."""
    previous = group.durable.places[rank].worker_id
    place = RankOwner(hello.worker_id, incarnation, hello.nonce, hello.host)
    if group.durable.places[rank] != place:
        places = list(group.durable.places)
        places[rank] = place
        group.persist(places=tuple(places))
    group.end.untold = group.end.untold - {previous} | {hello.worker_id}
    _fill_slot(group, conn, hello, incarnation, rank)
    group.links.streak = None  # those of another incarnation: this one's may work
    group.links.pairs.forget_relay(rank)
    group.epochs.reports.pop(rank, None)
    if group.state is JobState.RUNNING:
        begin_epoch(group, f"worker {previous} was replaced", victim=previous)
    elif group.epochs.incident is not None:
        group.epochs.incident.note_victim(hello.worker_id)
    _after_filling_slot(group, conn, rank)


def _add_spare(group: GroupState, conn: int, hello: Hello, incarnation: int) -> None:
    """No place of its own: take an empty one, help to form the group, or wait."""
    if not group.durable.places:
        group.members.peers[conn] = Peer(conn, hello, incarnation, group.now)
        _welcome(group, conn)
        group.forming.begin(group.now)
        _form(group)
        return
    empty = min(group.members.vacant(), default=None)
    if empty is not None and group.state in (JobState.COLLECTING, JobState.RUNNING):
        group.note("info", f"worker {hello.worker_id} takes the place of rank {empty}")
        _take_place(group, conn, hello, incarnation, empty)
    else:
        group.members.peers[conn] = Peer(conn, hello, incarnation, group.now)
        _welcome(group, conn)


def _is_full(group: GroupState) -> bool:
    return len(group.members.peers) >= group.durable.world_size + MAX_SPARES


def assign_spare(group: GroupState, rank: int) -> None:
    """Give an empty place to a spare, if there is one."""
    if group.state is not JobState.COLLECTING:
        return
    found = (part.candidate(group, rank) for part in group.parts)
    peer = next((peer for peer in found if peer is not None), None)
    if peer is None:
        return
    group.note("info", f"spare {peer.hello.worker_id} takes the place of rank {rank}")
    _take_place(group, peer.conn, peer.hello, peer.incarnation, rank)


def _form(group: GroupState) -> None:
    """Enough workers: ranks follow sorted worker ids, for good (rule R5)."""
    workers = [peer for peer in group.members.peers.values() if not peer.hello.spare]
    if len(workers) >= group.durable.world_size:
        _give_places(group, _in_order(workers)[: group.durable.world_size])


def form_with_spares(group: GroupState, why: str) -> bool:
    """Let spares have the ranks of workers that have not come in time; False if they are too few.

    In a later attempt a worker may be gone for good whose rank a spare had in the one before.
    """
    peers = sorted(group.members.peers.values(), key=lambda p: (p.hello.spare, p.conn))
    if len(peers) < group.durable.world_size:
        return False
    group.note("warning", f"{why}: spares take the places")
    _give_places(group, _in_order(peers[: group.durable.world_size]))
    return True


def _in_order(peers: Iterable[Peer]) -> list[Peer]:
    return sorted(peers, key=lambda p: (_natural(p.hello.worker_id), p.hello.worker_id))


def _give_places(group: GroupState, chosen: list[Peer]) -> None:
    """Give the ranks to these peers, in this order, and begin the first epoch."""
    places = tuple(
        RankOwner(p.hello.worker_id, p.incarnation, p.hello.nonce, p.hello.host) for p in chosen
    )
    group.end.untold = {place.worker_id for place in places}
    hosts, zones = [p.hello.host for p in chosen], [p.hello.zone for p in chosen]
    # R16: the grouping stays the first attempt's, wherever the workers run now
    grouping = group.durable.grouping or grouping_of(hosts, zones)
    group.persist(places=places, grouping=grouping)
    group.put_series()
    for rank, peer in enumerate(chosen):
        group.members.fill_slot(peer.conn, rank)
    begin_epoch(group, "the group is complete")


def _fill_slot(group: GroupState, conn: int, hello: Hello, incarnation: int, rank: int) -> None:
    group.members.peers[conn] = Peer(conn, hello, incarnation, group.now)
    group.members.fill_slot(conn, rank)
    group.members.former.forget(hello)
    for part in group.parts:
        part.on_seated(group, group.members.peers[conn])
    group.members.empty_since.pop(rank, None)
    _welcome(group, conn)


def _after_filling_slot(group: GroupState, conn: int, rank: int) -> None:
    group.members.deaths.forget(group.members.peers[conn].hello.worker_id)
    if group.state is JobState.COLLECTING:
        hello = group.members.peers[conn].hello
        if max(hello.plan_epoch, hello.revoke_epoch - 1) >= group.durable.epoch:
            # The journal has lost its last write: only a newer epoch counts for this member.
            begin_epoch(group, f"rank {rank} knows a later epoch")
        else:
            order_restore(group, rank)
            group.send(conn, Revoke(group.durable.epoch, group.epochs.reason()))
    elif group.state is JobState.REATTACHING:
        _try_reattach(group)
    elif group.state is JobState.RUNNING:
        begin_epoch(group, f"rank {rank} reconnected")


def _try_reattach(group: GroupState) -> None:
    """All are back: go on as if nothing had happened, unless somebody disagrees (R13)."""
    if group.members.empty_since or set(group.durable.closed_ranks) - set(group.members.slots):
        return  # who has closed may alone hold what a new incarnation needs: it is awaited too
    hellos = [group.members.peers[conn].hello for conn in group.members.slots.values()]
    epochs = {hello.plan_epoch for hello in hellos}
    stopped = any(hello.revoke_epoch != hello.plan_epoch for hello in hellos)
    suspects = any(hello.suspects for hello in hellos)
    if len(epochs) == 1 and not stopped and not suspects and epochs != {0}:
        _go_on_in(group, epochs.pop())
        return
    begin_epoch(group, "workers came back to the tracker in different epochs or with suspicions")


def _go_on_in(group: GroupState, epoch: int) -> None:
    if epoch > group.durable.epoch:  # the journal has lost its last write
        group.persist(epoch=epoch)
    group.epochs.in_force = epoch
    group.enter("all are back", JobState.RUNNING)
    # Whether the last tracker had settled the plan is not journalled: members repeat
    # `Fetched` after the welcome, and pins go only when all have said so.
    group.epochs.awaiting_fetch = {
        rank
        for rank, conn in group.members.slots.items()
        if group.members.peers[conn].fetched != epoch
    }
    group.note("info", f"all workers are back in epoch {epoch}; nothing was lost")
    try_settle(group)


def _welcome(group: GroupState, conn: int) -> None:
    peer = group.members.peers[conn]
    group.send(
        conn,
        Welcome(
            job_id=group.durable.job_id,
            generation=group.generation,
            incarnation=peer.incarnation,
            world_size=group.durable.world_size,
            epoch=group.durable.epoch,
            settings=group.settings.to_wire(),
            tracker=group.tracker,
        ),
    )
    versions = group.versions
    if versions.newest > PRELUDE:  # it may wait for that record, and have been away when it came
        group.send(conn, VersionDurable(versions.attempt, versions.newest))


def _natural(worker_id: str) -> list[tuple[int, int, str]]:
    """Sort key under which "10" follows "9"."""
    parts = re.split(r"(\d+)", worker_id)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts if p]
