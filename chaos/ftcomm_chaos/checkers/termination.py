"""Ends: one for everybody, with a cause, and heard of in time."""

from collections.abc import Iterator

from ftcomm import errors
from ftcomm.config.plurals import counted
from ftcomm.diagnostics.history import Over
from ftcomm.protocol.position import Position
from ftcomm_chaos.checkers.epochs import FENCED
from ftcomm_chaos.checkers.violation import Case, RuleViolation
from ftcomm_chaos.history.model import HistoryLine, IncarnationRecord

# Errors of one incarnation; every other one is the whole job's.
LOCAL = FENCED | {
    kind.__name__
    for kind in (
        errors.ClosedError,
        errors.ConfigError,
        errors.ForkError,
        errors.JobFinishedError,
        errors.ThreadError,
        errors.TrackerLostError,
    )
}
MISMATCH = errors.CollectiveMismatchError.__name__
LOST = (errors.JobLostError.__name__, errors.RolledBackError.__name__)
REPLACED = "was replaced"  # of a worker id, by another incarnation
# Of local states fewer copies may be kept; and who has had a place without hearing of it, and has
# died, counts as a member that has died, and has no history.
UNTOLD_LOSSES = ("local state", "every member")
OTHER_INPUT = "gave other bytes to the call"  # of `ContributedCalls.differs`
GONE = "has closed and is gone"  # of `ContributedCalls.lost_input` and `MessageExchange`


def _verdicts(case: Case) -> list[tuple[IncarnationRecord, HistoryLine[Over]]]:
    """List where each incarnation learnt the end of the whole job."""
    told = [(record, record.over) for record in case.records]
    return [(x, over) for x, over in told if over is not None and over.event.error not in LOCAL]


def same_error(case: Case) -> Iterator[RuleViolation]:
    """A job's error has one class and one cause on all ranks, told and raised."""
    told: list[tuple[IncarnationRecord, str, str, str]] = [
        (record, over.event.error, over.event.cause, over.at) for record, over in _verdicts(case)
    ]
    for record, line in case.raised:
        kind = errors.error_named(line.event.error)
        if kind is not None and line.event.error not in LOCAL:
            told.append((record, line.event.error, line.event.cause, line.at))
    for record, error, cause, at in told:
        _, first_error, first_cause, first_at = told[0]
        if (error, cause) != (first_error, first_cause):
            what = f"{error}: {cause}; others have {first_error}: {first_cause}"
            yield RuleViolation(record.name, "", what, (at, first_at))


def one_ending(case: Case) -> Iterator[RuleViolation]:
    """Nobody has closed a job that ended in an error."""
    verdicts = _verdicts(case)
    if not verdicts:
        return
    other, over = verdicts[0]
    for record in case.closed:
        assert record.ended is not None
        what = f"closed, and {other.name} was told {over.event.error}"
        yield RuleViolation(record.name, "", what, (record.ended.at, over.at))


def closed_by_all(case: Case) -> Iterator[RuleViolation]:
    """`close` returns on nobody before every rank has called it."""
    if not case.closed:
        return
    closers = {record.rank for record, line in case.entered if line.event.kind == "close"}
    first = case.closed[0]
    assert first.ended is not None
    for rank in sorted(set(range(case.history.size)) - closers):
        what = f"closed, and rank {rank} never called close"
        yield RuleViolation(first.name, "", what, (first.ended.at,))


def mismatch_in_time(case: Case) -> Iterator[RuleViolation]:
    """`CollectiveMismatchError` comes within a second of the last rank's entering.

    Where something was broken or repaired meanwhile, it comes when that is over.
    """
    raised = [(record, line) for record, line in case.raised if line.event.error == MISMATCH]
    if not raised or not case.has_one_clock:
        return
    where = min(line.event.position for _, line in raised)
    # the last attempt
    entered = {(record.name, x.event.position): x.t for record, x in case.entered}
    arrived = max([t for (_, position), t in entered.items() if position == where], default=0.0)
    for record, line in raised:
        since = max(arrived, entered.get((record.name, line.event.position), arrived))
        late = line.t - since
        if late > case.limits.mismatch_within_s and not _is_troubled(case, since, line.t):
            what = f"{MISMATCH} came {late:.2f} s after the last rank had entered {where}"
            yield RuleViolation(record.name, str(line.event.position), what, (line.at,))


def _is_troubled(case: Case, since: float, until: float) -> bool:
    """Tell whether a plan was taken, or a fault acted, between two times."""
    harness = case.history.harness
    faults = () if harness is None else harness.faults
    broken = any(x.t <= until and x.t + x.event.seconds >= since for x in faults)
    return broken or any(since <= p.t <= until for record in case.records for p in record.plans)


def lost_for_a_reason(case: Case) -> Iterator[RuleViolation]:
    """A result is lost only where as many processes as keep it have died."""
    lost = [(x, over) for x, over in _verdicts(case) if over.event.error in LOST]
    if not lost:
        return
    record, over = lost[0]
    if any(words in over.event.cause for words in UNTOLD_LOSSES):
        return
    if OTHER_INPUT in over.event.cause and _gave_other_inputs(case):
        return
    if GONE in over.event.cause and _named_have_closed(case, over.event.cause):
        return
    told = {(x.worker, x.incarnation) for x, _ in _verdicts(case)}
    members = {member for taken in case.plans.values() for member in taken[0][1].event.members}
    dead = (members | {(x.worker, x.incarnation) for x in case.records}) - told
    # Who was replaced while it was stopped may wake up and be told how the job has ended, too.
    replaced = int(REPLACED in over.event.cause)
    enough = min(record.started.event.replicas, case.history.size)
    if len(dead) + replaced < enough:
        deaths = counted(len(dead), "death")
        what = f"lost after {deaths}, where {enough} keep each result: {over.event.cause}"
        yield RuleViolation(record.name, str(over.event.position), what, (over.at,))


def _gave_other_inputs(case: Case) -> bool:
    """Tell whether a restarted rank made a call with another input than its earlier process."""
    first: dict[tuple[int, Position], str] = {}
    for record, line in case.entered:
        event = line.event
        if event.input is None:
            continue
        if first.setdefault((record.rank, event.position), event.input) != event.input:
            return True
    return False


def _named_have_closed(case: Case, cause: str) -> bool:
    """Tell whether a rank that `cause` names has called close: what it gave is with it alone."""
    closers = {record.worker for record, line in case.entered if line.event.kind == "close"}
    return any(f"(worker {worker})" in cause for worker in closers)
