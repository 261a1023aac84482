"""Steps of a core in the explorer: each function depends on its arguments alone.

The cabinet computes each once; a result is a plain value that many states share.
"""

from typing import Any, NamedTuple

from ftcomm.protocol.link_messages import CopyName
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.recovery.archive.archive import Contribution
from ftcomm.recovery.archive.placement import local_owners
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import (
    AskForMessages,
    Event,
    FatalFound,
    FetchCopies,
    FetchParts,
    SendControl,
    StartFetch,
)
from ftcomm.recovery.machine import Checkpoint, Completion, MachineLimits, NextStep, WorkerMachine
from ftcomm.recovery.messages.names import Mark
from ftcomm_chaos.explorer.workload import (
    CONTRIBUTED,
    COPIED,
    SIGNATURES,
    LocalItem,
    input_of,
    local_value,
    result_of,
    results_of,
)
from ftcomm_chaos.sim.workload import InputDigests
from ftcomm_tracker.core.events import Effect
from ftcomm_tracker.core.events import Event as TrackerEvent
from ftcomm_tracker.core.group_state import StartCounts
from ftcomm_tracker.core.roster import Roster

LIMITS = MachineLimits()
SITE = "x"


class PendingFetch(NamedTuple):
    """Items that one process still takes from one rank: versions, local states, positions."""

    epoch: int
    source: int
    items: tuple[Any, ...]


class PendingPart(NamedTuple):
    """The part of one rank in a contributed call, which a process still lacks."""

    epoch: int
    position: Position
    rank: int


class PendingMessages(NamedTuple):
    """A request to one rank for all its messages behind these marks of a version.

    `at` says how much of the source's log was looked at; -1 until the source has been asked.
    """

    epoch: int
    source: int
    version: int
    marks: tuple[tuple[bytes, Mark], ...]
    at: int = -1


class PendingCopy(NamedTuple):
    """One rank's result of a copied call, for which a process has asked a rank."""

    epoch: int
    rank: int
    name: CopyName


class CoreReply(NamedTuple):
    """Answer of a core: messages for the tracker, and what it begins to fetch."""

    messages: tuple[Any, ...]
    fetches: tuple[PendingFetch, ...]
    parts: tuple[PendingPart, ...]
    copies: tuple[PendingCopy, ...]
    links: tuple[PendingMessages, ...]


def hear(core: WorkerMachine, event: Event) -> CoreReply:
    """Feed a worker's core."""
    effects = core.handle(event, now=0.0)
    messages = [effect.message for effect in effects if isinstance(effect, SendControl)]
    orders = [effect for effect in effects if isinstance(effect, StartFetch)]
    parts = [
        PendingPart(effect.epoch, effect.position, rank)
        for effect in effects
        if isinstance(effect, FetchParts)
        for rank in effect.ranks
    ]
    copies = [
        PendingCopy(effect.epoch, effect.rank, name)
        for effect in effects
        if isinstance(effect, FetchCopies)
        for name in effect.names
    ]
    links = [
        PendingMessages(effect.epoch, effect.source, effect.version, effect.marks)
        for effect in effects
        if isinstance(effect, AskForMessages)
    ]
    fetches = tuple(_fetch(order) for order in orders)
    return CoreReply(tuple(messages), fetches, tuple(parts), tuple(copies), tuple(links))


def _fetch(order: StartFetch) -> PendingFetch:
    items: list[Any] = [order.load] if order.load > PRELUDE else []
    items += [LocalItem(order.local_version, rank) for rank in order.locals]
    items += [Position(0, run.version, s) for run in order.runs for s in run.seqnos()]
    return PendingFetch(order.epoch, order.source, tuple(items))


def tell(roster: Roster, event: TrackerEvent) -> tuple[Effect, ...]:
    """Feed the roster; what decides nothing is forgotten, so that equal states are equal bytes."""
    effects = tuple(roster.handle(event, now=0.0))
    roster.epochs.incidents = []
    roster.members.starts = StartCounts()  # a few, of a limit of many
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


def contribute(core: WorkerMachine, letter: str, port: int) -> FatalFound | None:
    """Log this process's input to a contributed call; the error if an earlier one gave another."""
    digest = input_of(letter, core.view.rank, port)
    fits = core.contributed.contribute(Contribution(SIGNATURES[letter], digest, digest))
    return None if fits else core.contributed.differs()


def replay_parts(core: WorkerMachine, letter: str) -> InputDigests | None:
    """Replay a contributed call with the parts of all others; what it was made of, once done."""
    step = core.progress.begin(SIGNATURES[letter], SITE)
    parts = core.contributed.parts()
    if isinstance(step, NextStep) or parts is None:
        return None
    own = core.archive.inputs.get(core.progress.position, core.view.rank)
    assert own is not None, "it has asked for parts, so it has contributed"
    used = {**parts, core.view.rank: own.value}
    assert core.contributed.replay(now=0.0) is Completion.DONE
    return InputDigests(b"".join(used[rank] for rank in sorted(used)))


def offer(core: WorkerMachine, letter: str) -> None:
    """Hold a tentative checkpoint, if this call is one and none is held yet."""
    if letter in "CP" and core.archive.tentative is None:
        version = core.progress.position.version + 1
        local = local_value(version, core.view.rank) if letter == "P" else None
        core.progress.offer_checkpoint(version, b"d", local)


def copy_locals(core: WorkerMachine, epoch: int) -> None:
    """Everyone has sent its local state; a barrier comes behind."""
    version = core.progress.position.version + 1
    for owner in local_owners(core.view.keep_order, core.view.rank, LIMITS.local_replicas):
        kept = core.progress.keep_local(epoch, version, owner, local_value(version, owner))
        assert kept, "a copy was refused in a healthy epoch"


def copy_results(core: WorkerMachine, epoch: int) -> None:
    """Everyone has its result and has sent it; a barrier comes behind."""
    ports = [member.port for member in core.view.members]
    others = local_owners(core.view.keep_order, core.view.rank, core.contact.limits.replicas)
    for owner in (core.view.rank, *others):
        result = result_of(owner, ports)
        assert core.copied.keep(epoch, owner, result, result), "refused in a healthy epoch"


def replay_copied(core: WorkerMachine, letter: str) -> bytes | None:
    """Replay a copied call; this rank's result, None while it is not here."""
    step = core.progress.begin(SIGNATURES[letter], SITE)
    result: bytes | None = core.copied.own()
    if isinstance(step, NextStep) or result is None:
        return None
    assert core.copied.replay(now=0.0) is Completion.DONE
    return result


def complete(core: WorkerMachine, letter: str, epoch: int) -> Completion:
    """The collective has its result on this rank."""
    value: Any = str(core.progress.position)
    if letter in CONTRIBUTED:
        members = core.view.members
        value = InputDigests(b"".join(input_of(letter, m.rank, m.port) for m in members))
    if letter in COPIED:
        value = results_of([member.port for member in core.view.members])
    entry = LogEntry(SIGNATURES[letter], value)
    if letter == "L":
        return core.progress.complete_load(epoch, 0, b"", now=0.0)
    if letter in "CP":
        return core.progress.complete_checkpoint(epoch, now=0.0)[0]
    if letter == "E":
        return core.progress.complete_close(epoch, entry, now=0.0)
    return core.progress.complete(epoch, entry, synchronising=letter != "B", now=0.0)[0]
