"""Ranks die around calls that give each rank a result of its own (rule R20).

With each log, and each call of `rank_result_programs`, twice in each version.
"""

import re
from collections.abc import Iterator

from tests.conformance.bench import Bench
from tests.conformance.plans import Plan
from tests.conformance.rank_result_programs import NAMES
from tests.conformance.scenario import Run, Scenario, planned, said_by_all

RANKS = 4
LOGS = ("whole", "contributions", "copies")
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
AROUND_COPIES = {
    "held": ("1.1.0.0@copied",),
    "held-by-a-peer": ("1.1.0.0@done", "2.1.0.0@copied"),
    "owner-and-holder": ("1.1.1.0@enter", "2.1.1.0@enter"),
}
COPIES = 2  # the default of --replicas


def dies(kind: str, log: str, death: str) -> Run:
    """Run the calls of one kind; all must be as without faults."""
    program = {"program": "rank_results", "kinds": [kind], "log": log}
    deaths = DEATHS[death] if log != "copies" else {**DEATHS, **AROUND_COPIES}[death]
    # Of copies at so many other ranks one survives that many deaths at a time.
    settings = {"replicas": len(deaths)} if len(deaths) > COPIES and log == "copies" else {}
    return planned(*deaths, n=RANKS, program=program, **settings)


def gives_other_bytes(bench: Bench) -> None:
    """The digests that the others hold tell; all ranks raise one error, and no result is mixed."""
    faults = ("1.0.1.0@enter",)
    program = {"program": "other_bytes", "log": "contributions"}
    with bench.job(Plan(3, program, faults, exits=(71, 71, 71))) as job:
        job.run()
        said = said_by_all(job, "JobLostError", 3)
    sites = r"at rank_result_programs\.py:\d+ .*, which others made at rank_result_programs\.py:\d+"
    assert re.search(f"rank 1 gave other bytes to the call {sites}", said), said
    assert "use log='copies'" in said, said


def gives_its_own_bytes(*faults: str) -> Run:
    """No result is mixed of two executions, whoever dies when."""

    def run(bench: Bench) -> None:
        with bench.job(Plan(4, {"program": "own_bytes"}, faults)) as job:
            job.run()

    return run


def _scenarios() -> Iterator[Scenario]:
    for kind in NAMES:
        for death in AROUND_COPIES:
            is_quick = kind in ("alltoall", "gatherv")
            yield Scenario(f"R20-{kind}-copies-{death}", dies(kind, "copies", death), is_quick)
    goes_on = planned("1.0.1.0@enter", n=3, program={"program": "other_bytes", "log": "copies"})
    yield Scenario("R20-other-bytes-copies", goes_on, quick=True)
    for point in ("half_sent", "half_received", "copied", "done"):
        for seqno in (0, 1, 2, 6):  # alltoall, of an input function, alltoallv, and again
            run = gives_its_own_bytes(f"1.0.{seqno}.0@{point}", f"1.0.{seqno + 3}.1@enter")
            yield Scenario(f"R20-own-bytes-{point}-{seqno}", run, quick=seqno in (1, 2))
    for at, kind in enumerate(NAMES):
        for log_at, log in enumerate(LOGS):
            for death_at, death in enumerate(DEATHS):
                # Each pair of a kind, a log and a death by day, and each three of them at night.
                is_quick = (at + death_at) % len(LOGS) == log_at
                yield Scenario(f"R20-{kind}-{log}-{death}", dies(kind, log, death), quick=is_quick)
    # Each rank dies twice, in calls of each form.
    deaths = [f"{rank}.1.{2 * rank + died}.{died}@done" for rank in range(3) for died in (0, 1)]
    for log in ("contributions", "copies"):
        forms = planned(*deaths, n=3, program={"program": "rank_result_forms", "log": log})
        yield Scenario(f"R20-forms-{log}", forms, quick=True)
    yield Scenario("R20-other-bytes", gives_other_bytes, quick=True)


SCENARIOS = tuple(_scenarios())
