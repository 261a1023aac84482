"""Delivery: each incarnation gets every position once and in order; nothing is executed again."""

from collections.abc import Iterator

from ftcomm.diagnostics.history import (
    EXECUTED,
    SERVED,
    Ended,
    Entered,
    Raised,
    Returned,
    WorkerEvent,
)
from ftcomm.protocol.position import START, Position
from ftcomm_chaos.checkers.violation import Case, ReturnedCall, RuleViolation
from ftcomm_chaos.history.model import HistoryLine, lines_of

# A broadcast's root waits for nobody, and a load may be called early, at another position.
ONE_WAY = frozenset(("broadcast", "load"))


def call_shape(case: Case) -> Iterator[RuleViolation]:
    """A call is entered, then returns or raises, one after the other; the end is the end."""
    for record in case.records:
        inside: HistoryLine[WorkerEvent] | None = None
        ended: HistoryLine[WorkerEvent] | None = None
        for line in record.lines:
            wrong = _misfit(line.event, inside)
            if ended is not None:
                wrong = f"{line.event.event} after the end of its incarnation"
            if wrong:
                yield RuleViolation(record.name, "", wrong, (line.at,))
                break  # what follows is out of step
            if isinstance(line.event, Entered):
                inside = line
            elif isinstance(line.event, Returned | Raised):
                inside = None
            elif isinstance(line.event, Ended):
                ended = line


def _misfit(event: WorkerEvent, inside: HistoryLine[WorkerEvent] | None) -> str:
    """Describe the fault of `event` while the call `inside` is running; empty if there is none."""
    call = None if inside is None else inside.event
    if isinstance(event, Entered):
        return "" if call is None else "entered a call within another"
    if isinstance(event, Returned | Raised):
        if not isinstance(call, Entered):
            return f"a {event.event} without a call"
        if (call.position, call.kind) != (event.position, event.kind):
            return f"entered {call.kind} {call.position}; {event.kind} {event.position} came back"
    if isinstance(event, Ended) and call is not None:
        return "ended within a call"
    return ""


def delivered_once(case: Case) -> Iterator[RuleViolation]:
    """No incarnation gets a position twice."""
    for record in case.records:
        seen: dict[Position, HistoryLine[Returned]] = {}
        for line in record.returns:
            first = seen.setdefault(line.event.position, line)
            if first is not line:
                yield ReturnedCall(record, line).violation("was given it twice", first)


def delivered_in_order(case: Case) -> Iterator[RuleViolation]:
    """Each incarnation gets every position from the first on; `load_checkpoint` may come early."""
    for record in case.records:
        due, seen = START, set[Position]()
        for line in record.returns:
            event = line.event
            if event.position in seen:
                continue  # another rule's
            seen.add(event.position)
            if event.position != due:
                yield ReturnedCall(record, line).violation(f"where {due} was due")
                break  # all that follows would be out of order
            due = due.next() if event.version is None else due.at_version(event.version)


def executed_again(case: Case) -> Iterator[RuleViolation]:
    """Nothing is executed in an epoch that begins with a member which has completed it."""
    for delivery in case.deliveries:
        event = delivery.event
        if event.how != EXECUTED:
            continue
        for record, plan in case.plans.get(event.epoch, []):
            if plan.event.position > event.position:
                yield delivery.violation(
                    f"executed in epoch {event.epoch}; {record.name} had completed it before", plan
                )
                break
            if plan.event.frontier > event.position and record is delivery.record:
                yield delivery.violation(
                    f"executed in epoch {event.epoch}, which begins at {plan.event.frontier}", plan
                )
                break


def executed_by_all(case: Case) -> Iterator[RuleViolation]:
    """Nothing but a broadcast is executed before every rank has called it."""
    comparable = case.has_one_clock
    for delivery in case.deliveries:
        event = delivery.event
        if event.how != EXECUTED or event.kind in ONE_WAY:
            continue
        for rank in range(case.history.size):
            called = case.first_called.get((rank, event.position))
            if called is None:
                what = f"was executed, and rank {rank} never called it"
                yield delivery.violation(what)
            elif comparable and called.t > delivery.line.t:
                what = f"was executed before rank {rank} called it"
                yield delivery.violation(what, called)


def served_from_somewhere(case: Case) -> Iterator[RuleViolation]:
    """Check that another process executed every served result, if all lived to record it."""
    if any(each.history.killed for each in (*case.earlier, case)):
        return
    for position, deliveries in case.by_position.items():
        before = [call for each in case.earlier for call in each.by_position.get(position, [])]
        if all(delivery.event.how == SERVED for delivery in (*deliveries, *before)):
            yield deliveries[0].violation("was served, and no rank has executed it")


def input_intact(case: Case) -> Iterator[RuleViolation]:
    """Check that a call leaves the script's arguments unchanged, also if it raises."""
    for record in case.records:
        before: HistoryLine[Entered] | None = None
        for line in record.lines:
            if isinstance(line.event, Entered):
                (before,) = lines_of([line], Entered)
            elif isinstance(line.event, Returned | Raised) and before is not None:
                if line.event.position == before.event.position and (
                    line.event.input != before.event.input
                ):
                    yield RuleViolation(
                        record.name, str(line.event.position),
                        f"the input of {line.event.kind} was changed by the call",
                        (before.at, line.at),
                    )  # fmt: skip
                before = None
