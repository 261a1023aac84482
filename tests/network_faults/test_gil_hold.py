"""A worker whose interpreter stands still, though its script knows nothing of it (F19)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.plans import worker_environment
from tests.network_faults import gil_hold
from tests.network_faults.jobs import Job, Reference, job

pytestmark = pytest.mark.process

TICKS = """
import time
while True:
    print(time.monotonic(), flush=True)
    time.sleep(0.01)
"""
# Another program in the same process, as of a script that sets PYTHONHASHSEED for itself.
BECOMES = """
import os, sys
print_all = "import threading; print(seen, 'ftcomm-chaos' in map(lambda t: t.name,"
print_all += " threading.enumerate()))"
os.execv(sys.executable, [sys.executable, "-c", print_all])
"""


def path_with(folder: Path) -> str:
    """PYTHONPATH for a process that shall wait for orders."""
    return os.pathsep.join([str(folder), worker_environment()["PYTHONPATH"]])


@pytest.mark.parametrize("way", gil_hold.WAYS)
def test_the_script_stands_still_as_long_as_the_lock_is_held(tmp_path: Path, way: str) -> None:
    folder = gil_hold.write_module(tmp_path / "module")
    env = {**os.environ, "PYTHONPATH": path_with(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", TICKS], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        last = float(process.stdout.readline())
        assert gil_hold.is_ready(folder, process.pid)
        while not gil_hold.hold(
            folder, process.pid, 1.0, way
        ):  # until its thread has the pipe open
            last = float(process.stdout.readline())
        while (tick := float(process.stdout.readline())) - last < 1.0:
            last = tick
        process.kill()
    assert not gil_hold.hold(folder, process.pid, 1.0)


def test_the_module_that_it_stands_before_is_imported_too(tmp_path: Path) -> None:
    folder = gil_hold.write_module(tmp_path / "module")
    own = tmp_path / "own"
    own.mkdir()
    (own / gil_hold.MODULE).write_text("import builtins; builtins.seen = __name__")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(own)])}
    said = subprocess.run(
        [sys.executable, "-c", "print(seen)"], env=env, capture_output=True, text=True, check=True
    )
    assert said.stdout == "sitecustomize\n", said.stderr


def test_a_process_that_becomes_another_program_waits_for_orders_again(tmp_path: Path) -> None:
    folder = gil_hold.write_module(tmp_path / "module")
    own = tmp_path / "own"
    own.mkdir()
    (own / gil_hold.MODULE).write_text("import builtins; builtins.seen = __name__")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(own)])}
    said = subprocess.run(
        [sys.executable, "-c", BECOMES], env=env, capture_output=True, text=True, check=True
    )
    assert (said.stdout, said.stderr) == ("sitecustomize True\n", "")


def test_what_cannot_wait_for_orders_leaves_the_module_behind_it_alone(tmp_path: Path) -> None:
    folder = gil_hold.write_module(tmp_path / "module")
    (folder / "pipes").rmdir()
    (folder / "own").mkdir()
    (folder / "own" / gil_hold.MODULE).write_text("import builtins; builtins.seen = __name__")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(folder / "own")])}
    said = subprocess.run(
        [sys.executable, "-c", "print(seen)"], env=env, capture_output=True, text=True, check=False
    )
    assert said.stdout == "sitecustomize\n", said.stderr


async def hold_one(made: Job, folder: Path, way: str) -> None:
    """Start a job, and at its gate hold the GIL of worker 1 for three times the limit."""
    await made.serve("--detect-within", "1")
    await made.start(0)
    await made.start(1, supervised=True, PYTHONPATH=path_with(folder))
    await made.gate(6)
    said = await made.workers[1].wait_for("pid ")
    assert gil_hold.hold(folder, int(said.split()[-1]), 3.0, way)


@pytest.mark.trio
async def test_a_worker_that_computes_with_the_lock_held_is_left_alone(
    tmp_path: Path, reference: Reference
) -> None:
    async with job(tmp_path, 2, [6]) as made:
        await hold_one(made, gil_hold.write_module(tmp_path / "module"), gil_hold.BUSY)
        await made.open_gate()
        assert await made.models() == {await reference(2)}, made.scenario()
        assert made.epoch == 1, made.scenario()


@pytest.mark.trio
@pytest.mark.slow
async def test_a_worker_that_sleeps_with_the_lock_held_counts_as_stopped_and_comes_back(
    tmp_path: Path, reference: Reference
) -> None:
    async with job(tmp_path, 2, [6]) as made:
        await hold_one(made, gil_hold.write_module(tmp_path / "module"), gil_hold.ASLEEP)
        await made.tracker.wait_for("no heartbeat of worker 1")
        await made.open_gate()
        assert await made.models() == {await reference(2)}, made.scenario()
