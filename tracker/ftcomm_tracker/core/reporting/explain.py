"""Explanations of why a job waits: from a status document to sentences with evidence; pure.

The document is a moment's; what it shows is what the tracker knows, which is what workers said.
`TEXTS` is the table of what can be said; the functions below find what holds, and its facts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ftcomm.config.plurals import counted
from ftcomm.errors import remedy_of
from ftcomm_tracker.core.all_parts import PARTS
from ftcomm_tracker.core.group_formation import missing_list
from ftcomm_tracker.core.reporting.lost_hosts import host_text
from ftcomm_tracker.core.reporting.status import (
    death_text,
    ranks,
    standby_line,
    standby_needs,
)
from ftcomm_tracker.core.reporting.store_words import newest_text
from ftcomm_tracker.core.reporting.text_table import MAX_ROWS, texts_by_kind

Row = Mapping[str, Any]
Facts = dict[str, Any]  # that a text names in braces
Found = Iterator[tuple[str, Row]]  # kinds, and their facts

# By kind; see `text_table`.
TEXTS = """
finished! the job has finished at version {final_version}
failed! the job has ended with {error}
  {cause}
  > {todo}
forming: the group is waiting to form: {count} of {world_size} workers are here
  {joined}
  missing: {names}
  the job fails if they do not come within {ends_s:.0f} s
  the tracker has been up for {uptime_s:.0f} s
  > {look}
  > start the others with FTCOMM_TRACKER={address} and a worker id of their own; on a machine \
whose workers do not come, run `ftcomm-tracker doctor --tracker {address}`
reattaching: the tracker was restarted and waits for {away} to come back to it
  {count} of {world_size} are back
  it waits for {reattach_s:.0f} s more, then goes on without them
  > nothing, unless the tracker's address has changed: workers dial the address that they were given
rebuilding: the tracker has no journal of this job, and asks its workers what they know
  {came}
  {needs}
  it waits for {ends_s:.0f} s more
  > wait for all members; let those that are stopped go on, and repair the way of those that do \
not reach the tracker
standby! {line}
  it is ready for job {job_id}
  {needs}
  > {todo}
record: the tracker has waited for {record_s:.1f} s for its record in {url}
  {trouble}
  it ends if that takes {left_s:.0f} s more
  > make the store reachable from the tracker's host
grace_period: no connected worker holds a result or checkpoint that is needed; a worker that has \
closed and lost its connection may hold it
  {began}
  * away: {name} has closed and is away
  the job is lost if none of them is back in {grace_s:.0f} s
  > if such a process still runs, repair its way to the tracker; nothing else has a copy
lost_host: {name} is gone, and its places have been empty for {gone_s:.1f} s
  {began}
  * there: {starts}
  the job fails if one stays empty for {left_s:.0f} s more
  > see whether the machine runs and reaches the tracker; else start its workers with the same \
worker ids on another one
empty_place: {name} is gone, and its place has been empty for {gone_s:.1f} s
  * there: {died}
  {began}
  * there: {starts}
  the job fails if it stays empty for {left_s:.0f} s more
  > {look}
  > start it again with the same worker id, or a spare with another one; under run, supervise or \
a scheduler see why that does not happen
report: {name} is connected and has not yet reported for epoch {awaited_epoch}
  {began}
  its last sign of activity was {silent_s:.1f} s ago
  > nothing: it reports within a round trip, or is replaced when it falls silent
late: {name} has not been heard of for {silent_s:.1f} s
  it has not reported for epoch {awaited_epoch}
  {began}
  its connection is open: its process may be stopped (SIGSTOP, a frozen container), holding the \
interpreter in a C call, or cut off
  > on {host}: a state T in `ps` is a stopped process (`kill -CONT` wakes it); it loses its place \
after detect_within
fetching: {name} is catching up: it fetches results that it has missed
  it stands at {position}, {behind}
  > nothing
computing: {who} for {awaited} not in a collective: computing, reading or asleep
  * longest: {blockage}
  * computing: {name} stands at {position}, {behind}; heard of {silent_s:.1f} s ago
  > nothing if that is its work; else read its output; `py-spy dump --pid {pid}` on {host} shows \
where it is
exchanging: all ranks wait for each other, so bytes are on their way or a link is silent
  * longest: {blockage}
  > nothing yet: when no byte has come for {detect_within_s:g} s, the tracker suspects the link at \
