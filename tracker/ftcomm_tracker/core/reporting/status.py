"""`ftcomm-tracker status`: the job as JSON-able values, and in words; pure.

`FIELDS` is the table of the document: each key, what it is in the group, and its text for a person.
`COLUMNS` is the table of the members' text.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

from ftcomm.config.plurals import counted
from ftcomm.protocol.operator_messages import WorkerStatusReply
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import signature_text
from ftcomm_tracker.core.all_parts import PARTS
from ftcomm_tracker.core.group_formation import MAX_ROWS, missing_list, missing_workers
from ftcomm_tracker.core.group_state import GroupState, Peer
from ftcomm_tracker.core.job_states import JobState
from ftcomm_tracker.core.relay_routing import failing_rows, route_rows
from ftcomm_tracker.core.reporting.lost_hosts import MAX_NAMED, host_text
from ftcomm_tracker.core.reporting.store_words import store_line
from ftcomm_tracker.core.reporting.text_table import aligned
from ftcomm_tracker.core.standby.watch import Phase, Standby

SCHEMA = 1  # of the document: raised when a field goes or changes its meaning, not when one comes
STANDBY = "STANDBY"
MAX_NAMED_PEERS = 16  # of one blocked rank, so that a document of 1,024 ranks stays bounded
NEVER = float("inf")
Row = Mapping[str, Any]


def snapshot(group: GroupState, now: float) -> dict[str, Any]:
    """The job for `status`, as JSON-able values."""
    document = {
        key: attrgetter(source)(group) if isinstance(source, str) else source(group, now)
        for key, source, *_ in FIELDS
    }
    for part in group.parts:
        _add(document, part.rows(group, now))
    return document


def _add(document: dict[str, Any], rows: Row) -> None:
    """Add the keys of a part, at the top or in a row that is there; it overwrites none."""
    for key, value in rows.items():
        there = document.get(key)
        if isinstance(there, dict) and isinstance(value, dict):
            _add(there, value)
        else:
            assert key not in document, f"{key} has another owner"
            document[key] = value


def table(document: Row) -> str:
    """The whole document for a person."""
    lines = [f"job {document['job_id']}: {summary(document)}"]
    for key, _, text in FIELDS:
        value = document[key]
        if callable(text):
            lines += text(document)
        elif text and value not in (None, -1):
            lines += [text.format(each) for each in (value if isinstance(value, list) else [value])]
    lines += chain.from_iterable(part.lines(document) for part in PARTS)
    return "\n".join([*lines, *_incident_lines(document)])


def summary(document: Row) -> str:
    """One line for a live display."""
    up = sum(row["connected"] for row in document["members"])
    late = [row["worker_id"] for row in document["members"] if row["late"]]
    slow = f", late: {' '.join(late)}" if late else ""
    state = str(document["state"]).lower()
    if document["world_size"] is None:  # nor is anything else known of a job that nobody has named
        return state
    return (
        f"{state}, epoch {document['epoch']},"
        f" {up}/{document['world_size']} ranks up, at {document['progress']}{slow}"
    )


# --- values -------------------------------------------------------------------------------------


def _left(until: float, now: float) -> float | None:
    """Seconds until a time; None for never."""
    return None if until == NEVER else round(until - now, 3)


def _row(subject: Any, *names: str, **more: Any) -> dict[str, Any]:
    """These attributes of `subject`, and `more`."""
    return {**{name: getattr(subject, name) for name in names}, **more}


def _world_size(group: GroupState, _: float) -> int | None:
    """Number of workers; None before anybody has named it to a tracker without a journal."""
    if group.rebuild is None or group.rebuild.world_size is not None:
        return group.durable.world_size
    newest = group.rebuild.newest_answer()
    return newest[0].world_size if newest else None


def _missing(group: GroupState, now: float) -> dict[str, Any] | None:
    """The workers that are missing before the group can form."""
    if group.state is not JobState.FORMING:
        return None
    durable, peers = group.durable, [peer.hello for peer in group.members.peers.values()]
    names, unnamed = missing_workers(
        durable.world_size,
        {hello.worker_id for hello in peers if not hello.spare},
        group.launches.workers,
        [name for name, _ in durable.incarnations],
        {hello.worker_id for hello in peers if hello.spare},
    )
    workers = [
        {
            "worker_id": name,
            "was_here": durable.incarnation_of(name) > 0,
            "starting": group.launches.row(name, now),
        }
        for name in names
    ]
    return {"ends_s": _left(group.forming.ends_at, now), "workers": workers, "unnamed": unnamed}


def _rebuild(group: GroupState, now: float) -> dict[str, Any] | None:
    """Workers that a tracker without a journal awaits."""
    rebuild = group.rebuild
    if rebuild is None or rebuild.standby is not None:
        return None
    here = sorted(hello.worker_id for hello in rebuild.waiting.values())
    missing = rebuild.missing()
    return {
        "job_id": rebuild.job_id,
        "here": [f"{x} (a new process)" if x in missing else x for x in here[:MAX_ROWS]],
        "missing": missing[:MAX_ROWS],
        "needs": rebuild.needs(),
        "ends_s": _left(rebuild.ends_at, now),
    }


def _standby_of(group: GroupState) -> Standby | None:
    return None if group.rebuild is None else group.rebuild.standby


def _standby(group: GroupState, now: float) -> dict[str, Any] | None:
    """For whom a tracker waits; None for one that leads."""
    standby = _standby_of(group)
    if standby is None:
        return None
    own = {"phase": standby.phase.value, "since_s": round(now - standby.since, 3)}
    url = group.settings.checkpoint
    return _row(standby, "job_id", "leader", "is_silent", "trouble", url=url, **own)


def _recorded_for(group: GroupState, now: float) -> float | None:
    """Seconds for which a plan or an end has waited for its record in the store (rule R19)."""
    since = group.permits.since
    return None if since == NEVER else round(now - since, 3)


def _awaited_in_grace(group: GroupState) -> list[int]:
    """Closed members that are awaited, since they may hold what nobody else does."""
    return group.closed_and_away() if group.epochs.grace_until < NEVER else []


def _grace(group: GroupState, now: float) -> float | None:
    return _left(group.epochs.grace_until, now) if _awaited_in_grace(group) else None


def _reattach(group: GroupState, now: float) -> float | None:
    is_due = group.state is JobState.REATTACHING
    return _left(group.epochs.reattach_by, now) if is_due else None


def _lost_hosts(group: GroupState, _: float) -> list[dict[str, Any]]:
    return [{"host": host, "workers": names} for host, names in group.lost_hosts()[0]]


def _recovery(group: GroupState, now: float) -> dict[str, Any] | None:
    incident = group.epochs.incident
    if incident is None:
        return None
    until_event_s = group.driver_now - incident.started_at
    return _row(incident, "epoch", "reason", since_s=round(until_event_s + now - group.now, 3))


def _store(group: GroupState, now: float) -> dict[str, Any] | None:
    """The job's store and its newest checkpoint; None without one."""
    versions = group.versions
    if not versions.is_on:
        return None
    return _row(
        versions,
        *("attempt", "newest", "trouble"),
        url=group.settings.checkpoint,
        every=group.settings.checkpoint_every,
        age_s=None if versions.newest_at is None else round(now - versions.newest_at, 3),
        writing=sorted(versions.pending),
    )


