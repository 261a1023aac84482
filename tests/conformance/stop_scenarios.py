"""Nobody dies: stops, broken links and long computations, F19."""

import contextlib
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
    under_run,
)
from tests.conformance.verdict import Event


def stopped_for_less_than_the_limit(bench: Bench) -> None:
    """Late is not dead: nobody is evicted and no epoch changes."""
    with stopped_job(bench, detect_within=3.0) as job:
        job.wait_for("tracker", text="worker 1 is late")
        job.kill(1, signal.SIGCONT)
        job.open_gate("its gate")
        job.open_gate("gate")
        job.finish()
        job.check_against(bench.reference(Plan(4, QUIET)))
        expect("epochs", {event["epoch"] for event in job.of("result")}, {1})


def stopped_for_longer(bench: Bench) -> None:
    """Evicted, never replaced: it simply comes back."""
    with stopped_job(bench, detect_within=DETECT_S) as job:
        job.wait_for("tracker", text="no heartbeat of worker 1")
        job.kill(1, signal.SIGCONT)
        job.open_gate("its gate")
        job.open_gate("gate")
        job.finish()
        job.check_against(bench.reference(Plan(4, QUIET)))


def stopped_and_replaced(bench: Bench) -> None:
    """Another incarnation has its place: on SIGCONT it is fenced before it completes anything."""
    with stopped_job(bench, exits=(75,), detect_within=DETECT_S) as job:
        old = job.newest(1)
        pid = job.running[old]
        job.wait_for("tracker", text="no heartbeat of worker 1")
        job.start(1)
        job.wait(lambda e: e["kind"] == "joined" and e["worker"] == "1")
        os.kill(pid, signal.SIGCONT)
        job.open_gate("its gate")
        ended = job.wait_for("exit", name=old)
        expect("exit of the fenced incarnation", ended["status"], 75)
        job.open_gate("its gate")
        job.open_gate("gate")
        job.finish()
        job.check_against(bench.reference(Plan(4, QUIET)))


def stopped_inside_a_collective(bench: Bench) -> None:
    """It stops with half of a block sent; the others wait, then go on without it."""
    reference = bench.reference(Plan(4, QUIET))
    fault = "1.1.7.0@half_sent=stop"
    with bench.job(Plan(4, QUIET, (fault,), {"detect_within": DETECT_S})) as job:
        job.start_tracker()
        job.start_all()
        job.wait_for("stopped", worker="1")
        job.wait(is_evicted)  # a second later at the earliest, so it has yet to come
        job.kill(1, signal.SIGCONT)
        job.finish()
        job.check_against(reference)


def is_evicted(event: Event) -> bool:
    """The tracker has waited for worker 1 for long enough."""
    return event["kind"] == "tracker" and "no heartbeat of worker 1" in event["text"]


def one_link_breaks(action: str) -> Run:
    """Nobody dies; one epoch change."""

    def run(bench: Bench) -> None:
        job = bench.run(Plan(4, QUIET, (f"1.1.7.0@half_sent={action}",)))
        expect("highest epoch", max(event["epoch"] for event in job.of("result")), 2)

    return run


def busy_under_run(how: str) -> Run:
    """A worker that computes for three times the limit is left alone under a supervisor."""

    def run(bench: Bench) -> None:
        program = {"program": "busy", "busy": 1, "how": how, "seconds": 3 * DETECT_S}
        done = under_run(bench, program, "-n", "4", "--detect-within", str(DETECT_S))
        expect("exit status", done.returncode, 0)
        lost = [line for line in done.stdout.splitlines() if "epoch 2" in line]
        expect("epoch changes", lost, [])

    return run


@contextlib.contextmanager
def stopped_job(bench: Bench, exits: tuple[int, ...] = (), **settings: object) -> Iterator[Job]:
    """A job of four at its gate, whose worker 1 has been stopped."""
    program = {**QUIET, "gates": {"1:1.10": "its gate", "1.10": "gate"}}
    with bench.job(Plan(4, program, settings=settings, exits=exits, stopped=1)) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "gate", 3)
        all_at_gate(job, "its gate", 1)
        job.kill(1, signal.SIGSTOP)
        yield job


def _scenarios() -> Iterator[Scenario]:
    yield Scenario("F19-stop-short", stopped_for_less_than_the_limit, quick=True)
    yield Scenario("F19-stop-long", stopped_for_longer)
    yield Scenario("F19-stop-replaced", stopped_and_replaced, quick=True)
    yield Scenario("F19-stop-inside", stopped_inside_a_collective)
    for action in ("cut", "reset"):
        yield Scenario(f"F19-link-{action}", one_link_breaks(action), quick=True)
    for how in ("python", "numpy", "gil"):
        yield Scenario(f"F19-busy-{how}", busy_under_run(how), quick=how == "gil")


SCENARIOS = tuple(_scenarios())
