"""Explanations of why a job waits: from a status document to sentences with evidence; pure.

The document is a moment's; what it shows is what the tracker knows, which is what workers said.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftcomm.errors import remedy_of
from ftcomm_tracker.core.group_formation import missing_list
from ftcomm_tracker.core.reporting.lost_hosts import host_text
from ftcomm_tracker.core.reporting.standby_text import standby_line, standby_needs
from ftcomm_tracker.core.reporting.status import death_text, ranks
from ftcomm_tracker.core.reporting.store_text import newest_text

Row = Mapping[str, Any]

LOOK_AT_IT = "read its output; `py-spy dump --pid PID` on its host shows where it is"
NOT_IN_INIT = (
    "`py-spy dump --pid PID` on its host shows where a process that has not called init() is:"
    " importing, reading, or in a script that never calls it"
)
RESTART_IT = (
    "start it again with the same worker id, or a spare with another one; under run, supervise or"
    " a scheduler see why that does not happen"
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that the job waits for, or that is worth knowing.

    Attributes:
        kind: a stable word for scripts, see `docs/running.md`.
        waiting: the job does not go on because of it.
        what: one sentence.
        evidence: what the tracker knows it from.
        todo: what to do, empty for nothing.
    """

    kind: str
    waiting: bool
    what: str
    evidence: tuple[str, ...] = ()
    todo: str = ""


def explain(document: Mapping[str, Any]) -> list[Diagnosis]:
    """Everything that keeps the job of a status document from going on, the cause first."""
    return _STATES[document["state"]](document)


def explanation(diagnoses: Sequence[Diagnosis]) -> str:
    """The findings for a person."""
    lines = []
    for diagnosis in diagnoses:
        lines.append(f"{diagnosis.what}.")
        lines += [f"  - {evidence}" for evidence in diagnosis.evidence]
        lines += [f"  To do: {diagnosis.todo}."] if diagnosis.todo else []
    return "\n".join(lines)


def _over(document: Mapping[str, Any]) -> list[Diagnosis]:
    fatal_decision = document["verdict"]
    if fatal_decision is None:
        what = f"the job has finished at version {document['final_version']}"
        return [Diagnosis("finished", waiting=False, what=what)]
    todo = remedy_of(fatal_decision["error"])
    what = f"the job has ended with {fatal_decision['error']}"
    return [
        Diagnosis(
            "failed", waiting=False, what=what, evidence=(fatal_decision["cause"],), todo=todo
        )
    ]


def _forming(document: Mapping[str, Any]) -> list[Diagnosis]:
    here = [row["worker_id"] for row in document["spares"] if not row["is_spare"]]
    size = document["world_size"]
    joined = f"joined: worker {', '.join(here)}" if here else "no worker has joined yet"
    missing = document["missing"]
    words = missing_list(missing["workers"], missing["unnamed"])
    evidence = [joined, f"missing: {', '.join(words)}"]
    if missing["ends_s"] is not None:
        evidence.append(f"the job fails if they do not come within {missing['ends_s']:.0f} s")
    started = any(row["starting"] for row in missing["workers"])
    return [
        Diagnosis(
            "forming",
            waiting=True,
            what=f"the group is waiting to form: {len(here)} of {size} workers are here",
            evidence=(*evidence, f"the tracker has been up for {document['uptime_s']:.0f} s"),
            todo=NOT_IN_INIT
            if started
            else f"start the others with FTCOMM_TRACKER={document['address']} and a worker id of"
            f" their own; on a machine whose workers do not come, run `ftcomm-tracker doctor"
            f" --tracker {document['address']}`",
        )
    ]


def _reattaching(document: Mapping[str, Any]) -> list[Diagnosis]:
    away = [row for row in document["members"] if not row["connected"]]
    return [
        Diagnosis(
            "reattaching",
            waiting=True,
            what=f"the tracker was restarted and waits for {_named(away)} to come back to it",
            evidence=(
                f"{len(document['members']) - len(away)} of {document['world_size']} are back",
                f"it waits for {document['reattach_s']:.0f} s more, then goes on without them",
            ),
            todo="nothing, unless the tracker's address has changed: workers dial the address that"
            " they were given",
        )
    ]


