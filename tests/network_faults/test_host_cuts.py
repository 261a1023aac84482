"""Four hosts of two ranks each, between some of which packets vanish for good."""

from pathlib import Path

import pytest

from ftcomm_chaos.faults.network_namespaces import NamespaceHosts, missing
from tests.network_faults.jobs import job

pytestmark = [pytest.mark.trio, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]

GATE = 6
HOSTS = "abcd"
RANKS = 8
FOUND_IN = 2  # epochs: the first failure, and the one that shows that it was no accident


async def model_of(
    folder: Path, hosts: NamespaceHosts, cuts: list[str]
) -> tuple[set[str], int, str]:
    """Models, highest epoch and scenario of a job whose `cuts`, as "ab", are made at a gate."""
    async with job(folder, RANKS, [GATE]) as made:
        given = ("--host", hosts.address("tracker"), "--detect-within", "3")
        await made.serve(*given, prefix=hosts.prefix("tracker"))
        for worker in range(RANKS):
            name = HOSTS[worker * len(HOSTS) // RANKS]
            await made.start(worker, prefix=hosts.prefix(name), FTCOMM_HOST=name)
        await made.gate(GATE)
        for one, other in cuts:
            hosts.cut([one], [other])
        await made.open_gate()
        return await made.models(), made.epoch, made.scenario()


@pytest.mark.parametrize("cuts", [["ab"], ["ab", "cd"], ["ab", "ac"]])
async def test_all_detours_around_cuts_between_hosts_are_found_in_two_epochs(
    tmp_path: Path, cuts: list[str]
) -> None:
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    for name in ("peace", "cut"):
        tmp_path.joinpath(name).mkdir()
    with NamespaceHosts([*HOSTS, "tracker"]) as hosts:
        in_peace, _, _ = await model_of(tmp_path / "peace", hosts, [])
        models, epoch, scenario = await model_of(tmp_path / "cut", hosts, cuts)
    assert (models, epoch) == (in_peace, 1 + FOUND_IN), scenario
    assert scenario.count("hosts ") == len(cuts), scenario
