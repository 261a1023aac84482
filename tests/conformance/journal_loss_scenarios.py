"""The tracker dies, and its state directory with it: F17."""

import functools
import signal

from ftcomm.durable.chain import Chain
from ftcomm.durable.chain_state import chain_state
from ftcomm.durable.opening import open_store
from tests.conformance.bench import Bench
from tests.conformance.plans import Plan
from tests.conformance.scenario import (
    DETECT_S,
    QUIET,
    Scenario,
    address,
    all_at_gate,
    expect,
    has_results,
)

LOSSES = (2, 20, 45, 70, 100)  # results of all ranks, after which a job's tracker is lost
TRACKER_LOST = 79  # exit status
JOBS = 10  # of `tracker_is_lost_50_times`


def tracker_is_lost_in_steady_state(bench: Bench) -> None:
    """It costs no step: the same epoch goes on, before, while and after it is away."""
    reference = bench.reference(Plan(4, QUIET))
    program = {**QUIET, "gates": {"0.10": "first", "1.10": "second"}}
    with bench.job(Plan(4, program)) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "first")
        job.lose_tracker()
        job.wait_for("tracker", text="all workers are back in epoch 1")
        job.open_gate("first")
        all_at_gate(job, "second")
        job.lose_tracker()
        job.open_gate("second")
        job.finish()
        job.check_against(reference)
        expect("epochs", {event["epoch"] for event in job.of("result")}, {1})


def tracker_is_lost_with_a_member(bench: Bench) -> None:
    """In an epoch change: all that come are told that the tracker ends, and nothing is decided."""
    program = {**QUIET, "gates": {"1.10": "gate"}}
    faults, settings = ("1.1.10.0@enter",), {"replace_within": 5, "reattach_within": 5}
    plan = Plan(4, program, faults, settings, exits=(TRACKER_LOST,) * 4, restart=False)
    with bench.job(plan) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "gate")
        job.open_gate("gate")
        job.wait_for("exit", worker="1")
        job.wait_for("tracker", text="epoch 2: ")
        job.lose_tracker()
        job.start(1)
        job.wait_for("tracker", text="has said what it knows; missing: worker 1")
        job.wait(lambda _: not job.running)
        expect("exit status of the tracker", job.tracker_status(), TRACKER_LOST)
        expect("workers that ended well", job.of("end"), [])
        job.check_results(bench.reference(job.plan))


def tracker_is_lost_in_close(bench: Bench) -> None:
    """A rank has closed, and others may have."""
    reference = bench.reference(Plan(4, QUIET))
    with bench.job(Plan(4, QUIET)) as job:
        job.start_tracker()
        job.start_all()
        job.wait_for("tracker", text=" has closed")
        job.lose_tracker()
        job.finish()
        job.check_against(reference)


def old_tracker_is_only_stopped(bench: Bench) -> None:
    """A second tracker leads at another address; the first one wakes up, is told, and ends."""
    reference = bench.reference(Plan(4, QUIET))
    program = {**QUIET, "gates": {"0.10": "first", "1.10": "second"}}
    settings = {"detect_within": DETECT_S}
    with bench.job(Plan(4, program, settings=settings)) as job, address() as (other, give_back):
        job.start_tracker()
        job.address = f"{job.own_address},{other}"
        job.start_all()
        all_at_gate(job, "first")
        old = job.set_tracker_aside()
        try:
            job.lose_tracker_disk()
            give_back()
            job.start_tracker(rebuild_at=other)
            job.wait_for("tracker", text="all workers are back in epoch 1")
            job.open_gate("first")
            all_at_gate(job, "second")
            old.send_signal(signal.SIGCONT)
            expect("status of the old tracker", old.wait(), 75)
        finally:
            old.kill()
            old.wait()
        job.open_gate("second")
        job.finish()
        job.check_against(reference)
        expect("epochs", {event["epoch"] for event in job.of("result")}, {1})


def two_trackers_are_started(bench: Bench) -> None:
    """Both at once, on empty directories: one gets all members, and tells the other one to end."""
    reference = bench.reference(Plan(4, QUIET))
    program = {**QUIET, "gates": {"0.10": "first", "1.10": "second"}}
    plan = Plan(4, program, settings={"detect_within": DETECT_S}, stopped=2)
    with bench.job(plan) as job, address() as (other, give_back):
        job.start_tracker()
        job.address = f"{job.own_address},{other}"
        job.start_all()
        all_at_gate(job, "first")
        for late in (2, 3):
            job.kill(late, signal.SIGSTOP)
            job.wait_for("stopped", worker=str(late))
        job.kill_tracker()
        job.lose_tracker_disk()
        job.start_tracker(rebuild_at=job.own_address)
        job.wait_for("tracker", text="missing: worker 2, 3")  # the other two are here
        give_back()
        with job.second_tracker(other) as second:
            for late in (2, 3):
                job.kill(late, signal.SIGCONT)  # it tries the next address in the list
            job.wait_for("tracker", text="all workers are back in epoch 1")
            expect("status of the second tracker", second.wait(), 75)
        job.open_gate("first")
        all_at_gate(job, "second")
        job.open_gate("second")
        job.finish()
        job.check_against(reference)
        expect("epochs", {event["epoch"] for event in job.of("result")}, {1})


def tracker_is_lost_beside_a_store(bench: Bench) -> None:
    """With --rebuild and with its store in turn: one attempt, which records its end."""
    reference = bench.reference(Plan(4, QUIET))
    with bench.job(Plan(4, QUIET, stored=True)) as job:
        job.start_tracker()
        job.start_all()
        for number, seen in enumerate(LOSSES):
            job.wait(functools.partial(has_results, job, seen))
            job.lose_tracker(gives_store=number % 2 == 1)
        job.finish()
        job.check_against(reference)
        chain = chain_state(Chain(open_store(str(job.folder / "store"))).read())
        expect("attempts", len(chain.attempts), 1)
        expect("is finished", chain.finished > 0, True)


def tracker_is_lost_50_times(bench: Bench) -> None:
    """Five times in each of ten jobs, at any moment of the work."""
    reference = bench.reference(Plan(4, QUIET))
    for _ in range(JOBS):
        with bench.job(Plan(4, QUIET)) as job:
            job.start_tracker()
            job.start_all()
            for seen in LOSSES:
                job.wait(functools.partial(has_results, job, seen))
                job.lose_tracker()
            job.finish()
            job.check_against(reference)


SCENARIOS = (
    Scenario("F17-disk-steady", tracker_is_lost_in_steady_state, quick=True),
    Scenario("F17-disk-member", tracker_is_lost_with_a_member, quick=True),
    Scenario("F17-disk-close", tracker_is_lost_in_close),
    Scenario("F17-disk-stopped", old_tracker_is_only_stopped, quick=True),
    Scenario("F17-disk-two", two_trackers_are_started, quick=True),
    Scenario("F17-disk-store", tracker_is_lost_beside_a_store, quick=True),
    Scenario("F17-disk-50", tracker_is_lost_50_times),
)
