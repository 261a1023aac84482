"""Faults of the network: resets of a worker's links, and partitions between hosts."""

import random
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from ftcomm.config.plurals import counted
from ftcomm_chaos.faults import network_namespaces, socket_reset
from ftcomm_chaos.faults.fault import TRACKER, Fault, Hit, NotDeliveredError, Preparation, Target
from ftcomm_chaos.faults.network_namespaces import HostsError, NamespaceHosts

if TYPE_CHECKING:
    from ftcomm_chaos.runner.job import LiveJob

OUT, IN, BOTH = "out", "in", "both"
DIRECTIONS = (BOTH, OUT, IN)
EVERYBODY = "everybody"
OTHERS = "workers"
PEERS = (EVERYBODY, OTHERS, TRACKER)


@dataclass(slots=True)
class LinkReset(Fault):
    """The open data links of a worker end with RST, by the kernel; its control link stays."""

    target: Target

    def missing(self) -> str:
        """The right to borrow another process's sockets."""
        return socket_reset.missing()

    async def prepare(self, run: Preparation) -> None:
        """Sockets of other kinds than TCP cannot be reset: workers of one host speak that too."""
        if "--transport" not in run.options:
            run.options += ["--transport", "tcp"]

    async def fire(self, job: "LiveJob", dice: random.Random) -> Hit:
        """End the connections whose other end is a worker's too; a script may have others."""
        workers = self.target.pick(job, dice)
        processes = {worker: job.process(worker) for worker in job.workers}
        ends = {
            other
            for process in processes.values()
            if process is not None
            for other in _ends(process.pid)
        }
        found = 0
        for worker in workers:
            process = job.process(worker)
            if process is None:
                raise NotDeliveredError(f"worker {worker} does not run")
            try:
                cut = socket_reset.reset(process.pid, lambda own, other: (other, own) in ends)
            except OSError as error:
                raise NotDeliveredError(f"worker {worker}: {error.strerror}") from error
            found += len(cut)
        if not found:
            raise NotDeliveredError(f"{self.target} has no open data link")
        return Hit(workers, f"RST for {counted(found, 'link')} of {', '.join(workers)}")


def _ends(pid: int) -> list[tuple[socket_reset.Address, socket_reset.Address]]:
    try:
        return socket_reset.connections(pid)
    except OSError:  # it has ended
        return []


@dataclass(slots=True)
class Partition(Fault):
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
        """Make each worker and the tracker a host of its own, once for all such faults of a run."""
        if run.hosts is not None:
            self._hosts = run.hosts
            return
        self._hosts = run.hosts = hosts = NamespaceHosts([*run.workers, TRACKER])
        await trio.to_thread.run_sync(hosts.__enter__)
        run.at_end.push(hosts)
        run.own_tracker = True
        run.options += ["--host", hosts.address(TRACKER)]
        run.tracker_prefix += hosts.prefix(TRACKER)
        for worker in run.workers:
            run.supervisor_prefix[worker] = hosts.prefix(worker)

    async def fire(self, job: "LiveJob", dice: random.Random) -> Hit:
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
                await _do(self._hosts.cut, *cut)
        return Hit(workers, f"{', '.join(workers)} parted from {', '.join(peers)}")

    async def undo(self, job: "LiveJob") -> None:
        """Repair what was cut."""
        del job
        assert self._hosts is not None
        while self._cuts:
            await _do(self._hosts.repair, *self._cuts.pop())


async def _do(action: Any, *arguments: Any) -> None:
    """Cut or repair one way, beside the event loop.

    Raises:
        NotDeliveredError: one of them failed.
    """
    try:
        await trio.to_thread.run_sync(partial(action, *arguments, one_way=True))
    except HostsError as error:
        raise NotDeliveredError(str(error)) from error
