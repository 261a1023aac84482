"""`ftcomm-tracker status`: the document that the tracker sends, and what people see of it."""

import json
from collections.abc import Mapping
from typing import Any

from ftcomm.protocol.codec import MAX_CONTROL_FRAME

MAX_DOCUMENT = MAX_CONTROL_FRAME - 1024  # bytes; ASCII, so characters are bytes
MAX_SHOWN_MEMBERS = 512  # in a document that would not fit otherwise


def status_document(snapshot: Mapping[str, Any]) -> str:
    """The snapshot as text that fits one control frame, with fewer members if need be."""
    text = json.dumps(snapshot)
    if len(text) <= MAX_DOCUMENT:
        return text
    members = snapshot["members"]
    # The connected and well are left out first: who reads this looks for the others.
    odd = [row for row in members if not row["connected"] or row["late"]]
    shown = odd[:MAX_SHOWN_MEMBERS]
    left_out = len(members) - len(shown)
    return json.dumps({**snapshot, "members": shown, "members_left_out": left_out})


def summary(snapshot: Mapping[str, Any]) -> str:
    """One line for a live display."""
    up = sum(row["connected"] for row in snapshot["members"])
    late = [row["worker_id"] for row in snapshot["members"] if row["late"]]
    slow = f", late: {' '.join(late)}" if late else ""
    return (
        f"{snapshot['state'].lower()}, epoch {snapshot['epoch']},"
        f" {up}/{snapshot['world_size']} ranks up, at {snapshot['progress']}{slow}"
    )


def table(snapshot: Mapping[str, Any]) -> str:
    """The whole snapshot for a person."""
    lines = [
        f"job {snapshot['job_id']}: {summary(snapshot)}",
        f"tracker {snapshot['address']}, generation {snapshot['generation']}",
        f"pid {snapshot['pid']}, up {snapshot['uptime_s']} s, state in {snapshot['state_dir']}",
    ]
    lines += [f"waiting for {what}" for what in snapshot["waiting_for"]]
    if snapshot["verdict"]:
        lines.append(f"verdict {snapshot['verdict']['error']}: {snapshot['verdict']['cause']}")
    if snapshot["members"]:
        header = ("rank", "worker", "life", "host", "state", "position")
        rows = [header, *(_row(member) for member in snapshot["members"])]
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        lines += ["", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)]
    if snapshot.get("members_left_out"):
        lines.append(f"({snapshot['members_left_out']} members that are well are not shown)")
    lines += _incidents(snapshot["incidents"])
    return "\n".join(lines)


def _row(member: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(member["rank"]),
        str(member["worker_id"]),
        str(member["incarnation"]),
        str(member["host"]),
        _state_of(member),
        str(member["position"] or "-"),
    )


def _state_of(member: Mapping[str, Any]) -> str:
    if member["closed"]:
        return "closed"
    if not member["connected"]:
        return "gone"
    return "late" if member["late"] else "up"


def _incidents(incidents: list[Mapping[str, Any]]) -> list[str]:
    lines = ["", "last recoveries:"] if incidents else []
    return lines + [f"  {incident_line(incident)}" for incident in incidents]


def incident_line(incident: Mapping[str, Any]) -> str:
    """One recovery in one line: what it was, what it cost."""
    times = ", ".join(f"{name} {ms}" for name, ms in incident["ms"].items() if name != "total")
    return (
        f"epoch {incident['epoch']}: {incident['reason']}; {incident['ms']['total']} ms ({times}),"
        f" {incident['replayed']} results replayed, {incident['fetched']} fetched"
    )
