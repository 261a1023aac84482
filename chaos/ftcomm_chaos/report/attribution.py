"""Attribution of recoveries to faults, and durations: pure, over records."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ftcomm.errors import RolledBackError
from ftcomm_chaos.report.run_record import UNTOLD, Delivery, ProcessRecord, RunRecord

CLOCK_SLACK_S = 0.05  # between the runner's note of a fault and the tracker's of its evidence
CLOSING_S = 1.0  # until a busy runner hears what the tracker says; some ms on an idle machine
EVERYTHING = "lose_all"  # the kind of fault that kills workers and tracker at once
PHASES = ("stop", "replace", "decide", "fetch", "link", "total")


def confirm(record: RunRecord) -> None:
    """Mark the deliveries whose victims have not died of SIGKILL, as they had to.

    An end that was never told, since who knew of it was killed too, is no evidence against it.
    """
    died = {p.pid for p in record.processes if "SIGKILL" in p.how or p.how == UNTOLD}
    for delivery in record.deliveries:
        delivery.confirmed = set(delivery.dies) <= died


def join_recoveries(record: RunRecord) -> None:
    """Put to each delivery the recovery that is due to it.

    A recovery belongs to the newest fault before it that hit one of those whom it names.  A kill
    that came while it went on belongs to it too, named or not (the victim may have been about to
    join), and has no time of detection of its own.
    """
    for incident in record.incidents:
        begins_s = incident["at_s"] + CLOCK_SLACK_S
        ends_s = incident["at_s"] + incident["ms"]["total"] / 1000
        for who in {*incident["victims"], *map(str, incident["suspects"])}:
            delivery = _newest(record.delivered, who, begins_s)
            if delivery is not None and delivery.epoch is None:
                delivery.epoch = incident["epoch"]
                detect_s = incident["at_s"] - delivery.at_s
                delivery.detect_ms = round(max(detect_s, 0.0) * 1000, 1)
        for delivery in record.delivered:
            during = incident["at_s"] <= delivery.at_s < ends_s
            if during and delivery.dies and delivery.members and delivery.epoch is None:
                delivery.epoch = incident["epoch"]
    for delivery in record.deliveries:
        delivery.recover_ms = _recovered_after(delivery, record.incidents)


def pass_over_the_late(record: RunRecord) -> None:
    """Mark kills that were sent before it was heard that their victims had closed, but came later.

    Who has not closed is recovered from.  So a kill of the last moments that no recovery answers
    has hit a process whose work was done, or that was about to end by itself: it tested nothing.
    """
    for delivery in record.delivered:
        closed = [record.closed_s.get(worker, math.inf) for worker in delivery.members]
        unanswered = bool(delivery.dies and closed) and delivery.epoch is None
        if unanswered and delivery.at_s >= max(closed) - CLOSING_S:
            delivery.failed = f"worker {', '.join(delivery.workers)} had closed when it came"


def _newest(deliveries: Iterable[Delivery], who: str, before_s: float) -> Delivery | None:
    hit = [d for d in deliveries if who in d.members and d.at_s <= before_s]
    return max(hit, key=lambda delivery: delivery.at_s, default=None)


def _recovered_after(delivery: Delivery, incidents: Sequence[dict[str, Any]]) -> float | None:
    """Until the first recovery that was completed, of its epoch or a later one."""
    if delivery.epoch is None:
        return None
    for incident in incidents:
        if incident["epoch"] >= delivery.epoch and incident["completed"]:
            ends_s = float(incident["at_s"]) + float(incident["ms"]["total"]) / 1000
            return round(max(ends_s - delivery.at_s, 0.0) * 1000, 1)
    return None


def phase_times(records: Iterable[RunRecord]) -> dict[str, list[float]]:
    """Milliseconds of every completed recovery by phase, and the faults' own two times.

    `detect` is from a fault to the first evidence, `recover` from it to the last member's next
    collective; the phases between are the tracker's.
    """
    times: dict[str, list[float]] = {name: [] for name in ("detect", *PHASES, "recover", "resume")}
    for record in records:
        for delivery in record.delivered:
            if delivery.detect_ms is not None:
                times["detect"].append(delivery.detect_ms)
            if delivery.recover_ms is not None:
                times["recover"].append(delivery.recover_ms)
            if delivery.kind == EVERYTHING and (resumed_s := _resumed_at(record, delivery)):
                times["resume"].append(round((resumed_s - delivery.at_s) * 1000, 1))
        for incident in record.incidents:
            if incident["completed"]:
                for phase in PHASES:
                    times[phase].append(incident["ms"][phase])
    return times


def _resumed_at(record: RunRecord, loss: Delivery) -> float | None:
    """Time at which the group of the next attempt was complete."""
    after = (row for row in record.attempts if row.at_s >= loss.at_s)
    return next((row.formed_s for row in after), None)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed; NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def unplanned_deaths(record: RunRecord) -> list[ProcessRecord]:
    """Workers' processes that died otherwise than by a fault, before their work was done.

    A fault that kills names its victims, also one that came too late to test anything; any other
    excuses what becomes later of the processes that lived, or began, while it lasted.  What still
    ran at the end has been ended by the runner.
    """
    dying = {pid for delivery in record.deliveries for pid in delivery.dies}
    excuses = [delivery for delivery in record.delivered if not delivery.dies]
    return [
        process
        for process in record.processes
        if process.how
        and process.ended_s is not None
        and process.ended_s < record.closed_s.get(process.who, math.inf) - CLOCK_SLACK_S
        and process.pid not in dying
        and not any(_has_hit(delivery, process) for delivery in excuses)
        and not _well(process.how)
    ]


def _has_hit(delivery: Delivery, process: ProcessRecord) -> bool:
    until_s = math.inf if delivery.until_s is None else delivery.until_s
    lived = process.began_s <= until_s + CLOCK_SLACK_S and (
        process.ended_s is None or delivery.at_s <= process.ended_s
    )
    return lived and process.who in delivery.workers


def _well(how: str) -> bool:
    """Tell whether a process has ended as it should: done, or told to start again."""
    rolled_back = f"exited with status {RolledBackError.exit_code}"
    return how in ("exited with status 0", "ended with status 0", UNTOLD) or how.startswith(
        rolled_back
    )
