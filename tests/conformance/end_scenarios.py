"""The end of a job, good or bad: everyone dies, and deaths around close(): F16, F21, F32."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

from tests.conformance.bench import Bench
from tests.conformance.harness import Job
from tests.conformance.plans import WALL_S, BrokenError, Plan
from tests.conformance.scenario import (
    QUIET,
    Run,
    Scenario,
    all_at_gate,
    expect,
    planned,
    start_under_run,
)

JOB_LOST, JOB_FINISHED = 71, 77  # exit statuses of these errors
CLOSE = "2.0"  # the position of close() in QUIET
FROM_3_TO_1 = 1  # the step of recursive doubling in which these two exchange
ALL_DEAD = "every member that took part in the job has died"


# --- F16: everyone dies --------------------------------------------------------------------------


def everyone_dies(place: str) -> Run:
    """New incarnations of all are told that the job is lost; none is ever given a rank (R2).

    Seen to fail, in version 0, when a tracker forgets which processes the first plan was sent to.
    """

    def run(bench: Bench) -> None:
        with _job_of_the_dead(bench, place) as job:
            _kill_all(job)
            job.finish()
            _is_lost(bench, job)

    return run


def everyone_and_the_tracker_die(bench: Bench) -> None:
    """The tracker's journal knows what it cannot bring back; and the verdict outlives it too (R13).

    Seen to fail when the incarnations that the first plan was sent to are not journalled.
    """
    with _job_of_the_dead(bench, "0.10", exits=(JOB_LOST,) * 5, restart=False) as job:
        job.kill_tracker()
        _kill_all(job)
        job.wait(lambda _: not job.running)
        job.start_tracker()
        job.start_all()
        job.wait(lambda _: not job.running)
        _is_lost(bench, job)
        job.start_tracker()
        job.start(2)
        job.finish()


def everyone_dies_under_run(bench: Bench) -> None:
    """The launcher starts all again, and a job without a store is lost all the same.

    Seen to fail as `everyone_dies`.
    """
    folder = bench.new_folder()
    for name in ("events", "gate"):
        os.mkfifo(folder / name)
    events = os.open(folder / "events", os.O_RDWR)
    program = {**QUIET, "gates": {"0.10": "gate"}}
    options = ("-n", "4", "--checkpoint", "")
    with start_under_run(folder, program, *options) as launcher, open(events, "rb") as lines:  # noqa: PTH123 - a descriptor
        pids = _pids_at_gate(lines)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        output, _ = launcher.communicate(timeout=WALL_S)
    expect("exit status", launcher.returncode, JOB_LOST)
    expect("restarts", output.count("was killed by SIGKILL: starting it again"), 4)
    expect("said why", ALL_DEAD in output, True)


def _pids_at_gate(lines: Any) -> set[int]:
    pids: set[int] = set()
    while len(pids) < 4:
        event = json.loads(lines.readline())
        if event["kind"] == "gate":
            pids.add(event["pid"])
    return pids


@contextlib.contextmanager
def _job_of_the_dead(bench: Bench, place: str, **more: Any) -> Iterator[Job]:
    """A job of four at its gate, whose members are all going to be killed."""
    program = {**QUIET, "gates": {place: "gate"}}
    fields: dict[str, Any] = {"killed": 4, "exits": (JOB_LOST,) * 4, **more}
    with bench.job(Plan(4, program, **fields)) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "gate")
        yield job


def _kill_all(job: Job) -> None:
    for worker in range(job.plan.n):
        job.kill(worker)


def _is_lost(bench: Bench, job: Job) -> None:
    expect("exit status of the tracker", job.tracker_status(), JOB_LOST)
    expect("incarnations that were given a rank", len(job.of("joined")), 4)
    expect("workers that ended well", job.of("end"), [])
    job.check_results(bench.reference(job.plan))
    for path in sorted(job.folder.glob("*.log"))[-4:]:
        if "JobLostError" in path.read_text() and ALL_DEAD not in path.read_text():
            raise BrokenError(f"{path} does not say why the job is lost")


# --- F21: before and after close() ---------------------------------------------------------------


def dies_after_close(bench: Bench) -> None:
    """The job has ended well; what its processes do afterwards changes nothing (R8).

    Seen to fail when close() neither tells the tracker nor waits for it.
    """
    plan = Plan(4, {**QUIET, "gates": {"1:closed": "gate"}}, killed=1, restart=False)
    with bench.job(plan) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "gate", 1)
        job.kill(1)
        job.finish()
        job.check_against(bench.reference(plan))
        expect("exit status of the tracker", job.tracker_status(), 0)


# --- F32: between the first and the last close() -------------------------------------------------


@contextlib.contextmanager
def _half_closed(bench: Bench, *, killed: int = 0, **settings: object) -> Iterator[Job]:
    """Ranks 0 and 2 have closed; rank 3 is stopped inside its close, and rank 1 waits for it."""
    faults = (f"3.{CLOSE}.0@half_sent#{FROM_3_TO_1}=stop",)
    with bench.job(Plan(4, QUIET, faults, settings, killed=killed, restart=False)) as job:
        job.start_tracker()
        job.start_all()
        for rank in (0, 2):
            job.wait_for("tracker", text=f"worker {rank} has closed")
        job.wait_for("stopped", worker="3")
        yield job
        job.finish()
        ended = len({event["rank"] for event in job.of("end")})
        job.check_against(bench.reference(job.plan), ended=ended)
        expect("exit status of the tracker", job.tracker_status(), 0)


def the_closed_die(*closed: int) -> Run:
    """Count a rank that has closed and told the tracker as done: no rank waits for it (R8).

    Rank 3 dies too, so that a new incarnation has to close without them.  Seen to fail when a place
    that has closed is awaited in a recovery.
    """

    def run(bench: Bench) -> None:
        with _half_closed(bench, killed=len(closed) + 1, detect_within=2.0) as job:
            for worker in closed:
                job.kill(worker)
                job.wait_for("exit", worker=str(worker))
            job.kill(3)
            job.start(3)
        expect("ends", {e["rank"] for e in job.of("end")}, {0, 1, 2, 3} - set(closed))

    return run


def tracker_dies_between_closes(bench: Bench) -> None:
    """The others close in the same epoch, and all say so again to the next tracker (R8, R13).

    Seen to fail when a worker does not repeat that it has closed.
    """
    with _half_closed(bench) as job:
        job.kill_tracker()
        job.kill(3, signal.SIGCONT)
        job.start_tracker()
    expect("ends", len(job.of("end")), 4)
    expect("epochs", [e for e in job.of("tracker") if "epoch 2: " in e["text"]], [])


def tracker_and_a_closed_worker_die(bench: Bench) -> None:
    """The next tracker waits for who has closed, but not for ever (R8, R13).

    Seen to fail when it is not journalled who has closed.
    """
    with _half_closed(bench, killed=1, reattach_within=1.0) as job:
        job.kill_tracker()
        job.kill(0)
        job.kill(3, signal.SIGCONT)
        job.start_tracker()
    expect("ends", {event["rank"] for event in job.of("end")}, {1, 2, 3})


def a_worker_joins_a_finished_job(bench: Bench) -> None:
    """Answer a late worker, known or new, with the final version (R8).

    Seen to fail when a tracker that is started again forgets that all have closed.
    """
    with bench.job(Plan(4, QUIET, exits=(JOB_FINISHED,) * 2)) as job:
        job.run_to_end()
        expect("exit status of the tracker", job.tracker_status(), 0)
        job.start_tracker()
        names = [job.start(1), job.start(7)]
        job.finish()
        for name in names:
            text = (job.folder / f"{name}.log").read_text()
            expect(f"{name} was told", "JobFinishedError" in text, True)
            expect(f"{name} knows the version", "has finished at version 2" in text, True)
        job.check_against(bench.reference(job.plan))


def _scenarios() -> Iterator[Scenario]:
    yield Scenario("F16-version-0", everyone_dies("0.10"), quick=True)
    yield Scenario("F16-version-1", everyone_dies("1.10"))
    yield Scenario("F16-tracker", everyone_and_the_tracker_die)
    yield Scenario("F16-run", everyone_dies_under_run)
    # A death before its own close is an ordinary recovery; after it, and before the tracker knows,
    # a new process closes too, served by the others (R8).  Seen to fail when the end of a
    # connection counts as a close, and when who has closed drops its log.
    for point in ("enter", "done"):
        one, two = f"1.{CLOSE}.0@{point}", f"2.{CLOSE}.0@{point}"
        yield Scenario(f"F21-{point}", planned(one, n=4, program=QUIET), quick=True)
        yield Scenario(f"F21-{point}-two", planned(one, two, n=4, program=QUIET))
    yield Scenario("F21-after", dies_after_close)
    yield Scenario("F32-dies", the_closed_die(0))
    yield Scenario("F32-die", the_closed_die(0, 2))
    yield Scenario("F32-tracker", tracker_dies_between_closes)
    yield Scenario("F32-tracker-dies", tracker_and_a_closed_worker_die)
    yield Scenario("F32-joins", a_worker_joins_a_finished_job, quick=True)


SCENARIOS = tuple(_scenarios())
