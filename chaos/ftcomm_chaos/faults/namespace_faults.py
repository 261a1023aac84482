"""Faults of plans that break wires: each worker and the tracker are hosts of their own."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from ftcomm_chaos.faults import network_namespaces
from ftcomm_chaos.faults.fault_kinds import (
    TRACKER,
    FaultKind,
    Hit,
    NotDeliveredError,
    Parameter,
    Preparation,
    RunningJob,
    Target,
    register,
)
from ftcomm_chaos.faults.network_namespaces import HostsError, NamespaceHosts
from ftcomm_chaos.faults.process_faults import BOTH, DIRECTIONS, IN, OUT, WORKERS

EVERYBODY = "everybody"
OTHERS = "workers"
NO_PROXY = ("impaired",)  # is on the runner's loopback, which no such host reaches
PEERS = (EVERYBODY, OTHERS, TRACKER)


async def hosts_of(run: Preparation) -> NamespaceHosts:
    """The hosts of a run, made once; the job's processes are brought there."""
    known = run.shared.get("hosts")
    if isinstance(known, NamespaceHosts):
        return known
    hosts = NamespaceHosts([*run.workers, TRACKER])
    await trio.to_thread.run_sync(hosts.__enter__)
    run.at_end.push(hosts)
    run.shared["hosts"] = hosts
    run.own_tracker = True
    run.options += ["--host", hosts.address(TRACKER)]
    run.tracker_prefix += hosts.prefix(TRACKER)
    for worker in run.workers:
        run.supervisor_prefix.setdefault(worker, []).extend(hosts.prefix(worker))
    return hosts


async def _do(action: Any, *arguments: Any) -> None:
    """Run a few commands of the system beside the event loop.

    Raises:
        NotDeliveredError: one of them failed.
    """
    try:
        await trio.to_thread.run_sync(action, *arguments)
    except HostsError as error:
        raise NotDeliveredError(str(error)) from error


@dataclass(slots=True)
class Partition:
    """Packets between some hosts and others vanish, in one direction or both."""

    target: Target
    peers: str
    direction: str
    _hosts: NamespaceHosts | None = None
    _cuts: list[tuple[list[str], list[str]]] = field(default_factory=list)

    def missing(self) -> str:
        """Namespaces, and the tools for them."""
        return network_namespaces.missing()

    async def prepare(self, run: Preparation) -> None:
        """Make the hosts."""
        self._hosts = await hosts_of(run)

    async def fire(self, job: RunningJob, dice: random.Random) -> Hit:
        """Cut; those who are hit still reach each other."""
        assert self._hosts is not None
        workers = self.target.pick(job, dice)
        others = [worker for worker in job.workers if worker not in workers]
        peers = {EVERYBODY: [*others, TRACKER], OTHERS: others, TRACKER: [TRACKER]}[self.peers]
        if not peers:
            raise NotDeliveredError(f"{self.target} leaves nobody to be parted from")
        for way, cut in ((OUT, (list(workers), peers)), (IN, (peers, list(workers)))):
            if self.direction in (BOTH, way):
                self._cuts.append(cut)
                await _do(self._hosts.cut_one_way, *cut)
        return Hit(workers, f"{', '.join(workers)} parted from {', '.join(peers)}")

    async def undo(self, job: RunningJob) -> None:
        """Repair what was cut."""
        del job
        assert self._hosts is not None
        while self._cuts:
            await _do(self._hosts.repair_one_way, *self._cuts.pop())


@dataclass(slots=True)
class BadLink:
    """A host's link carries little, or loses packets."""

    target: Target
    kbits_per_s: int
    loss: float
    _hosts: NamespaceHosts | None = None
    _hit: tuple[str, ...] = ()

    def missing(self) -> str:
        """Namespaces, and ``tc`` or ``iptables``."""
        return network_namespaces.missing(loss=self.loss > 0, slow=self.kbits_per_s > 0)

    async def prepare(self, run: Preparation) -> None:
        """Make the hosts."""
        self._hosts = await hosts_of(run)

    async def fire(self, job: RunningJob, dice: random.Random) -> Hit:
        """Make the links of the target bad."""
        self._hit = self.target.pick(job, dice)
        await self._set(self.kbits_per_s, self.loss)
        words = f"{self.kbits_per_s} kbit/s" if self.kbits_per_s else f"{self.loss:.0%} lost"
        return Hit(self._hit, f"{words} for {', '.join(self._hit)}")

    async def undo(self, job: RunningJob) -> None:
        """Make them good again."""
        del job
        await self._set(0, 0.0)

    async def _set(self, kbits_per_s: int, loss: float) -> None:
        assert self._hosts is not None
        for name in self._hit:
            if self.kbits_per_s:
                await _do(self._hosts.slow, name, kbits_per_s * 1000)
            else:
                await _do(self._hosts.lose, name, loss)


def _partition(target: Target, parameters: Mapping[str, Any]) -> Partition:
    return Partition(target, parameters["from"], parameters["direction"])


def _slow_link(target: Target, parameters: Mapping[str, Any]) -> BadLink:
    return BadLink(target, parameters["kbits_per_s"], 0.0)


def _lossy_link(target: Target, parameters: Mapping[str, Any]) -> BadLink:
    return BadLink(target, 0, parameters["loss"])


register(
    [
        FaultKind(
            "partition",
            "packets vanish between the worker and others; each is a host in a network namespace",
            _partition,
            WORKERS,
            {
                "from": Parameter(EVERYBODY, "from whom it is cut", choices=PEERS),
                "direction": Parameter(
                    BOTH, "what it sends (`out`), what it should get, or both", choices=DIRECTIONS
                ),
            },
            lasting=True,
            not_with=NO_PROXY,
        ),
        FaultKind(
            "slow_link",
            "the worker's link carries no more than that, by `tc tbf`",
            _slow_link,
            WORKERS,
            {"kbits_per_s": Parameter(2000, "in each direction", 64, 1e7)},
            lasting=True,
            not_with=NO_PROXY,
        ),
        FaultKind(
            "lossy_link",
            "the worker loses a part of the packets that come, by `iptables`",
            _lossy_link,
            WORKERS,
            {"loss": Parameter(0.05, "the part that is lost", 0.0001, 1)},
            lasting=True,
            not_with=NO_PROXY,
        ),
    ]
)
