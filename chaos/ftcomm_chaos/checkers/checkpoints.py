"""Checkpoints: one state a version, committed by all, and never an old one loaded."""

from collections.abc import Iterator

from ftcomm.history import EXECUTED
from ftcomm_chaos.checkers.finding import Case, Delivery, Finding, outliers

CHECKPOINT, LOAD = "checkpoint", "load"


def same_state(case: Case) -> Iterator[Finding]:
    """One version has one state, whoever saves or loads it."""
    for version, deliveries in case.by_version.items():
        first = deliveries[0]
        for other in outliers(deliveries, lambda delivery: delivery.event.result):
            yield other.finding(
                "same-state",
                f"version {version} is {other.event.result}, where {first.life.name} has "
                f"{first.event.result}",
                first.line,
            )


def local_state(case: Case) -> Iterator[Finding]:
    """A rank loads the local state that it has saved with that version."""
    saved: dict[tuple[int, int | None], Delivery] = {}
    for delivery in case.deliveries:
        if delivery.event.kind == CHECKPOINT:
            saved.setdefault((delivery.life.rank, delivery.event.version), delivery)
    for delivery in case.deliveries:
        first = saved.get((delivery.life.rank, delivery.event.version))
        if first is None or delivery.event.local == first.event.local:
            continue
        yield delivery.finding(
            "local-state",
            f"the local state of version {delivery.event.version} is {delivery.event.local}, "
            f"not {first.event.local}",
            first.line,
        )


def version_counts(case: Case) -> Iterator[Finding]:
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
            yield delivery.finding("version-counts", what)


def load_newest(case: Case) -> Iterator[Finding]:
    """No version is loaded in an epoch that begins with a member at a later one."""
    for delivery in case.deliveries:
        event = delivery.event
        epoch = _epoch_of_load(delivery)
        if event.kind != LOAD or event.version is None or epoch is None:
            continue
        for other, plan in case.plans[epoch]:
            if plan.event.position.version > event.version:
                yield delivery.finding(
                    "load-newest",
                    f"loaded version {event.version}; {other.name} was at {plan.event.position}",
                    plan,
                )
                break


def _epoch_of_load(delivery: Delivery) -> int | None:
    """The last epoch that began for this life at or before its load."""
    began = [
        plan.event.epoch
        for plan in delivery.life.plans
        if plan.event.position <= delivery.event.position
    ]
    return began[-1] if began else None


def committed_by_all(case: Case) -> Iterator[Finding]:
    """No version is committed before every rank has given its state, or loads it instead."""
    comparable = case.has_one_clock
    for version, deliveries in case.by_version.items():
        saved = [delivery for delivery in deliveries if delivery.event.kind == CHECKPOINT]
        if not saved:
            continue
        first = min(saved, key=lambda delivery: delivery.line.t)
        for rank in range(case.history.size):
            at = case.first_called.get((rank, first.event.position))
            if at is None and _must_have_saved(case, rank, version):
                what = f"version {version} is committed, and rank {rank} never gave its state"
                yield first.finding("committed-by-all", what)
            elif at is not None and comparable and at.t > first.line.t:
                if _loads(case, rank, version):
                    continue  # that was an earlier life's, which a plan has replaced
                what = f"version {version} was committed before rank {rank} gave its state"
                yield first.finding("committed-by-all", what, at)


def _loads(case: Case, rank: int, version: int) -> bool:
    """Whether a life of `rank` goes on from `version` or a later one."""
    return any(
        line.event.kind == LOAD and line.event.version is not None and line.event.version >= version
        for life in case.history.of_rank(rank)
        for line in life.returns
    )


def _must_have_saved(case: Case, rank: int, version: int) -> bool:
    """Its last life came to its end, and went on from an earlier version than `version`."""
    lives = case.history.of_rank(rank)
    if not lives or lives[-1].ended is None:
        return False
    loaded = [line.event.version for line in lives[-1].returns if line.event.kind == LOAD]
    return any(began is not None and began < version for began in loaded)