def _members(group: GroupState, now: float) -> list[dict[str, Any]]:
    furthest, members, rows = group.members.progress(), group.members, []
    for rank, place in enumerate(group.durable.places):
        peer = members.peers.get(members.slots.get(rank, -1))
        since, death = members.empty_since.get(rank), None
        if peer is None:
            death = members.deaths.of(place.worker_id)
        facts = {
            "rank": rank,
            "connected": peer is not None,
            "closed": rank in group.durable.closed_ranks,
            "gone_s": None if since is None else round(now - since, 3),
            "death": None if death is None else death.to_dict(),
            "starting": group.launches.row(place.worker_id, now) if peer is None else None,
            "reported": rank in group.epochs.reports,
            "fetching": group.state is JobState.RUNNING and rank in group.epochs.awaiting_fetch,
        }
        own = _connection(peer, group.epochs.in_force, furthest, now)
        rows.append(_row(place, "worker_id", "incarnation", "host", **facts, **own))
    return rows


def _connection(peer: Peer | None, epoch: int, furthest: Position, now: float) -> dict[str, Any]:
    """The facts that only a connection of the member has; all None without one."""
    if peer is None:
        unknown = ("pid", "start", "position", "lag", "silent_s", "blocked", "log_bytes")
        return {**dict.fromkeys(unknown), "late": False}
    return _row(
        peer.hello,
        *("pid", "start"),
        position=str(peer.position),
        lag=_lag(peer.position, furthest),
        late=peer.late,
        silent_s=round(now - peer.last_heard, 3),
        blocked=_blocked(peer, epoch),
        log_bytes=None if peer.heartbeat is None else peer.heartbeat.log_bytes,
    )


def _lag(position: Position, furthest: Position) -> str:
    """Format the lag of a member: ``"0"``, ``"3"`` collectives, or ``"2v"`` checkpoints."""
    versions = furthest.version - position.version
    return f"{versions}v" if versions > 0 else str(max(furthest.seqno - position.seqno, 0))


