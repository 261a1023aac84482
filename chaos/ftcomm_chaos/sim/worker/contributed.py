"""A contributed call of a simulated worker: executed with all, or replayed from others' inputs."""

from typing import TYPE_CHECKING

from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.contributions.contributed_calls import DIGEST_BYTES
from ftcomm.recovery.contributions.contribution_log import Contribution
from ftcomm.recovery.events import PartsWanted
from ftcomm.recovery.machine import Completion, NextStep
from ftcomm.recovery.result_log import LogEntry
from ftcomm_chaos.sim.worker.execution import SITE, STAGE, Thread, accuse, execute, race, settle
from ftcomm_chaos.sim.workload import (
    InputDigests,
    SimulatedCall,
    Value,
    input_digest,
    part_for,
)

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess


def contributed_call(process: "SimulatedProcess", call: SimulatedCall) -> Thread:
    """One call of which each rank keeps its own input (rule R20)."""
    core, source = process.core, call.source(process.core.view.rank)
    digest = input_digest(source).to_bytes(DIGEST_BYTES, "big")
    while True:
        position = core.progress.position
        step = core.progress.begin(call.signature, SITE)
        if step is NextStep.WAIT:
            yield None
        elif isinstance(step, LogEntry) and step.signature != call.signature:
            accuse(process, core.view.epoch, step.signature)
        elif not core.contributed.contribute(Contribution(call.signature, digest, source)):
            process.hear(core.contributed.differs())
        elif isinstance(step, LogEntry):
            value = yield from _replayed(process, source, position)
            if value is not None:
                return value
        else:
            value = yield from _executed(process, call, source, position)
            if value is not None:
                return value


def _replayed(process: "SimulatedProcess", source: Value, position: Position) -> Thread:
    """Combine what the others give for this rank; None while something is missing."""
    core, size = process.core, process.core.contact.world_size
    process.hear(PartsWanted())
    process.point("asking")
    parts = core.contributed.parts()
    if parts is None:
        if core.view.error is None:
            yield None
        return None
    parts[core.view.rank] = part_for(core.view.rank, source, size)
    yield from race(process)
    while True:
        outcome = core.contributed.replay(now=process.world.now)
        if outcome is not Completion.CONFIRM_FIRST:
            break
        yield None
    if outcome is not Completion.DONE:
        return None
    value = tuple(x for rank in range(size) for x in parts[rank])
    process.sim.counters["replayed from inputs"] += 1
    process.monitor.on_result(process, position, value, epoch=None)
    return value


def _executed(
    process: "SimulatedProcess", call: SimulatedCall, source: Value, position: Position
) -> Thread:
    """Exchange the parts, then the digests of all inputs; None if the attempt has failed."""
    core, epoch = process.core, process.core.view.epoch
    process.point("entered")
    work = yield from execute(process, call, call.signature, source, 0)
    if work is None:
        return None
    process.point("exchanged")
    gather = SimulatedCall(Kind.ALLGATHER, 1)
    digests = yield from execute(
        process, gather, call.signature, (float(input_digest(source)),), STAGE
    )
    if digests is None:
        return None
    value, witnessed = tuple(work), InputDigests.of(digests)
    entry = LogEntry(call.signature, witnessed, len(witnessed.digests))
    done = yield from settle(
        process,
        lambda: core.progress.complete(epoch, entry, synchronising=True, now=process.world.now)[0],
    )
    if not done:
        return None
    process.monitor.on_result(process, position, value, epoch=epoch)
    process.point("completed")
    return value