def _rebuilding(document: Mapping[str, Any]) -> list[Diagnosis]:
    rebuild = document["rebuild"]
    here = rebuild["here"]
    came = f"worker {', '.join(here[:MAX_ROWS])} has come" if here else "no worker has come yet"
    return [
        Diagnosis(
            "rebuilding",
            waiting=True,
            what="the tracker has no journal of this job, and asks its workers what they know",
            evidence=(came, rebuild["needs"]),
            todo="wait for all members, or confirm the loss of some as said",
        )
    ]


def _standby(document: Mapping[str, Any]) -> list[Diagnosis]:
    row = document["standby"]
    job = (f"it is ready for job {row['job_id']}",) if row["job_id"] else ()
    trouble = "make the store readable from this host" if row["trouble"] else ""
    return [
        Diagnosis(
            "standby",
            waiting=False,
            what=standby_line(row),
            evidence=(*job, standby_needs(row)),
            todo=trouble or "nothing: ask the tracker that leads why the job waits",
        )
    ]


def _unrecorded(document: Mapping[str, Any]) -> list[Diagnosis]:
    """The store has yet to take what the tracker would tell: another one may lead by now."""
    since_s, store = document.get("record_s"), document["store"]
    if since_s is None or store is None:
        return []
    trouble = (store["trouble"],) if store["trouble"] else ()
    left_s = max(document["replace_within_s"] - since_s, 0)
    return [
        Diagnosis(
            "record",
            waiting=True,
            what=f"the tracker has waited for {since_s:.1f} s for its record in {store['url']}",
            evidence=(*trouble, f"it ends if that takes {left_s:.0f} s more"),
            todo="make the store reachable from the tracker's host",
        )
    ]


def _collecting(document: Mapping[str, Any]) -> list[Diagnosis]:
    diagnoses = _away(document)
    diagnoses += [
        _unreported(document, row)
        for row in document["members"]  # who has closed and is here reports too
        if row["connected"] and not row["reported"]
    ]
    if document.get("grace_s") is not None:
        diagnoses.append(_in_grace(document))
    return _last_will(document) + diagnoses + _unrecorded(document)


def _in_grace(document: Mapping[str, Any]) -> Diagnosis:
    away = [row for row in document["members"] if row["closed"] and not row["connected"]]
    return Diagnosis(
        "grace_period",
        waiting=True,
        what="no connected worker holds a result or checkpoint that is needed; a worker that has"
        " closed and lost its connection may hold it",
        evidence=(
            *_cause(document),
            *(f"{_name(row)} has closed and is away" for row in away[:MAX_ROWS]),
            f"the job is lost if none of them is back in {document['grace_s']:.0f} s",
        ),
        todo="if such a process still runs, repair its way to the tracker; nothing else has a copy",
    )


def _away(document: Mapping[str, Any]) -> list[Diagnosis]:
    """Diagnose the empty rank slots: lost hosts as hosts, the others one by one."""
    rows = [row for row in _open(document) if not row["connected"]]
    grouped = {name for lost in document["lost_hosts"] for name in lost["workers"]}
    hosts = [
        _lost_host(document, lost, [row for row in rows if row["host"] == lost["host"]])
        for lost in document["lost_hosts"]
    ]
    return hosts + [_empty(document, row) for row in rows if row["worker_id"] not in grouped]


