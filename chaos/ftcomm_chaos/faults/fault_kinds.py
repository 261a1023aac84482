"""The kinds of faults: one table, by which plans are checked before anything starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ftcomm_chaos.faults.fault import ALL, RANDOM, TRACKER, Fault, Target
from ftcomm_chaos.faults.network_faults import DIRECTIONS, PEERS, LinkReset, Partition
from ftcomm_chaos.faults.signal_faults import (
    EverythingLostFault,
    SignalFault,
    TrackerDiskLost,
    TrackerKill,
)
from ftcomm_chaos.report.attribution import EVERYTHING

DISK_LOST = "tracker_disk_lost"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One choice that a kind of fault leaves.

    Attributes:
        text: what it means.
        choices: of words; the first is the default.
    """

    text: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault.

    Attributes:
        name: as plans write it.
        text: what it does, in one line.
        make: a fault of a target and of all parameters, checked and with their defaults.
        targets: which kinds of target it takes.
        parameters: by name.
        lasting: it has an end, which ``for`` gives.
        usually_for_s: the end where an entry gives none; None for the end of the run.
        library_action: what the library itself does at a position, by
            `ftcomm.diagnostics.fault_injection`; its faults are signals.  Without it a fault at a
            position is fired as soon as the process says that it is there.
        not_with: names of kinds that cannot be in one plan with it.
    """

    name: str
    text: str
    make: Callable[[Target, Mapping[str, str]], Fault]
    targets: tuple[str, ...] = ("workers", RANDOM, ALL)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    lasting: bool = False
    usually_for_s: float | None = None
    library_action: str = ""
    not_with: tuple[str, ...] = ()


_KINDS = (
    FaultKind(
        "link_reset",
        "the worker's open data links end with RST, by the kernel; the job speaks TCP",
        lambda target, _: LinkReset(target),
    ),
    FaultKind(
        EVERYTHING,
        "all workers and the tracker die at once by SIGKILL; after `for` seconds the same"
        " command goes on from the newest checkpoint of the run's store",
        lambda *_: EverythingLostFault(),
        targets=(ALL,),
        lasting=True,
        usually_for_s=0.2,
    ),
    FaultKind(
        "partition",
        "packets vanish between the worker and others; each is a host in a network namespace",
        lambda target, given: Partition(target, given["from"], given["direction"]),
        parameters={
            "from": Parameter("from whom it is cut", PEERS),
            "direction": Parameter(
                "what it sends (`out`), what it should get, or both", DIRECTIONS
            ),
        },
        lasting=True,
    ),
    FaultKind(
        "sigkill",
        "the process dies at once",
        lambda target, _: SignalFault(target, "SIGKILL"),
        library_action="kill",
    ),
    FaultKind(
        "sigstop",
        "the process stands still, and goes on after `for` seconds",
        lambda target, _: SignalFault(target, "SIGSTOP"),
        targets=("workers", RANDOM, ALL, TRACKER),
        lasting=True,
        library_action="stop",
    ),
    FaultKind(
        "sigterm", "the process is asked to end", lambda target, _: SignalFault(target, "SIGTERM")
    ),
    FaultKind(
        DISK_LOST,
        "the tracker dies by SIGKILL and its directory is removed; after `for` seconds"
        " `serve --rebuild` takes its place",
        lambda target, _: TrackerDiskLost(target, "SIGKILL"),
        targets=(TRACKER,),
        lasting=True,
        usually_for_s=0.5,
        library_action="kill",
        not_with=(EVERYTHING,),
    ),
    FaultKind(
        "tracker_kill",
        "the tracker dies by SIGKILL, and is started again after `for` seconds",
        lambda target, _: TrackerKill(target, "SIGKILL"),
        targets=(TRACKER,),
        lasting=True,
        usually_for_s=0.5,
        library_action="kill",
    ),
)
KINDS = {kind.name: kind for kind in _KINDS}
