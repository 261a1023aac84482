"""Ways to lose more than a worker, as options of ``ftcomm-chaos run``; and traces: pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ftcomm_chaos.runner.spot_trace import NodeEvent

NICE = 10  # of real jobs: their dozen processes would take the simulator's processor too
TRACE = "trace"
TRACE_SPEED = 60.0  # a minute of machines is a second of the job
DARK_S = 300.0  # of the trace, for which all machines are away: five seconds
ALL_EVERY_S = 120.0 * TRACE_SPEED  # of the trace, between the losses of all machines
# For a run, then it hangs. It takes 50 s on an idle machine, and has taken 190 beside a simulator
# that had most of two processors: 600 where a process needed eight seconds to start. Where a disk
# is lost just after a member was replaced, nobody who is left knows by whom; the harness, as
# operator, names it as lost after twenty seconds, and in one run has done so ten times.
LIMIT_S = 1800.0
SHARE_OF_WORK = 0.7  # of a trace's time; the rest goes into recoveries and attempts


@dataclass(frozen=True, slots=True)
class LosingWay:
    """A way to lose.

    Attributes:
        faults: options of ``ftcomm-chaos run``.
        workers: of the job, beside its spares.
        versions: that it computes.
        pause_s: after each version.
        limit_s: for a run; then it hangs.
        spares: of the job.
        is_steady: workers keep their processes and ranks, so that none may grow.
    """

    faults: tuple[str, ...]
    workers: int = 3
    versions: int = 130
    pause_s: float = 0.3
    limit_s: float = LIMIT_S
    spares: int = 1
    is_steady: bool = False

    def options(self) -> list[str]:
        """Options before the job's command."""
        job = ["-n", str(self.workers), "--spares", str(self.spares)]
        return [*job, "--limit", f"{self.limit_s:g}", *self.faults]


# One loss at a time is told apart: a disk and everything are not lost in one session.
WAYS = {
    # Trackers and supervisors are processes of their own; only the store outlives such a loss.
    "everything": LosingWay(
        ("--lose-all", "10s", "--kill-every", "3s", "--tracker-kill-every", "8s")
    ),
    # Without spares: a rebuilt tracker may count a worker anew whose rank a spare has, and a
    # history takes no two incarnations of one number.
    "disk": LosingWay(
        ("--lose-tracker-disk", "9s", "--kill-every", "3s", "--tracker-kill-every", "10s"),
        spares=0,
    ),
    # The same with a store, in which the rebuilt tracker goes on recording.
    "stored-disk": LosingWay(
        ("--lose-tracker-disk", "9s", "--kill-every", "3s", "--checkpoint-every", "1v"),
        spares=0,
    ),
    # `run` has tracker and workers; its state directory outlives the loss.
    "launcher": LosingWay(("--lose-all", "10s", "--kill-every", "3s")),
    # Workers that outlive one tracker after another must not grow by it.
    "trackers": LosingWay(
        ("--lose-tracker-disk", "6s", "--tracker-kill-every", "4s"), is_steady=True
    ),
}


def way_of_trace(path: str, versions: int) -> LosingWay:
    """The way in which a trace of machines loses workers, one by one and all at once."""
    trace_s = versions * 0.5 / SHARE_OF_WORK
    faults = ("--trace", path, "--trace-speed", f"{TRACE_SPEED:g}")
    return LosingWay(faults, 4, versions, 0.5, limit_s=2 * trace_s + LIMIT_S)


def versions_for(seconds: float) -> int:
    """Versions of a job that lasts about as long as a trace does in so many real seconds."""
    return max(math.ceil(seconds * SHARE_OF_WORK / 0.5), 1)


def piece_of(trace: Sequence[NodeEvent], seconds: float) -> list[NodeEvent]:
    """The beginning of a trace, as long as takes so many real seconds."""
    return [event for event in trace if event.at_s <= seconds * TRACE_SPEED]


def with_losses_of_all(trace: Sequence[NodeEvent]) -> list[NodeEvent]:
    """The trace with moments at which all machines go; what is left of them comes back later.

    There is one in its middle, or one each two minutes (of the job) if it is longer.
    """
    length = trace[-1].at_s
    pause = min(ALL_EVERY_S, length / 2)
    dark = min(DARK_S, pause / 2)
    moments = [number * pause for number in range(1, math.ceil(length / pause))]
    events: list[NodeEvent] = []
    here: dict[str, None] = {}  # a set that keeps the order
    rest = list(trace)
    for at in moments:
        rest = _take_until(rest, at, here, events)
        events += [NodeEvent(at, False, node) for node in here]
        rest = _take_until(rest, at + dark, here, [])
        events += [NodeEvent(at + dark, True, node) for node in here]
    return [*events, *rest]


def _take_until(
    rest: Sequence[NodeEvent], at_s: float, here: dict[str, None], events: list[NodeEvent]
) -> list[NodeEvent]:
    """Put what comes before that time to `events`; returns what comes after."""
    for event in rest:
        if event.at_s >= at_s:
            break
        events.append(event)
        if event.comes:
            here[event.node] = None
        else:
            del here[event.node]
    return [event for event in rest if event.at_s >= at_s]


def trace_text(events: Iterable[NodeEvent]) -> str:
    """The trace as its file says it."""
    rows = ((round(e.at_s * 1000), "add" if e.comes else "remove", e.node) for e in events)
    return "".join(f"{ms},{what},{node}\n" for ms, what, node in rows)