def _lost_host(
    document: Mapping[str, Any], lost: Mapping[str, Any], rows: Sequence[Row]
) -> Diagnosis:
    host, names = lost["host"], lost["workers"]
    gone_s = max((row["gone_s"] or 0.0 for row in rows), default=0.0)
    left_s = max(document["replace_within_s"] - gone_s, 0)
    return Diagnosis(
        "lost_host",
        waiting=True,
        what=f"{host_text(host, names)} is gone, and its places have been empty for {gone_s:.1f} s",
        evidence=(
            *_cause(document),
            *(text for row in rows[:MAX_ROWS] for text in _starting(row)),
            f"the job fails if one stays empty for {left_s:.0f} s more",
        ),
        todo="see whether the machine runs and reaches the tracker; else start its workers with"
        " the same worker ids on another one",
    )


def _empty(document: Mapping[str, Any], row: Row) -> Diagnosis:
    gone_s = row["gone_s"] or 0.0
    left_s = max(document["replace_within_s"] - gone_s, 0)
    return Diagnosis(
        "empty_place",
        waiting=True,
        what=f"{_name(row)} is gone, and its place has been empty for {gone_s:.1f} s",
        evidence=(
            *([] if row["death"] is None else [death_text(row["death"])]),
            *_cause(document),
            *_starting(row),
            f"the job fails if it stays empty for {left_s:.0f} s more",
        ),
        todo=NOT_IN_INIT if row["starting"] else RESTART_IT,
    )


def _starting(row: Row) -> tuple[str, ...]:
    process = row["starting"]
    if process is None:
        return ()
    return (
        (
            f"its next process (pid {process['pid']} on {process['host']}) was started"
            f" {process['age_s']:.1f} s ago and has not called init()"
        ),
    )


def _unreported(document: Mapping[str, Any], row: Row) -> Diagnosis:
    epoch = document["announced_epoch"]
    silence = f"its last sign of activity was {row['silent_s']:.1f} s ago"
    if row["late"]:
        return _late(row, f"it has not reported for epoch {epoch}", *_cause(document))
    return Diagnosis(
        "report",
        waiting=True,
        what=f"{_name(row)} is connected and has not yet reported for epoch {epoch}",
        evidence=(*_cause(document), silence),
        todo="nothing: it reports within a round trip, or is replaced when it falls silent",
    )


def _running(document: Mapping[str, Any]) -> list[Diagnosis]:
    members = _open(document)
    gone = _away(document)
    late = [_late(row) for row in members if row["connected"] and row["late"]]
    fetching = [_fetching(row) for row in members if row["fetching"]]
    here = [row for row in members if row["connected"] and not row["late"] and not row["fetching"]]
    recorded = [row for row in here if row["blocked"] and not row["blocked"]["on"]]
    blocked = [row for row in here if row["blocked"] and row["blocked"]["on"]]
    computing = [row for row in here if not row["blocked"]]
    diagnoses = gone + late + fetching + _awaiting_record(document, recorded)
    if blocked and computing:
        diagnoses.append(_slowest(blocked, computing))
    elif blocked and not diagnoses:
        cycle = _cycle(blocked, document["detect_within_s"])
        diagnoses.append(_silent(document, blocked) if cycle is None else _cyclic(cycle))
    elif not diagnoses:
        diagnoses.append(_all_compute(document, computing))
    diagnoses += [_relayed(route) for route in document["routes"]]
    return diagnoses + ([] if recorded else _store_trouble(document))


def _late(row: Row, *evidence: str) -> Diagnosis:
    perhaps = (
        "its connection is open: its process may be stopped (SIGSTOP, a frozen container),"
        " holding the interpreter in a C call, or cut off"
    )
    return Diagnosis(
        "late",
        waiting=True,
        what=f"{_name(row)} has not been heard of for {row['silent_s']:.1f} s",
        evidence=(*evidence, perhaps),
        todo=f"on {row['host']}: a state T in `ps` is a stopped process (`kill -CONT` wakes it);"
        " it loses its place after detect_within",
    )


def _fetching(row: Row) -> Diagnosis:
    return Diagnosis(
        "fetching",
        waiting=True,
        what=f"{_name(row)} is catching up: it fetches results that it has missed",
        evidence=(f"it stands at {row['position']}, {_behind(row)}",),
        todo="nothing",
    )


