"""The job for `status` and for supervisors, as JSON-able values: pure."""

from typing import Any

from ftcomm.protocol.operator_messages import WorkerStatusReply
from ftcomm.protocol.position import Position
from ftcomm_tracker.core.group_formation import MAX_ROWS, missing_list, missing_workers
from ftcomm_tracker.core.group_state import GroupState, JobState
from ftcomm_tracker.core.relay_routing import route_rows
from ftcomm_tracker.core.reporting.lost_hosts import host_text
from ftcomm_tracker.core.reporting.standby_text import (
    STANDBY,
    standby_line,
    standby_of,
    standby_row,
)
from ftcomm_tracker.core.reporting.status_rows import peer_row
from ftcomm_tracker.core.reporting.store_status import store_row
from ftcomm_tracker.core.spares.choice import spare_rows


def standing_of(group: GroupState, worker_id: str, number: int) -> WorkerStatusReply:
    """Answer question `number` of the supervisor of `worker_id`."""
    # The end of an attempt is none of the job: a supervisor starts its worker into the next one.
    fatal_decision = None if group.awaits_next_attempt else group.durable.fatal_decision
    is_told = not (group.end.awaits_record or group.end.was_overtaken)
    return WorkerStatusReply(
        number=number,
        connected=group.is_connected(worker_id),
        missed=group.misses(worker_id),
        closed=group.has_closed(worker_id),
        progress=group.members.furthest,
        state=group.state.value,
        epoch=group.epochs.in_force,
        detect_within_ms=round(group.settings.detect_within * 1000),
        over=fatal_decision is not None or (is_told and group.durable.final_version >= 0),
        error=fatal_decision.error if fatal_decision else "",
        cause=fatal_decision.cause if fatal_decision else "",
        generation=group.generation if group.rebuild is None else group.rebuild.generation,
        process=group.launches.standing(worker_id),
        replace_within_ms=round(group.settings.replace_within * 1000),
        attempt=group.durable.attempt,
    )


def snapshot(group: GroupState, now: float) -> dict[str, Any]:
    """The job for `status`, as JSON-able values."""
    fatal_decision = group.durable.fatal_decision
    progress = group.members.progress()
    return {
        "job_id": group.durable.job_id,
        "state": group.state.value if standby_of(group) is None else STANDBY,
        "epoch": group.epochs.in_force,
        "announced_epoch": group.durable.epoch,
        "generation": group.generation,
        "world_size": _world_size(group),
        "progress": str(progress),
        "detect_within_s": group.settings.detect_within,
        "replace_within_s": group.settings.replace_within,
        "streams": group.settings.streams,
        "reattach_s": round(group.epochs.reattach_by - now, 3)
        if group.state is JobState.REATTACHING
        else None,
        "missing": _missing(group, now) if group.state is JobState.FORMING else None,
        "rebuild": _rebuild(group, now),
        "standby": standby_row(group, now),
        "record_s": _recorded_for(group, now),
        "grace_s": round(group.epochs.grace_until - now, 3) if _awaited_in_grace(group) else None,
        "recovery": _recovery(group, now),
        "store": store_row(group, now),
        "members": [
            _member_row(group, rank, now, progress) for rank in range(len(group.durable.places))
        ],
        "spares_wanted": group.settings.spares,
        "spares": spare_rows(group, now),
        "waiting_for": _waiting_for(group, now),
        "lost_hosts": [{"host": host, "workers": names} for host, names in group.lost_hosts()[0]],
        "routes": route_rows(group.links, group.durable),
        "incidents": group.epochs.incidents[-10:],
        "verdict": None
        if fatal_decision is None
        else {"error": fatal_decision.error, "cause": fatal_decision.cause},
        "final_version": group.durable.final_version,
    }


def _world_size(group: GroupState) -> int | None:
    """Number of workers; None before anybody has named it to a tracker without a journal."""
    rebuild = group.rebuild
    if rebuild is None or rebuild.world_size is not None:
        return group.durable.world_size
    newest = rebuild.newest_answer()
    return newest[0].world_size if newest else None


def _recovery(group: GroupState, now: float) -> dict[str, Any] | None:
    incident = group.epochs.incident
    if incident is None:
        return None
    return {
        "epoch": incident.epoch,
        "reason": incident.reason,
        "since_s": round(now - incident.started_at, 3),
    }


