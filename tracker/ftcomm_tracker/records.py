"""The record of a job's recoveries, one JSON document a line, beside the journal."""

import json
import logging
import time
from pathlib import Path

from ftcomm_tracker.events import Incident
from ftcomm_tracker.status import incident_line

INCIDENTS_FILE = "incidents.jsonl"

log = logging.getLogger("ftcomm_tracker")


def record_incident(state_dir: Path, incident: Incident, *, now: float) -> None:
    """Append `incident`, with the wall time at which it began; `now` is on its own clock."""
    record = incident.to_dict()
    outcome = "recovered" if record["completed"] else "not recovered"
    log.info("%s, %s", outcome, incident_line(record))
    began = time.time() - (now - incident.started_at)
    path = state_dir / INCIDENTS_FILE
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"wall_started": round(began, 3), **record}) + "\n")
    except OSError as error:  # a record for people; the job does not depend on it
        log.warning("cannot write %s: %s", path, error)
