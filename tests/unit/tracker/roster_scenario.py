"""A tracker's machine in a test: what it is told, what it answers."""

from dataclasses import replace
from typing import Any

from ftcomm.config.job_settings import JobSettings
from ftcomm.protocol.messages import (
    FatalDecision,
    Hello,
    Report,
)
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.durable.store_facts import NO_STORE, StoreFacts
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    Effect,
    Event,
    Joined,
    Persist,
    Said,
    Send,
    Stalled,
    Tick,
)
from ftcomm_tracker.core.roster import JobState, Roster

SETTINGS = JobSettings(detect_within=5.0, reattach_within=30.0, replace_within=60.0)


def at(version: int, seqno: int) -> Position:
    return Position(0, version, seqno)


def hello(worker: str, process: str = "a", **changes: Any) -> Hello:
    fields: dict[str, Any] = {
        "worker_id": worker,
        "nonce": f"{worker}-{process}".encode(),
        "incarnation": 0,
        "host": "h",
        "address": "127.0.0.1",
        "port": 1,
        "plan_epoch": 0,
        "revoke_epoch": 0,
        "suspects": (),
        "closed": False,
        "tables": b"t",
    }
    return Hello(**{**fields, **changes})


def report(epoch: int, position: Position = START, **changes: Any) -> Report:
    fields: dict[str, Any] = {
        "epoch": epoch,
        "position": position,
        "committed": position.version,
        "tentative": -1,
        "digest": b"",
        "runs": (),
        "prelude_length": -1,
        "caught_up": epoch - 1,
        "suspects": (),
        "signature": b"",
        "site": "",
        "closed": False,
    }
    return Report(**{**fields, **changes})


class ScenarioRun:
    """A tracker and what it did last."""

    def __init__(
        self,
        size: int = 2,
        durable: Durable | None = None,
        *,
        settings: JobSettings = SETTINGS,
        store: StoreFacts = NO_STORE,
    ) -> None:
        durable = durable or Durable.fresh("job", size)
        self.roster = Roster(settings, durable, generation=1, now=0.0, store=store)
        self.journalled = durable
        self.now = 0.0

    def tell(self, event: Event) -> list[Effect]:
        effects = self.roster.handle(event, now=self.now)
        for effect in effects:
            if isinstance(effect, Persist):
                self.journalled = effect.durable
        # The tables are every worker's own, and say themselves again: the next write takes them.
        kept = replace(self.journalled, tables=self.roster.durable.tables)
        assert self.roster.durable == kept, "a restarted tracker would not know this"
        return effects

    def tell_said(self, conn: int, message: Any) -> list[Effect]:
        return self.tell(Said(conn, message))

    def said(self, conn: int, message: Any) -> list[tuple[int, Any]]:
        return sends(self.tell(Said(conn, message)))

    def joined(self, conn: int, who: Hello) -> list[tuple[int, Any]]:
        return sends(self.tell(Joined(conn, who)))

    def stall(self, for_s: float) -> list[Effect]:
        """Do not run for so long."""
        self.now += for_s
        return self.tell(Stalled(for_s))

    def tick(self, now: float) -> list[Effect]:
        self.now = now
        return self.tell(Tick())


def decisions(effects: list[Effect]) -> dict[int, FatalDecision]:
    """The fatal decision, by the connection that it is sent to."""
    return {conn: told for conn, told in sends(effects) if isinstance(told, FatalDecision)}


def sends(effects: list[Effect]) -> list[tuple[int, Any]]:
    return [(effect.conn, effect.message) for effect in effects if isinstance(effect, Send)]


def names(sent: list[tuple[int, Any]]) -> list[tuple[int, str]]:
    return [(conn, type(message).__name__) for conn, message in sent]


def running(size: int = 2) -> ScenarioRun:
    """All workers are in epoch 1; worker wR is connection R + 1."""
    return formed(ScenarioRun(size), size)


def running_with_store(size: int = 2, **facts: Any) -> ScenarioRun:
    """The same of the first attempt of a job with a store."""
    settings = replace(SETTINGS, checkpoint="/shared/run7", checkpoint_every="10s")
    durable = replace(Durable.fresh("job.1", size, settings.to_wire()), attempt=1)
    store = StoreFacts(**{"attempt": 1, "prelude": (), "is_begun": True, **facts})
    return formed(ScenarioRun(size, durable, settings=settings, store=store), size)


def formed(scenario: ScenarioRun, size: int) -> ScenarioRun:
    """Let all workers join and report."""
    for rank in range(size):
        scenario.joined(rank + 1, hello(f"w{rank}"))
    for rank in range(size):
        scenario.said(rank + 1, report(1))
    assert scenario.roster.state is JobState.RUNNING
    return scenario
