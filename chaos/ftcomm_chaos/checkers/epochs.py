"""Epochs: they grow, each has one membership, and who is out of it is silent."""

import itertools
from collections.abc import Iterator

from ftcomm.diagnostics.history import EXECUTED, Over, Planned
from ftcomm.errors import EvictedError, FencedError
from ftcomm_chaos.checkers.violation import Case, Delivery, Finding
from ftcomm_chaos.history.model import LifeRecord, Line

FENCED = frozenset((FencedError.__name__, EvictedError.__name__))


def _about(life: LifeRecord, plan: Line[Planned], rule: str, what: str, *others: str) -> Finding:
    return Finding(rule, life.name, f"epoch {plan.event.epoch}", what, (plan.at, *others))


def epochs_grow(case: Case) -> Iterator[Finding]:
    """A life takes each plan once, a later one each time."""
    for life in case.lives:
        last: Line[Planned] | None = None
        for plan in life.plans:
            if last is not None and plan.event.epoch <= last.event.epoch:
                what = f"took its plan after that of epoch {last.event.epoch}"
                yield _about(life, plan, "epochs-grow", what, last.at)
            last = plan


def one_membership(case: Case) -> Iterator[Finding]:
    """All who take an epoch's plan take the same members and the same frontier."""
    for taken in case.plans.values():
        first_life, first = taken[0]
        for life, plan in taken[1:]:
            ours, theirs = plan.event, first.event
            if (ours.members, ours.frontier) != (theirs.members, theirs.frontier):
                what = f"has other members or another frontier than {first_life.name}"
                yield _about(life, plan, "one-membership", what, first.at)


def own_place(case: Case) -> Iterator[Finding]:
    """Who takes a plan has a place in it, always the same one, and nobody has two."""
    for life in case.lives:
        for plan in life.plans:
            event = plan.event
            workers = [worker for worker, _ in event.members]
            if len(set(workers)) != len(workers) or len(workers) != case.history.size:
                yield _about(life, plan, "own-place", f"its members are {workers}")
            elif event.rank != life.rank or event.members[event.rank] != (
                life.worker,
                life.incarnation,
            ):
                what = f"rank {event.rank} is not the place of this life"
                yield _about(life, plan, "own-place", what, life.started.at)


def incarnations_grow(case: Case) -> Iterator[Finding]:
    """A later epoch never goes back to an earlier life of a worker."""
    newest: dict[str, tuple[int, Line[Planned]]] = {}
    for epoch in sorted(case.plans):
        life, plan = case.plans[epoch][0]
        for worker, incarnation in plan.event.members:
            known, where = newest.setdefault(worker, (incarnation, plan))
            if incarnation < known:
                what = f"has life {incarnation} of {worker} after life {known}"
                yield _about(life, plan, "incarnations-grow", what, where.at)
            newest[worker] = (incarnation, plan)


def in_its_epoch(case: Case) -> Iterator[Finding]:
    """What a life executes in an epoch lies between that plan's position and the next one's."""
    for life in case.lives:
        plans = life.plans
        begins = {plan.event.epoch: plan for plan in reversed(plans)}
        follows = {a.event.epoch: b for a, b in itertools.pairwise(plans)}
        for line in life.returns:
            event = line.event
            if event.how != EXECUTED:
                continue
            delivery, plan = Delivery(life, line), begins.get(event.epoch)
            if plan is None:
                what = f"was executed in epoch {event.epoch}, whose plan this life has not taken"
                yield delivery.finding("in-its-epoch", what)
                continue
            after = follows.get(event.epoch)
            if after is not None and event.position >= after.event.position:
                what = f"was executed in epoch {event.epoch}, which had ended before"
                yield delivery.finding("in-its-epoch", what, after)


def nothing_forgotten(case: Case) -> Iterator[Finding]:
    """No epoch begins before what all ranks have completed: a job is lost, never begun anew."""
    reached: Delivery | None = None  # the furthest that an earlier epoch has executed with all
    done = _executed_with_all(case)
    comparable = case.has_one_clock
    for epoch in sorted(case.plans):
        life, plan = case.plans[epoch][0]
        if (
            reached is not None
            and (plan.t >= reached.line.t or not comparable)
            and plan.event.frontier < reached.event.position
        ):
            what = f"begins at {plan.event.frontier}; all had come to {reached.event.position}"
            yield _about(life, plan, "nothing-forgotten", what, reached.line.at)
        here = done.get(epoch)
        if here is not None and (reached is None or here.event.position > reached.event.position):
            reached = here


def _executed_with_all(case: Case) -> dict[int, Delivery]:
    """The furthest call by epoch whose execution proves that all have completed what is below."""
    furthest: dict[int, Delivery] = {}
    for delivery in case.deliveries:
        event = delivery.event
        if event.how == EXECUTED and event.kind != "broadcast":
            known = furthest.setdefault(event.epoch, delivery)
            if event.position > known.event.position:
                furthest[event.epoch] = delivery
    return furthest


def fenced_is_silent(case: Case) -> Iterator[Finding]:
    """A life that has lost its place completes nothing and takes no plan."""
    yield from _silent(case, "fenced-is-silent", fenced=True)


def verdict_is_final(case: Case) -> Iterator[Finding]:
    """After a verdict nothing completes and no plan is taken."""
    yield from _silent(case, "verdict-is-final", fenced=False)


def _silent(case: Case, rule: str, *, fenced: bool) -> Iterator[Finding]:
    for life in case.lives:
        over = life.over
        if over is None or (over.event.error in FENCED) != fenced:
            continue
        for line in life.returns:
            if line.event.position >= over.event.position:
                what = f"completed after {over.event.error} at {over.event.position}"
                yield Delivery(life, line).finding(rule, what, over)
        behind = life.lines[_index(life, over) + 1 :]
        for later in behind:
            if isinstance(later.event, Planned):
                what = f"took a plan after {over.event.error}"
                yield Finding(
                    rule, life.name, f"epoch {later.event.epoch}", what, (later.at, over.at)
                )


def _index(life: LifeRecord, over: Line[Over]) -> int:
    return next(i for i, line in enumerate(life.lines) if line.event is over.event)