def _blocked(peer: Peer, epoch: int) -> dict[str, Any] | None:
    """The peers that it waits for; who was blocked in an older epoch is not any more."""
    beat = peer.heartbeat
    if beat is None or beat.blocked is None or beat.epoch != epoch:
        return None
    return {
        "on": list(beat.blocked.peers[:MAX_NAMED_PEERS]),
        "call": signature_text(beat.blocked.signature),
        "site": beat.blocked.site,
        "for_s": round(beat.blocked.blocked_ms / 1000, 3),
    }


def _waiting_for(group: GroupState, now: float) -> list[str]:
    if group.state is JobState.FORMING:
        return [f"{who} to join" for who in _missing_words(group, now)]
    if (row := _standby(group, now)) is not None:
        return [f"its turn to lead: {standby_line(row)}"]
    if group.rebuild is not None:
        return [f"worker {name} to come" for name in group.rebuild.missing()[:MAX_ROWS]]
    names = [place.worker_id for place in group.durable.places]
    hosts, others = group.lost_hosts()
    absent = [f"{host_text(*lost)} to come back" for lost in hosts]
    absent += [f"worker {name} to come back" for name in others]
    if group.state is JobState.COLLECTING:
        silent = sorted(set(group.members.slots) - set(group.epochs.reports))
        closed = _awaited_in_grace(group)
        absent += [f"the report of worker {names[rank]}" for rank in silent]
        absent += [f"worker {names[rank]} to come back, though it has closed" for rank in closed]
    return absent


def _missing_words(group: GroupState, now: float) -> list[str]:
    missing = _missing(group, now)
    return [] if missing is None else missing_list(missing["workers"], missing["unnamed"])


def missing_text_of(group: GroupState) -> str:
    """The workers that have yet to come, in words."""
    return ", ".join(_missing_words(group, group.now))


def _verdict(group: GroupState, _: float) -> dict[str, str] | None:
    decision = group.durable.fatal_decision
    return None if decision is None else _row(decision, "error", "cause")


def _joined(group: GroupState, worker_id: str) -> tuple[int, int]:
    """Pid and start of the worker's process; launchers name no spares, and know their own."""
    known = group.launches.joined(worker_id)
    hellos = (peer.hello for peer in group.members.peers.values())
    here = ((hello.pid, hello.start) for hello in hellos if hello.worker_id == worker_id)
    return known if known[0] else next(here, known)


def standing_of(group: GroupState, worker_id: str, number: int) -> WorkerStatusReply:
    """Answer question `number` of the supervisor of `worker_id`."""
    # The end of an attempt is none of the job: a supervisor starts its worker into the next one.
    fatal_decision = None if group.awaits_next_attempt else group.durable.fatal_decision
    pid, start = _joined(group, worker_id)
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
        pid=pid,
        start=start,
        is_spare=_is_wanted_as_spare(group, worker_id),
    )


def _is_wanted_as_spare(group: GroupState, worker_id: str) -> bool:
    """True if the group is complete without that worker, and the job lacks a spare."""
    others = sum(
        peer.rank is None and peer.hello.worker_id != worker_id
        for peer in group.members.peers.values()
    )
    has_rank = group.durable.rank_of(worker_id) is not None
    return bool(group.durable.places) and not has_rank and others < group.settings.spares


# --- words --------------------------------------------------------------------------------------


def standby_line(row: Row) -> str:
    """A tracker that does not lead, in one line."""
    if row["phase"] == Phase.ASKING.value:
        return "this tracker leads since its record is in the store, and awaits a worker's word"
    who = row["leader"] or "another tracker"
    silent = ", which does not beat in the store any more" if row["is_silent"] else ""
    return f"standby for {row['since_s']:.0f} s: {who} leads the job of {row['url']}{silent}"


def standby_needs(row: Row) -> str:
    """Explain in words when this tracker leads."""
    if row["trouble"]:
        return f"the store cannot be read: {row['trouble']}"
    if row["phase"] == Phase.ASKING.value:
        return "it waits for a worker that knows the job's settings, then goes on"
    if row["is_silent"]:
        return "it leads as soon as a worker dials it"
    return "it leads when that one is lost: when it beats no longer, or when all workers come here"


def ranks(numbers: Sequence[int]) -> str:
    """``rank 1``, ``ranks 1, 2 and 5``; at most `MAX_NAMED` are named."""
    if len(numbers) > MAX_NAMED:
        return f"{len(numbers)} ranks ({', '.join(map(str, numbers[:MAX_NAMED]))} ...)"
    if not numbers:
        return "no rank"
    *first, last = map(str, numbers)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"


def incident_line(incident: Row) -> str:
    """One recovery in one line: what it was, what it cost."""
    times = ", ".join(f"{name} {ms}" for name, ms in incident["ms"].items() if name != "total")
    cut_short = "" if incident["completed"] else " until it was cut short"
    causes = "".join(f"; {death_text(death)}" for death in incident["causes"])
    return (
        f"epoch {incident['epoch']}: {incident['reason']}{causes};"
        f" {incident['ms']['total']} ms{cut_short} ({times}),"
        f" {counted(incident['replayed'], 'result')} replayed, {incident['fetched']} fetched"
    )


