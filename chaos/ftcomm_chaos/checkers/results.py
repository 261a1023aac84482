"""Results: the same bytes everywhere, and those of a run without faults."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import TypeVar

from ftcomm.diagnostics.history import EXECUTED
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import RANK_LOCAL, LogMode, Signature
from ftcomm_chaos.checkers.violation import Case, ReturnedCall, RuleViolation, outliers

K = TypeVar("K")
_RANK_LOCAL = frozenset(kind.name.lower() for kind in RANK_LOCAL)


def same_bytes(case: Case) -> Iterator[RuleViolation]:
    """One position has one result, on every rank and in every incarnation.

    Of calls that give each rank a result of its own, that holds for each rank by itself.  If copies
    of it are kept, another execution may give another result: each is looked at by itself.
    """
    for deliveries in (x for each in case.by_position.values() for x in _alike(case, each)):
        first = deliveries[0]
        for other in outliers(deliveries, _result):
            yield other.violation(
                f"was given {other.event.result}, where {first.record.name} was given "
                f"{first.event.result}",
                first.line,
            )


def log_of(case: Case, delivery: ReturnedCall) -> LogMode:
    """The log of a call: whole where all ranks must be given the same bytes."""
    if delivery.event.kind not in _RANK_LOCAL:
        return LogMode.WHOLE
    called = case.first_called.get((delivery.record.rank, delivery.event.position))
    if called is None or not called.event.signature:  # of an input that the run has made
        return LogMode.BY_SIZE
    return Signature.decode(bytes.fromhex(called.event.signature)).log


def _alike(case: Case, deliveries: list[ReturnedCall]) -> Iterable[list[ReturnedCall]]:
    """Groups of the calls at one position that must have been given the same bytes."""
    log = log_of(case, deliveries[0])
    if log is LogMode.WHOLE:
        return [deliveries]
    executed = sorted({each.event.epoch for each in deliveries if each.event.how == EXECUTED})
    groups: dict[tuple[int, int], list[ReturnedCall]] = {}
    for delivery in deliveries:
        # What is served is of the newest execution before.
        execution = bisect_right(executed, delivery.event.epoch) if log is LogMode.COPIES else 0
        groups.setdefault((delivery.record.rank, execution), []).append(delivery)
    return groups.values()


def same_call(case: Case) -> Iterator[RuleViolation]:
    """One position is one collective: what returned was called alike everywhere."""
    returned = {(d.record.name, d.event.position) for d in case.deliveries}
    first: dict[Position, tuple[str, str]] = {}
    for record, line in case.entered:
        event = line.event
        if not event.signature or (record.name, event.position) not in returned:
            continue
        if event.kind == "load":
            continue  # a restarted incarnation may load early, where others called something else
        known = first.setdefault(event.position, (event.signature, line.at))
        if known[0] != event.signature:
            yield RuleViolation(
                record.name,
                str(event.position),
                f"called {event.kind} at {event.site}, and was given a result where others called "
                "something else",
                (line.at, known[1]),
            )


def as_reference(case: Case) -> Iterator[RuleViolation]:
    """Every result and state is that of the reference; at the end none is missing."""
    if case.reference is None:
        return
    reference, cases = case.reference, (*case.earlier, case)
    yield from _compared(case, case.by_position, reference.by_position)
    yield from _compared(case, case.by_version, reference.by_version)
    if case.closed and reference.closed:
        positions = {position for each in cases for position in each.by_position}
        yield from _missing(positions, reference.by_position)
        versions = {version for each in cases for version in each.by_version}
        yield from _missing(versions, reference.by_version)


def _compared(
    case: Case, ours: dict[K, list[ReturnedCall]], theirs: dict[K, list[ReturnedCall]]
) -> Iterator[RuleViolation]:
    """By position or by version."""
    for key, deliveries in ours.items():
        reference = theirs.get(key, [])
        for alike in _alike(case, deliveries):
            yield from _against(alike, _of_rank(case, alike[0], reference))


def _of_rank(
    case: Case, delivery: ReturnedCall, reference: list[ReturnedCall]
) -> list[ReturnedCall]:
    """The calls of the reference with which this one is compared."""
    if log_of(case, delivery) is LogMode.WHOLE:
        return reference
    return [theirs for theirs in reference if theirs.record.rank == delivery.record.rank]


def _missing(ours: set[K], theirs: dict[K, list[ReturnedCall]]) -> Iterator[RuleViolation]:
    """Name what no attempt has."""
    for key in (key for key in theirs if key not in ours):
        at = (theirs[key][0].line.at,)
        yield RuleViolation("", str(key), "the reference has it, and no rank here", at)


def _against(
    deliveries: list[ReturnedCall], reference: list[ReturnedCall]
) -> Iterator[RuleViolation]:
    delivery = deliveries[0]  # others that differ break another rule
    if not reference:
        yield delivery.violation("the reference has nothing here")
    elif delivery.event.result != reference[0].event.result:
        yield delivery.violation(
            f"was given {delivery.event.result}, not {reference[0].event.result}", reference[0].line
        )


def _result(delivery: ReturnedCall) -> str:
    return delivery.event.result
