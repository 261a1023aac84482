"""Bounds: memory, descriptors, and the stalls that cost nobody a place."""

import statistics
from collections.abc import Callable, Iterator

from ftcomm.config.setting_kinds import MIB
from ftcomm.diagnostics.history import Over, Resources
from ftcomm_chaos.checkers.epochs import FENCED
from ftcomm_chaos.checkers.violation import Case, RuleViolation
from ftcomm_chaos.history.harness_events import ANYONE, STOP, FaultFired
from ftcomm_chaos.history.model import HistoryLine, IncarnationRecord, lines_of

MIN_SAMPLES = 8  # fewer show the start of a program, where everything grows


def memory_bounded(case: Case) -> Iterator[RuleViolation]:
    """From an incarnation's second quarter to its last, memory grows by no more than the limit."""
    for record in case.records:
        grown, samples = _growth(record, lambda sample: sample.rss)
        if grown > case.limits.rss_growth:
            what = f"memory has grown by {grown / MIB:.0f} MiB"
            yield RuleViolation(record.name, "", what, (samples[0].at, samples[-1].at))


def descriptors_bounded(case: Case) -> Iterator[RuleViolation]:
    """The same of open descriptors, where links to all other ranks are allowed for."""
    links = case.limits.fds_per_rank * case.history.size
    for record in case.records:
        grown, samples = _growth(record, lambda sample: sample.fds)
        if grown > case.limits.fds_growth + links:
            what = f"{grown:.0f} more descriptors are open"
            lines = (samples[0].at, samples[-1].at)
            yield RuleViolation(record.name, "", what, lines)


def _growth(
    record: IncarnationRecord, value: Callable[[Resources], int]
) -> tuple[float, list[HistoryLine[Resources]]]:
    """From the median of the second quarter of the samples to that of the last."""
    samples = lines_of(record.lines, Resources)
    if len(samples) < MIN_SAMPLES:
        return 0.0, samples
    quarter = len(samples) // 4
    early = statistics.median(value(line.event) for line in samples[quarter : 2 * quarter])
    late = statistics.median(value(line.event) for line in samples[-quarter:])
    return late - early, samples


def no_false_eviction(case: Case) -> Iterator[RuleViolation]:
    """Check that a process that stalls for less than the limit keeps its rank."""
    harness = case.history.harness
    if harness is None:
        return
    for record in case.records:
        over = record.over
        if over is None or over.event.error not in FENCED:
            continue
        excuses = [fault for fault in harness.faults if _excuses(fault, record, over, case)]
        if not excuses:
            what = f"{over.event.error}, and nothing was done to it that takes a place: "
            yield RuleViolation(
                record.name, str(over.event.position), what + over.event.cause,
                (over.at, *(fault.at for fault in harness.faults[:1])),
            )  # fmt: skip


def _excuses(
    fault: HistoryLine[FaultFired], record: IncarnationRecord, over: HistoryLine[Over], case: Case
) -> bool:
    """Tell whether a fault may have cost this incarnation its rank."""
    event = fault.event
    concerned = event.target in (record.worker, ANYONE)
    limit = case.limits.stall_s * record.started.event.detect_within
    long = event.kind != STOP or event.seconds >= limit
    return concerned and long and fault.t <= over.t
