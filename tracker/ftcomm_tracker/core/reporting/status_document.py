"""A status document whose long lists are cut, so that it fits a frame; pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ftcomm.protocol.field_types import MAX_CONTROL_FRAME, MAX_WORLD_SIZE
from ftcomm_tracker.core.reporting.status import state_of

MAX_DOCUMENT = MAX_CONTROL_FRAME - 1024  # bytes; ASCII, so characters are bytes
_LEFT_OUT_ROOM = 512  # for what says that something was left out
# Rows that stay of each list that is cut, and characters of each text in it: as many as people
# read, then as many as always fit. The shortest list that is a row, a relayed pair, has three.
KEPT: Final = ((64, 1024), (8, 1024), (3, 256))
_LISTS: Final = ("routes", "failing", "waiting_for", "spares", "missing", "rebuild")
# A host without some of its workers would be another statement: these go last, and all of them.
_LAST: Final = "lost_hosts"


def status_document(snapshot: Mapping[str, Any]) -> str:
    """The snapshot as text that fits one control frame, with shorter lists if need be."""
    text = json.dumps(snapshot)
    if len(text) <= MAX_DOCUMENT:
        return text
    members = _most_interesting_first(snapshot["members"])
    others = MAX_DOCUMENT - min(len(json.dumps(members)), MAX_DOCUMENT // 2) - _LEFT_OUT_ROOM
    short = _with_short_lists({**snapshot, "members": []}, others)
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


def _most_interesting_first(members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    states = [state_of(row) for row in members]
    usual = ["blocked", "up", "closed"]
    if states.count("blocked") >= states.count("up"):
        usual = ["up", "blocked", "closed"]
    order = {state: number for number, state in enumerate(usual, 1)}
    return sorted(members, key=lambda row: order.get(state_of(row), 0))


def _with_short_lists(document: Mapping[str, Any], room: int) -> dict[str, Any]:
    """`document` with lists that are cut until its text has `room`, if that can be had.

    The details of old incidents go first. ``left_out`` says how many rows of each field went, with
    those of lists inside it.
    """
    size = len(json.dumps(document))
    short = {**document, "incidents": list(document["incidents"])}
    left_out: dict[str, int] = {}
    for holder, key, kept, chars in _steps(short):
        if size <= room:
            break
        cut, rows = _cut(holder[key], kept, chars)
        size += len(json.dumps(cut)) - len(json.dumps(holder[key]))
        holder[key] = cut
        if rows:
            name = "incidents" if holder is not short else str(key)
            left_out[name] = left_out.get(name, 0) + rows
    return {**short, "left_out": left_out} if left_out else short


def _steps(short: dict[str, Any]) -> Iterator[tuple[Any, Any, int, int]]:
    """Cuts in their order: a dictionary or list, its key, and rows and characters that stay."""
    incidents = short["incidents"]
    for kept, chars in KEPT:
        yield from ((incidents, index, kept, chars) for index in range(len(incidents)))
        yield from ((short, name, kept, chars) for name in _LISTS)
    yield short, _LAST, 0, 0


def _cut(value: Any, kept: int, chars: int) -> tuple[Any, int]:
    """`value` with `kept` rows of each list and `chars` of each text in it, and rows that went."""
    if isinstance(value, str):
        return (value if len(value) <= chars else f"{value[: chars - 3]}..."), 0
    if isinstance(value, Mapping):
        parts = {name: _cut(part, kept, chars) for name, part in value.items()}
        return {name: part for name, (part, _) in parts.items()}, sum(n for _, n in parts.values())
    if isinstance(value, list | tuple):
        rows = [_cut(row, kept, chars) for row in value[:kept]]
        return [row for row, _ in rows], len(value) - len(rows) + sum(n for _, n in rows)
    return value, 0