fault; what fails twice running is relayed by a third rank
cyclic_wait: rank {first} waits for rank {chain}: none of them will go on
  * longest: {blockage}
  > send before receiving on one of them, or correct the tag; a send waits for nobody. \
`ftcomm-tracker stop` ends the job, deadline= would have
lost_link: {pair} cannot reach each other, and one of them waits for the other
  in {count}: {why}
  * longest: {blockage}
  > repair the network between their hosts; what fails in two plans running is relayed by a third \
rank, and where none can, an end is replaced
relayed! {pair} cannot reach each other: rank {via} relays
  in two plans running: {why}
  > repair the network between their hosts; the pair is tried directly again when one of the two \
is restarted
closing: all ranks have closed; the job is ending
nobody_waits! no rank waits: all ranks compute, or have been in a collective for less than 0.25 s
  the furthest stands at {progress}
  * behind: {name} stood at {position} at its last heartbeat
  {left}: closed, and waiting for the others to close
store! the checkpoint store {url} takes nothing
  {trouble}
  {newest_text}
  > make room in the store, or make it reachable; training goes on, and the job tries again by \
itself
checkpoint_record: {who} in checkpoint(durable=True) for the record of that checkpoint in {url}
  * longest: {blockage}
  {progress}
  {newest_text}
  > {todo}
