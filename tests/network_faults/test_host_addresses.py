"""Hosts with addresses that are easily confused: loopback, IPv6 alone, several interfaces."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcomm_chaos.faults.network_namespaces import NamespaceHosts, missing
from tests.network_faults.jobs import Job, Reference, job

pytestmark = [pytest.mark.trio, pytest.mark.process, pytest.mark.timeout(90)]

CONFIG_ERROR = 64
NETWORK = "fd09::"
# As Docker makes it on each machine, with one address everywhere, and it comes first.
BRIDGE = [
    "link add docker0 type bridge",
    "addr add 172.17.0.1/16 dev docker0",
    "link set docker0 up",
]


@pytest.fixture
def hosts() -> Iterator[NamespaceHosts]:
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    with NamespaceHosts(["a", "b"]) as made:
        yield made


def configure(hosts: NamespaceHosts, name: str, *commands: str) -> None:
    """Give `ip` commands on a host."""
    text = "\n".join(commands)
    subprocess.run([*hosts.prefix(name), "ip", "-batch", "-"], input=text, text=True, check=True)


async def start_on(made: Job, hosts: NamespaceHosts, worker: int, name: str, tracker: str) -> None:
    address = f"{tracker}:{made.ready['address'].rpartition(':')[2]}"
    variables = {"FTCOMM_HOST": name, "FTCOMM_TRACKER": address}
    await made.start(worker, prefix=hosts.prefix(name), **variables)


@pytest.mark.parametrize("later", ["a", "b"])
async def test_a_worker_that_dials_loopback_is_told_which_address_to_dial(
    tmp_path: Path, hosts: NamespaceHosts, reference: Reference, later: str
) -> None:
    """It is the worker on the tracker's host; once it dials that address, the job runs."""
    own = hosts.address("a")
    async with job(tmp_path, 2) as made:
        await made.serve("--host", "0.0.0.0", prefix=hosts.prefix("a"))
        for name in "ba" if later == "a" else "ab":
            worker, tracker = (1, "127.0.1.1") if name == "a" else (0, own)
            await start_on(made, hosts, worker, name, tracker)
            await made.tracker.wait_for(f"worker {worker} has joined", "refused a worker")
        assert await made.end_of("1") == CONFIG_ERROR, made.scenario()
        said = await made.workers[1].wait_for("ftcomm.errors.ConfigError: ")
        _, _, advice = said.partition("start worker 1 with FTCOMM_TRACKER=")
        told = advice.split(",")[0]
        assert told.rpartition(":")[0] == own, said
        await start_on(made, hosts, 1, "a", own)
        assert await made.models() == {await reference(2)}, made.scenario()


async def test_hosts_that_have_ipv6_alone(
    tmp_path: Path, hosts: NamespaceHosts, reference: Reference
) -> None:
    for number, name in enumerate("ab", start=1):
        add = f"addr add {NETWORK}{number}/64 dev eth0 nodad"
        configure(hosts, name, f"addr del {hosts.address(name)}/24 dev eth0", add)
    async with job(tmp_path, 2) as made:
        await made.serve("--host", f"{NETWORK}1", prefix=hosts.prefix("a"))
        for worker, name in enumerate("ab"):
            await start_on(made, hosts, worker, name, f"[{NETWORK}1]")
        assert await made.models() == {await reference(2)}, made.scenario()
        assert made.epoch == 1, made.scenario()


async def test_hosts_with_an_interface_that_has_the_same_address_everywhere(
    tmp_path: Path, hosts: NamespaceHosts, reference: Reference
) -> None:
    for name in "ab":
        own = f"{hosts.address(name)}/24 dev eth0"
        configure(hosts, name, f"addr del {own}", *BRIDGE, f"addr add {own}")
    async with job(tmp_path, 2) as made:
        await made.serve("--host", "0.0.0.0", prefix=hosts.prefix("a"))
        for worker, name in enumerate("ba"):
            await start_on(made, hosts, worker, name, hosts.address("a"))
        assert await made.models() == {await reference(2)}, made.scenario()
        assert made.epoch == 1, made.scenario()
