"""Epochs: they grow, each has one membership, and who is out of it is silent."""

import itertools
from collections.abc import Iterator

from ftcomm.diagnostics.history import EXECUTED, Planned
from ftcomm.errors import EvictedError, FencedError
from ftcomm_chaos.checkers.violation import Case, ReturnedCall, RuleViolation
from ftcomm_chaos.history.model import HistoryLine, IncarnationRecord, lines_of

EPOCH_GAP = 1000  # by which a tracker without a journal goes beyond all epochs that it hears of
FENCED = frozenset((FencedError.__name__, EvictedError.__name__))


def _about(
    record: IncarnationRecord, plan: HistoryLine[Planned], what: str, *others: str
) -> RuleViolation:
    return RuleViolation(record.name, f"epoch {plan.event.epoch}", what, (plan.at, *others))


def epochs_grow(case: Case) -> Iterator[RuleViolation]:
    """An incarnation takes each plan once, a later one each time."""
    for record in case.records:
        last: HistoryLine[Planned] | None = None
        for plan in record.plans:
            if last is not None and plan.event.epoch <= last.event.epoch:
                what = f"took its plan after that of epoch {last.event.epoch}"
                yield _about(record, plan, what, last.at)
            last = plan


def one_membership(case: Case) -> Iterator[RuleViolation]:
    """All who take an epoch's plan take the same members and the same frontier."""
    for taken in case.plans.values():
        first_record, first = taken[0]
        for record, plan in taken[1:]:
            ours, theirs = plan.event, first.event
            if (ours.members, ours.frontier) != (theirs.members, theirs.frontier):
                what = f"has other members or another frontier than {first_record.name}"
                yield _about(record, plan, what, first.at)


def own_place(case: Case) -> Iterator[RuleViolation]:
    """Check that a process with a plan has one constant rank in it, shared with no other."""
    for record in case.records:
        for plan in record.plans:
            event = plan.event
            workers = [worker for worker, _ in event.members]
            if len(set(workers)) != len(workers) or len(workers) != case.history.size:
                yield _about(record, plan, f"its members are {workers}")
            elif event.rank != record.rank or event.members[event.rank] != (
                record.worker,
                record.incarnation,
            ):
                what = f"rank {event.rank} is not the place of this incarnation"
                yield _about(record, plan, what, record.started.at)


def incarnations_grow(case: Case) -> Iterator[RuleViolation]:
    """A later epoch never goes back to an earlier incarnation of a worker.

    But for one: a tracker that has lost its disk, and finds nobody of the newest plans, goes on
    from an older plan. Then a process that was taken for lost may live on, or the next process of
    a worker be numbered once more.
    """
    newest: dict[str, tuple[int, HistoryLine[Planned]]] = {}
    for epoch in sorted(case.plans):
        record, plan = case.plans[epoch][0]
        for worker, incarnation in plan.event.members:
            known, where = newest.setdefault(worker, (incarnation, plan))
            if incarnation < known and not _was_unknown(case, where.event.epoch, epoch):
                what = f"has incarnation {incarnation} of {worker} after incarnation {known}"
                yield _about(record, plan, what, where.at)
            newest[worker] = (incarnation, plan)


def _was_unknown(case: Case, known: int, rebuilt: int) -> bool:
    """Nobody of epoch `rebuilt` had the plan of epoch `known`, and a journal was lost between."""
    before = {
        plan.event.epoch
        for record, _ in case.plans[rebuilt]
        for plan in record.plans
        if plan.event.epoch < rebuilt
    }
    # The gap is above what these had heard of, which need not be the newest plan.
    return rebuilt - max(before, default=0) >= EPOCH_GAP and known not in before


def in_its_epoch(case: Case) -> Iterator[RuleViolation]:
    """Check that an epoch's calls lie between its plan's position and that of the next plan."""
    for record in case.records:
        plans = record.plans
        begins = {plan.event.epoch: plan for plan in reversed(plans)}
        follows = {a.event.epoch: b for a, b in itertools.pairwise(plans)}
        for line in record.returns:
            event = line.event
            if event.how != EXECUTED:
                continue
            delivery, plan = ReturnedCall(record, line), begins.get(event.epoch)
            if plan is None:
                what = f"was executed in epoch {event.epoch}, whose plan it has not taken"
                yield delivery.violation(what)
                continue
            after = follows.get(event.epoch)
            if after is not None and event.position >= after.event.position:
                what = f"was executed in epoch {event.epoch}, which had ended before"
                yield delivery.violation(what, after)


def nothing_forgotten(case: Case) -> Iterator[RuleViolation]:
    """No epoch begins before what all ranks have completed: a job is lost, never begun anew."""
    reached: ReturnedCall | None = None  # the furthest that an earlier epoch has executed with all
    done = _executed_with_all(case)
    comparable = case.has_one_clock
    for epoch in sorted(case.plans):
        record, plan = case.plans[epoch][0]
        if (
            reached is not None
            and (plan.t >= reached.line.t or not comparable)
            and plan.event.frontier < reached.event.position
        ):
            what = f"begins at {plan.event.frontier}; all had come to {reached.event.position}"
            yield _about(record, plan, what, reached.line.at)
        here = done.get(epoch)
        if here is not None and (reached is None or here.event.position > reached.event.position):
            reached = here


def _executed_with_all(case: Case) -> dict[int, ReturnedCall]:
    """The furthest call by epoch whose execution proves that all have completed what is below."""
    furthest: dict[int, ReturnedCall] = {}
    for delivery in case.deliveries:
        event = delivery.event
        if event.how == EXECUTED and event.kind != "broadcast":
            known = furthest.setdefault(event.epoch, delivery)
            if event.position > known.event.position:
                furthest[event.epoch] = delivery
    return furthest


def fenced_is_silent(case: Case) -> Iterator[RuleViolation]:
    """An incarnation that has lost its place completes nothing and takes no plan."""
    yield from _silent(case, fenced=True)


def verdict_is_final(case: Case) -> Iterator[RuleViolation]:
    """After a verdict nothing completes and no plan is taken."""
    yield from _silent(case, fenced=False)


def _silent(case: Case, *, fenced: bool) -> Iterator[RuleViolation]:
    for record in case.records:
        over = record.over
        if over is None or (over.event.error in FENCED) != fenced:
            continue
        for line in record.returns:
            if line.event.position >= over.event.position:
                what = f"completed after {over.event.error} at {over.event.position}"
                yield ReturnedCall(record, line).violation(what, over)
        behind = record.lines[record.lines.index(over) + 1 :]
        for plan in lines_of(behind, Planned):
            yield _about(record, plan, f"took a plan after {over.event.error}", over.at)