"""
NOT_IN_INIT = (
    "`py-spy dump --pid {pid}` on {host} shows where a process that has not called init() is:"
    " importing, reading, or in a script that never calls it"
)
NEXT_PROCESS = (
    "its next process (pid {pid} on {host}) was started {age_s:.1f} s ago and has not called init()"
)
STORE_AWAY = (
    "make room in the store, or make it reachable; the job tries again by itself, and goes on when"
    " the record is there"
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that the job waits for, or that is worth knowing.

    Attributes:
        kind: a stable word for scripts, see `docs/watching.md`.
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


RULES = texts_by_kind("".join([TEXTS, *(part.texts for part in PARTS)]))
RULES["silent_link"] = RULES["exchanging"]


def explain(document: Row) -> list[Diagnosis]:
    """Everything that keeps the job of a status document from going on, the cause first."""
    found = chain(*(part.explain(document) for part in PARTS), _STATES[document["state"]](document))
    return [Diagnosis(kind, RULES[kind].waiting, *RULES[kind].said(facts)) for kind, facts in found]


def explanation(diagnoses: Sequence[Diagnosis]) -> str:
    """The findings for a person."""
    lines = []
    for diagnosis in diagnoses:
        lines.append(f"{diagnosis.what}.")
        lines += [f"  - {evidence}" for evidence in diagnosis.evidence]
        lines += [f"  To do: {diagnosis.todo}."] if diagnosis.todo else []
    return "\n".join(lines)


# --- which rules hold, by the job's state, and their facts -------------------------------------


def _over(document: Row) -> Found:
    decision = document["verdict"]
    if decision is None and document.get("record_s") is not None:
        yield "closing", document
        yield from _record(document, _store(document))
    elif decision is None:
        yield "finished", document
    else:
        yield "failed", {**decision, "todo": remedy_of(decision["error"])}


def _forming(document: Row) -> Found:
    here = [row["worker_id"] for row in document.get("spares", ()) if not row["is_spare"]]
    missing = document["missing"]
    facts = {
        "count": len(here),
        "joined": f"joined: worker {', '.join(here)}" if here else "no worker has joined yet",
        "names": ", ".join(missing_list(missing["workers"], missing["unnamed"])),
        "look": _look_of(missing["workers"]),
    }
    yield "forming", {**document, **missing, **facts}


def _reattaching(document: Row) -> Found:
    away = [row for row in document["members"] if not row["connected"]]
    count = len(document["members"]) - len(away)
    yield "reattaching", {**document, "away": _named(away), "count": count}


def _rebuilding(document: Row) -> Found:
    here = document["rebuild"]["here"]
    came = f"worker {', '.join(here[:MAX_ROWS])} has come" if here else "no worker has come yet"
    yield "rebuilding", {**document["rebuild"], "came": came}


def _standby(document: Row) -> Found:
    row = document["standby"]
    todo = "nothing: ask the tracker that leads why the job waits"
    if row["trouble"]:
        todo = "make the store readable from this host"
    facts = {"line": standby_line(row), "needs": standby_needs(row), "todo": todo}
    yield "standby", {**facts, "job_id": row["job_id"] or None}


def _collecting(document: Row) -> Found:
    members, store = _members(document), _store(document)
    yield from _away(document, members)
    for row in members:  # who has closed and is here reports too
        if row["connected"] and not row["reported"]:
            yield "late" if row["late"] else "report", row
    if document.get("grace_s") is not None:
        away = [row for row in members if row["closed"] and not row["connected"]]
        yield "grace_period", {**document, "began": _began(document), "away": away}
    yield from _record(document, store)


def _record(document: Row, store: Row | None) -> Found:
    if document.get("record_s") is not None and store:  # another tracker may lead by now
        left_s = max(document["replace_within_s"] - document["record_s"], 0)
        yield "record", {**document, **store, "left_s": left_s}


def _running(document: Row) -> Found:
    members, store = _members(document), _store(document)
    found = list(_away(document, members))
    here = [row for row in members if row["connected"] and not row["closed"]]
    found += [
        ("late", {**row, "began": None, "awaited_epoch": None}) for row in here if row["late"]
    ]
    found += [("fetching", row) for row in here if row["fetching"]]
    here = [row for row in here if not row["late"] and not row["fetching"]]
    recorded = [row for row in here if row["blocked"] and not row["blocked"]["on"]]
    blocked = [row for row in here if row["blocked"] and row["blocked"]["on"]]
    computing = [row for row in here if not row["blocked"]]
    if recorded and store:
        found.append(("checkpoint_record", {**_waiting(recorded), **store, **_progress(store)}))
    found += _lost_links(document, blocked)
    if blocked and computing:
        awaited = f"{_named(computing)}, which {'is' if len(computing) == 1 else 'are'}"
        facts = {**computing[0], **_waiting(blocked), "awaited": awaited, "computing": computing}
        found.append(("computing", facts))
    elif blocked and not found:
        found.append(_exchange(document, blocked))
    elif computing and not found:
        closed = [row for row in members if row["closed"]]
        behind = [row for row in computing if row["lag"] != "0"]
        left = _named(closed) if closed else None
        found.append(("nobody_waits", {**document, "behind": behind, "left": left}))
    yield from found or [("closing", {})]
    for route in document["routes"]:
        yield "relayed", {**route, "pair": ranks(route["ranks"])}
    if store.get("trouble") and not recorded:
        yield "store", store


_STATES: dict[str, Callable[[Row], Found]] = {
    "FORMING": _forming,
    "REBUILDING": _rebuilding,
    "STANDBY": _standby,
    "REATTACHING": _reattaching,
    "COLLECTING": _collecting,
    "RUNNING": _running,
    "OVER": _over,
}


def _away(document: Row, members: Sequence[Row]) -> Found:
    """The empty rank slots: lost hosts as hosts, the others one by one."""
    rows = [row for row in members if not row["closed"] and not row["connected"]]
    grouped = {name for lost in document["lost_hosts"] for name in lost["workers"]}
    places = []
    for lost in document["lost_hosts"]:
        there = [row for row in rows if row["host"] == lost["host"]]
        places.append(("lost_host", host_text(lost["host"], lost["workers"]), there))
    places += [
        ("empty_place", row["name"], [row]) for row in rows if row["worker_id"] not in grouped
    ]
    for kind, name, there in places:
        gone_s = max((row["gone_s"] or 0.0 for row in there), default=0.0)
        left_s = max(document["replace_within_s"] - gone_s, 0)
        facts = {"name": name, "gone_s": gone_s, "left_s": left_s, "there": there}
        facts["look"] = _look_of(there)
        yield kind, {**facts, "began": _began(document)}


def _progress(store: Row) -> Facts:
    """Of a checkpoint that is committed, and not yet in the store."""
    writing = ", ".join(map(str, store["writing"]))
    progress = f"checkpoint {writing} is being written" if writing else "no member has packed it"
    todo = STORE_AWAY if store["trouble"] else "nothing: a large state takes time to write"
    return {"progress": store["trouble"] or progress, "todo": todo}


def _lost_links(document: Row, blocked: Sequence[Row]) -> Found:
    """The pairs of which the link has failed, while one end waits for the other."""
    for row in document["failing"]:
        pair = row["ranks"]
        waiting = [b for b in blocked if b["rank"] in pair and set(pair) & set(b["blocked"]["on"])]
        if waiting:
            facts = {"pair": ranks(pair), "count": counted(row["plans"], "plan")}
            yield "lost_link", {**row, **facts, "longest": waiting}


def _exchange(document: Row, blocked: Sequence[Row]) -> tuple[str, Facts]:
    limit_s = document["detect_within_s"]
    cycle = _cycle(blocked, limit_s)
    if cycle is not None:
        first, *others = [str(row["rank"]) for row in cycle]
        chain = ", which waits for rank ".join([*others, first])
        return "cyclic_wait", {"first": first, "chain": chain, "longest": cycle}
    longest_first = sorted(blocked, key=lambda row: -float(row["blocked"]["for_s"]))
    is_short = longest_first[-1]["blocked"]["for_s"] < limit_s
    return "exchanging" if is_short else "silent_link", {**document, "longest": longest_first}


def _cycle(blocked: Sequence[Row], limit_s: float) -> list[Row] | None:
    """Ranks each of which has long waited for the next, one of them in a receive; or None."""
    rows = {row["rank"]: row for row in blocked if row["blocked"]["for_s"] >= limit_s}
    following = {
        rank: next((peer for peer in row["blocked"]["on"] if peer in rows), None)
        for rank, row in rows.items()
    }
    for start in sorted(rows):
        path = [start]
        while (after := following[path[-1]]) is not None and after not in path:
            path.append(after)
        if after is not None:
            cycle = [rows[rank] for rank in path[path.index(after) :]]
            if any(row["blocked"]["call"].startswith("recv(") for row in cycle):
                return cycle
    return None


# --- facts of rows ------------------------------------------------------------------------------


def _members(document: Row) -> list[Facts]:
    """The members' rows, each with what is said of it."""
    began, epoch = _began(document), document["announced_epoch"]
    return [
        {
            **row,
            "name": _name(row),
            "began": began,
            "awaited_epoch": epoch,
            "behind": _behind(row),
            "died": None if row["death"] is None else death_text(row["death"]),
            "starts": row["starting"] and NEXT_PROCESS.format(**row["starting"]),
            "blockage": row["blocked"] and _blockage(row, row["blocked"]),
        }
        for row in document["members"]
    ]


