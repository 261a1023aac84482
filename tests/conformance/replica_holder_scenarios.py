"""All replica holders of a result die while another rank needs it, F15.

Of ten ranks on one host with two copies of each stable result, those of seqno s are kept by the
ranks s % 5 and s % 5 + 5; small ones by no others, as if they were large.  What becomes of the job
depends on who else holds the result: if anyone that lives does, everything goes on; if nobody does,
every rank is told what is lost and whose it was.
"""

from collections.abc import Iterator

from tests.conformance.bench import Bench
from tests.conformance.harness import Job
from tests.conformance.plans import BrokenError, Plan
from tests.conformance.scenario import QUIET, Scenario, all_at_gate, expect

RANKS = 10
HOLDERS = (2, 7)  # of 1.2, 1.7 and 1.12
NEEDY = 5  # a rank that keeps none of these, so that its next incarnation needs them
GATE = "1.15"
BY_REPLICA_HOLDERS: dict[str, object] = {"keep_by_all": 0}
JOB_LOST = 71  # exit status


def all_replica_holders_die_while_they_serve(bench: Bench) -> None:
    """A new process asks for 1.2; both who hold it die when asked: lost, and all are told (R2, R3).

    Seen to fail when a plan leaves out what nobody holds instead of ending the job.
    """
    faults = tuple(f"{replica_holder}.{GATE}.0@serving" for replica_holder in HOLDERS)
    program = {**QUIET, "gates": {GATE: "gate"}}
    plan = Plan(RANKS, program, faults, BY_REPLICA_HOLDERS, killed=1, exits=(JOB_LOST,) * RANKS)
    with bench.job(plan) as job:
        _start_to_gate(job)
        job.kill(NEEDY)
        for replica_holder in HOLDERS:
            job.wait_for("exit", worker=str(replica_holder))
        job.open_gate("gate")
        job.finish()
        job.check_results(bench.reference(plan))
        expect("workers that ended well", job.of("end"), [])
        for path in job.folder.glob("*.log"):
            _says_what_is_lost(path.read_text())


def small_results_outlive_their_replica_holders(bench: Bench) -> None:
    """As above with the default settings: every member has what is asked for (R15)."""
    program = {**QUIET, "gates": {GATE: "gate"}}
    plan = Plan(RANKS, program, killed=1 + len(HOLDERS))
    with bench.job(plan) as job:
        _start_to_gate(job)
        job.kill(NEEDY)
        _kill_replica_holders(job)
        job.open_gate("gate")
        job.finish()
        job.check_against(bench.reference(plan))


def _says_what_is_lost(log: str) -> None:
    wanted = (
        "the result of collective 1.2 is needed and exists nowhere any more; "
        "its replica holders were 2 (rank 2), 7 (rank 7)"
    )
    if "JobLostError" in log and wanted not in log:
        raise BrokenError(f"{wanted!r} is not in the error: {log[-600:]}")


def a_restarted_worker_has_what_its_replica_holders_take_along(bench: Bench) -> None:
    """The needy one has fetched 1.2, 1.7 and 1.12, and holds them though it keeps others (R3).

    It has replayed everything up to the gate, which proves nothing: it has executed nothing in
    this epoch.  Seen to fail when replaying counts as a proof, and when what was fetched is held
    by its replica holders alone.
    """
    program = {**QUIET, "gates": {GATE: "gate"}}
    plan = Plan(RANKS, program, settings=BY_REPLICA_HOLDERS, killed=1 + len(HOLDERS))
    with bench.job(plan) as job:
        _start_to_gate(job)
        job.kill(NEEDY)
        job.wait(lambda e: e["kind"] == "gate" and e["rank"] == NEEDY)
        _kill_replica_holders(job)
        job.open_gate("gate")
        job.finish()
        job.check_against(bench.reference(plan))


def replica_holders_of_a_result_that_is_not_yet_stable_die(bench: Bench) -> None:
    """All have completed 1.2, and none knows that all have: all others hold it (R3).

    Seen to fail when a result that is completed counts as stable.
    """
    program = {**QUIET, "gates": {"1.3": "gate"}}
    plan = Plan(RANKS, program, settings=BY_REPLICA_HOLDERS, killed=len(HOLDERS))
    with bench.job(plan) as job:
        _start_to_gate(job)
        _kill_replica_holders(job)
        job.open_gate("gate")
        job.finish()
        job.check_against(bench.reference(plan))


def _start_to_gate(job: Job) -> None:
    job.start_tracker()
    job.start_all()
    all_at_gate(job, "gate")


def _kill_replica_holders(job: Job) -> None:
    """Both before either has a new incarnation that could fetch what the other holds."""
    for replica_holder in HOLDERS:
        job.kill(replica_holder)


def _scenarios() -> Iterator[Scenario]:
    yield Scenario("F15-lost", all_replica_holders_die_while_they_serve, quick=True)
    yield Scenario("F15-small", small_results_outlive_their_replica_holders, quick=True)
    yield Scenario(
        "F15-fetched", a_restarted_worker_has_what_its_replica_holders_take_along, quick=True
    )
    yield Scenario("F15-unstable", replica_holders_of_a_result_that_is_not_yet_stable_die)


SCENARIOS = tuple(_scenarios())
