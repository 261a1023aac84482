"""Two ranks that cannot reach each other though both live, F31: rule R12.

The faults are of the library itself (``lower-higher@link=...``), so that they need no rights: every
direct link between the two is refused, or connects and then carries nothing.
"""

from collections.abc import Iterator

from tests.conformance.bench import Bench
from tests.conformance.harness import Job
from tests.conformance.plans import BrokenError, Plan
from tests.conformance.scenario import DETECT_S, QUIET, Run, Scenario, expect

PATIENT = {"detect_within": DETECT_S}


def relayed(fault: str, *more: str, n: int = 4, **settings: object) -> Run:
    """The job goes on through a third rank after two failures, with the same bytes."""

    def run(bench: Bench) -> None:
        plan = Plan(n, QUIET, (fault, *more), {**PATIENT, **settings})
        job = bench.run(plan)
        ends = fault.partition("@")[0].split("-")
        job.wait_for("tracker", text=f"ranks {ends[0]} and {ends[1]} cannot reach each other")
        if not more:
            epochs = {event["epoch"] for event in job.of("result")}
            expect("highest epoch", max(epochs), 3)

    return run


def two_alone(bench: Bench) -> None:
    """Nobody can relay: each end is replaced, and as that does not help, both are named to all."""
    # Each process of rank 0, which dials, records the fault.
    plan = Plan(2, QUIET, ("0-1@link=drop",) * 2, PATIENT, exits=(73, 73, 81, 81))
    with bench.job(plan) as job:
        job.run()
        _names_both(job)


def _names_both(job: Job) -> None:
    texts = [path.read_text() for path in sorted(job.folder.glob("*.log"))]
    told = [text for text in texts if "RankLostError: worker 0 (rank 0) and worker 1" in text]
    if len(told) != 2:
        raise BrokenError(f"{len(told)} workers were told who cannot reach whom\n{job.scenario()}")


def _scenarios() -> Iterator[Scenario]:
    for action in ("drop", "refuse"):
        yield Scenario(f"F31-{action}", relayed(f"0-1@link={action}"), quick=True)
    yield Scenario("F31-drop-ring", relayed("0-3@link=drop", algorithm="ring"))
    yield Scenario("F31-drop-three", relayed("0-2@link=drop", n=3))
    yield Scenario("F31-and-death", relayed("0-1@link=drop", "1.1.5.0@enter"))
    yield Scenario("F31-two-alone", two_alone)


SCENARIOS = tuple(_scenarios())