def _store(document: Row) -> Facts:
    """The store's row and its newest checkpoint in words; empty without a store."""
    store = document["store"]
    if not store:
        return {}
    return {**store, "newest_text": newest_text(store), "trouble": store["trouble"] or None}


def _began(document: Row) -> str | None:
    recovery = document["recovery"]
    return recovery and "epoch {epoch} began {since_s:.1f} s ago: {reason}".format(**recovery)


def _waiting(blocked: Sequence[Row]) -> Facts:
    """Ranks that wait, and the one that has waited longest."""
    who = f"{ranks([row['rank'] for row in blocked])} {'waits' if len(blocked) == 1 else 'wait'}"
    return {"who": who, "longest": [max(blocked, key=lambda row: row["blocked"]["for_s"])]}


def _blockage(row: Row, call: Row) -> str:
    source = f", for bytes from {ranks(call['on'])}" if call["on"] else ""
    waits = f"rank {row['rank']} has been waiting for {call['for_s']:.1f} s in {call['call']}"
    return f"{waits} at {call['site']}{source}"


def _name(row: Row) -> str:
    return f"worker {row['worker_id']} (rank {row['rank']}, {row['host']})"


def _look_of(rows: Sequence[Row]) -> str | None:
    """Name what shows where the first process is that has not joined; None without one."""
    return next((NOT_IN_INIT.format(**row["starting"]) for row in rows if row["starting"]), None)


def _named(rows: Sequence[Row]) -> str:
    return _name(rows[0]) if len(rows) == 1 else ranks([row["rank"] for row in rows])


def _behind(row: Row) -> str:
    lag = row["lag"] or "0"
    if lag == "0":
        return "level with the furthest"
    unit = "checkpoint" if lag.endswith("v") else "collective"
    return f"{counted(int(lag.rstrip('v')), unit)} behind the furthest"
