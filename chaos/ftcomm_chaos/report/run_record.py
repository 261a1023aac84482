"""Record of a run: plain values, from which verdict and reports are made."""

from dataclasses import asdict, dataclass, field
from typing import Any

UNTOLD = "ended; who knew how was killed"  # that is, whoever had reaped it, before it said so


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process; times are seconds since the run began, `ended_s` None if it had to be ended.

    `number` counts the processes of `who` from 1.  `how` it ended is in the words of whoever reaped
    it, or `UNTOLD`; empty if it had to be ended.
    """

    who: str
    number: int
    pid: int
    began_s: float
    ended_s: float | None
    how: str


@dataclass(slots=True)
class Delivery:
    """One fault, or the attempt at one.

    Attributes:
        entry: its number in the plan.
        kind: of the fault.
        at_s: when it was delivered, seconds since the run began.
        workers: whom it hit.
        what: what was done.
        until_s: when it was undone, None if it has no end or lasted.
        dies: pids of the processes that must die of it.
        spares: those of `workers` that had no rank when it came; no recovery is due to them.
        failed: why it was not delivered or tested nothing, empty if neither.
        detect_ms: until the tracker had its first evidence, None if it led to no recovery.
        recover_ms: until every member had gone on, None likewise.
        epoch: the recovery's.
        confirmed: the processes that had to die have died by SIGKILL.
    """

    entry: int
    kind: str
    at_s: float
    workers: tuple[str, ...]
    what: str
    until_s: float | None = None
    dies: tuple[int, ...] = ()
    spares: tuple[str, ...] = ()
    failed: str = ""
    detect_ms: float | None = None
    recover_ms: float | None = None
    epoch: int | None = None
    confirmed: bool = True

    @property
    def members(self) -> tuple[str, ...]:
        """Those whom it hit and that had a rank."""
        return tuple(worker for worker in self.workers if worker not in self.spares)


@dataclass(slots=True)
class AttemptRow:
    """One attempt of the job, from the second on.

    Attributes:
        attempt: its number.
        origin: from where it begins: ``checkpoint 7``, or ``the beginning``.
        at_s: when its tracker said so, seconds since the run began.
        formed_s: when its group was complete, None if it never was.
        lost_versions: versions that ranks had committed and that are executed again.
        lost_s: seconds of work that are done again; None where the script left no history.
    """

    attempt: int
    origin: str
    at_s: float
    formed_s: float | None = None
    lost_versions: int | None = None
    lost_s: float | None = None


@dataclass(slots=True)
class RunRecord:
    """One run of the command.

    Attributes:
        name: ``without faults``, or which run with them.
        status: the launcher's (or tracker's) exit status; None if it had to be ended.
        over_limit_s: the limit that it broke; None if it broke none.
        wall_s: from the start to the end.
        formed_s: when all workers had joined, None if they never had.
        result: SHA-256 of the file to compare, empty if it was not written.
        closed_s: when each worker had done its work; what becomes of it then counts no more.
        processes: every process.
        deliveries: every fault.
        incidents: the tracker's records, with `at_s` added.
        violations: what the checkers of histories found, in words.
        checkpoints: how many the job completed; None where the script left no history.
        attempts: those that followed the first one.
        error: the job's error, as its launcher or tracker logged it; empty without one.
        tail: the last lines of output.
        folder: where everything is kept.
    """

    name: str
    status: int | None
    over_limit_s: float | None
    wall_s: float
    formed_s: float | None
    result: str
    closed_s: dict[str, float] = field(default_factory=dict)
    processes: list[ProcessRecord] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    checkpoints: int | None = None
    attempts: list[AttemptRow] = field(default_factory=list)
    error: str = ""
    tail: list[str] = field(default_factory=list)
    folder: str = ""

    @property
    def is_cut_short(self) -> bool:
        """True if a signal to this command has ended it."""
        return self.status is None and self.over_limit_s is None

    @property
    def work_s(self) -> float:
        """From the group's being complete to the end."""
        return max(self.wall_s - (self.formed_s or 0.0), 1e-9)

    @property
    def delivered(self) -> list[Delivery]:
        """The faults that were delivered."""
        return [delivery for delivery in self.deliveries if not delivery.failed]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)
