"""Scenarios, and the steps that several of them share."""

import contextlib
import dataclasses
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.conformance.bench import Bench
from tests.conformance.harness import Job
from tests.conformance.plans import ROOT, WALL_S, BrokenError, Plan, worker_environment
from tests.conformance.verdict import Event
from tests.helpers.forker import die_with_parent
from tests.helpers.unused_port import unused_port

Run = Callable[[Bench], None]

DETECT_S = 1.0  # where a test waits for it
QUIET = {"program": "many"}


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One test; those that are not `quick` run at night alone."""

    id: str
    run: Run
    quick: bool = False


def said_by_all(job: Job, error: str, ranks: int) -> str:
    """The words of `error`, which must be the same in every rank's output."""
    texts = [path.read_text() for path in sorted(job.folder.glob("[0-9].[0-9]*.log"))]
    said = [
        line
        for text in texts
        for line in text.splitlines()
        if line.startswith(f"ftcomm.errors.{error}: ")
    ]
    assert (len(said), len(set(said))) == (ranks, 1), said
    return said[0]


def model(count: int, **more: Any) -> dict[str, Any]:
    """model_recover with `count` elements in version 0."""
    return {"program": "model_recover", "count": count, **more}


def planned(*faults: str, n: int = 10, program: dict[str, Any], **settings: object) -> Run:
    """Run a program through faults; everything must be as without them."""

    def run(bench: Bench) -> None:
        bench.run(Plan(n, program, faults, settings))

    return run


@contextlib.contextmanager
def address() -> Iterator[tuple[str, Callable[[], None]]]:
    """An address that nothing else gets until it is given back."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", unused_port("127.0.0.1")))
        yield f"127.0.0.1:{held.getsockname()[1]}", held.close


def all_at_gate(job: Job, gate: str, count: int | None = None) -> None:
    """Wait until all ranks, or `count` of them, stand at the gate."""
    wanted = count or job.plan.n

    def there(_: Event) -> bool:
        return len({e["rank"] for e in job.of("gate") if e["gate"] == gate}) >= wanted

    job.wait(there)


def has_results(job: Job, count: int, _: Event) -> bool:
    """True once `count` results have been written down; give the first two to `partial`."""
    return len(job.of("result")) >= count


def under_run(
    bench: Bench, program: dict[str, Any], *options: str, faults: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a program under the launcher to its end; its output is text of both streams."""
    folder = bench.new_folder()
    (folder / "events").touch()
    with start_under_run(folder, program, *options, faults=faults) as launcher:
        output, _ = launcher.communicate(timeout=WALL_S)
    return subprocess.CompletedProcess(launcher.args, launcher.returncode, output)


@contextlib.contextmanager
def start_under_run(
    folder: Path, program: dict[str, Any], *options: str, faults: str = ""
) -> Iterator["subprocess.Popen[str]"]:
    """A program under the launcher, which is killed when the block is left.

    `folder` holds ``events`` and the gates.
    """
    environment = {
        **worker_environment(),
        "CONFORMANCE": json.dumps(program),
        "CONFORMANCE_EVENTS": str(folder / "events"),
        "CONFORMANCE_DIR": str(folder),
        "FTCOMM_FAULTS": f"{faults}>{folder / 'events'}",
    }
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-v", *options, "--"]
    with subprocess.Popen(
        [*command, sys.executable, "-m", "tests.conformance.programs"],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - the harness has one thread
    ) as launcher:
        try:
            yield launcher
        finally:
            launcher.kill()


def expect(what: str, got: object, expected: object) -> None:
    """Compare.

    Raises:
        BrokenError: naming both.
    """
    if got != expected:
        raise BrokenError(f"{what}: {got}, expected {expected}")
