"""Local states and the ranks that keep them: S4, S5, F14.

Of ten ranks on one host, those of rank r are kept by r + 3 and r + 6 beside itself.
"""

from collections.abc import Iterator
from typing import Any

from tests.conformance.bench import Bench
from tests.conformance.plans import BrokenError, Plan
from tests.conformance.scenario import Scenario, all_at_gate, planned

LOCAL: dict[str, Any] = {"program": "local_recover", "count": 10_000}
SMALL: dict[str, Any] = {**LOCAL, "count": 100}
S4 = (
    *("0.0.1.0@enter", "1.1.1.0@enter", "4.1.1.0@enter", "9.1.1.0@enter"),
    *("0.1.1.1@enter", "1.1.1.1@enter"),
)
AT_CHECKPOINT = 10
S5 = tuple(
    f"{rank}.{version}.{AT_CHECKPOINT}.{process}@enter"
    for rank, version, process in ((0, 0, 0), (1, 1, 0), (4, 1, 0), (9, 1, 0), (1, 1, 1))
)
HOLDERS = (2, 5, 8)  # of the local state of rank 2


def all_holders_die(bench: Bench) -> None:
    """Rank 2's local state is gone: every rank is told so, by name, and nothing hangs."""
    program = {**SMALL, "gates": {"1.3": "gate"}}
    plan = Plan(10, program, killed=len(HOLDERS), exits=(71,) * 10)
    with bench.job(plan) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "gate")
        for rank in HOLDERS:
            job.kill(rank)
        job.open_gate("gate")
        job.finish()
        text = (job.folder / "0.0.log").read_text()
    for part in (
        "JobLostError",
        "the local state of worker 2 (rank 2) in checkpoint 1 is needed",
        "its holders were 2 (rank 2), 5 (rank 5), 8 (rank 8)",
    ):
        if part not in text:
            raise BrokenError(f"{part!r} is not in the error: {text[-600:]}")


def holders_die_one_after_another(bench: Bench) -> None:
    """Copies are made again after each death, or the last one would lose the job."""
    gates = {"1.2": "first", "1.4": "second", "1.6": "third"}
    with bench.job(Plan(10, {**SMALL, "gates": gates}, killed=len(HOLDERS))) as job:
        job.start_tracker()
        job.start_all()
        for gate, rank in zip(gates.values(), (5, 8, 2), strict=True):
            all_at_gate(job, gate)  # also the one that was started again: it has its copy
            job.kill(rank)
            job.open_gate(gate)
        job.finish()


def _scenarios() -> Iterator[Scenario]:
    yield Scenario("S4-small", planned(*S4, program=SMALL), quick=True)
    yield Scenario("S4", planned(*S4, program=LOCAL))
    # Without the local states of three who die before they save, nobody can commit; all is
    # replayed, and two copies of each result would have died with two of the three.
    yield Scenario("S5-small", planned(*S5, program=SMALL, replicas=4), quick=True)
    yield Scenario("S5", planned(*S5, program=LOCAL, replicas=4))
    for name, ranks in (("owner-and-replica holder", (2, 5)), ("both-replica holders", (5, 8))):
        faults = [f"{rank}.1.3.0@enter" for rank in ranks]
        yield Scenario(f"F14-{name}", planned(*faults, program=SMALL), quick=ranks[0] == 2)
    yield Scenario("F14-one-after-another", holders_die_one_after_another)
    yield Scenario("F14-all", all_holders_die, quick=True)


SCENARIOS = tuple(_scenarios())
