"""The scenarios of the list, as functions of a bench; pytest and the soak run the same ones.

The first part of an id names the row of the list.  Plain ones are a program and a plan of
faults; the others drive a job by hand, event by event.
"""

import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tests.conformance.bench import Bench
from tests.conformance.forker import die_with_parent
from tests.conformance.harness import Event, Job
from tests.conformance.plans import ROOT, WALL_S, BrokenError, Plan, worker_environment

Run = Callable[[Bench], None]

RECOVERY_LIMIT_MS = 5000.0  # each recovery of S1
MISMATCH_LIMIT_S = 1.0  # from the last rank's entering to the last rank's error (rule R7)
DETECT_S = 1.0  # where a test waits for it


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One test; `quick` ones belong to the default set."""

    id: str
    run: Run
    quick: bool = False


# --- plain ones -----------------------------------------------------------------------------------

S1 = ("0.0.1.0@enter", "1.1.1.0@enter")
S2 = ("0.0.1.0@enter", "1.1.1.0@enter", "4.1.1.0@enter", "9.1.1.0@enter", "0.1.1.1@enter")
S3 = (*S2, "1.1.1.1@enter", "8.1.2.0@enter", "4.1.3.1@enter")


def model(count: int, **more: Any) -> dict[str, Any]:
    """model_recover with `count` elements in version 0."""
    return {"program": "model_recover", "count": count, **more}


def planned(*faults: str, n: int = 10, program: dict[str, Any], **settings: object) -> Run:
    """Run a program through faults; everything must be as without them."""

    def run(bench: Bench) -> None:
        bench.run(Plan(n, program, faults, settings))

    return run


def each_recovery_is_fast(count: int) -> Run:
    """S1, whose recoveries have a limit."""

    def run(bench: Bench) -> None:
        job = bench.run(Plan(10, model(count, algorithm="ring"), S1, {"algorithm": "ring"}))
        times = [incident["ms"]["total"] for incident in job.incidents()]
        if len(times) != len(S1) or max(times) >= RECOVERY_LIMIT_MS:
            raise BrokenError(f"recoveries took {times} ms")

    return run


def forced(algorithm: str, count: int) -> Run:
    """S8: the program compares with the written order itself."""
    return planned(program=model(count, algorithm=algorithm), algorithm=algorithm)


def _plain() -> Iterator[Scenario]:
    small, full = model(100), model(10_000)
    op = {"program": "one_op", "count": 20_000}
    yield Scenario("S1-small", each_recovery_is_fast(100), quick=True)
    yield Scenario("S1", each_recovery_is_fast(10_000))
    yield Scenario("S2-small", planned(*S2, program=small), quick=True)
    yield Scenario("S2", planned(*S2, program=full))
    yield Scenario("S3-small", planned(*S3, program=small))
    yield Scenario("S3", planned(*S3, program=full))
    for algorithm in ("ring", "recursive_doubling"):
        yield Scenario(f"S8-{algorithm}", forced(algorithm, 1_000))
    for rank in (0, 1, 9):
        yield Scenario(f"F9-{rank}", planned(f"{rank}.1.0.0@enter", program=small))
    together = [f"{rank}.1.0.0@enter" for rank in (0, 1, 9)]
    yield Scenario("F9-together", planned(*together, program=small))
    for n in (3, 10):
        for point in ("half_sent", "half_received"):
            run = planned(f"1.0.0.0@{point}", n=n, program=op)
            yield Scenario(f"F12-{n}-{point}", run, quick=True)
    # A ring of n has n - 1 steps of reduce-scatter, then n - 1 of allgather.
    ring = {**op, "algorithm": "ring"}
    for part, step in (("reduce_scatter", 4), ("allgather", 13)):
        for action in ("kill", "kill_rst", "cut", "reset"):
            fault = f"3.1.0.0@half_received#{step}={action}"
            quick = (part, action) in (("reduce_scatter", "kill"), ("allgather", "reset"))
            # FIN and RST are TCP's words
            run = planned(fault, program=ring, algorithm="ring", transport="tcp")
            yield Scenario(f"F13-{part}-{action}", run, quick=quick)
    keepers = [f"{i % 4}.1.{3 + 2 * i}.{i // 4}@enter" for i in range(8)]
    slow_keepers = planned(*keepers, n=4, program={"program": "many", "steps": 24})
    yield Scenario("F28", slow_keepers, quick=True)
    broadcast = {"program": "many", "steps": 24, "kinds": "broadcast"}
    yield Scenario("F28-broadcast", planned(*keepers, n=4, program=broadcast))
    for seqno in (0, 2, 5, 9, 10):
        fault = f"2.1.{seqno}.0@done"
        yield Scenario(f"F29-{seqno}", planned(fault, n=4, program=small), quick=seqno == 9)
    for point in ("enter", "half_sent", "half_received"):
        # Rank 1 dies too, in the same collective, so that the Revoke for it is on its way.
        faults = (f"1.1.9.0@{point}", f"2.1.{8 if point == 'enter' else 9}.0@done")
        yield Scenario(f"F29-both-{point}", planned(*faults, n=4, program=small))


# --- F17: the tracker dies -----------------------------------------------------------------------

GATED = {"program": "many", "gates": {"1.10": "gate"}}
QUIET = {"program": "many"}


def tracker_dies_in_steady_state(bench: Bench) -> None:
    """It costs no step: the same epoch goes on, before, while and after it is away."""
    reference = bench.reference(Plan(4, QUIET))
    program = {**QUIET, "gates": {"0.10": "first", "1.10": "second"}}
    with bench.job(Plan(4, program)) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "first")
        job.kill_tracker()
        job.open_gate("first")  # collectives go on without a tracker, checkpoints too
        all_at_gate(job, "second")
        job.start_tracker()
        job.wait_for("tracker", text="all workers are back in epoch 1")
        job.open_gate("second")
        job.finish()
        job.check_against(reference)
        expect("epochs", {event["epoch"] for event in job.of("result")}, {1})


def tracker_dies_before_anyone_joined(bench: Bench) -> None:
    """Workers wait for a tracker that is not there yet."""
    reference = bench.reference(Plan(4, QUIET))
    with bench.job(Plan(4, QUIET)) as job:
        job.start_tracker()
        job.kill_tracker()
        job.start_all()
        for worker in range(4):
            job.wait_for("began", worker=str(worker))
        job.start_tracker()
        job.finish()
        job.check_against(reference)


def tracker_dies_in_recovery(stage: str) -> Run:
    """A worker dies, the tracker says `stage` and dies too; both come back."""

    def run(bench: Bench) -> None:
        reference = bench.reference(Plan(4, QUIET))
        plan = Plan(4, GATED, ("1.1.10.0@enter",), restart=False)
        with bench.job(plan) as job:
            job.start_tracker()
            job.start_all()
            all_at_gate(job, "gate")
            job.open_gate("gate")
            job.wait_for("exit", worker="1")
            job.wait_for("tracker", text="epoch 2: ")
            if stage == "stopped":
                job.kill_tracker()
                job.start(1)
                job.start_tracker()
            else:  # the plan may have reached none, some or all
                job.start(1)
                job.wait_for("tracker", text="epoch 2 runs")
                job.kill_tracker()
                job.start_tracker()
            job.finish()
            job.check_against(reference)

    return run


def tracker_dies_at(*addresses: str, program: dict[str, Any] | None = None) -> Run:
    """Between a decision, its journal and its messages to some of the members."""

    def run(bench: Bench) -> None:
        if program is not None:  # it ends with an error, and everyone must hear of it
            with bench.job(Plan(4, program, tracker_faults=addresses, exits=(72,) * 4)) as job:
                job.run()
                expect("ranks that heard", len(job.of("mismatch")), 4)
                return
        bench.run(Plan(4, QUIET, ("1.1.10.0@enter",), tracker_faults=addresses))

    return run


def tracker_dies_again_and_again(bench: Bench) -> None:
    """Three times, at any moment of the work and of a recovery."""
    reference = bench.reference(Plan(4, QUIET))
    with bench.job(Plan(4, QUIET, ("2.1.3.0@half_sent", "3.1.12.0@enter"))) as job:
        job.start_tracker()
        job.start_all()
        for seen in (2, 30, 90):
            job.wait(functools.partial(_has_results, job, seen))
            job.kill_tracker()
            job.start_tracker()
        job.finish()
        job.check_against(reference)


# --- F19: stops, links, long computations --------------------------------------------------------


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
    """Another life has its place: on SIGCONT it is fenced before it completes anything."""
    with stopped_job(bench, exits=(75,), detect_within=DETECT_S) as job:
        old = job.newest(1)
        pid = job.running[old]
        job.wait_for("tracker", text="no heartbeat of worker 1")
        job.start(1)
        job.wait(lambda e: e["kind"] == "joined" and e["worker"] == "1")
        os.kill(pid, signal.SIGCONT)
        job.open_gate("its gate")
        ended = job.wait_for("exit", name=old)
        expect("exit of the fenced life", ended["status"], 75)
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
        job.wait_for("tracker", text="no heartbeat of worker 1")
        job.kill(1, signal.SIGCONT)
        job.finish()
        job.check_against(reference)


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


# --- F20: not one program ------------------------------------------------------------------------


def mismatch(how: str, odd: int = 2) -> Run:
    """The same typed error on all ranks, soon, and no buffer touched (the program looks)."""

    def run(bench: Bench) -> None:
        program = {"program": "mismatch", "how": how, "odd": odd}
        with bench.job(Plan(4, program, exits=(72,) * 4)) as job:
            job.run()
            seen = job.of("mismatch")
            expect("ranks that heard", sorted(event["rank"] for event in seen), [0, 1, 2, 3])
            expect("texts", len({event["text"] for event in seen}), 1)
            text = seen[0]["text"]
            if not ("programs.py:" in text and text.count("called") == 2):
                raise BrokenError(f"both call sites are missing: {text}")
            entered = max(e["t"] for e in job.of("enter") if e["pos"] == "0.2")
            took = max(event["t"] for event in seen) - entered
            if took > MISMATCH_LIMIT_S:
                raise BrokenError(f"the last rank heard after {took:.2f} s")

    return run


# --- F27: completed by one rank alone ------------------------------------------------------------

ROOT_ALONE = {"program": "many", "kinds": "broadcast",
              "gates": {f"{rank}:0.0": "gate" for rank in (1, 2, 3)}}  # fmt: skip


def root_completes_alone(bench: Bench) -> None:
    """Rank 0 alone has 0.0; a newcomer fetches it; then rank 0 dies."""
    reference = bench.reference(Plan(4, {"program": "many", "kinds": "broadcast"}))
    with bench.job(Plan(4, ROOT_ALONE, killed=2)) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "gate", 3)
        job.wait_for("result", pos="0.0", rank=0)
        job.kill(1)
        job.wait(lambda e: e["kind"] == "joined" and e["worker"] == "1" and e["epoch"] > 1)
        job.kill(0)
        job.open_gate("gate")
        job.finish()
        job.check_against(reference)


def root_dies_while_it_serves(bench: Bench) -> None:
    """Rank 0 alone has 0.0 and dies when asked for it: it is executed again, by all."""
    reference = bench.reference(Plan(4, {"program": "many", "kinds": "broadcast"}))
    with bench.job(Plan(4, ROOT_ALONE, ("0.0.1.0@serving",), killed=1)) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "gate", 3)
        job.wait_for("enter", pos="0.1", rank=0)
        job.kill(1)
        job.wait_for("exit", worker="0")
        job.open_gate("gate")
        job.finish()
        job.check_against(reference)


# --- helpers --------------------------------------------------------------------------------------


def all_at_gate(job: Job, gate: str, count: int | None = None) -> None:
    """Wait until all ranks, or `count` of them, stand at the gate."""
    wanted = count or job.plan.n

    def there(_: Event) -> bool:
        return len({e["rank"] for e in job.of("gate") if e["gate"] == gate}) >= wanted

    job.wait(there)


def _has_results(job: Job, count: int, _: Event) -> bool:
    return len(job.of("result")) >= count


@contextlib.contextmanager
def stopped_job(bench: Bench, exits: tuple[int, ...] = (), **settings: object) -> Iterator[Job]:
    """A job of four at its gate, whose worker 1 has been stopped."""
    program = {**QUIET, "gates": {"1:1.10": "its gate", "1.10": "gate"}}
    with bench.job(Plan(4, program, settings=settings, exits=exits)) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "gate", 3)
        all_at_gate(job, "its gate", 1)
        job.kill(1, signal.SIGSTOP)
        yield job


def under_run(
    bench: Bench, program: dict[str, Any], *options: str, faults: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a program under the launcher to its end; its output is text of both streams."""
    folder = bench.new_folder()
    events = folder / "events"
    events.touch()
    environment = {
        **worker_environment(),
        "CONFORMANCE": json.dumps(program),
        "CONFORMANCE_EVENTS": str(events),
        "CONFORMANCE_DIR": str(folder),
        "FTCOMM_FAULTS": faults,
        "FTCOMM_FAULTS_LOG": str(events),
    }
    command = [sys.executable, "-m", "ftcomm_tracker.cli", "run", *options, "--"]
    return subprocess.run(
        [*command, sys.executable, "-m", "tests.conformance.programs"],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WALL_S,
        check=False,
        preexec_fn=die_with_parent,
    )


