"""Deaths while joining, unknown peers, and two processes of one worker id: F18, F25, F26, F33."""

import os
import signal
from collections.abc import Iterator

from tests.conformance.bench import Bench
from tests.conformance.harness import Job
from tests.conformance.plans import Plan
from tests.conformance.scenario import (
    DETECT_S,
    QUIET,
    Run,
    Scenario,
    all_at_gate,
    expect,
    planned,
)
from tests.conformance.unauthenticated import UnauthenticatedPeers, listeners_of

FENCED = 75  # exit status of FencedError
GATED = {**QUIET, "gates": {"1.10": "gate"}}


# --- F18: among unknown peers
# ------------------------------------------------------------------------


def dies_among_unauthenticated_peers(*faults: str, **settings: object) -> Run:
    """Workers die at first steps; tracker and workers are visited by who is none (R9).

    More clients are silent than a listener takes; the oldest make room, so every worker comes
    through.  Seen to fail when the tracker ends over garbage, and when a worker's listener does.
    """

    def run(bench: Bench) -> None:
        plan = Plan(4, GATED, faults, {"transport": "tcp", **settings})
        with bench.job(plan) as job, UnauthenticatedPeers() as unauthenticated:
            job.start_tracker()
            host, _, port = job.address.rpartition(":")
            unauthenticated.visit((host, int(port)))
            job.start_all()
            all_at_gate(job, "gate")
            for pid in job.running.values():
                for address in listeners_of(pid):
                    unauthenticated.visit(address)
            job.open_gate("gate")
            job.finish()
            job.check_against(bench.reference(plan))

    return run


# --- F26: two processes with one worker id -------------------------------------------------------


def started_many_times_at_once(times: int) -> Run:
    """Several processes say that they are worker 1: one of them is, the others are fenced (R1).

    Seen to fail when a later incarnation does not fence an earlier one.
    """

    def run(bench: Bench) -> None:
        with bench.job(Plan(4, GATED, exits=(FENCED,) * (times - 1))) as job:
            job.start_tracker()
            for worker in (0, *(1,) * times, 2, 3):
                job.start(worker)
            # An incarnation that is late to say hello must not find that the job has ended.
            job.wait(lambda _: len(_heard_of(job)) == times)
            job.open_gate("gate")
            job.finish()
            job.check_against(bench.reference(job.plan))
            expect("incarnations of worker 1 that ended well", len(_of_worker(job, "end")), 1)

    return run


def started_again_while_it_works(bench: Bench) -> None:
    """The later incarnation takes the place, the earlier one completes nothing any more (R1).

    Seen to fail when a later incarnation does not fence an earlier one.
    """
    with bench.job(Plan(4, GATED, exits=(FENCED,))) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "gate")
        old = job.running[job.newest(1)]
        job.start(1)
        _wait_for_new_incarnation(job)
        job.open_gate("gate")
        job.finish()
        job.check_against(bench.reference(job.plan))
        later = [e["pos"] for e in _of_worker(job, "result") if e["pid"] == old][-1]
        expect("last result of the earlier incarnation", later, "1.9")


# --- F33: a result waits for a process that has been replaced
# ----------------------------------------


def resumed_with_a_result_waiting(transport: str) -> Run:
    """A stopped worker is replaced; the whole result that it waits for is in its buffer (R1).

    Seen to fail when a process that did not run for a while does not hear the tracker first.
    """

    def run(bench: Bench) -> None:
        program = {"program": "many", "kinds": "broadcast"}
        # Rank 0 is the root of 1.8; the job may not finish before the old process has been judged.
        gated = {**program, "gates": {"0:1.8": "gate", "1.15": "late gate"}}
        settings = {"detect_within": DETECT_S, "transport": transport}
        with bench.job(Plan(4, gated, settings=settings, exits=(FENCED,), stopped=1)) as job:
            job.start_tracker()
            job.start_all()
            job.wait_for("enter", rank=1, pos="1.8")
            name = job.newest(1)
            old = job.running[name]
            os.kill(old, signal.SIGSTOP)
            job.open_gate("gate")
            job.wait_for("result", rank=0, pos="1.8")  # it has left for rank 1 too
            job.wait_for("tracker", text="no heartbeat of worker 1")
            job.start(1)
            _wait_for_new_incarnation(job)
            os.kill(old, signal.SIGCONT)
            expect("exit of the old incarnation", job.wait_for("exit", name=name)["status"], FENCED)
            job.open_gate("late gate")
            job.finish()
            job.check_against(bench.reference(Plan(4, program)))
            last = [e["pos"] for e in _of_worker(job, "result") if e["pid"] == old][-1]
            expect("last result of the old incarnation", last, "1.7")

    return run


def _wait_for_new_incarnation(job: Job) -> None:
    job.wait(lambda e: e["kind"] == "joined" and e["worker"] == "1" and e["epoch"] > 1)


def _heard_of(job: Job) -> set[object]:
    """The incarnations of worker 1 to which the tracker has given a place or a refusal."""
    return {event["pid"] for kind in ("joined", "exit") for event in _of_worker(job, kind)}


def _of_worker(job: Job, kind: str, worker: str = "1") -> list[dict[str, object]]:
    return [event for event in job.of(kind) if event["worker"] == worker]


def dies_three_times(address: str) -> Run:
    """F25: a replacement dies at `address` in its first three processes; the fourth goes on.

    Seen to fail when a death is not heard of while a plan is being carried out.
    """
    processes = (address.format(process) for process in (1, 2, 3))
    return planned("1.1.5.0@enter", *processes, n=4, program=QUIET)


def _scenarios() -> Iterator[Scenario]:
    for point in ("connected", "authenticated", "ranked"):
        run = dies_among_unauthenticated_peers(f"2.-1.0.0@{point}", "1.1.12.0@enter")
        yield Scenario(f"F18-{point}", run, quick=point == "ranked")
    # Rank 0 has dialled rank 1; of its other neighbour on the ring it has no link yet.
    linking = dies_among_unauthenticated_peers(
        "0.0.0.0@linking", "2.1.12.0@enter", algorithm="ring"
    )
    yield Scenario("F18-linking", linking)
    for place, point in (
        ("-1.0", "connected"),
        ("-1.0", "authenticated"),
        ("-1.0", "loading"),
        ("-1.0", "ranked"),
        ("-1.0", "enter"),
        ("-1.0", "done"),
        ("1.0", "done"),
        ("1.5", "linking"),
        ("1.5", "half_sent"),
    ):
        run = dies_three_times(f"1.{place}.{{}}@{point}")
        yield Scenario(f"F25-{point}-{place}", run, quick=point in ("loading", "linking"))
    yield Scenario("F26-at-once", started_many_times_at_once(2), quick=True)
    yield Scenario("F26-four-at-once", started_many_times_at_once(4))
    yield Scenario("F26-at-work", started_again_while_it_works)
    yield Scenario("F33", resumed_with_a_result_waiting("auto"), quick=True)
    yield Scenario("F33-tcp", resumed_with_a_result_waiting("tcp"))


SCENARIOS = tuple(_scenarios())
