"""The rules that hold in every state of the explorer."""

from typing import TYPE_CHECKING, Any

from ftcomm.protocol.messages import AllClosed
from ftcomm.protocol.position import Position
from ftcomm.recovery.archive.placement import local_owners
from ftcomm.recovery.contributions.contributed_calls import DIGEST_BYTES
from ftcomm.recovery.machine import WorkerMachine, WorkerState
from ftcomm_chaos.explorer.transitions import LIMITS
from ftcomm_chaos.explorer.workload import COPIED, local_value
from ftcomm_chaos.sim.workload import InputDigests
from ftcomm_chaos.sim.world import Violation

if TYPE_CHECKING:
    from ftcomm_chaos.explorer.state import Model


def check_first(model: "Model", port: int, position: Position, epoch: int) -> None:
    """Check that no other member completed before it what `port` executed in `epoch`."""
    for process in model.processes.values():
        core = model.core(process)
        earlier = dict(process.done).get(position)
        member = core.view.epoch == epoch and process.port != port
        if member and earlier is not None and earlier < epoch:
            raise Violation(f"{position} was executed again, rank {core.view.rank} had it")


def check_inputs(model: "Model", port: int, position: Position, used: InputDigests) -> None:
    """Results of one contributed call are made of the same inputs on all ranks (R20)."""
    for process in model.processes.values():
        theirs = dict(process.used).get(position)
        if process.port != port and theirs not in (None, used):
            raise Violation(f"{position} was made of other inputs on another rank (R20)")


def check_copies(model: "Model") -> None:
    """While all is quiescent, as many hold a result, and local states, as should."""
    cores = [model.core(process) for process in model.processes.values()]
    roster = model.roster
    is_quiescent = all(
        core.view.state is WorkerState.RUNNING and core.view.epoch == roster.epochs.in_force
        for core in cores
    )
    if not is_quiescent or roster.state.name != "RUNNING" or roster.epochs.awaiting_fetch:
        return
    cores = [model.core(process) for process in model.processes.values() if not process.over]
    if len(cores) < model.script.ranks:
        return
    _check_local_copies(model, cores)
    _check_results_copied(model)
    top = max(core.progress.position for core in cores)
    for seqno in range(top.seqno):
        position = Position(0, top.version, seqno)
        holders = sum(core.log.get(position) is not None for core in cores)
        past = sum(core.progress.position > position for core in cores)
        enough = past if model.script.kept_by_all else model.script.replicas
        wanted = enough if position < model.stable_below else past
        if holders < wanted and model.script.kind_at(position) not in "LCP":
            raise Violation(f"{position} is held {holders} times instead of {wanted} (R3)")


def _check_local_copies(model: "Model", cores: list[WorkerMachine]) -> None:
    for core in cores:
        version = core.progress.position.version
        if version <= 0 or "P" not in model.script.letters:
            continue
        kept = local_owners(core.view.keep_order, core.view.rank, LIMITS.local_replicas)
        for owner in (core.view.rank, *kept):
            if core.archive.locals.get(version, owner) != local_value(version, owner):
                raise Violation(f"rank {core.view.rank} lacks {owner}'s local state (R6)")


def _check_results_copied(model: "Model") -> None:
    """Check that a rank past a copied call holds its own result, and those of others."""
    for process in model.processes.values():
        core = model.core(process)
        others = local_owners(core.view.keep_order, core.view.rank, model.script.replicas)
        for position, used in process.used:
            is_due = position.version == core.progress.position.version
            if not is_due or model.script.kind_at(position) not in COPIED:
                continue
            for owner in {core.view.rank, *others} - model.closed:
                copy = core.archive.copies.get(position, owner)
                due = used.digests[owner * DIGEST_BYTES : (owner + 1) * DIGEST_BYTES]
                if copy is None or copy.value != due:
                    raise Violation(
                        f"rank {core.view.rank} has {copy} of {owner}, not {due!r} (R20)"
                    )


def check_verdict(model: "Model") -> None:
    """A job is lost only if every holder of something needed has died."""
    fatal_decision = model.journal.fatal_decision
    if fatal_decision is None:
        return
    if _is_lost_input(model, fatal_decision.cause):
        return
    if "V" in model.script.letters and "sent other bytes" in fatal_decision.cause:
        return  # by the process that was restarted (R21)
    if "is lost with all ranks that held it" in fatal_decision.cause:
        copies = min(model.script.replicas, model.script.ranks - 1)
        if model.crashes <= copies and not model.closed:
            raise Violation(f"verdict after {model.crashes} crashes: {fatal_decision.cause}")
        return
    copies = model.script.ranks if model.script.kept_by_all else model.script.replicas
    if fatal_decision.error != "JobLostError" or model.crashes < copies:
        raise Violation(f"verdict after {model.crashes} crashes: {fatal_decision.cause}")
    everyone = fatal_decision.cause.startswith("every member")
    for core in map(model.core, model.processes.values()):
        held = core.log.get(fatal_decision.position) is not None
        if core.view.caught_up > 0 if everyone else held:
            raise Violation(f"{fatal_decision.cause}, but rank {core.view.rank} has it")


def _is_lost_input(model: "Model", cause: str) -> bool:
    """Tell whether a contributed call cannot be replayed, as it must be."""
    if "N" in model.script.letters and "gave other bytes" in cause:
        return True  # a restarted rank gave something else to it
    return bool(model.closed) and "has closed and is gone" in cause


def check_sent(model: "Model", message: Any) -> None:
    """All-closed is told when all have closed (R8)."""
    if isinstance(message, AllClosed) and len(model.closed) < model.script.ranks:
        raise Violation(f"all-closed, but only {sorted(model.closed)} have closed (R8)")


def check_stuck(model: "Model") -> None:
    """No move is left: then everyone must have ended."""
    processes = [(process, model.core(process)) for process in model.processes.values()]
    waiting = [
        f"rank {core.view.rank} is {core.view.state.name} at {core.progress.position}"
        for process, core in processes
        if not process.over and model.script.kind_at(core.progress.position)
    ]
    if waiting:
        raise Violation(
            f"nothing can happen any more, but {waiting}; the tracker is "
            f"{model.roster.state.name} in epoch"
            f" {model.roster.epochs.in_force}/{model.journal.epoch}"
        )
