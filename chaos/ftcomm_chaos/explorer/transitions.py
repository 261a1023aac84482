"""Steps of a core in the explorer: each function depends on its arguments alone.

The cabinet computes each once; a result is a plain value that many states share.
"""

from typing import Any, NamedTuple

from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.recovery.events import Event, SendControl, StartFetch
from ftcomm.recovery.machine import Checkpoint, Completion, MachineLimits, NextStep, WorkerMachine
from ftcomm.recovery.replica_placement import local_owners
from ftcomm.recovery.result_log import LogEntry
from ftcomm_chaos.explorer.workload import SIGNATURES, LocalItem, local_value
from ftcomm_tracker.core.events import Effect
from ftcomm_tracker.core.events import Event as TrackerEvent
from ftcomm_tracker.core.roster import Roster

LIMITS = MachineLimits()
SITE = "x"


class PendingFetch(NamedTuple):
    """Items that one process still takes from one rank: versions, local states, positions."""

    epoch: int
    source: int
    items: tuple[Any, ...]


class CoreReply(NamedTuple):
    """Answer of a core: messages for the tracker, and fetches that begin."""

    messages: tuple[Any, ...]
    fetches: tuple[PendingFetch, ...]


def hear(core: WorkerMachine, event: Event) -> CoreReply:
    """Feed a worker's core."""
    effects = core.handle(event, now=0.0)
    messages = [effect.message for effect in effects if isinstance(effect, SendControl)]
    orders = [effect for effect in effects if isinstance(effect, StartFetch)]
    return CoreReply(tuple(messages), tuple(_fetch(order) for order in orders))


def _fetch(order: StartFetch) -> PendingFetch:
    items: list[Any] = [order.load] if order.load > PRELUDE else []
    items += [LocalItem(order.local_version, rank) for rank in order.locals]
    items += [Position(0, run.version, s) for run in order.runs for s in run.seqnos()]
    return PendingFetch(order.epoch, order.source, tuple(items))


def tell(roster: Roster, event: TrackerEvent) -> tuple[Effect, ...]:
    """Feed the roster; what decides nothing is forgotten, so that equal states are equal bytes."""
    effects = tuple(roster.handle(event, now=0.0))
    roster.epochs.incidents = []
    if roster.epochs.incident is not None:
        roster.epochs.incident.reason = "x"
        roster.epochs.incident.victims = []
    return effects


def begin(core: WorkerMachine, letter: str) -> NextStep | None:
    """Call the collective; None if it was served at once."""
    signature = SIGNATURES[letter]
    step: Any = (core.progress.begin_load if letter == "L" else core.progress.begin)(
        signature, SITE
    )
    if isinstance(step, NextStep):
        return step
    if isinstance(step, Checkpoint):
        outcome = core.progress.replay_load(step, now=0.0)
    else:
        outcome = (core.progress.replay_close if letter == "E" else core.progress.replay)(now=0.0)
    assert outcome is Completion.DONE
    return None


def offer(core: WorkerMachine, letter: str) -> None:
    """Hold a tentative checkpoint, if this call is one and none is held yet."""
    if letter in "CP" and core.checkpoints.tentative is None:
        version = core.progress.position.version + 1
        local = local_value(version, core.view.rank) if letter == "P" else None
        core.progress.offer_checkpoint(version, b"d", local)


def copy_locals(core: WorkerMachine, epoch: int) -> None:
    """Everyone has sent its local state; a barrier comes behind."""
    version = core.progress.position.version + 1
    for owner in local_owners(core.view.keep_order, core.view.rank, LIMITS.local_replicas):
        kept = core.progress.keep_local(epoch, version, owner, local_value(version, owner))
        assert kept, "a copy was refused in a healthy epoch"


def complete(core: WorkerMachine, letter: str, epoch: int) -> Completion:
    """The collective has its result on this rank."""
    entry = LogEntry(SIGNATURES[letter], str(core.progress.position))
    if letter == "L":
        return core.progress.complete_load(epoch, 0, b"", now=0.0)
    if letter in "CP":
        return core.progress.complete_checkpoint(epoch, now=0.0)[0]
    if letter == "E":
        return core.progress.complete_close(epoch, entry, now=0.0)
    return core.progress.complete(epoch, entry, synchronising=letter != "B", now=0.0)[0]
