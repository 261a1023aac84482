"""Jobs whose network is cut, one-sided, slow or lossy, by the kernel's own means.

Each worker and the tracker are hosts of their own.  Whatever is done to the wires between them, the
model is bit for bit that of a run in peace, and nobody dies.
"""

import contextlib
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftcomm_chaos.faults.network_namespaces import NamespaceHosts, missing
from tests.network_faults.jobs import Job, Reference, in_thread, job

pytestmark = [pytest.mark.trio, pytest.mark.process]

GATE = 6


def last(seconds: float) -> None:
    """Let a fault last; nothing is awaited, and nothing can end it earlier."""
    threading.Event().wait(seconds)


def cut_for(hosts: NamespaceHosts, one: list[str], other: list[str], seconds: float) -> None:
    """Cut, and repair after so many seconds."""
    hosts.cut(one, other)
    try:
        last(seconds)
    finally:
        hosts.repair(one, other)


def flap(
    hosts: NamespaceHosts, one: list[str], other: list[str], times: int, each_s: float
) -> None:
    """Cut and repair, again and again; each state lasts `each_s` seconds."""
    for _ in range(times):
        cut_for(hosts, one, other, each_s)
        last(each_s)


def lose(hosts: NamespaceHosts, name: str, fraction: float) -> None:
    """Let a host lose a fraction of what comes, at random."""
    rule = f"-A INPUT -i eth0 -m statistic --mode random --probability {fraction} -j DROP"
    subprocess.run([*hosts.prefix(name), "iptables", *rule.split()], check=True)


@pytest.fixture(scope="session")
def network() -> None:
    lacking = missing()
    if lacking:
        pytest.skip(lacking)


@dataclass
class Stage:
    """A job on hosts of its own; the names of the hosts are those of the workers, and tracker."""

    job: Job
    hosts: NamespaceHosts

    @property
    def workers(self) -> list[str]:
        return [str(worker) for worker in range(self.job.n)]

    def others(self, *names: str) -> list[str]:
        return [name for name in self.hosts.names if name not in names]

    async def start(self, worker: int) -> None:
        await self.job.start(worker, prefix=self.hosts.prefix(str(worker)))


@contextlib.asynccontextmanager
async def at_gate(
    folder: Path,
    n: int = 3,
    detect_s: float = 1.0,
    *,
    apart: tuple[str, str] | None = None,
    unprivileged: bool | None = None,
) -> AsyncIterator[Stage]:
    """A job that has run for a while; rank 0 waits at the gate, the others for rank 0.

    `apart` are two hosts between which nothing has ever passed.
    """
    names = [*map(str, range(n)), "tracker"]
    with NamespaceHosts(names, unprivileged=unprivileged) as hosts:
        async with job(folder, n, [GATE]) as made:
            stage = Stage(made, hosts)
            given = ("--host", hosts.address("tracker"), "--detect-within", str(detect_s))
            if apart is not None:
                hosts.cut(apart[:1], apart[1:])
            await made.serve(*given, prefix=hosts.prefix("tracker"))
            for worker in range(n):
                await stage.start(worker)
            await made.gate(GATE)
            yield stage


async def same_model(stage: Stage, reference: Reference) -> None:
    """All processes end well, and with the model of the run in peace."""
    assert await stage.job.models() == {await reference(stage.job.n)}, stage.job.scenario()
    assert {status for _, status in stage.job.statuses} <= {0}, stage.job.scenario()


@pytest.mark.usefixtures("network")
async def test_a_worker_that_is_cut_off_from_everybody_comes_back(
    tmp_path: Path, reference: Reference
) -> None:
    async with at_gate(tmp_path) as stage:
        stage.hosts.cut(["1"], stage.others("1"))
        await stage.job.open_gate()
        await stage.job.tracker.wait_for("no heartbeat of worker 1")
        stage.hosts.repair(["1"], stage.others("1"))
        await same_model(stage, reference)


@pytest.mark.usefixtures("network")
async def test_a_partition_shorter_than_the_limit_evicts_nobody(
    tmp_path: Path, reference: Reference
) -> None:
    async with at_gate(tmp_path, detect_s=4.0) as stage:
        await stage.job.open_gate()
        await in_thread(cut_for, stage.hosts, ["1"], stage.others("1"), 1.0)
        await same_model(stage, reference)
        assert stage.job.epoch == 1, stage.job.scenario()


@pytest.mark.slow
@pytest.mark.usefixtures("network")
async def test_two_halves_of_which_one_has_the_tracker(
    tmp_path: Path, reference: Reference
) -> None:
    async with at_gate(tmp_path, 4) as stage:
        stage.hosts.cut(["2", "3"], ["0", "1", "tracker"])
        await stage.job.open_gate()
        for worker in (2, 3):
            await stage.job.tracker.wait_for(f"no heartbeat of worker {worker}")
        stage.hosts.repair(["2", "3"], ["0", "1", "tracker"])
        await same_model(stage, reference)


@pytest.mark.slow
@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("apart", [("0", "1"), None])
async def test_two_hosts_between_which_packets_vanish_work_on_through_the_third(
    tmp_path: Path, reference: Reference, apart: tuple[str, str] | None
) -> None:
    """Rule R12, from the start or while the job runs; what is cut stays so."""
    async with at_gate(tmp_path, apart=apart) as stage:
        stage.hosts.cut(["0"], ["1"])
        await stage.job.open_gate()
        await same_model(stage, reference)
        assert "ranks 0 and 1 cannot reach each other: relayed by rank 2" in stage.job.scenario()


