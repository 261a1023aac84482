"""The live last line of a terminal: position, rate, workers, checkpoint; pure."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from ftcomm.protocol.position import Position
from ftcomm_tracker.core.reporting.incident_words import step_text
from ftcomm_tracker.core.reporting.store_words import newest_text

RATE_WINDOW_S = 10.0  # long enough to count slow steps, short enough to follow a change
_STATES = {"RUNNING": "", "COLLECTING": "recovering, ", "FORMING": "waiting for workers, "}


class StepRate:
    """Follows how many steps a job makes in a second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def observe(self, position: Position, now: float) -> None:
        """The job is at `position`; a job that has gone back is followed afresh."""
        if self._seen and position.version < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, max(position.version, 0)))
        while len(self._seen) > 2 and self._seen[1][0] <= now - RATE_WINDOW_S:
            self._seen.popleft()

    def text(self) -> str:
        """``8.1/s``; empty while no step has been seen."""
        if not self._seen or self._seen[-1][1] == self._seen[0][1]:
            return ""
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return f"{(last - first) / max(now - began, 1e-9):.3g}/s"


def position_text(position: Position, rate: str) -> str:
    """The position of a job and its rate, before other facts; empty before the first step."""
    if position.version < 0:
        return ""
    return f"{step_text(position.version)}{f' ({rate})' if rate else ''}, "


def group_text(document: Mapping[str, Any]) -> str:
    """Of a status document what changes while a job runs, without its position."""
    state = str(document["state"])
    words = _STATES.get(state, f"{state.lower()}, ")
    if document["world_size"] is None:
        return words.removesuffix(", ")
    up = sum(row["connected"] for row in document["members"])
    late = [row["worker_id"] for row in document["members"] if row["late"]]
    slow = f", late: {' '.join(late)}" if late else ""
    store = f", {newest_text(document['store'])}" if document["store"] else ""
    return f"{words}{up}/{document['world_size']} workers up{slow}{store}"
