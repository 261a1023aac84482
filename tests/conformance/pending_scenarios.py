"""Workers die while nonblocking calls are in flight; each id is A and what is in flight."""

from collections.abc import Iterator
from typing import Any

from tests.conformance.bench import Bench
from tests.conformance.plans import Plan
from tests.conformance.scenario import Run, Scenario, expect, planned

PENDING: dict[str, Any] = {"program": "pending"}
KILLS = (
    "0.0.5.0@enter",  # most of its calls wait for their turn
    "1.0.11.0@half_received",
    "0.0.20.1@done",
    "2.1.33.0@enter",  # one of those that the checkpoint waits for
    "1.1.35.1@saved",
)


def same_bytes_however_called(bench: Bench) -> None:
    """Synchronous on some ranks where others are nonblocking is no mismatch, and no other bits."""
    expected = bench.reference(Plan(3, {**PENDING, "how": "synchronous"}))
    for how in ("nonblocking", "mixed"):
        plan = Plan(3, {**PENDING, "how": how}, KILLS)
        with bench.job(plan) as job:
            job.run()
            job.check_against(expected)


def dies_in_the_prelude(bench: Bench) -> None:
    """A restarted worker replays its prelude, called nonblocking, without executing anything.

    Counted in that worker: the others replay a result too where the death cut its last bytes off.
    """
    job = bench.run(Plan(3, {**PENDING, "how": "mixed"}, ("1.0.3.0@enter",)))
    (replays,) = [event["count"] for event in job.of("replays") if event["rank"] == 1]
    expect("replayed", replays, 7 + 1 + 3)


def _large(how: str) -> Run:
    """Rings of large blocks, in which a kill comes in the middle of a transfer."""
    faults = ("3.0.4.0@half_sent", "1.0.16.0@half_received", "0.1.6.0@enter")
    program = {**PENDING, "how": how, "count": 40_000, "steps": 18}
    return planned(*faults, n=4, program=program, algorithm="ring")


def _scenarios() -> Iterator[Scenario]:
    yield Scenario("A-however", same_bytes_however_called, quick=True)
    yield Scenario("A-prelude", dies_in_the_prelude, quick=True)
    for how in ("nonblocking", "mixed"):
        yield Scenario(f"A-large-{how}", _large(how), quick=how == "mixed")
    # bytes of float32: 600 + 4 + 0, 10,000; of float64: 5,600, 12,800, 72
    program = {"program": "bucketed", "bucket_bytes": 8000, "buckets": 5}
    faults = ("1.0.3.0@half_received", "0.1.6.0@enter", "2.2.14.0@done")
    yield Scenario("A-buckets", planned(*faults, n=3, program=program), quick=True)
    settings = {"verify": "inputs"}  # taken where the call has its turn
    run = planned("1.0.11.0@half_received", "0.1.6.0@enter", n=3, program=PENDING, **settings)
    yield Scenario("A-verify", run)
    faults = ("1.0.4.0@half_received", "0.1.9.0@enter", "2.2.13.0@done", "1.2.17.1@enter")
    yield Scenario("A-tasks", planned(*faults, n=3, program={"program": "tasks"}), quick=True)


SCENARIOS = tuple(_scenarios())