def expect(what: str, got: object, expected: object) -> None:
    """Compare.

    Raises:
        BrokenError: naming both.
    """
    if got != expected:
        raise BrokenError(f"{what}: {got}, expected {expected}")


def _driven() -> Iterator[Scenario]:
    yield Scenario("F17-steady", tracker_dies_in_steady_state, quick=True)
    yield Scenario("F17-empty", tracker_dies_before_anyone_joined)
    yield Scenario("F17-stopped", tracker_dies_in_recovery("stopped"), quick=True)
    yield Scenario("F17-planned", tracker_dies_in_recovery("planned"))
    for place in (
        ("1.0@accepted#2",),
        ("1.1@epoch_journalled#1",),
        ("1.2@epoch_journalled#1",),
        ("1.1@revoke_sent#2",),
        ("1.2@revoke_sent#2",),
        ("1.1@plan_sent#2",),
        ("1.2@plan_sent#1",),
        ("1.2@plan_sent#3",),
        ("1.2@all_bye_journalled#1",),
        ("1.2@revoke_sent#1", "2.3@plan_sent#2"),
    ):
        quick = place == ("1.2@plan_sent#3",)
        yield Scenario(f"F17-{'-'.join(place)}", tracker_dies_at(*place), quick=quick)
    verdict = tracker_dies_at(
        "1.1@verdict_journalled#1", program={"program": "mismatch", "how": "op", "odd": 2}
    )
    yield Scenario("F17-1.1@verdict_journalled#1", verdict)
    yield Scenario("F17-thrice", tracker_dies_again_and_again)
    yield Scenario("F19-stop-short", stopped_for_less_than_the_limit, quick=True)
    yield Scenario("F19-stop-long", stopped_for_longer)
    yield Scenario("F19-stop-replaced", stopped_and_replaced, quick=True)
    yield Scenario("F19-stop-inside", stopped_inside_a_collective)
    for action in ("cut", "reset"):
        yield Scenario(f"F19-link-{action}", one_link_breaks(action), quick=True)
    for how in ("python", "numpy", "gil"):
        yield Scenario(f"F19-busy-{how}", busy_under_run(how), quick=how == "gil")
    for how in ("op", "dtype", "count", "root", "kind", "fewer"):
        yield Scenario(f"F20-{how}", mismatch(how), quick=how in ("dtype", "fewer"))
    yield Scenario("F20-fewer-0", mismatch("fewer", odd=0))
    yield Scenario("F27-alone", root_completes_alone)
    yield Scenario("F27-serving", root_dies_while_it_serves)


SCENARIOS = tuple(sorted([*_plain(), *_driven()], key=lambda scenario: scenario.id))