def death_text(death: Row) -> str:
    """Describe in words how one process ended."""
    return f"worker {death['worker']} (pid {death['pid']} on {death['host']}) {death['how']}"


def _tracker_lines(document: Row) -> Iterable[str]:
    process = "which has ended"  # read from the journal
    if document["pid"] is not None:
        process = f"pid {document['pid']}, up {document['uptime_s']} s"
    yield f"tracker {document['address']}, generation {document['generation']}"
    yield f"{process}, state in {document['state_dir']}"


def _store_lines(document: Row) -> Iterable[str]:
    return [store_line(document["store"])] if document["store"] else []


def state_of(member: Row) -> str:
    """One word: closed, gone, late, fetching, blocked or up."""
    if member["closed"]:
        return "closed"
    if not member["connected"]:
        return "gone"
    return next((word for word in ("late", "fetching", "blocked") if member[word]), "up")


def _remark(member: Row) -> str:
    state, blocked, death = state_of(member), member["blocked"], member["death"]
    if state == "gone" and member["gone_s"] is not None:
        how = "" if death is None else f": pid {death['pid']} {death['how']}"
        return f"for {member['gone_s']:.1f} s{how}"
    if state == "late":
        return f"no heartbeat for {member['silent_s']:.1f} s"
    if state == "blocked":
        who = ranks(blocked["on"]) if blocked["on"] else "the record of its checkpoint"
        return f"on {who} for {blocked['for_s']:.1f} s, {blocked['site']}"
    return ""


COLUMNS: tuple[tuple[str, Callable[[Row], Any]], ...] = (
    ("rank", lambda member: member["rank"]),
    ("worker", lambda member: member["worker_id"]),
    ("proc", lambda member: member["incarnation"]),
    ("host", lambda member: member["host"]),
    ("state", state_of),
    ("position", lambda member: member["position"] or "-"),
    ("lag", lambda member: member["lag"] or "-"),
    ("", _remark),
)


def _member_lines(document: Row) -> Iterable[str]:
    if document["members"]:
        rows = [[text(each) for _, text in COLUMNS] for each in document["members"]]
        yield "\n" + aligned([[head for head, _ in COLUMNS], *rows])
    if document.get("members_left_out"):
        yield f"({counted(document['members_left_out'], 'member')} like these, or well: not shown)"


def _incident_lines(document: Row) -> Iterable[str]:
    if document["incidents"]:
        yield from ["", "last recoveries:"]
        yield from (f"  {incident_line(incident)}" for incident in document["incidents"])
    if document.get("left_out"):
        parts = (f"{counted(n, 'row')} of {name}" for name, n in document["left_out"].items())
        yield from ["", f"(too long to show: {', '.join(parts)})"]


# --- the table ----------------------------------------------------------------------------------

Value = Callable[[GroupState, float], Any]
Lines = Callable[[Row], Iterable[str]]
# Of each field in the order of the text: its key; where the group has it, or what makes it; and its
# text, of each row of a list, or what makes its lines from the document.
FIELDS: tuple[tuple[str, str | Value, str | Lines], ...] = (
    ("job_id", "durable.job_id", ""),
    ("state", lambda group, _: STANDBY if _standby_of(group) else group.state.value, ""),
    ("epoch", "epochs.in_force", ""),
    ("announced_epoch", "durable.epoch", ""),
    ("generation", "generation", _tracker_lines),
    ("world_size", _world_size, ""),
    ("progress", lambda group, _: str(group.members.progress()), ""),
    ("detect_within_s", "settings.detect_within", ""),
    ("replace_within_s", "settings.replace_within", ""),
    ("streams", "settings.streams", ""),
    ("reattach_s", _reattach, ""),
    ("missing", _missing, ""),
    ("rebuild", _rebuild, ""),
    ("standby", _standby, ""),
    ("record_s", _recorded_for, ""),
    ("grace_s", _grace, ""),
    ("recovery", _recovery, ""),
    ("final_version", "durable.final_version", "finished at version {}"),
    ("store", _store, _store_lines),
    ("waiting_for", _waiting_for, "waiting for {}"),
    ("lost_hosts", _lost_hosts, ""),
    (
        "routes",
        lambda group, _: route_rows(group.links, group.durable),
        "rank {0[via]} relays between ranks {0[ranks][0]} and {0[ranks][1]}: {0[why]}",
    ),
    ("failing", lambda group, _: failing_rows(group.links, group.durable), ""),
    ("verdict", _verdict, "verdict {0[error]}: {0[cause]}"),
    ("members", _members, _member_lines),
    ("spares_wanted", "settings.spares", ""),
    ("incidents", lambda group, _: group.epochs.incidents[-10:], ""),
)
