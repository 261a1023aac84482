"""A simulated job's history, as real incarnations write it, for the checkers that judge both."""

from typing import TYPE_CHECKING, Any

from ftcomm import errors
from ftcomm.diagnostics.history import (
    CLOSED,
    EXECUTED,
    FORMAT,
    SERVED,
    Ended,
    Entered,
    Over,
    Planned,
    Raised,
    Returned,
    Started,
    WorkerEvent,
)
from ftcomm.protocol.messages import Plan
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind
from ftcomm_chaos.checkers import HistoryLimits, check
from ftcomm_chaos.history import History, HistoryLine, IncarnationRecord
from ftcomm_chaos.sim.invariants import Monitor
from ftcomm_chaos.sim.workload import LOAD, packed
from ftcomm_chaos.sim.world import Violation

if TYPE_CHECKING:
    from ftcomm_chaos.sim.simulation import Simulation
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

ONE_CLOCK = "sim"  # hosts of a simulation share its time
OFFERED = "offered"
LOST_FOR_A_REASON = "lost-for-a-reason"
SERVED_FROM_SOMEWHERE = "served-from-somewhere"
LIMITS = HistoryLimits(mismatch_within_s=60.0)  # its tracker may be down when it should tell of it
CALL_POINTS = frozenset(("entered", OFFERED))  # where a script is inside a call


