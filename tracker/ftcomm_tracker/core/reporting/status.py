"""`ftcomm-tracker status`: the document that the tracker sends, and what people see of it."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ftcomm.config.plurals import counted
from ftcomm.protocol.field_types import MAX_CONTROL_FRAME, MAX_WORLD_SIZE
from ftcomm_tracker.core.reporting.lost_hosts import MAX_NAMED
from ftcomm_tracker.core.reporting.short_lists import with_short_lists
from ftcomm_tracker.core.reporting.store_text import store_line

MAX_DOCUMENT = MAX_CONTROL_FRAME - 1024  # bytes; ASCII, so characters are bytes
_LEFT_OUT_ROOM = 512  # for what says that something was left out
SCHEMA = 1  # of the document: raised when a field goes or changes its meaning, not when one comes


def status_document(snapshot: Mapping[str, Any]) -> str:
    """The snapshot as text that fits one control frame, with shorter lists if need be."""
    text = json.dumps(snapshot)
    if len(text) <= MAX_DOCUMENT:
        return text
    members = sorted(snapshot["members"], key=partial(_interest, _fewer_wait(snapshot)))
    others = MAX_DOCUMENT - min(len(json.dumps(members)), MAX_DOCUMENT // 2) - _LEFT_OUT_ROOM
    short = with_short_lists({**snapshot, "members": []}, others)
    room = MAX_DOCUMENT - len(json.dumps({**short, "members_left_out": MAX_WORLD_SIZE}))
    shown = []
    for row in members:
        room -= len(json.dumps(row)) + len(", ")
        if room < 0:
            break
        shown.append(row)
    shown.sort(key=lambda row: int(row["rank"]))
    if len(shown) < len(members):
        short["members_left_out"] = len(members) - len(shown)
    return json.dumps({**short, "members": shown})


def _fewer_wait(snapshot: Mapping[str, Any]) -> bool:
    states = [state_of(row) for row in snapshot["members"]]
    return states.count("blocked") < states.count("up")


def _interest(fewer_wait: bool, row: Mapping[str, Any]) -> int:
    """Rank a row by its interest to the reader: lower values are shown first."""
    usual = ("blocked", "up", "closed") if fewer_wait else ("up", "blocked", "closed")
    state = state_of(row)
    return usual.index(state) + 1 if state in usual else 0


def summary(snapshot: Mapping[str, Any]) -> str:
    """One line for a live display."""
    up = sum(row["connected"] for row in snapshot["members"])
    late = [row["worker_id"] for row in snapshot["members"] if row["late"]]
    slow = f", late: {' '.join(late)}" if late else ""
    state = str(snapshot["state"]).lower()
    if snapshot["world_size"] is None:  # nor is anything else known of a job that nobody has named
        return state
    return (
        f"{state}, epoch {snapshot['epoch']},"
        f" {up}/{snapshot['world_size']} ranks up, at {snapshot['progress']}{slow}"
    )


def table(snapshot: Mapping[str, Any]) -> str:
    """The whole snapshot for a person."""
    lines = [
        f"job {snapshot['job_id']}: {summary(snapshot)}",
        f"tracker {snapshot['address']}, generation {snapshot['generation']}",
        f"{_process(snapshot)}, state in {snapshot['state_dir']}",
    ]
    if snapshot["final_version"] >= 0:
        lines.append(f"finished at version {snapshot['final_version']}")
    if snapshot["store"]:
        lines.append(store_line(snapshot["store"]))
    lines += [f"waiting for {what}" for what in snapshot["waiting_for"]]
    lines += [
        f"rank {route['via']} relays between ranks {route['ranks'][0]} and {route['ranks'][1]}:"
        f" {route['why']}"
        for route in snapshot["routes"]
    ]
    if snapshot["verdict"]:
        lines.append(f"verdict {snapshot['verdict']['error']}: {snapshot['verdict']['cause']}")
    if snapshot["members"]:
        header = ("rank", "worker", "proc", "host", "state", "position", "lag", "")
        rows = [header, *(_row(member) for member in snapshot["members"])]
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        lines += ["", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)]
    if snapshot.get("members_left_out"):
        left_out = counted(snapshot["members_left_out"], "member")
        lines.append(f"({left_out} like these, or well: not shown)")
    lines += _spares(snapshot)
    lines += _incidents(snapshot["incidents"])
    if snapshot.get("left_out"):
        parts = (f"{counted(n, 'row')} of {name}" for name, n in snapshot["left_out"].items())
        lines += ["", f"(too long to show: {', '.join(parts)})"]
    return "\n".join(lines)


def _spares(snapshot: Mapping[str, Any]) -> list[str]:
    """One line for each spare, and one if there are fewer than the job is to have."""
    rows = [row for row in snapshot["spares"] if row["is_spare"]]
    lines = []
    for row in rows:
        zone = f", zone {row['zone']}" if row["zone"] else ""
        name = f"spare {row['worker_id']} (pid {row['pid']}) on {row['host']}{zone}"
        lines.append(name + _prefetched(row))
    wanted = snapshot["spares_wanted"]
    if len(rows) < wanted and snapshot["final_version"] < 0:
        lines.append(f"{len(rows)} of {counted(wanted, 'spare')} are here")
    return ["", *lines] if lines else []


def _prefetched(row: Mapping[str, Any]) -> str:
    """The checkpoint that a spare has fetched in advance."""
    if row["age_s"] is None:
        return ", holds no checkpoint yet"
    size = f"{row['nbytes'] / 1e6:.1f} MB"
    return f", holds checkpoint {row['version']} ({row['age_s']:.0f} s old), {size}"


def _process(snapshot: Mapping[str, Any]) -> str:
    if snapshot["pid"] is None:  # read from the journal
        return "which has ended"
    return f"pid {snapshot['pid']}, up {snapshot['uptime_s']} s"


def _row(member: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(member["rank"]),
        str(member["worker_id"]),
        str(member["incarnation"]),
        str(member["host"]),
        state_of(member),
        str(member["position"] or "-"),
        str(member["lag"] or "-"),
        _remark(member),
    )


def state_of(member: Mapping[str, Any]) -> str:
    """One word: closed, gone, late, fetching, blocked or up."""
    if member["closed"]:
        return "closed"
    if not member["connected"]:
        return "gone"
    if member["late"]:
        return "late"
    if member["fetching"]:
        return "fetching"
    return "blocked" if member["blocked"] else "up"


def _remark(member: Mapping[str, Any]) -> str:
    state, blocked = state_of(member), member["blocked"]
    if state == "gone" and member["gone_s"] is not None:
        death = member["death"]
        how = "" if death is None else f": pid {death['pid']} {death['how']}"
        return f"for {member['gone_s']:.1f} s{how}"
    if state == "late":
        return f"no heartbeat for {member['silent_s']:.1f} s"
    if state == "blocked":
        who = ranks(blocked["on"]) if blocked["on"] else "the record of its checkpoint"
        return f"on {who} for {blocked['for_s']:.1f} s, {blocked['site']}"
    return ""


def ranks(numbers: Sequence[int]) -> str:
    """``rank 1``, ``ranks 1, 2 and 5``; at most `MAX_NAMED` are named."""
    if len(numbers) > MAX_NAMED:
        return f"{len(numbers)} ranks ({', '.join(map(str, numbers[:MAX_NAMED]))} ...)"
    if not numbers:
        return "no rank"
    *first, last = map(str, numbers)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"


def _incidents(incidents: list[Mapping[str, Any]]) -> list[str]:
    lines = ["", "last recoveries:"] if incidents else []
    return lines + [f"  {incident_line(incident)}" for incident in incidents]


def incident_line(incident: Mapping[str, Any]) -> str:
    """One recovery in one line: what it was, what it cost."""
    times = ", ".join(f"{name} {ms}" for name, ms in incident["ms"].items() if name != "total")
    cut_short = "" if incident["completed"] else " until it was cut short"
    causes = "".join(f"; {death_text(death)}" for death in incident["causes"])
    return (
        f"epoch {incident['epoch']}: {incident['reason']}{causes};"
        f" {incident['ms']['total']} ms{cut_short} ({times}),"
        f" {counted(incident['replayed'], 'result')} replayed, {incident['fetched']} fetched"
    )


def death_text(death: Mapping[str, Any]) -> str:
    """Describe in words how one process ended."""
    return f"worker {death['worker']} (pid {death['pid']} on {death['host']}) {death['how']}"
