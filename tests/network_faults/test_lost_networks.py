"""Networks that lose packets for good: the right bytes, or one typed error on all ranks, in time.

Each worker, the spare and the tracker are hosts of their own.  Nobody starts a process again.
"""

import contextlib
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from ftcomm_chaos.faults.network_namespaces import NamespaceHosts, missing
from tests.network_faults.jobs import MESSAGES, SCRIPT, Job, in_thread, job, peace
from tests.network_faults.test_partitions import flap

pytestmark = [pytest.mark.trio, pytest.mark.process]

RANKS = ("0", "1", "2")
SPARES = ("3", "4")
GATE = 3
REPLACE_WITHIN_S = 20.0
HOLE_BYTES = 700  # of an IP packet: handshakes and signs pass, and a message does not
DETECT = pytest.mark.parametrize(
    "detect_s", [pytest.param(2.0), pytest.param(5.0, marks=pytest.mark.slow)]
)
SCRIPTS = pytest.mark.parametrize("script", [MESSAGES, SCRIPT], ids=["messages", "collectives"])


@pytest.fixture(scope="module")
def network() -> None:
    lacking = missing()
    if lacking:
        pytest.skip(lacking)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By script, the model of a run in peace, made when it is needed."""
    return {}


@dataclass
class Stage:
    """A job that stands at its gate; the names of hosts are those of workers, and tracker."""

    job: Job
    hosts: NamespaceHosts
    limit_s: float

    def make_hole(self, name: str) -> None:
        """Let a host lose all large packets of other workers."""
        tracker = self.hosts.address("tracker")
        rule = f"-A INPUT -i eth0 ! -s {tracker} -m length --length {HOLE_BYTES}: -j DROP"
        subprocess.run([*self.hosts.prefix(name), "iptables", *rule.split()], check=True)

    async def end(self, *, replacements: int = 0) -> set[str]:
        """Open the gate; the models that ranks say, if the job ends within the limit.

        Each replacement begins it anew.
        """
        await self.job.open_gate()
        limit_s = self.limit_s * (1 + replacements)
        with trio.move_on_after(limit_s) as scope:
            await self.job.tracker.wait_for("RankLostError: ", "all ranks have closed")
        assert not scope.cancelled_caught, f"not within {limit_s:g} s\n{self.job.scenario()}"
        return await self.job.models()


@contextlib.asynccontextmanager
async def at_gate(
    folder: Path, detect_s: float, script: str = MESSAGES, *, spares: int = 0
) -> AsyncIterator[Stage]:
    limit_s = REPLACE_WITHIN_S + 2 * detect_s
    with NamespaceHosts([*RANKS, *SPARES, "tracker"]) as hosts:
        async with job(folder, 3, [GATE], script=script, patience_s=3 * limit_s + 30) as made:
            given = ("--host", hosts.address("tracker"), "--detect-within", str(detect_s))
            given += ("--replace-within", str(REPLACE_WITHIN_S))
            await made.serve(*given, prefix=hosts.prefix("tracker"))
            for name in (*RANKS, *SPARES[:spares]):
                await made.start(int(name), prefix=hosts.prefix(name))
                await made.tracker.wait_for(f"worker {name} has joined")
            await made.gate(GATE)
            yield Stage(made, hosts, limit_s)


async def right_model(models: dict[str, str], folder: Path, script: str) -> str:
    if script not in models:
        models[script] = await peace(folder / "peace", 3, script)
    return models[script]


@DETECT
@pytest.mark.usefixtures("network")
async def test_ranks_that_need_each_others_messages_are_relayed(
    tmp_path: Path, models: dict[str, str], detect_s: float
) -> None:
    right = await right_model(models, tmp_path, MESSAGES)
    async with at_gate(tmp_path, detect_s) as stage:
        stage.hosts.cut(["1"], ["2"])
        assert await stage.end() == {right}, stage.job.scenario()
        assert "ranks 1 and 2 cannot reach each other: relayed by rank 0" in stage.job.scenario()
        assert stage.job.epoch == 3, stage.job.scenario()


@SCRIPTS
@DETECT
@pytest.mark.slow
@pytest.mark.usefixtures("network")
async def test_a_spare_takes_the_place_of_a_worker_that_only_the_tracker_reaches(
    tmp_path: Path, models: dict[str, str], detect_s: float, script: str
) -> None:
    right = await right_model(models, tmp_path, script)
    async with at_gate(tmp_path, detect_s, script, spares=1) as stage:
        stage.hosts.cut(["1"], ["0", "2", *SPARES])
        assert await stage.end(replacements=1) == {right}, stage.job.scenario()
        assert "the place of worker 1 is free" in stage.job.scenario()


@SCRIPTS
@DETECT
@pytest.mark.slow
@pytest.mark.usefixtures("network")
async def test_workers_that_only_the_tracker_reaches_end_in_one_error(
    tmp_path: Path, detect_s: float, script: str
) -> None:
    async with at_gate(tmp_path, detect_s, script) as stage:
        for name in RANKS:
            stage.hosts.cut([name], [other for other in RANKS if other > name])
        assert await stage.end() == set(), stage.job.scenario()
        assert "RankLostError" in stage.job.scenario()


@SCRIPTS
@pytest.mark.parametrize("name", RANKS)
@pytest.mark.slow
@pytest.mark.usefixtures("network")
async def test_a_host_that_large_packets_do_not_reach(
    tmp_path: Path, models: dict[str, str], script: str, name: str
) -> None:
    """Its rank does not matter: the relay says which end it does not reach."""
    right = await right_model(models, tmp_path, script)
    async with at_gate(tmp_path, 2.0, script, spares=1) as stage:
        stage.make_hole(name)
        assert await stage.end(replacements=1) == {right}, stage.job.scenario()
        assert f"the place of worker {name} is free" in stage.job.scenario()


@SCRIPTS
@pytest.mark.slow
@pytest.mark.usefixtures("network")
async def test_a_pair_that_is_cut_and_repaired_in_turn(
    tmp_path: Path, models: dict[str, str], script: str
) -> None:
    right = await right_model(models, tmp_path, script)
    async with at_gate(tmp_path, 2.0, script) as stage, trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, flap, stage.hosts, ["1"], ["2"], 4, 3.0)
        assert await stage.end() == {right}, stage.job.scenario()
