"""Deaths around a commit and around a load: F10, F11."""

from collections.abc import Iterable, Iterator

from tests.conformance.bench import Bench
from tests.conformance.harness import Job
from tests.conformance.plans import Plan
from tests.conformance.scenario import Run, Scenario, all_at_gate, model, planned

RANKS = 10
SMALL = model(100)
COMMIT = "1.11"  # the position of model_recover's second checkpoint
LAST_STEP = RANKS - 2  # of the ring in which the digests of a checkpoint travel


# --- F10: at a checkpoint ------------------------------------------------------------------------


def dies_when_all_have_saved(bench: Bench) -> None:
    """All hold the new version, nobody can have committed it: the plan commits it (R6).

    Seen to fail when the plan commits only what somebody is known to have committed.
    """
    gated = {**SMALL, "gates": {f"3:{COMMIT}": "gate"}}
    others = [rank for rank in range(RANKS) if rank != 3]
    notes = [f"{rank}.{COMMIT}.0@saved=note" for rank in others]
    plan = Plan(RANKS, gated, (*notes, f"3.{COMMIT}.0@saved"))
    with bench.job(plan) as job:
        job.start_tracker()
        job.start_all()
        all_have_fired(job, notes)
        job.open_gate("gate")
        _goes_on_in_version_2(bench, job)


def dies_when_one_has_committed(bench: Bench) -> None:
    """Rank 5 keeps the last digest from rank 6: the others commit, and rank 6 by the plan (R6).

    Seen to fail when a plan's commit is not carried out.
    """
    faults = [f"{rank}.{COMMIT}.0@committed=note" for rank in range(RANKS) if rank not in (5, 6)]
    faults.append(f"5.{COMMIT}.0@half_sent#{LAST_STEP}=stop")
    with bench.job(Plan(RANKS, SMALL, tuple(faults), killed=1)) as job:
        job.start_tracker()
        job.start_all()
        all_have_fired(job, faults)
        job.wait_for("stopped", worker="5")
        job.kill(5)
        _goes_on_in_version_2(bench, job)


def _goes_on_in_version_2(bench: Bench, job: Job) -> None:
    job.wait_for("tracker", text="checkpoint 2 committed")
    job.finish()
    job.check_against(bench.reference(job.plan))


def all_have_fired(job: Job, faults: Iterable[str]) -> None:
    """Wait until the record names all of these."""
    for fault in faults:
        job.wait_for("fault", text=fault)


# --- F11: in load_checkpoint of a second process
# ----------------------------------------------------


def who_serves_dies(*more: str) -> Run:
    """Rank 4 dies when rank 3's new process asks it for the checkpoint; another serves (R2, R6).

    Seen to fail when a worker that is catching up does not hear of the next epoch.
    """

    def run(bench: Bench) -> None:
        program = {"program": "many", "gates": {"1.10": "gate"}}
        faults = ("4.1.10.0@serving", *more)
        with bench.job(Plan(RANKS, program, faults, killed=1)) as job:
            job.start_tracker()
            job.start_all()
            all_at_gate(job, "gate")
            job.kill(3)
            job.wait_for("exit", worker="4")
            job.open_gate("gate")
            job.finish()
            job.check_against(bench.reference(job.plan))

    return run


def _scenarios() -> Iterator[Scenario]:
    yield Scenario("F10-enter", planned(f"3.{COMMIT}.0@enter", program=SMALL))
    # No two of them keep one result: 4 and 9 do, and may die before either's loss is known.
    together = [f"{rank}.{COMMIT}.0@enter" for rank in (0, 4, 8)]
    yield Scenario("F10-enter-together", planned(*together, program=SMALL))
    yield Scenario("F10-saved", dies_when_all_have_saved, quick=True)
    yield Scenario("F10-committed", planned(f"3.{COMMIT}.0@committed", program=SMALL))
    yield Scenario("F10-one-committed", dies_when_one_has_committed, quick=True)
    for point in ("-1.0.1@loading", "-1.1.1@enter", "-1.1.1@done"):
        run = planned("3.1.10.0@enter", f"3.{point}", program=SMALL)
        yield Scenario(f"F11-{point.partition('@')[2]}", run)
    yield Scenario("F11-serving", who_serves_dies(), quick=True)
    yield Scenario("F11-both", who_serves_dies("3.-1.0.1@loading"))


SCENARIOS = tuple(_scenarios())
