"""Words of a recovery and of a job's end, for a console; pure.

They name workers, steps and seconds: a step is one ``checkpoint()`` of the script.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from textwrap import shorten
from typing import Any

from ftcomm.config.plurals import counted

MAX_NAMED = 8  # workers, ranks or causes of one line
_WORKERS_BY_CAUSE = 3  # groups of victims that ended in different ways
_ERROR_CHARS = 160  # of the line by which a process ended; its traceback has been printed
_KILLED = re.compile(r"was killed by (SIG\w+)")
_EXITED = re.compile(r"(exited with status \d+)(?: \(\w+\))?: (?:\[rank\d+\]: )*(.*)", re.DOTALL)
_REASON = re.compile(r"(?:lost )?worker \S+?:? (?P<how>.*?)(?: \(rank \d+\))?", re.DOTALL)

Row = Mapping[str, Any]


def step_text(version: int) -> str:
    """Name the step of a checkpoint's version: ``step 46``; before the first ``the start``."""
    return f"step {version}" if version >= 0 else "the start"


def version_in(position: str) -> int:
    """Return the checkpoint's version of a position as records write it, such as ``46.0``."""
    return int(position.rpartition(":")[2].partition(".")[0])


def duration_text(seconds: float) -> str:
    """Format a duration: ``0.3 s``, ``27 s``, ``12 min``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def incident_words(incident: Row, places: Collection[str]) -> str:
    """One recovery in one line.

    Args:
        incident: its record.
        places: ids of the workers that have a rank after it.
    """
    # Who took the place of a lost worker is noted beside that worker.
    replaced = [worker for worker in incident["victims"] if worker not in places]
    if replaced:
        incident = {**incident, "victims": replaced}
    cost_ms = incident["ms"]["total"] + incident["ms"]["detect"]
    cost = duration_text(cost_ms / 1000)
    if not incident["completed"]:
        return f"{_losses(incident)}: not recovered after {cost}"
    what = f"{_losses(incident)} at {step_text(version_in(incident['frontier']))}"
    if not incident["victims"]:
        return f"{what}: all go on after {cost}"
    how = "a spare takes over" if replaced else "restarted"
    return f"{what}: {how}, all go on after {cost}"


def _losses(incident: Row) -> str:
    """Name the victims, those that ended in one way together."""
    victims, reason = incident["victims"], str(incident["reason"])
    if reason.startswith("lost host") or not victims:
        return reason
    how = {death["worker"]: how_text(str(death["how"])) for death in incident["causes"]}
    found = _REASON.fullmatch(reason)
    if found is not None:  # the evidence is of the first one
        first = found["how"] if found["how"].startswith("left: ") else f"lost ({found['how']})"
        how.setdefault(victims[0], first)
    groups: dict[str, list[str]] = {}
    for worker in sorted(victims, key=lambda name: (len(name), name)):
        groups.setdefault(how.get(worker, "lost"), []).append(worker)
    shown = [f"{named('worker', names)} {way}" for way, names in groups.items()]
    more = len(shown) - _WORKERS_BY_CAUSE
    return "; ".join([*shown[:_WORKERS_BY_CAUSE], *([f"{more} more"] if more > 0 else [])])


def how_text(how: str) -> str:
    """Shorten how a process ended: ``killed (SIGKILL)``, ``exited with status 1 (KeyError)``."""
    how = _KILLED.sub(r"killed (\1)", how)
    found = _EXITED.fullmatch(how)
    return f"{found[1]} ({shorten(found[2], _ERROR_CHARS, placeholder=' ...')})" if found else how


def named(noun: str, names: Sequence[object]) -> str:
    """``rank 1``, ``ranks 1, 2``; beyond `MAX_NAMED` it says how many more there are."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{noun}{'s' * (len(names) > 1)} {', '.join(map(str, names[:MAX_NAMED]))}{more}"


def done_text(seconds: float, version: int, restarts: int) -> str:
    """The end of a job that ended well."""
    parts = [f"done in {duration_text(seconds)}"]
    if version > 0:
        parts.append(counted(version, "checkpoint"))
    return ", ".join([*parts, counted(restarts, "restart")] if restarts else parts)