@pytest.mark.slow
@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(("sender", "receiver"), [("0", "1"), ("1", "0"), ("2", "1")])
async def test_one_direction_between_two_workers_is_cut_for_good(
    tmp_path: Path, reference: Reference, sender: str, receiver: str
) -> None:
    async with at_gate(tmp_path) as stage:
        stage.hosts.cut([sender], [receiver], one_way=True)
        await stage.job.open_gate()
        await same_model(stage, reference)
        ends = " and ".join(sorted((sender, receiver)))
        assert f"ranks {ends} cannot reach each other: relayed by" in stage.job.scenario()


@pytest.mark.slow
@pytest.mark.usefixtures("network")
async def test_a_worker_whose_words_do_not_reach_the_tracker_comes_back(
    tmp_path: Path, reference: Reference
) -> None:
    async with at_gate(tmp_path) as stage:
        stage.hosts.cut(["1"], ["tracker"], one_way=True)
        await stage.job.tracker.wait_for("no heartbeat of worker 1")
        stage.hosts.repair(["1"], ["tracker"], one_way=True)
        await stage.job.open_gate()
        await same_model(stage, reference)


@pytest.mark.slow
@pytest.mark.usefixtures("network")
async def test_a_worker_whom_the_trackers_words_do_not_reach_hears_them_later(
    tmp_path: Path, reference: Reference
) -> None:
    """It works on with the others as long as its own words need no answer, perhaps to the end."""
    async with at_gate(tmp_path) as stage:
        stage.hosts.cut(["tracker"], ["1"], one_way=True)
        await stage.job.open_gate()
        await stage.job.tracker.wait_for("no heartbeat of worker 1", "all ranks have closed")
        stage.hosts.repair(["tracker"], ["1"], one_way=True)
        await same_model(stage, reference)


@pytest.mark.slow
@pytest.mark.usefixtures("network")
async def test_a_worker_that_the_tracker_cannot_see_comes_back(
    tmp_path: Path, reference: Reference
) -> None:
    async with at_gate(tmp_path) as stage:
        stage.hosts.cut(["1"], ["tracker"])
        await stage.job.tracker.wait_for("no heartbeat of worker 1")
        stage.hosts.repair(["1"], ["tracker"])
        await stage.job.open_gate()
        await same_model(stage, reference)


@pytest.mark.usefixtures("network")
async def test_a_tracker_that_sees_nobody_waits_for_them(
    tmp_path: Path, reference: Reference
) -> None:
    async with at_gate(tmp_path) as stage:
        stage.hosts.cut(["tracker"], stage.workers)
        await stage.job.open_gate()
        await stage.job.tracker.wait_for("no heartbeat of")
        stage.hosts.repair(["tracker"], stage.workers)
        await same_model(stage, reference)


@pytest.mark.slow
@pytest.mark.usefixtures("network")
async def test_a_slow_link_only_takes_longer(tmp_path: Path, reference: Reference) -> None:
    async with at_gate(tmp_path, detect_s=5.0) as stage:
        stage.hosts.slow("1", 2_000_000)
        await stage.job.open_gate()
        await same_model(stage, reference)
        assert stage.job.epoch == 1, stage.job.scenario()


@pytest.mark.slow
@pytest.mark.usefixtures("network")
async def test_lost_packets_only_take_longer(tmp_path: Path, reference: Reference) -> None:
    if shutil.which("iptables") is None:
        pytest.skip("needs iptables")
    async with at_gate(tmp_path, detect_s=5.0) as stage:
        for name in stage.hosts.names:
            lose(stage.hosts, name, 0.05)
        await stage.job.open_gate()
        await same_model(stage, reference)


@pytest.mark.slow
@pytest.mark.usefixtures("network")
async def test_a_partition_while_a_dead_worker_is_replaced(
    tmp_path: Path, reference: Reference
) -> None:
    """The tracker has revoked the epoch, and one of those who must report is away."""
    async with at_gate(tmp_path, 4) as stage:
        stage.job.kill("2")
        await stage.job.tracker.wait_for("epoch 2")
        stage.hosts.cut(["1"], stage.others("1"))
        await stage.start(2)
        await stage.job.tracker.wait_for("epoch 2, not yet planned: no heartbeat of worker 1")
        stage.hosts.repair(["1"], stage.others("1"))
        await stage.job.open_gate()
        assert await stage.job.models() == {await reference(4)}, stage.job.scenario()


@pytest.mark.slow
@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("each_s", [0.2, 1.5])
async def test_a_link_that_comes_and_goes(
    tmp_path: Path, reference: Reference, each_s: float
) -> None:
    async with at_gate(tmp_path) as stage:
        await stage.job.open_gate()
        await in_thread(flap, stage.hosts, ["1"], stage.others("1"), 5, each_s)
        await same_model(stage, reference)


@pytest.mark.slow
@pytest.mark.usefixtures("network")
async def test_the_same_without_rights(tmp_path: Path, reference: Reference) -> None:
    """In a user namespace: what somebody who is not root can do where the kernel allows it."""
    async with at_gate(tmp_path, unprivileged=True) as stage:
        stage.hosts.cut(["1"], stage.others("1"))
        await stage.job.open_gate()
        await stage.job.tracker.wait_for("no heartbeat of worker 1")
        stage.hosts.repair(["1"], stage.others("1"))
        await same_model(stage, reference)
