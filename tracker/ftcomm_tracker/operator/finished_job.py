"""A job that is over, as its state directory tells of it when no tracker is left to ask."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ftcomm
from ftcomm.config.job_settings import JobSettings
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.reporting.status import SCHEMA
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.server.connections.listener import join_address
from ftcomm_tracker.server.journal import last_written, remembered
from ftcomm_tracker.server.recovery_log import last_incidents


@dataclass(frozen=True, slots=True)
class LastState:
    """Last record in the journal of a directory.

    Attributes:
        state_dir: the directory.
        durable: the job's durable state.
        generation: of the tracker that wrote it.
    """

    state_dir: Path
    durable: Durable
    generation: int

    def document(self) -> dict[str, Any]:
        """The job's status; what only a running tracker knows is None."""
        durable = self.durable
        settings = JobSettings.from_wire(durable.settings)
        roster = Roster(settings, durable, generation=self.generation, now=0.0)
        where = remembered(self.state_dir)
        return {
            "schema": SCHEMA,
            "version": ftcomm.__version__,
            "now": round(time.time(), 3),
            **roster.snapshot(0.0),
            "epoch": durable.epoch,
            "progress": str(_last_position(durable)),
            "incidents": last_incidents(self.state_dir),
            "address": "" if where is None else join_address(where.host, where.port),
            "state_dir": str(self.state_dir.absolute()),
            "pid": None,
            "uptime_s": None,
        }


def last_state(state_dir: Path) -> LastState | None:
    """Return the last record in the journal of `state_dir`; None if nothing was written.

    Raises:
        ConfigError: the journal is damaged, or of another format.
    """
    written = last_written(state_dir)
    if written is None:
        return None
    document, generation = written
    return LastState(state_dir, Durable.from_wire(document), generation)


def _last_position(durable: Durable) -> Position:
    if durable.fatal_decision is not None:
        return durable.fatal_decision.position
    return START.at_version(durable.final_version)
