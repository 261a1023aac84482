"""Faults of plans that act inside a worker or on its sockets: resets, a held GIL, bad links."""

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcomm.config.environment import parse_address, process_environment
from ftcomm.config.plurals import counted
from ftcomm.errors import ConfigError
from ftcomm_chaos.faults import gil_hold, socket_reset
from ftcomm_chaos.faults.fault_kinds import (
    ALL,
    RANDOM,
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
from ftcomm_chaos.faults.impairment_proxy import Proxy
from ftcomm_chaos.faults.impairments import CUTS, FAIR, RST, Impairments
from ftcomm_chaos.faults.processes import JobProcess
from ftcomm_chaos.faults.unused_port import unused_port

LOOPBACK = "127.0.0.1"
WORKERS = ("workers", RANDOM, ALL)
OUT, IN, BOTH = "out", "in", "both"
DIRECTIONS = (BOTH, OUT, IN)


def running(job: RunningJob, worker: str) -> JobProcess:
    """The newest incarnation of a worker.

    Raises:
        NotDeliveredError: none runs.
    """
    process = job.process(worker)
    if process is None:
        raise NotDeliveredError(f"worker {worker} does not run")
    return process


def over_tcp(run: Preparation) -> None:
    """Have workers of one host speak TCP, as those of several do."""
    if "--transport" not in run.options:
        run.options += ["--transport", "tcp"]


@dataclass(slots=True)
class LinkReset:
    """The open data links of a worker end, by the kernel; its control link stays."""

    target: Target
    how: str
    _run: Preparation | None = None

    def missing(self) -> str:
        """The right to borrow another process's sockets."""
        return socket_reset.missing()

    async def prepare(self, run: Preparation) -> None:
        """Sockets of other kinds than TCP cannot be reset."""
        self._run = run
        over_tcp(run)

    async def fire(self, job: RunningJob, dice: random.Random) -> Hit:
        """End the connections whose other end is a worker's too; a script may have others."""
        workers = self.target.pick(job, dice)
        processes = {worker: job.process(worker) for worker in job.workers}
        ends = {
            other
            for process in processes.values()
            if process is not None
            for other in _ends(process.pid)
        }
        assert self._run is not None
        proxies = [self._run.shared.get(_proxy_of(worker)) for worker in job.workers]
        doors = {door for p in proxies if isinstance(p, Proxy) for door in (p.address, p.target)}

        def is_data(own: socket_reset.Address, other: socket_reset.Address) -> bool:
            return (other, own) in ends or own in doors or other in doors

        found = []
        for worker in workers:
            pid = running(job, worker).pid
            try:
                found += socket_reset.cut(pid, self.how, is_data)
            except OSError as error:
                raise NotDeliveredError(f"worker {worker}: {error.strerror}") from error
        if not found:
            raise NotDeliveredError(f"{self.target} has no open data link")
        return Hit(
            workers, f"{self.how.upper()} for {counted(len(found), 'link')} of {', '.join(workers)}"
        )

    async def undo(self, job: RunningJob) -> None:
        """It has no end: new links are opened."""


def _ends(pid: int) -> list[tuple[socket_reset.Address, socket_reset.Address]]:
    try:
        return socket_reset.connections(pid)
    except OSError:  # it has ended
        return []


@dataclass(slots=True)
class GilHeld:
    """The interpreter of a worker stands still for seconds; the script is not changed."""

    target: Target
    seconds: float
    way: str
    _folder: Path = field(default_factory=Path)

    def missing(self) -> str:
        """Named pipes are all that is needed."""
        return "" if hasattr(os, "mkfifo") else "needs named pipes (mkfifo)"

    async def prepare(self, run: Preparation) -> None:
        """Put a module before the user's own path; one does for all such faults of a run."""
        self._folder = run.folder / "gil"
        if not self._folder.exists():
            gil_hold.write_module(self._folder)
        own = process_environment().get("PYTHONPATH")
        path = os.pathsep.join(filter(None, [str(self._folder), own]))
        for worker in run.workers:
            run.set_variable(worker, "PYTHONPATH", path)

    async def fire(self, job: RunningJob, dice: random.Random) -> Hit:
        """Order it; the lock is taken within moments."""
        workers = self.target.pick(job, dice)
        for worker in workers:
            process = running(job, worker)
            if not gil_hold.hold(self._folder, process.pid, self.seconds, self.way):
                raise NotDeliveredError(f"{process} takes no orders: it begins, or has ended")
        return Hit(workers, f"GIL of {', '.join(workers)} held {self.seconds:g} s, {self.way}")

    async def undo(self, job: RunningJob) -> None:
        """It ends by itself."""


@dataclass(slots=True)
class ImpairedLinks:
    """Links of a worker, or all links to the tracker, go through a proxy with these conditions."""

    target: Target
    impairments: Impairments
    direction: str
    _data: dict[str, Proxy] = field(default_factory=dict)
    _control: Proxy | None = None
    _hit: list[Proxy] = field(default_factory=list)

    def missing(self) -> str:
        """Nothing is needed."""
        return ""

    async def prepare(self, run: Preparation) -> None:
        """Put a proxy in front of every worker, or one in front of the tracker, once for a run."""
        if self.target.kind == TRACKER:
            self._control = await _control_proxy(run)
            return
        over_tcp(run)
        for worker in run.workers:
            self._data[worker] = await _data_proxy(run, worker)

    async def fire(self, job: RunningJob, dice: random.Random) -> Hit:
        """Change the impairments, for open connections too."""
        workers: tuple[str, ...] = ()
        if self._control is not None:
            self._hit = [self._control]
        else:
            workers = self.target.pick(job, dice)
            self._hit = [self._data[worker] for worker in workers]
        up = self.impairments if self.direction in (BOTH, IN) else FAIR
        down = self.impairments if self.direction in (BOTH, OUT) else FAIR
        for proxy in self._hit:
            proxy.set_impairments(up, down)
        return Hit(workers, f"impaired network for {', '.join(workers) or TRACKER}")

    async def undo(self, job: RunningJob) -> None:
        """Fair impairments again."""
        del job
        for proxy in self._hit:
            proxy.set_impairments()


async def _control_proxy(run: Preparation) -> Proxy:
    """The proxy that all workers take for the tracker."""
    known = run.shared.get("control proxy")
    if isinstance(known, Proxy):
        return known
    proxy = Proxy((LOOPBACK, 0), seed="control")
    host, port = await proxy.serve(run.nursery)
    run.shared["control proxy"] = proxy
    run.own_tracker = True

    async def aim(address: str) -> None:
        proxy.target = parse_address(address)

    run.on_tracker.append(aim)
    for worker in run.workers:
        run.set_variable(worker, "FTCOMM_TRACKER", f"{host}:{port}")
    return proxy


def _proxy_of(worker: str) -> str:
    return f"data proxy {worker}"


async def _data_proxy(run: Preparation, worker: str) -> Proxy:
    """The proxy that other workers dial to reach this one."""
    known = run.shared.get(_proxy_of(worker))
    if isinstance(known, Proxy):
        return known
    own = unused_port(LOOPBACK)
    proxy = Proxy((LOOPBACK, own), seed=f"data {worker}")
    host, port = await proxy.serve(run.nursery)
    run.shared[_proxy_of(worker)] = proxy
    run.set_variable(worker, "FTCOMM_BIND", f"{LOOPBACK}:{own}")
    run.set_variable(worker, "FTCOMM_ADVERTISE", f"{host}:{port}")
    return proxy


# --- the registry ------------------------------------------------------------------------------


def _link_reset(target: Target, parameters: Mapping[str, Any]) -> LinkReset:
    return LinkReset(target, parameters["how"])


def _gil_held(target: Target, parameters: Mapping[str, Any]) -> GilHeld:
    return GilHeld(target, parameters["seconds"], parameters["way"])


def _impairments(target: Target, parameters: Mapping[str, Any]) -> ImpairedLinks:
    impairments = Impairments(
        latency_s=parameters["latency_ms"] / 1000,
        jitter_s=parameters["jitter_ms"] / 1000,
        bytes_per_s=parameters["kbytes_per_s"] * 1000,
        slice_bytes=parameters["slice_bytes"],
        flip_every=parameters["flip_every"],
        swallow=parameters["swallow"],
        paused=parameters["paused"],
    )
    if impairments == FAIR:
        raise ConfigError("name no condition", remedy=f"set one of {', '.join(parameters)}")
    return ImpairedLinks(target, impairments, parameters["direction"])


register(
    [
        FaultKind(
            "link_reset",
            "the worker's open data links end, by the kernel; the job speaks TCP",
            _link_reset,
            WORKERS,
            {"how": Parameter(RST, "how they end", choices=CUTS)},
        ),
        FaultKind(
            "gil_held",
            "no thread of the worker's Python runs for a while",
            _gil_held,
            WORKERS,
            {
                "seconds": Parameter(3.0, "for how long", 0.001, 3600),
                "way": Parameter(
                    gil_hold.BUSY,
                    "`busy` computes, and is left alone; `asleep` counts as a stop",
                    choices=gil_hold.WAYS,
                ),
            },
        ),
        FaultKind(
            "impaired",
            "what others dial to reach the worker, or the tracker, is a proxy; the job speaks TCP",
            _impairments,
            (*WORKERS, TRACKER),
            {
                "latency_ms": Parameter(0.0, "every byte is so late", 0, 60_000),
                "jitter_ms": Parameter(0.0, "up to so much more", 0, 60_000),
                "kbytes_per_s": Parameter(0.0, "what goes through, 0 without limit", 0, 1e9),
                "slice_bytes": Parameter(
                    0, "largest piece that is sent at once, 0 any", 0, 1 << 20
                ),
                "flip_every": Parameter(
                    0, "a bit is flipped in so many bytes, 0 never", 0, 1 << 40
                ),
                "swallow": Parameter(default=False, text="bytes vanish, links stay half-open"),
                "paused": Parameter(default=False, text="nothing is taken"),
                "direction": Parameter(
                    BOTH, "to the target (`in`), from it, or both", choices=DIRECTIONS
                ),
            },
            lasting=True,
        ),
    ]
)
