"""Ranks die around calls that give each rank a result of its own (rule R20).

With each log, and each call of `rank_result_programs`, twice in each version.
"""

from collections.abc import Iterator

from tests.conformance.bench import Bench
from tests.conformance.plans import Plan
from tests.conformance.rank_result_programs import NAMES
from tests.conformance.scenario import Run, Scenario, planned, said_by_all

RANKS = 4
LOGS = ("whole", "contributions")
# Who dies, in version 1: at its first call of the kind, or at the second, with the first completed.
DEATHS = {
    "before": ("1.1.0.0@enter",),
    "half-sent": ("1.1.1.0@half_sent",),
    "half-received": ("2.1.0.0@half_received",),
    "completed": ("1.1.0.0@done",),
    "twice": ("1.1.0.0@done", "1.1.0.1@done"),
    "with-a-peer": ("1.1.0.0@done", "2.1.1.0@half_received"),
    "peer-replays-too": ("3.1.1.0@enter", "2.1.1.0@enter"),
    "all-but-one": ("1.1.1.0@enter", "2.1.1.0@enter", "3.1.1.0@enter"),
    "root-and-others": ("0.1.1.0@done", "1.1.1.0@done", "3.1.1.0@done"),
}
# Of all pairs of a kind and a death each kind and each death once, for the default set.
QUICK = {(name, tuple(DEATHS)[at % len(DEATHS)]) for at, name in enumerate(NAMES)}


def dies(kind: str, log: str, death: str) -> Run:
    """Run the calls of one kind; all must be as without faults."""
    program = {"program": "rank_results", "kinds": [kind], "log": log}
    return planned(*DEATHS[death], n=RANKS, program=program)


def gives_other_bytes(bench: Bench) -> None:
    """The digests that the others hold tell; all ranks raise one error, and no result is mixed."""
    faults = ("1.0.1.0@enter",)
    with bench.job(Plan(3, {"program": "other_bytes"}, faults, exits=(71, 71, 71))) as job:
        job.run()
        said = said_by_all(job, "JobLostError", 3)
    assert "rank 1 gave other bytes to the call at" in said, said
    assert "use log='copies'" in said, said


def _scenarios() -> Iterator[Scenario]:
    for at, kind in enumerate(NAMES):
        for log in LOGS:
            for death in DEATHS:
                is_quick = (kind, death) in QUICK and log == LOGS[at % 4 != 3]
                yield Scenario(f"R20-{kind}-{log}-{death}", dies(kind, log, death), quick=is_quick)
    # Each rank dies twice, in calls of each form.
    deaths = [f"{rank}.1.{2 * rank + died}.{died}@done" for rank in range(3) for died in (0, 1)]
    forms = planned(*deaths, n=3, program={"program": "rank_result_forms"})
    yield Scenario("R20-forms", forms, quick=True)
    yield Scenario("R20-other-bytes", gives_other_bytes, quick=True)


SCENARIOS = tuple(_scenarios())
