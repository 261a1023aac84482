"""The record of a job's recoveries, one JSON document a line, beside the journal."""

import json
import logging
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ftcomm.errors import ScriptFailedError
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import Incident
from ftcomm_tracker.core.reporting.incident_words import incident_words
from ftcomm_tracker.core.reporting.status import incident_line

INCIDENTS_FILE = "incidents.jsonl"
PROGRESS_FILE = "progress.jsonl"
SHOWN_INCIDENTS = 10  # as many as a running tracker shows

log = logging.getLogger("ftcomm_tracker")


def record_incident(state_dir: Path, incident: Incident, durable: Durable, *, now: float) -> None:
    """Append `incident`, with the wall time at which it began, and log it in words.

    Args:
        state_dir: where the record is.
        incident: the recovery.
        durable: of the job, with the places after it.
        now: on the clock of `incident`.
    """
    record = incident.to_dict()
    outcome = "recovered" if record["completed"] else "not recovered"
    log.info("%s, %s", outcome, incident_line(record))
    decision = durable.fatal_decision
    # The error of a script that ends the job within a recovery is told as the end of the job.
    if decision is None or decision.error != ScriptFailedError.__name__:
        log.warning("%s", incident_words(record, [place.worker_id for place in durable.places]))
    began = time.time() - (now - incident.started_at)
    path = state_dir / INCIDENTS_FILE
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"wall_started": round(began, 3), **record}) + "\n")
    except OSError as error:  # a record for people; the job does not depend on it
        log.warning("cannot write %s: %s", path, error)


def record_progress(state_dir: Path, record: dict[str, Any]) -> bool:
    """Append the minute's `record` with the wall time; False if it cannot be written."""
    stamp = datetime.now(tz=UTC).isoformat(timespec="seconds")
    path = state_dir / PROGRESS_FILE
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": stamp, **record}) + "\n")
    except OSError as error:  # a record for people, as above
        log.warning("cannot write %s: %s; later records are left out too", path, error)
        return False
    return True


def last_incidents(state_dir: Path, most: int | None = SHOWN_INCIDENTS) -> list[dict[str, Any]]:
    """The last recoveries that are recorded in `state_dir`; lines that are none are left out."""
    try:
        with (state_dir / INCIDENTS_FILE).open(encoding="utf-8", errors="replace") as file:
            lines = deque(file, maxlen=most)
    except OSError:  # there was no recovery; or a record for people cannot be read
        return []
    return [incident for incident in map(_incident, lines) if incident is not None]


def _incident(line: str) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(line)
        incident_line(record)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None  # half a line: its tracker was killed, or its disk was full
    return record
