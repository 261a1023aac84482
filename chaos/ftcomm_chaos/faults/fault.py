"""Faults: at whom one is aimed, how it prepares a run, what it does, and whom it has hit.

The runner asks every fault of a plan what is missing, lets it prepare the run, fires it at its
time, and undoes it if its entry says for how long it lasts.
"""

import contextlib
import random
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import trio

    from ftcomm_chaos.faults.network_namespaces import NamespaceHosts
    from ftcomm_chaos.faults.processes import JobProcess
    from ftcomm_chaos.runner.job import LiveJob

RANDOM = "random"
ALL = "all"
TRACKER = "tracker"


class NotDeliveredError(Exception):
    """The fault could not be delivered: its target has ended, or never existed."""


@dataclass(frozen=True, slots=True)
class Target:
    """Processes at which a fault is aimed.

    Attributes:
        kind: ``workers`` (those named), ``random`` (one that runs), ``all`` or ``tracker``.
        workers: ids, in the order of the plan.
    """

    kind: str
    workers: tuple[str, ...] = ()

    def pick(self, job: "LiveJob", dice: random.Random) -> tuple[str, ...]:
        """The workers that are meant, now.

        A random one has not been picked before in this job, as long as such a one runs.

        Raises:
            NotDeliveredError: a random one is asked for, and none runs.
        """
        if self.kind == ALL:
            return job.workers
        if self.kind != RANDOM:
            return self.workers
        running = [worker for worker in job.workers if job.process(worker) is not None]
        if not running:
            raise NotDeliveredError("no worker runs")
        worker = dice.choice([each for each in running if each not in job.picked] or running)
        job.picked = job.picked | {worker} if worker not in job.picked else {worker}
        return (worker,)

    def __str__(self) -> str:
        return f"worker {', '.join(self.workers)}" if self.workers else self.kind


@dataclass(slots=True)
class Preparation:
    """Start of one run; a fault that needs machinery changes it.

    Attributes:
        workers: all worker ids.
        spares: those that begin without a rank.
        nursery: for tasks that live as long as the run.
        at_end: what to undo when the run is over, whatever happened.
        options: for ``ftcomm-tracker run`` or ``serve``.
        own_tracker: the tracker is a process of its own (`serve`), and so is each worker's
            supervisor; else ``ftcomm-tracker run`` is all of them.
        supervisor_prefix: by worker id, a command that is put before its supervisor's, with an own
            tracker, and execs it.
        tracker_options: for ``serve`` of an own tracker.
        tracker_prefix: the same for the own tracker's command.
        hosts: of all processes, where a fault has made them.
    """

    workers: tuple[str, ...]
    nursery: "trio.Nursery"
    at_end: contextlib.ExitStack
    options: list[str] = field(default_factory=list)
    own_tracker: bool = False
    supervisor_prefix: dict[str, list[str]] = field(default_factory=dict)
    tracker_options: list[str] = field(default_factory=list)
    tracker_prefix: list[str] = field(default_factory=list)
    hosts: "NamespaceHosts | None" = None
    spares: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hit:
    """Processes that a fault has hit.

    Attributes:
        workers: ids; recoveries that name one of them are put down to this fault.
        what: what was done, for people.
        processes: processes that must die of it; the run checks that they did.
    """

    workers: tuple[str, ...]
    what: str
    processes: tuple["JobProcess", ...] = ()


class Fault(Protocol):
    """One entry of a plan; it may be fired more than once if the plan says ``every``."""

    def missing(self) -> str:
        """Name what this machine lacks for the fault; empty if nothing. Leaves nothing behind."""
        return ""

    async def prepare(self, run: Preparation) -> None:
        """Change how the run is started; called once for each run, before anything starts."""
        del run  # most faults need nothing

    @abstractmethod
    async def fire(self, job: "LiveJob", dice: random.Random) -> Hit:
        """Do it, and return once it is done.

        Raises:
            NotDeliveredError: it could not be done; the entry may say to try again.
        """

    async def undo(self, job: "LiveJob") -> None:
        """End what the last `fire` began; called ``for`` seconds after it.

        What must not outlive the run is `Preparation.at_end`'s: the run may end before.
        """
        del job  # some have no end