def _slowest(blocked: Sequence[Row], computing: Sequence[Row]) -> Diagnosis:
    longest = max(blocked, key=lambda row: row["blocked"]["for_s"])
    who = ranks([row["rank"] for row in blocked])
    waits = "waits" if len(blocked) == 1 else "wait"
    are = "is" if len(computing) == 1 else "are"
    return Diagnosis(
        "computing",
        waiting=True,
        what=f"{who} {waits} for {_named(computing)}, which {are} not in a collective: computing,"
        " reading or asleep",
        evidence=(_blockage(longest), *map(_whereabouts, computing[:MAX_ROWS])),
        todo=f"nothing if that is its work; else {LOOK_AT_IT}",
    )


def _blockage(row: Row) -> str:
    call = row["blocked"]
    where = (
        f"rank {row['rank']} has been waiting for {call['for_s']:.1f} s in {call['call']} at"
        f" {call['site']}"
    )
    return f"{where}, for bytes from {ranks(call['on'])}" if call["on"] else where


def _whereabouts(row: Row) -> str:
    return (
        f"{_name(row)} stands at {row['position']}, {_behind(row)}; heard of"
        f" {row['silent_s']:.1f} s ago"
    )


def _silent(document: Mapping[str, Any], blocked: Sequence[Row]) -> Diagnosis:
    least_s = min(row["blocked"]["for_s"] for row in blocked)
    limit_s = document["detect_within_s"]
    longest_first = sorted(blocked, key=lambda row: -float(row["blocked"]["for_s"]))
    return Diagnosis(
        "exchanging" if least_s < limit_s else "silent_link",
        waiting=True,
        what="all ranks wait for each other, so bytes are on their way or a link is silent",
        evidence=tuple(map(_blockage, longest_first[:MAX_ROWS])),
        todo=f"nothing yet: when no byte has come for {limit_s:g} s, the tracker suspects the link"
        " at fault; what fails twice running is relayed by a third rank",
    )


def _cycle(blocked: Sequence[Row], limit_s: float) -> list[Row] | None:
    """Ranks each of which has long waited for the next, one of them in a receive; or None."""
    rows = {row["rank"]: row for row in blocked if row["blocked"]["for_s"] >= limit_s}
    for start in sorted(rows):
        path = [start]
        while (after := _next_of(rows, path[-1])) is not None and after not in path:
            path.append(after)
        if after is not None:
            cycle = [rows[rank] for rank in path[path.index(after) :]]
            if any(row["blocked"]["call"].startswith("recv(") for row in cycle):
                return cycle
    return None


def _next_of(rows: Mapping[int, Row], rank: int) -> int | None:
    """The first rank, among these, for which `rank` waits."""
    return next((peer for peer in rows[rank]["blocked"]["on"] if peer in rows), None)


def _cyclic(cycle: Sequence[Row]) -> Diagnosis:
    first, *others = [str(row["rank"]) for row in cycle]
    chain = ", which waits for rank ".join([*others, first])
    return Diagnosis(
        "cyclic_wait",
        waiting=True,
        what=f"rank {first} waits for rank {chain}: none of them will go on",
        evidence=tuple(map(_blockage, cycle[:MAX_ROWS])),
        todo="send before receiving on one of them, or correct the tag; a send waits for nobody."
        " `ftcomm-tracker stop` ends the job, deadline= would have",
    )


def _relayed(route: Mapping[str, Any]) -> Diagnosis:
    return Diagnosis(
        "relayed",
        waiting=False,
        what=f"{ranks(route['ranks'])} cannot reach each other: rank {route['via']} relays",
        evidence=(f"in two plans running: {route['why']}",),
        todo="repair the network between their hosts; the pair is tried directly again when one of"
        " the two is restarted",
    )


