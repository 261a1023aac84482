"""Fault kinds: the protocol that each of them implements, and their registry.

A kind is registered once, by name, with the targets and parameters that it takes.  A plan
(`plan`) is checked against that before anything starts, and makes one `Fault` of each entry.  The
runner then asks every fault what is missing, lets it prepare the run, fires it at its time, and
undoes it if its entry says for how long it lasts.
"""

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ftcomm.errors import ConfigError

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

    async def prepare(self, run: Preparation) -> None:
        """Change how the run is started; called once for each run, before anything starts."""

    async def fire(self, job: "LiveJob", dice: random.Random) -> Hit:
        """Do it, and return once it is done.

        Raises:
            NotDeliveredError: it could not be done; the entry may say to try again.
        """

    async def undo(self, job: "LiveJob") -> None:
        """End what the last `fire` began; called ``for`` seconds after it.

        What must not outlive the run is `Preparation.at_end`'s: the run may end before.
        """


class LibraryFault(Fault, Protocol):
    """A fault that the library itself delivers at a position (`FaultKind.library_action`)."""

    def happened(self, process: "JobProcess") -> Hit:
        """The library has delivered it in this process, or does so now.

        The process may have ended since, of this or of anything else.
        """


@dataclass(frozen=True, slots=True)
class Parameter:
    """One choice that a kind of fault leaves.

    Attributes:
        text: what it means.
        choices: of words; the first is the default.
    """

    text: str
    choices: tuple[str, ...]

    def check(self, value: object) -> str:
        """`value`, if it is one of the words.

        Raises:
            ConfigError: it is none.
        """
        if not isinstance(value, str) or value not in self.choices:
            raise ConfigError(f"is {value!r}, must be one of {', '.join(self.choices)}")
        return value


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault.

    Attributes:
        name: as plans write it.
        text: what it does, in one line.
        make: a fault of a target and of all parameters, checked and with their defaults; raises
            ConfigError if they do not go together.
        targets: which kinds of target it takes.
        parameters: by name.
        lasting: it has an end, which ``for`` gives.
        usually_for_s: the end where an entry gives none; None for the end of the run.
        library_action: what the library itself does at a position, by
            `ftcomm.diagnostics.fault_injection`; its faults
            are `LibraryFault`.  Without it a fault at a position is fired as soon as the process
            says that it is there.
        not_with: names of kinds that cannot be in one plan with it.
    """

    name: str
    text: str
    make: Callable[[Target, Mapping[str, Any]], Fault]
    targets: tuple[str, ...] = ("workers", RANDOM, ALL)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    lasting: bool = False
    usually_for_s: float | None = None
    library_action: str = ""
    not_with: tuple[str, ...] = ()


KINDS: dict[str, FaultKind] = {}


def register(kinds: Sequence[FaultKind]) -> None:
    """Make kinds of faults known to plans."""
    for kind in kinds:
        assert kind.name not in KINDS, kind.name
        KINDS[kind.name] = kind
