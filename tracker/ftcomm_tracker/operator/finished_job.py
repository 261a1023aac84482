"""A job that is over, as its state directory tells of it when no tracker is left to ask."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ftcomm
from ftcomm.config.job_settings import JobSettings
from ftcomm.config.plurals import counted
from ftcomm.durable.chain import Chain
from ftcomm.durable.opening import open_store
from ftcomm.errors import FtcommError
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.reporting.incident_words import how_text, named
from ftcomm_tracker.core.reporting.status import SCHEMA
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.server.connections.listener import join_address
from ftcomm_tracker.server.journal import last_written, remembered
from ftcomm_tracker.server.recovery_log import last_incidents
from ftcomm_tracker.server.store.chain_records import facts_of

PHASES = {
    "detect": "silence before the tracker's notice",
    "stop": "from the notice to the last survivor's report",
    "replace": "from the notice to the new process's report: Python's start",
    "decide": "making the plan and sending it",
    "fetch": "what the new process had missed",
    "link": "new connections",
    "total": "from the notice to the next collective of every rank",
}


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

    def newest_checkpoint(self) -> tuple[int, float | None]:
        """Version and age in seconds of the newest in the job's store; -1 without one.

        A store that is not a directory is not asked: it may be away, and is slow to say so.
        """
        url = JobSettings.from_wire(self.durable.settings).checkpoint
        if not url or "://" in url:
            return START.version, None
        try:
            chain = Chain(open_store(url, create=False))
            chain.read()
        except (FtcommError, OSError):
            return START.version, None
        facts = facts_of(chain).facts_of(self.durable.attempt, int(time.time() * 1e6))
        return facts.durable_version, facts.age_s


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


def happened_text(document: Mapping[str, Any]) -> str:
    """All recoveries of a status document; empty without one."""
    incidents = document["incidents"]
    blocks = ["\n".join(f"  {line}" for line in happened_lines(each)) for each in incidents]
    return "\n\n".join(["What happened:", *blocks]) if blocks else ""


def happened_lines(incident: Mapping[str, Any]) -> Iterator[str]:
    """Victims, time, what they were given, and the cost of each phase of one recovery."""
    causes = incident["causes"]
    for death in causes:
        process = f"process {death['pid']} on {death['host']}"
        yield f"who       worker {death['worker']}, {process}: {how_text(str(death['how']))}"
    if not causes:
        names = incident["victims"]
        who = f"{named('worker', names)}: " if names else ""
        yield f"who       {who}{incident['reason']}"
    clock = _clock(incident.get("wall_started"))
    if not incident["completed"]:
        yield f"when      {clock}not recovered"
        return
    yield f"when      {clock}at collective {incident['frontier']} (version.number)"
    replayed, fetched = incident["replayed"], incident["fetched"]
    results = counted(replayed, "result")
    yield f"given     the last checkpoint; {results} replayed, {fetched} sent by others"
    yield "survivors kept their processes, their memory and every result"
    for name, meaning in PHASES.items():
        if name in incident["ms"]:
            yield f"{name:9} {float(incident['ms'][name]):7.1f} ms  {meaning}"


def _clock(began: float | None) -> str:
    """The time at which a recovery began, before other words; a running tracker does not say it."""
    if began is None:
        return ""
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began))
    return f"{clock}{f'{began % 1:.3f}'[1:]}, "