def _all_compute(document: Mapping[str, Any], computing: Sequence[Row]) -> Diagnosis:
    closed = [row for row in document["members"] if row["closed"]]
    if not computing:
        return Diagnosis("closing", waiting=True, what="all ranks have closed; the job is ending")
    evidence = [f"the furthest stands at {document['progress']}"]
    behind = [row for row in computing if row["lag"] != "0"]
    evidence += [
        f"{_name(row)} stood at {row['position']} at its last heartbeat"
        for row in behind[:MAX_ROWS]
    ]
    if closed:
        evidence.append(f"{_named(closed)}: closed, and waiting for the others to close")
    return Diagnosis(
        "nobody_waits",
        waiting=False,
        what="no rank waits: all ranks compute, or have been in a collective for less than 0.25 s",
        evidence=tuple(evidence),
    )


def _store_trouble(document: Mapping[str, Any]) -> list[Diagnosis]:
    store = document["store"]
    if not store or not store["trouble"]:
        return []
    return [
        Diagnosis(
            "store",
            waiting=False,
            what=f"the checkpoint store {store['url']} takes nothing",
            evidence=(store["trouble"], newest_text(store)),
            todo="make room in the store, or make it reachable; training goes on, and the job"
            " tries again by itself",
        )
    ]


def _awaiting_record(document: Mapping[str, Any], recorded: Sequence[Row]) -> list[Diagnosis]:
    """Ranks in checkpoint(durable=True): the checkpoint is committed, and not yet in the store."""
    store = document["store"]
    if not recorded or not store:
        return []
    longest = max(recorded, key=lambda row: row["blocked"]["for_s"])
    who = ranks([row["rank"] for row in recorded])
    waits = "waits" if len(recorded) == 1 else "wait"
    writing = ", ".join(map(str, store["writing"]))
    progress = f"checkpoint {writing} is being written" if writing else "no member has packed it"
    return [
        Diagnosis(
            "checkpoint_record",
            waiting=True,
            what=f"{who} {waits} in checkpoint(durable=True) for the record of that checkpoint in"
            f" {store['url']}",
            evidence=(_blockage(longest), store["trouble"] or progress, newest_text(store)),
            todo="make room in the store, or make it reachable; the job tries again by itself, and"
            " goes on when the record is there"
            if store["trouble"]
            else "nothing: a large state takes time to write",
        )
    ]


def _last_will(document: Mapping[str, Any]) -> list[Diagnosis]:
    store = document["store"]
    if not store or store["last_will"] is None:
        return []
    what = f"the job is lost and writes its checkpoint {store['last_will']} to {store['url']}"
    return [Diagnosis("last_will", waiting=True, what=what, evidence=(newest_text(store),))]


MAX_ROWS = 8  # members described one by one

_STATES: dict[str, Callable[[Mapping[str, Any]], list[Diagnosis]]] = {
    "FORMING": _forming,
    "REBUILDING": _rebuilding,
    "STANDBY": _standby,
    "REATTACHING": _reattaching,
    "COLLECTING": _collecting,
    "RUNNING": _running,
    "OVER": _over,
}


def _open(document: Mapping[str, Any]) -> list[Row]:
    return [row for row in document["members"] if not row["closed"]]


def _cause(document: Mapping[str, Any]) -> tuple[str, ...]:
    recovery = document["recovery"]
    if recovery is None:
        return ()
    return (
        f"epoch {recovery['epoch']} began {recovery['since_s']:.1f} s ago: {recovery['reason']}",
    )


def _name(row: Row) -> str:
    return f"worker {row['worker_id']} (rank {row['rank']}, {row['host']})"


def _named(rows: Sequence[Row]) -> str:
    return _name(rows[0]) if len(rows) == 1 else ranks([row["rank"] for row in rows])


def _behind(row: Row) -> str:
    lag = row["lag"] or "0"
    if lag == "0":
        return "level with the furthest"
    count, unit = (lag[:-1], "checkpoint") if lag.endswith("v") else (lag, "collective")
    return f"{count} {unit}{'' if count == '1' else 's'} behind the furthest"
