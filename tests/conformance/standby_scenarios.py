"""The tracker is lost with its directory, or cut off, and another one waits beside it: F17."""

import contextlib
import signal
from collections.abc import Callable, Iterator

from ftcomm_tracker.server.store.beat import BEAT_EVERY_S
from tests.conformance.bench import Bench
from tests.conformance.harness import SECOND, Job
from tests.conformance.plans import Plan
from tests.conformance.scenario import DETECT_S, QUIET, Scenario, address, all_at_gate, expect

STEPPED_DOWN = 75
LEADS = "this tracker leads the job"


@contextlib.contextmanager
def with_standby(bench: Bench, plan: Plan) -> Iterator[tuple[Job, Callable[[], int]]]:
    """A job that has begun, beside whose tracker another one waits; the end of that is awaited."""
    with bench.job(plan) as job, address() as (other, give_back):
        job.start_tracker()
        job.address = f"{job.own_address},{other}"
        give_back()
        with job.second_tracker(other) as second:
            job.wait_for(SECOND, text="this tracker waits")
            job.start_all()
            yield job, second.wait


def tracker_is_lost(bench: Bench) -> None:
    """Nobody is asked: the second one leads in the same epoch, and ends with the job."""
    reference = bench.reference(Plan(4, QUIET))
    program = {**QUIET, "gates": {"1.10": "gate"}}
    with with_standby(bench, Plan(4, program, standby=True)) as (job, second_ends):
        all_at_gate(job, "gate")
        job.kill_tracker()
        job.lose_tracker_disk()
        job.wait_for(SECOND, text=LEADS)
        job.open_gate("gate")
        job.finish()
        job.check_against(reference)
        expect("status of the second tracker", second_ends(), 0)


def tracker_is_lost_with_a_member(bench: Bench) -> None:
    """No operator is asked who is lost: the store knows that the first tracker cannot go on."""
    reference = bench.reference(Plan(4, QUIET))
    program = {**QUIET, "gates": {"1.10": "gate"}}
    settings = {"detect_within": DETECT_S, "reattach_within": 2 * DETECT_S}
    plan = Plan(4, program, settings=settings, killed=1, restart=False, standby=True)
    with with_standby(bench, plan) as (job, second_ends):
        all_at_gate(job, "gate")
        job.kill(1)
        job.kill_tracker()
        job.lose_tracker_disk()
        job.wait_for("exit", worker="1")
        job.start(1)
        job.wait_for(SECOND, text=LEADS)
        job.open_gate("gate")
        job.finish()
        job.check_against(reference)
        expect("status of the second tracker", second_ends(), 0)


def tracker_is_only_stopped(bench: Bench) -> None:
    """It wakes up when another one leads: it gets no record, tells nobody anything, and ends."""
    reference = bench.reference(Plan(4, QUIET))
    program = {**QUIET, "gates": {"0.10": "first", "1.10": "second"}}
    plan = Plan(4, program, settings={"detect_within": DETECT_S}, killed=1, standby=True)
    with with_standby(bench, plan) as (job, second_ends):
        all_at_gate(job, "first")
        old = job.set_tracker_aside()
        try:
            job.wait_for(SECOND, text=LEADS)
            job.open_gate("first")
            all_at_gate(job, "second")
            job.kill(2)
            job.wait_for(SECOND, text="runs: frontier 1.10")
            old.send_signal(signal.SIGCONT)
            expect("status of the old tracker", old.wait(), STEPPED_DOWN)
        finally:
            old.kill()
            old.wait()
        job.open_gate("second")
        job.finish()
        job.check_against(reference)
        expect("status of the second tracker", second_ends(), 0)


def tracker_is_lost_in_close(bench: Bench) -> None:
    """A rank has closed, and others may have."""
    reference = bench.reference(Plan(4, QUIET))
    with with_standby(bench, Plan(4, QUIET, standby=True)) as (job, second_ends):
        job.wait_for("tracker", text=" has closed")
        job.kill_tracker()
        job.lose_tracker_disk()
        job.finish()
        job.check_against(reference)
        expect("status of the second tracker", second_ends(), 0)


def both_are_lost_in_turn(bench: Bench) -> None:
    """The first one is started again, waits, and leads when the second one is lost."""
    reference = bench.reference(Plan(4, QUIET))
    program = {**QUIET, "gates": {"0.10": "first", "1.10": "second"}}
    plan = Plan(4, program, settings={"detect_within": DETECT_S}, standby=True)
    with bench.job(plan) as job, address() as (other, give_back):
        job.start_tracker()
        job.address = f"{job.own_address},{other}"
        give_back()
        with job.second_tracker(other) as second:
            job.wait_for(SECOND, text="this tracker waits")
            job.start_all()
            all_at_gate(job, "first")
            job.kill_tracker()
            job.wait_for(SECOND, text=LEADS)
            job.open_gate("first")
            all_at_gate(job, "second")
            job.start_tracker()
            job.wait_for("tracker", text="this tracker waits")
            second.kill()
            second.wait()
        job.wait_for("tracker", text=LEADS)
        job.open_gate("second")
        job.finish()
        job.check_against(reference)
        expect("status of the first tracker", job.tracker_status(), 0)


def nobody_is_lost(bench: Bench) -> None:
    """The second tracker never leads; it reads that the job ended well, and ends so too."""
    reference = bench.reference(Plan(4, QUIET))
    # Long enough for that tracker to look at the store again.
    settings = {"reattach_within": 4 * BEAT_EVERY_S}
    plan = Plan(4, QUIET, settings=settings, standby=True)
    with with_standby(bench, plan) as (job, second_ends):
        job.finish()
        job.check_against(reference)
        expect("status of the second tracker", second_ends(), 0)


SCENARIOS = (
    Scenario("F17-standby", tracker_is_lost, quick=True),
    Scenario("F17-standby-member", tracker_is_lost_with_a_member, quick=True),
    Scenario("F17-standby-stopped", tracker_is_only_stopped, quick=True),
    Scenario("F17-standby-close", tracker_is_lost_in_close),
    Scenario("F17-standby-turn", both_are_lost_in_turn),
    Scenario("F17-standby-end", nobody_is_lost),
)
