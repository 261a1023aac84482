"""The rules that hold in every state of the explorer."""

from typing import TYPE_CHECKING, Any

from ftcomm.protocol.messages import AllBye
from ftcomm.protocol.position import Position
from ftcomm.recovery.machine import State, WorkerCore
from ftcomm.recovery.replica_placement import local_owners
from ftcomm_chaos.explorer.transitions import LIMITS
from ftcomm_chaos.explorer.workload import local_value
from ftcomm_chaos.sim.world import Violation

if TYPE_CHECKING:
    from ftcomm_chaos.explorer.state import Model


def check_first(model: "Model", port: int, position: Position, epoch: int) -> None:
    """What `port` has executed in `epoch`, no other member had completed before it."""
    for life in model.lives.values():
        core = model.core(life)
        earlier = dict(life.done).get(position)
        member = core.epoch == epoch and life.port != port
        if member and earlier is not None and earlier < epoch:
            raise Violation(f"{position} was executed again, rank {core.rank} had it")


def check_copies(model: "Model") -> None:
    """While all is calm, as many hold a result, and local states, as should."""
    cores = [model.core(life) for life in model.lives.values()]
    roster = model.roster
    calm = all(core.state is State.RUNNING and core.epoch == roster.epoch for core in cores)
    if not calm or roster.state.name != "RUNNING" or roster.awaiting_fetch:
        return
    cores = [model.core(life) for life in model.lives.values() if not life.over]
    if len(cores) < model.script.ranks:
        return
    _check_local_copies(model, cores)
    top = max(core.position for core in cores)
    for seqno in range(top.seqno):
        position = Position(0, top.version, seqno)
        holders = sum(core.log.get(position) is not None for core in cores)
        past = sum(core.position > position for core in cores)
        enough = past if model.script.kept_by_all else model.script.replicas
        wanted = enough if position < model.stable_below else past
        if holders < wanted and model.script.kind_at(position) not in "LCP":
            raise Violation(f"{position} is held {holders} times instead of {wanted} (R3)")


def _check_local_copies(model: "Model", cores: list[WorkerCore]) -> None:
    for core in cores:
        version = core.position.version
        if version <= 0 or "P" not in model.script.letters:
            continue
        kept = local_owners(core.keep_order, core.rank, LIMITS.local_replicas)
        for owner in (core.rank, *kept):
            if core.locals.get(version, owner) != local_value(version, owner):
                raise Violation(f"rank {core.rank} lacks {owner}'s local state (R6)")


def check_verdict(model: "Model") -> None:
    """A job is lost only if every holder of something needed has died."""
    verdict = model.journal.verdict
    if verdict is None:
        return
    copies = model.script.ranks if model.script.kept_by_all else model.script.replicas
    if verdict.error != "JobLostError" or model.crashes < copies:
        raise Violation(f"verdict after {model.crashes} crashes: {verdict.cause}")
    everyone = verdict.cause.startswith("every member")
    for core in map(model.core, model.lives.values()):
        held = core.log.get(verdict.position) is not None
        if core.caught_up > 0 if everyone else held:
            raise Violation(f"{verdict.cause}, but rank {core.rank} has it")


def check_sent(model: "Model", message: Any) -> None:
    """All-bye is told when all have closed (R8)."""
    if isinstance(message, AllBye) and len(model.closed) < model.script.ranks:
        raise Violation(f"all-bye, but only {sorted(model.closed)} have closed (R8)")


def check_stuck(model: "Model") -> None:
    """No move is left: then everyone must have ended."""
    lives = [(life, model.core(life)) for life in model.lives.values()]
    waiting = [
        f"rank {core.rank} is {core.state.name} at {core.position}"
        for life, core in lives
        if not life.over and model.script.kind_at(core.position)
    ]
    if waiting:
        raise Violation(
            f"nothing can happen any more, but {waiting}; the tracker is "
            f"{model.roster.state.name} in epoch {model.roster.epoch}/{model.journal.epoch}"
        )
