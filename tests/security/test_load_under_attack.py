"""Long or heavy attacks while the job must recover, and the peace after them."""

import json
import os
import resource
import select
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.security.tracker_under_attack import (
    DOORS,
    PATIENCE_S,
    SUM,
    AttackedJob,
    Caller,
    Door,
    cpu_s,
    descriptors,
    forget,
)

pytestmark = pytest.mark.process


@contextmanager
def crowds(attacked_job: AttackedJob, size: int) -> Iterator[None]:
    """So many silent connections at each door at once."""
    with ExitStack() as stack:
        for door in attacked_job.doors.values():
            for _ in range(size):
                stack.enter_context(door.knock())
        yield


def sums(attacked_job: AttackedJob) -> list[object]:
    return [step["sum"] for step in attacked_job.step()]


def test_a_worker_that_dies_under_attack_is_replaced_and_goes_on(
    attacked_job: AttackedJob,
) -> None:
    before = attacked_job.status()["members"][1]["incarnation"]
    attacked_job.step()
    with crowds(attacked_job, 200):
        assert [step["sum"] for step in attacked_job.restart(1)] == [SUM] * attacked_job.steps
        assert sums(attacked_job) == [SUM, SUM]
    assert attacked_job.status()["members"][1]["incarnation"] == before + 1
    attacked_job.renew()


@pytest.mark.parametrize("door", [DOORS[0], DOORS[1]], ids=["tracker", "worker"])
def test_exhausted_descriptors_end_nobody_and_come_back(
    attacked_job: AttackedJob, door: str
) -> None:
    """Fewer descriptors than unauthenticated peers: accepting fails until they hang up."""
    attacked_job.step()
    attacked = attacked_job.process_of(door)
    before, said = descriptors(attacked), len(attacked_job.logs())
    with few_descriptors(attacked, 48), ExitStack() as crowd:
        knock = attacked_job.doors[door].knock
        callers = [crowd.enter_context(knock()) for _ in range(100)]
        until_full(attacked, 48)
        for caller in callers:  # answered without a descriptor more
            with suppress(ConnectionError):
                caller.sock.sendall(attacked_job.doors[door].greeting(key=bytes(32)).hello())
        assert sums(attacked_job) == [SUM, SUM]
    attacked_job.must_be_unharmed(door)
    until_at_most(attacked, before)
    assert len(attacked_job.logs()) - said < 1 << 20


@contextmanager
def few_descriptors(pid: int, count: int) -> Iterator[None]:
    """Only for a while: a tracker that may open so few files does not start."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def until_full(pid: int, limit: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while descriptors(pid) < limit - 1:
        assert time.monotonic() < until, descriptors(pid)


def until_at_most(pid: int, count: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while descriptors(pid) > count:
        assert time.monotonic() < until, (descriptors(pid), count)


def test_a_squatter_at_the_trackers_address_costs_no_member_its_place(
    attacked_job: AttackedJob,
) -> None:
    """The tracker is away; somebody who has another token takes its address and answers."""
    attacked_job.step()
    forget(attacked_job.tracker)
    with socket.create_server(attacked_job.address) as listener:
        listener.settimeout(PATIENCE_S)
        for _ in range(2):  # each worker, or one of them twice
            conn, _ = listener.accept()
            with conn:
                conn.settimeout(PATIENCE_S)
                greeting = Caller(conn).exactly(8 + 32)
                conn.sendall(greeting[:6] + b"\0\0" + os.urandom(64))
                assert Caller(conn).until_end() == b"", (
                    "a worker proved itself to an unauthenticated peer"
                )
    attacked_job.tracker = attacked_job.start(
        "tracker", "serve", "--state-dir", str(attacked_job.state)
    )
    assert f"job={attacked_job.job} " in attacked_job.line(attacked_job.tracker)
    assert sums(attacked_job) == [SUM, SUM]
    while attacked_job.status()["state"] == "REATTACHING":
        pass
    attacked_job.must_be_unharmed("tracker")


@pytest.mark.slow
def test_after_the_attack_everyone_is_idle(attacked_job: AttackedJob) -> None:
    """Heartbeats go on. The bound is far above what was measured, for a busy machine's sake."""
    attacked_job.step()
    for door in attacked_job.doors.values():
        batter(door, 300)
    for name in DOORS:
        if name in attacked_job.doors:
            attacked_job.must_be_unharmed(name)
    pids = {"tracker": attacked_job.tracker.pid, "worker": attacked_job.workers[0].pid}
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    let_heartbeats_go_on(attacked_job, 30.0)
    used = {name: (cpu_s(pid) - before[name]) / 30.0 for name, pid in pids.items()}
    report = {name: f"{100 * share:.2f} %" for name, share in used.items()}
    waits = attacked_job.joined_ms
    report["honest callers, ms"] = f"median {statistics.median(waits):.1f}, most {max(waits):.1f}"
    print(json.dumps(report))  # noqa: T201 - the measurement, for `pytest -s`
    assert max(used.values()) < 0.05


def batter(door: Door, times: int) -> None:
    for _ in range(times):
        with door.knock() as caller:
            caller.say(b"\xff" * 100)


def let_heartbeats_go_on(attacked_job: AttackedJob, seconds: float) -> None:
    """Wait for what nobody says, for so long."""
    worker = attacked_job.workers[0]
    assert select.select([worker.stdout], [], [], seconds)[0] == []
    assert worker.poll() is None
