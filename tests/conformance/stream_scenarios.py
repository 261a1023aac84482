"""Links of several connections, ``--streams``: row F34.

Whatever becomes of one of them is what became of the link, and no bit depends on their number.
"""

from collections.abc import Iterator

from tests.conformance.bench import Bench
from tests.conformance.plans import Plan
from tests.conformance.relay_scenarios import PATIENT
from tests.conformance.scenario import QUIET, Run, Scenario, expect, model, planned

SEVERAL = {"streams": 3, "transport": "tcp"}
# Elements: a block of theirs on a ring of three has three stripes and a bit.
LARGE = {"program": "one_op", "count": 150_000}


def cut(fault: str, algorithm: str) -> Run:
    """One connection of each of a rank's links ends within a transfer."""

    def run(bench: Bench) -> None:
        settings = {**SEVERAL, "algorithm": algorithm}
        job = bench.run(Plan(3, {**LARGE, "algorithm": algorithm}, (fault,), settings))
        expect("highest epoch", max(event["epoch"] for event in job.of("result")), 2)

    return run


def one_is_refused(bench: Bench) -> None:
    """Three connections never come to be between two ranks: a third relays, by one."""
    plan = Plan(4, QUIET, ("0-1@link=refuse_one",), {**PATIENT, **SEVERAL})
    job = bench.run(plan)
    job.wait_for("tracker", text="ranks 0 and 1 cannot reach each other")


def _scenarios() -> Iterator[Scenario]:
    kills = ("1.0.0.0@half_sent", "2.1.0.0@half_received", "0.1.1.0@enter")
    for name, program in (("large", LARGE), ("small", model(1000))):
        yield Scenario(f"F34-kills-{name}", planned(*kills, n=3, program=program, **SEVERAL))
    for algorithm in ("ring", "recursive_doubling"):
        for action in ("cut_one", "reset"):
            run = cut(f"1.1.0.0@half_received={action}", algorithm)
            quick = (algorithm, action) == ("ring", "cut_one")
            yield Scenario(f"F34-{action}-{algorithm}", run, quick=quick)
    yield Scenario("F34-refused", one_is_refused, quick=True)
    for there in (1, 2):  # so many connections are there when the dialler dies
        run = planned(f"0.-1.0.0@half_linked#{there}", n=3, program=QUIET, **SEVERAL)
        yield Scenario(f"F34-dies-{there}", run, quick=there == 2)


SCENARIOS = tuple(_scenarios())
