"""Delivery: each life gets every position once and in order; nothing is executed again."""

from collections.abc import Iterator

from ftcomm.diagnostics.history import EXECUTED, SERVED, Ended, Entered, LifeEvent, Raised, Returned
from ftcomm.protocol.position import START, Position
from ftcomm_chaos.checkers.violation import Case, Delivery, Finding
from ftcomm_chaos.history.model import Line, lines_of

# A broadcast's root waits for nobody, and a load may be called early, at another position.
ONE_WAY = frozenset(("broadcast", "load"))


def call_shape(case: Case) -> Iterator[Finding]:
    """A call is entered, then returns or raises, one after the other; the end is the end."""
    for life in case.lives:
        inside: Line[LifeEvent] | None = None
        ended: Line[LifeEvent] | None = None
        for line in life.lines:
            wrong = _misfit(line.event, inside)
            if ended is not None:
                wrong = f"{line.event.event} after the end of its life"
            if wrong:
                yield Finding("call-shape", life.name, "", wrong, (line.at,))
                break  # what follows is out of step
            if isinstance(line.event, Entered):
                inside = line
            elif isinstance(line.event, Returned | Raised):
                inside = None
            elif isinstance(line.event, Ended):
                ended = line


def _misfit(event: LifeEvent, inside: Line[LifeEvent] | None) -> str:
    """What is wrong with `event` while the call `inside` is running; empty if nothing is."""
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


def delivered_once(case: Case) -> Iterator[Finding]:
    """No life gets a position twice."""
    for life in case.lives:
        seen: dict[Position, Line[Returned]] = {}
        for line in life.returns:
            first = seen.setdefault(line.event.position, line)
            if first is not line:
                yield Delivery(life, line).finding("delivered-once", "was given it twice", first)


def delivered_in_order(case: Case) -> Iterator[Finding]:
    """Each life gets every position from the first on; `load_checkpoint` may come early."""
    for life in case.lives:
        due, seen = START, set[Position]()
        for line in life.returns:
            event = line.event
            if event.position in seen:
                continue  # another rule's
            seen.add(event.position)
            if event.position != due:
                yield Delivery(life, line).finding("delivered-in-order", f"where {due} was due")
                break  # all that follows would be out of order
            due = due.next() if event.version is None else due.at_version(event.version)


def executed_again(case: Case) -> Iterator[Finding]:
    """Nothing is executed in an epoch that begins with a member which has completed it."""
    for delivery in case.deliveries:
        event = delivery.event
        if event.how != EXECUTED:
            continue
        for life, plan in case.plans.get(event.epoch, []):
            if plan.event.position > event.position:
                yield delivery.finding(
                    "executed-again",
                    f"executed in epoch {event.epoch}; {life.name} had completed it before",
                    plan,
                )
                break
            if plan.event.frontier > event.position and life is delivery.life:
                yield delivery.finding(
                    "executed-again",
                    f"executed in epoch {event.epoch}, which begins at {plan.event.frontier}",
                    plan,
                )
                break


def executed_by_all(case: Case) -> Iterator[Finding]:
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
                yield delivery.finding("executed-by-all", what)
            elif comparable and called.t > delivery.line.t:
                what = f"was executed before rank {rank} called it"
                yield delivery.finding("executed-by-all", what, called)


def served_from_somewhere(case: Case) -> Iterator[Finding]:
    """What was served, somebody has executed: where all have lived to tell, they tell it."""
    if case.history.killed:
        return
    for deliveries in case.by_position.values():
        if all(delivery.event.how == SERVED for delivery in deliveries):
            yield deliveries[0].finding(
                "served-from-somewhere", "was served, and nobody has executed it"
            )


def input_intact(case: Case) -> Iterator[Finding]:
    """What a script passes is the same after the call as before, also if the call raises."""
    for life in case.lives:
        before: Line[Entered] | None = None
        for line in life.lines:
            if isinstance(line.event, Entered):
                (before,) = lines_of([line], Entered)
            elif isinstance(line.event, Returned | Raised) and before is not None:
                if line.event.position == before.event.position and (
                    line.event.input != before.event.input
                ):
                    yield Finding(
                        "input-intact", life.name, str(line.event.position),
                        f"the input of {line.event.kind} was changed by the call",
                        (before.at, line.at),
                    )  # fmt: skip
                before = None
