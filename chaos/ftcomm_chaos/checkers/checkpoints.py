"""Checkpoints: one state a version, committed by all, and never an old one loaded."""

from collections.abc import Iterator

from ftcomm.diagnostics.history import EXECUTED
from ftcomm_chaos.checkers.violation import Case, ReturnedCall, RuleViolation, outliers
from ftcomm_chaos.history.model import IncarnationRecord

CHECKPOINT, LOAD = "checkpoint", "load"


def same_state(case: Case) -> Iterator[RuleViolation]:
    """One version has one state, whoever saves or loads it."""
    for version, deliveries in case.by_version.items():
        first = deliveries[0]
        for other in outliers(deliveries, lambda delivery: delivery.event.result):
            yield other.violation(
                f"version {version} is {other.event.result}, where {first.record.name} has "
                f"{first.event.result}",
                first.line,
            )


def local_state(case: Case) -> Iterator[RuleViolation]:
    """A rank loads the local state that it has saved with that version."""
    saved: dict[tuple[int, int | None], ReturnedCall] = {}
    for delivery in case.deliveries:
        if delivery.event.kind == CHECKPOINT:
            saved.setdefault((delivery.record.rank, delivery.event.version), delivery)
    for delivery in case.deliveries:
        first = saved.get((delivery.record.rank, delivery.event.version))
        if first is None or delivery.event.local == first.event.local:
            continue
        yield delivery.violation(
            f"the local state of version {delivery.event.version} is {delivery.event.local}, "
            f"not {first.event.local}",
            first.line,
        )


def version_counts(case: Case) -> Iterator[RuleViolation]:
    """A checkpoint makes the next version; a load that is executed gives version 0."""
    for delivery in case.deliveries:
        event = delivery.event
        if event.kind == CHECKPOINT:
            due: int | None = event.position.version + 1
        elif event.kind == LOAD:
            executed = event.how == EXECUTED
            due = 0 if executed or event.version is None else event.version
        else:
            due = None
        if event.version != due:
            what = f"{event.kind} returned version {event.version}, not {due}"
            yield delivery.violation(what)


def load_newest(case: Case) -> Iterator[RuleViolation]:
    """No version is loaded in an epoch that begins with a member at a later one."""
    for delivery in case.deliveries:
        event = delivery.event
        if event.kind != LOAD or event.version is None:
            continue
        epoch = _epoch_of_load(delivery)
        if epoch is None:
            continue
        for other, plan in case.plans[epoch]:
            if plan.event.position.version > event.version:
                yield delivery.violation(
                    f"loaded version {event.version}; {other.name} was at {plan.event.position}",
                    plan,
                )
                break


def _epoch_of_load(delivery: ReturnedCall) -> int | None:
    """The last epoch that began for this incarnation at or before its load."""
    began = [
        plan.event.epoch
        for plan in delivery.record.plans
        if plan.event.position <= delivery.event.position
    ]
    return began[-1] if began else None


def committed_by_all(case: Case) -> Iterator[RuleViolation]:
    """No version is committed before every rank has given its state, or loads it instead.

    Looked at are the incarnations that took the plan in whose epoch it was committed: one that was
    replaced before may wake up and save, for nobody, and one that died while it fetched has no
    history.
    """
    newest = {record.name: _newest_loaded(record) for record in case.records}
    for version, deliveries in case.by_version.items():
        saved = [delivery for delivery in deliveries if delivery.event.kind == CHECKPOINT]
        if not saved:
            continue
        first = min(saved, key=lambda delivery: delivery.line.t)
        plan = max((x for x in first.record.plans if x.t <= first.line.t), key=lambda x: x.t)
        by_plan = plan.event.position.version >= version
        for record, other in case.plans[plan.event.epoch]:
            loads = by_plan and not other.event.position.past_load
            if not loads and newest[record.name] < version:
                yield from _gave_its_state(case, record, version, first)


def _newest_loaded(record: IncarnationRecord) -> int:
    """The latest version from which an incarnation continues, -1 if it loads none."""
    loads = [line.event.version for line in record.returns if line.event.kind == LOAD]
    return max((version for version in loads if version is not None), default=-1)


def _gave_its_state(
    case: Case, record: IncarnationRecord, version: int, first: ReturnedCall
) -> Iterator[RuleViolation]:
    """It has called the checkpoint before `first` returned from it."""
    call = record.entered.get(first.event.position)
    if call is None and record.ended is not None:
        what = f"version {version} is committed, and rank {record.rank} never gave its state"
        yield first.violation(what)
    if call is not None and case.has_one_clock and call.t > first.line.t:
        what = f"version {version} was committed before rank {record.rank} gave its state"
        yield first.violation(what, call)
