"""Bookkeeping of one recovery while it is under way."""

import enum
from dataclasses import dataclass, field

from ftcomm.protocol.messages import Resumed, Route
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.events import Death, Incident
from ftcomm_tracker.core.patience_clock import DriverTime


class Loss(enum.Enum):
    """Kind of loss of a worker, which determines the response."""

    DIED = enum.auto()  # its connection ended, or it fell silent
    LEFT = enum.auto()  # by its own word: an exception, or its script's end without close()


_TODO = {
    Loss.DIED: "raise replicas if whole hosts vanish together",
    Loss.LEFT: "that says why its script left: one that has come to its end must leave"
    " `with ftcomm.init()` by its end, or call close()",
}
_REPAIR = "repair the script or its input"  # where an error of the script's began it


@dataclass(slots=True)
class OpenIncident:
    """Collects times and counts from the first evidence until every member has resumed."""

    epoch: int
    reason: str
    started_at: DriverTime
    silent_s: float = 0.0  # of the victim, where its silence was the evidence
    loss: Loss = Loss.DIED  # of the first victim
    victims: list[str] = field(default_factory=list)
    suspects: set[int] = field(default_factory=set)
    stopped_at: DriverTime | None = None
    replaced_at: DriverTime | None = None
    decided_at: DriverTime | None = None
    planned_at: DriverTime | None = None
    frontier: Position = START
    routes: tuple[Route, ...] = ()
    resumed: dict[int, Resumed] = field(default_factory=dict)
    deaths: dict[str, Death] = field(default_factory=dict)
    failures: dict[int, tuple[str, Position]] = field(default_factory=dict)  # of scripts, by rank

    def note_victim(self, worker_id: str, death: Death | None = None) -> None:
        """Name a worker whose incarnation or connection was lost, and how its process ended."""
        if worker_id not in self.victims:
            self.victims.append(worker_id)
        if death is not None:
            self.deaths[worker_id] = death

    def note_death(self, death: Death) -> None:
        """A process has ended; it counts if its worker is a victim."""
        if death.worker_id in self.victims:
            self.deaths[death.worker_id] = death

    def note_host(self, text: str) -> None:
        """All workers of a host are lost: the first of them was only the first to be missed."""
        if not self.reason.startswith(f"lost {text}"):
            self.reason = f"lost {text}; first: {self.reason}"

    def explain_loss(self, cause: str) -> str:
        """`cause` of a lost job with its beginning, and what to do about that.

        When one line of a script ends all its ranks, the first loss is all that tells of it.
        """
        first = f"; the first loss: {self.reason}" if self.victims else ""
        return f"{cause}{first}; {_REPAIR if self.failures else _TODO[self.loss]}"

    def note_failure(self, rank: int, error: str, position: Position) -> int:
        """A rank's script has left by `error`; returns the number of ranks that did by the same."""
        self.failures[rank] = error, position
        return sum(failure == (error, position) for failure in self.failures.values())

    def note_report(self, worker_id: str, now: DriverTime) -> None:
        """A report of this epoch has come: of a survivor, or of a victim's next incarnation."""
        if worker_id in self.victims:
            self.replaced_at = now
        else:
            self.stopped_at = now

    def close(self, now: DriverTime, *, completed: bool) -> Incident:
        """Freeze the record; `completed` if every member has gone on."""
        decided = self.decided_at or now
        resumed = self.resumed.values()
        return Incident(
            epoch=self.epoch,
            reason=self.reason,
            victims=tuple(self.victims),
            suspects=tuple(sorted(self.suspects)),
            started_at=self.started_at,
            completed=completed,
            detect_ms=self.silent_s * 1000,
            stop_ms=_ms(self.started_at, self.stopped_at),
            replace_ms=_ms(self.started_at, self.replaced_at),
            decide_ms=_ms(decided, self.planned_at),
            fetch_ms=max((r.fetch_ms for r in resumed), default=0),
            link_ms=max((r.link_ms for r in resumed), default=0),
            fetched=sum(r.fetched for r in resumed),
            replayed=sum(r.replayed for r in resumed),
            frontier=str(self.frontier),
            routes=tuple((route.a, route.b, route.via) for route in self.routes),
            total_ms=_ms(self.started_at, now),
            causes=tuple(self.deaths.values()),
        )


def _ms(start: DriverTime, end: DriverTime | None) -> float:
    return 0.0 if end is None else max(end - start, 0.0) * 1000