class RecordingMonitor(Monitor):
    """A monitor that also writes down what it sees."""

    def __init__(self, sim: "Simulation") -> None:
        super().__init__(sim)
        self._started: dict[int, HistoryLine[Started]] = {}
        self._lines: dict[int, list[HistoryLine[WorkerEvent]]] = {}
        self._inside: dict[int, Entered] = {}

    def history(self) -> History:
        """Return the history so far."""
        records = [
            IncarnationRecord(self._started[port], tuple(self._lines[port])) for port in self._lines
        ]
        return History(
            tuple(sorted(records, key=lambda record: (record.worker, record.incarnation)))
        )

    # --- what the monitor is told --------------------------------------------------------------

    def on_plan(self, record: "SimulatedProcess", plan: Plan) -> None:
        """A plan is taken; with the first, an incarnation begins."""
        super().on_plan(record, plan)
        core = record.core
        if record.port not in self._lines:
            self._lines[record.port] = []
            self._started[record.port] = HistoryLine(
                _started(record), record.world.now, f"{record}:1"
            )
        members = tuple((m.worker_id, m.incarnation) for m in plan.members)
        self._write(
            record, Planned(plan.epoch, plan.rank, core.progress.position, plan.frontier, members)
        )

    def on_point(self, record: "SimulatedProcess", name: str) -> None:
        """The script has made a call, if it was not inside already: an attempt is no new call."""
        if name in CALL_POINTS and record.port not in self._inside:
            core = record.core
            loads = (
                core.progress.call.signature[:1] == LOAD.signature[:1]
            )  # may be early, so it is asked first
            kind = Kind.LOAD if loads else self.sim.program.calls[core.progress.position].kind
            self._enter(
                record, Kind.CHECKPOINT if name == OFFERED else kind, core.progress.position
            )

    def on_result(
        self,
        record: "SimulatedProcess",
        position: Position,
        value: tuple[float, ...],
        *,
        epoch: int | None,
    ) -> None:
        """A call returns."""
        super().on_result(record, position, value, epoch=epoch)
        kind = self.sim.program.calls[position].kind
        self._return(record, kind, position, value, epoch=epoch)

    def on_load(
        self,
        record: "SimulatedProcess",
        position: Position,
        version: int,
        states: tuple[int, int],
        *,
        epoch: int | None,
    ) -> None:
        """A load returns."""
        super().on_load(record, position, version, states, epoch=epoch)
        self._return(record, Kind.LOAD, position, states[0], epoch=epoch, version=version)

    def on_checkpoint(self, record: "SimulatedProcess", position: Position, version: int) -> None:
        """A checkpoint returns."""
        super().on_checkpoint(record, position, version)
        checkpoint = record.core.archive.committed
        state = None if checkpoint is None else packed(checkpoint.value)
        self._return(record, Kind.CHECKPOINT, position, state, epoch=None, version=version)

    def on_end(self, record: "SimulatedProcess", how: str) -> None:
        """The script has ended."""
        super().on_end(record, how)
        if record.port not in self._lines:
            return
        core, error = record.core, record.core.view.error
        if error is not None:
            name, cause = type(error).__name__, error.cause
            self._write(record, Over(name, cause, core.view.epoch, core.progress.position))
            call = self._inside.pop(record.port, None)
            if call is not None:
                raised = Raised(call.position, call.kind, name, cause, core.view.epoch, call.input)
                self._write(record, raised)
        finished = error is None or isinstance(error, errors.JobFinishedError)
        self._write(record, Ended(CLOSED if finished else type(error).__name__))

    def check_end(self) -> None:
        """All is over: what the incarnations were given breaks no rule either."""
        super().check_end()
        unseen = {LOST_FOR_A_REASON} if self._displaced_process_was_told() else set()
        if self.resumed:  # what is served was executed in an earlier attempt
            unseen.add(SERVED_FROM_SOMEWHERE)
        findings = [x for x in check(self.history(), limits=LIMITS) if x.rule not in unseen]
        if findings:
            raise Violation("; ".join(str(finding) for finding in findings))

    def _displaced_process_was_told(self) -> bool:
        """Tell whether a process that lost its rank to another one also learnt the end of the job.

        It counts as a death, which a history does not show where the other one never had a plan;
        `on_verdict` knows.
        """
        owners = {place.nonce for place in self.sim.tracker.journal.places}
        return any(
            record.ended is not None and record.core.contact.identity.nonce not in owners
            for record in self.sim.network.processes.values()
            if record.port in self._lines
        )

    # --- lines --------------------------------------------------------------------------------

    def _enter(self, record: "SimulatedProcess", kind: Kind, position: Position) -> None:
        call = self.sim.program.calls.get(position)
        passed = _digest(() if call is None else call.source(record.core.view.rank))
        signature = "" if kind is Kind.CHECKPOINT else record.core.progress.call.signature.hex()
        entered = Entered(position, kind.name.lower(), signature, "", passed)
        self._inside[record.port] = entered
        self._write(record, entered)

    def _return(
        self,
        record: "SimulatedProcess",
        kind: Kind,
        position: Position,
        value: Any,
        *,
        epoch: int | None,
        version: int | None = None,
    ) -> None:
        if record.port not in self._inside:  # it was served, and has passed no point
            self._enter(record, kind, position)
        call, core = self._inside.pop(record.port), record.core
        how, when = (SERVED, core.view.epoch) if epoch is None else (EXECUTED, epoch)
        local = None if version is None else core.archive.locals.get(version, core.view.rank)
        self._write(
            record,
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

    def _write(self, record: "SimulatedProcess", event: WorkerEvent) -> None:
        lines = self._lines.get(record.port)
        if lines is None:  # a process of an earlier attempt, which has no part in this one
            return
        lines.append(HistoryLine(event, record.world.now, f"{record}:{len(lines) + 2}"))


def _started(record: "SimulatedProcess") -> Started:
    core = record.core
    return Started(
        format=FORMAT,
        job=core.contact.job_id,
        worker=record.worker_id,
        incarnation=core.contact.incarnation,
        rank=core.view.rank,
        size=core.contact.world_size,
        pid=record.port,
        host=ONE_CLOCK,
        detect_within=core.contact.limits.detect_within,
        replicas=core.contact.limits.replicas,
    )


def _digest(value: Any) -> str:
    """Stands for a value as a digest would, and can be read."""
    return repr(value).encode().hex()