def _member_row(group: GroupState, rank: int, now: float, furthest: Position) -> dict[str, Any]:
    place = group.durable.places[rank]
    conn = group.members.slots.get(rank)
    empty_since = group.members.empty_since.get(rank)
    death = group.members.deaths.of(place.worker_id) if conn is None else None
    return {
        "rank": rank,
        "worker_id": place.worker_id,
        "incarnation": place.incarnation,
        "host": place.host,
        "connected": conn is not None,
        "closed": rank in group.durable.closed_ranks,
        "gone_s": None if empty_since is None else round(now - empty_since, 3),
        "death": None if death is None else death.to_dict(),
        "starting": group.launches.row(place.worker_id, now) if conn is None else None,
        "reported": rank in group.epochs.reports,
        "fetching": group.state is JobState.RUNNING and rank in group.epochs.awaiting_fetch,
        **peer_row(
            None if conn is None else group.members.peers[conn],
            epoch=group.epochs.in_force,
            furthest=furthest,
            now=now,
        ),
    }


def _waiting_for(group: GroupState, now: float) -> list[str]:
    if group.state is JobState.FORMING:
        away = _missing(group, now)
        return [f"{who} to join" for who in missing_list(away["workers"], away["unnamed"])]
    row = standby_row(group, now)
    if row is not None:
        return [f"its turn to lead: {standby_line(row)}"]
    if group.rebuild is not None:
        return [f"worker {name} to come" for name in group.rebuild.missing()[:MAX_ROWS]]
    names = [place.worker_id for place in group.durable.places]
    hosts, others = group.lost_hosts()
    absent = [f"{host_text(*lost)} to come back" for lost in hosts]
    absent += [f"worker {name} to come back" for name in others]
    if group.state is JobState.COLLECTING:
        silent = sorted(set(group.members.slots) - set(group.epochs.reports))
        absent += [f"the report of worker {names[rank]}" for rank in silent]
        absent += [
            f"worker {names[rank]} to come back, though it has closed"
            for rank in _awaited_in_grace(group)
        ]
    return absent


def _rebuild(group: GroupState, now: float) -> dict[str, Any] | None:
    """Workers that a tracker without a journal awaits, as JSON-able values."""
    rebuild = group.rebuild
    if rebuild is None or rebuild.standby is not None:
        return None
    here = sorted(hello.worker_id for hello in rebuild.waiting.values())
    return {
        "job_id": rebuild.job_id,
        "here": here[:MAX_ROWS],
        "missing": rebuild.missing()[:MAX_ROWS],
        "needs": rebuild.needs(),
        "ends_s": None if rebuild.ends_at == float("inf") else round(rebuild.ends_at - now, 3),
    }


def _recorded_for(group: GroupState, now: float) -> float | None:
    """Seconds for which a plan or an end has waited for its record in the store (rule R19)."""
    since = group.permits.since
    return None if since == float("inf") else round(now - since, 3)


def _awaited_in_grace(group: GroupState) -> list[int]:
    """Closed members that are awaited, since they may hold what nobody else does."""
    return group.closed_and_away() if group.epochs.grace_until < float("inf") else []


def _missing(group: GroupState, now: float) -> dict[str, Any]:
    """List the workers that are missing before the group can form, as JSON-able values."""
    durable = group.durable
    spares = {p.hello.worker_id for p in group.members.peers.values() if p.hello.spare}
    names, unnamed = missing_workers(
        durable.world_size,
        {p.hello.worker_id for p in group.members.peers.values() if not p.hello.spare},
        group.launches.workers,
        [name for name, _ in durable.incarnations],
        spares,
    )
    ends_s = group.forming.ends_at - now
    return {
        "ends_s": None if ends_s == float("inf") else round(ends_s, 3),
        "workers": [
            {
                "worker_id": name,
                "was_here": durable.incarnation_of(name) > 0,
                "starting": group.launches.row(name, now),
            }
            for name in names
        ],
        "unnamed": unnamed,
    }


def missing_text_of(group: GroupState) -> str:
    """The workers that have yet to come, in words."""
    missing = _missing(group, group.now)
    return ", ".join(missing_list(missing["workers"], missing["unnamed"]))
