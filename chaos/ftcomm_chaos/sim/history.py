"""A simulated job's history, as real lives write it, for the checkers that judge both."""

from typing import TYPE_CHECKING, Any

from ftcomm import errors
from ftcomm.diagnostics.history import (
    CLOSED,
    EXECUTED,
    FORMAT,
    SERVED,
    Ended,
    Entered,
    LifeEvent,
    Over,
    Planned,
    Raised,
    Returned,
    Started,
)
from ftcomm.protocol.messages import Plan
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind
from ftcomm_chaos.checkers import Limits, check
from ftcomm_chaos.history import History, LifeRecord, Line
from ftcomm_chaos.sim.invariants import Monitor
from ftcomm_chaos.sim.workload import LOAD, packed
from ftcomm_chaos.sim.world import Violation

if TYPE_CHECKING:
    from ftcomm_chaos.sim.simulation import Simulation
    from ftcomm_chaos.sim.worker.process import Life

ONE_CLOCK = "sim"  # hosts of a simulation share its time
OFFERED = "offered"
LOST_FOR_A_REASON = "lost-for-a-reason"
LIMITS = Limits(mismatch_within_s=60.0)  # its tracker may be down when it should tell of it
CALL_POINTS = frozenset(("entered", OFFERED))  # where a script is inside a call


class RecordingMonitor(Monitor):
    """A monitor that also writes down what it sees."""

    def __init__(self, sim: "Simulation") -> None:
        super().__init__(sim)
        self._started: dict[int, Line[Started]] = {}
        self._lines: dict[int, list[Line[LifeEvent]]] = {}
        self._inside: dict[int, Entered] = {}

    def history(self) -> History:
        """What has been written down so far."""
        lives = [LifeRecord(self._started[port], tuple(self._lines[port])) for port in self._lines]
        return History(tuple(sorted(lives, key=lambda life: (life.worker, life.incarnation))))

    # --- what the monitor is told --------------------------------------------------------------

    def on_plan(self, life: "Life", plan: Plan) -> None:
        """A plan is taken; with the first, a life begins."""
        super().on_plan(life, plan)
        core = life.core
        if life.port not in self._lines:
            self._lines[life.port] = []
            self._started[life.port] = Line(_started(life), life.world.now, f"{life}:1")
        members = tuple((m.worker_id, m.incarnation) for m in plan.members)
        self._write(life, Planned(plan.epoch, plan.rank, core.position, plan.frontier, members))

    def on_point(self, life: "Life", name: str) -> None:
        """The script has made a call, if it was not inside already: an attempt is no new call."""
        if name in CALL_POINTS and life.port not in self._inside:
            core = life.core
            loads = core.signature[:1] == LOAD.signature[:1]  # may be early, so it is asked first
            kind = Kind.LOAD if loads else self.sim.program.calls[core.position].kind
            self._enter(life, Kind.CHECKPOINT if name == OFFERED else kind, core.position)

    def on_result(
        self, life: "Life", position: Position, value: tuple[float, ...], *, epoch: int | None
    ) -> None:
        """A call returns."""
        super().on_result(life, position, value, epoch=epoch)
        kind = self.sim.program.calls[position].kind
        self._return(life, kind, position, value, epoch=epoch)

    def on_load(
        self,
        life: "Life",
        position: Position,
        version: int,
        states: tuple[int, int],
        *,
        epoch: int | None,
    ) -> None:
        """A load returns."""
        super().on_load(life, position, version, states, epoch=epoch)
        self._return(life, Kind.LOAD, position, states[0], epoch=epoch, version=version)

    def on_checkpoint(self, life: "Life", position: Position, version: int) -> None:
        """A checkpoint returns."""
        super().on_checkpoint(life, position, version)
        checkpoint = life.core.checkpoint
        state = None if checkpoint is None else packed(checkpoint.value)
        self._return(life, Kind.CHECKPOINT, position, state, epoch=None, version=version)

    def on_end(self, life: "Life", how: str) -> None:
        """The script has ended."""
        super().on_end(life, how)
        if life.port not in self._lines:
            return
        core, error = life.core, life.core.error
        if error is not None:
            name, cause = type(error).__name__, error.cause
            self._write(life, Over(name, cause, core.epoch, core.position))
            call = self._inside.pop(life.port, None)
            if call is not None:
                raised = Raised(call.position, call.kind, name, cause, core.epoch, call.input)
                self._write(life, raised)
        finished = error is None or isinstance(error, errors.JobFinishedError)
        self._write(life, Ended(CLOSED if finished else type(error).__name__))

    def check_end(self) -> None:
        """All is over: what the lives were given breaks no rule either."""
        super().check_end()
        unseen = (LOST_FOR_A_REASON,) if self._displaced_life_was_told() else ()
        findings = [x for x in check(self.history(), limits=LIMITS) if x.rule not in unseen]
        if findings:
            raise Violation("; ".join(str(finding) for finding in findings))

    def _displaced_life_was_told(self) -> bool:
        """Who had lost its place, to a spare or to a second life, was told how all ended too.

        It counts as a death, which a history does not show where the other one never had a plan;
        `on_verdict` knows.
        """
        owners = {place.nonce for place in self.sim.tracker.journal.places}
        return any(
            life.ended is not None and life.core.identity.nonce not in owners
            for life in self.sim.network.lives.values()
            if life.port in self._lines
        )

    # --- lines --------------------------------------------------------------------------------

    def _enter(self, life: "Life", kind: Kind, position: Position) -> None:
        call = self.sim.program.calls.get(position)
        passed = _digest(() if call is None else call.source(life.core.rank))
        signature = "" if kind is Kind.CHECKPOINT else life.core.signature.hex()
        entered = Entered(position, kind.name.lower(), signature, "", passed)
        self._inside[life.port] = entered
        self._write(life, entered)

    def _return(
        self,
        life: "Life",
        kind: Kind,
        position: Position,
        value: Any,
        *,
        epoch: int | None,
        version: int | None = None,
    ) -> None:
        if life.port not in self._inside:  # it was served, and has passed no point
            self._enter(life, kind, position)
        call, core = self._inside.pop(life.port), life.core
        how, when = (SERVED, core.epoch) if epoch is None else (EXECUTED, epoch)
        local = None if version is None else core.locals.get(version, core.rank)
        self._write(
            life,
            Returned(
                position,
                call.kind,
                how,
                when,
                _digest(value),
                call.input,
                version,
                None if local is None else _digest(local),
            ),
        )

    def _write(self, life: "Life", event: LifeEvent) -> None:
        lines = self._lines[life.port]
        lines.append(Line(event, life.world.now, f"{life}:{len(lines) + 2}"))


def _started(life: "Life") -> Started:
    core = life.core
    return Started(
        format=FORMAT,
        job=core.job_id,
        worker=life.worker_id,
        incarnation=core.incarnation,
        rank=core.rank,
        size=core.world_size,
        pid=life.port,
        host=ONE_CLOCK,
        detect_within=core.limits.detect_within,
        replicas=core.limits.replicas,
    )


def _digest(value: Any) -> str:
    """Stands for a value as a digest would, and can be read."""
    return repr(value).encode().hex()
