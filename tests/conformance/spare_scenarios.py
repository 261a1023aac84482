"""Spares that hold the checkpoint in advance, and what may befall them."""

import contextlib
from collections.abc import Iterator

from tests.conformance.bench import Bench
from tests.conformance.harness import Job
from tests.conformance.plans import Plan
from tests.conformance.scenario import QUIET, Scenario, all_at_gate, expect

FINISHED = 77  # exit status of a spare that was never needed
MEMBERS, SPARE, OTHER = 4, 4, 5
HOSTS = "abcdbe"  # of the members, then of the spares
GATED = {**QUIET, "gates": {"1.10": "gate"}, "hosts": HOSTS}


@contextlib.contextmanager
def with_spares(
    bench: Bench, *spares: int, killed: int, exits: int, **settings: object
) -> Iterator[Job]:
    """A job whose members stand at the gate, and these spares; it ends well in the end."""
    plan = Plan(MEMBERS, GATED, settings=settings, killed=killed, exits=(FINISHED,) * exits)
    with bench.job(plan) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "gate")
        for spare in spares:
            job.start(spare)
        yield job
        job.open_gate("gate")
        job.finish()
        job.check_against(bench.reference(Plan(MEMBERS, QUIET)))


def holds_checkpoint(job: Job, *spares: int) -> None:
    for spare in spares:
        job.wait_for("tracker", text=f"spare {spare} holds checkpoint 1")


def come_back(job: Job, *workers: int) -> None:
    """Wait for the next process of each: what comes after the job's end would find no tracker."""
    for worker in workers:
        job.wait_for("tracker", text=f"worker {worker} has joined from {HOSTS[worker]}1")


def takes_a_rank(bench: Bench) -> None:
    """It fetches nothing but results: the checkpoint is here."""
    with with_spares(bench, SPARE, killed=1, exits=1) as job:
        holds_checkpoint(job, SPARE)
        job.kill(1)
        job.wait_for("tracker", text=f"spare {SPARE} takes the place of rank 1")
        come_back(job, 1)
    expect("ranks of the spare", {e["rank"] for e in job.of("joined") if e["worker"] == "4"}, {1})


def dies_while_it_fetches(bench: Bench) -> None:
    """No epoch changes, and the next process of the spare begins anew."""
    with with_spares(bench, SPARE, killed=1, exits=1, spare_fetch_rate=1) as job:
        job.wait_for("tracker", text=f"spare {SPARE} fetches checkpoint 1")
        job.kill(SPARE)
        job.wait_for("tracker", text=f"spare {SPARE} is gone")
        come_back(job, SPARE)
    expect("epochs", {event["epoch"] for event in job.of("result")}, {1})


def dies_with_a_member(bench: Bench) -> None:
    """Both at one moment: the member's next process takes its rank."""
    with with_spares(bench, SPARE, killed=2, exits=1) as job:
        holds_checkpoint(job, SPARE)
        job.kill(1)
        job.kill(SPARE)
        come_back(job, 1, SPARE)


def host_is_lost(bench: Bench) -> None:
    """A member and the spare beside it: the spare of another host takes the rank."""
    with with_spares(bench, SPARE, OTHER, killed=2, exits=2) as job:
        holds_checkpoint(job, SPARE, OTHER)
        for worker in (1, SPARE):
            job.kill(worker)
        job.wait_for("tracker", text=f"spare {OTHER} takes the place of rank 1")
        come_back(job, 1, SPARE)


SCENARIOS = (
    Scenario("spare-takes-rank", takes_a_rank, quick=True),
    Scenario("spare-dies-fetching", dies_while_it_fetches, quick=True),
    Scenario("spare-dies-with-member", dies_with_a_member, quick=True),
    Scenario("spare-on-lost-host", host_is_lost, quick=True),
)
