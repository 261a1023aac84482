"""A copied call of a simulated worker: executed with all, or got back from who holds its result."""

from typing import TYPE_CHECKING

from ftcomm.collectives.schedules.pairwise_exchange import shift
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.contributions.contributed_calls import DIGEST_BYTES
from ftcomm.recovery.machine import Completion, NextStep
from ftcomm.recovery.replica_placement import local_distances
from ftcomm.recovery.result_log import LogEntry
from ftcomm_chaos.sim.worker.execution import (
    SITE,
    STAGE,
    Thread,
    accuse,
    execute,
    race,
    run,
    settle,
)
from ftcomm_chaos.sim.workload import InputDigests, SimulatedCall, Value, input_digest

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess


def copied_call(process: "SimulatedProcess", call: SimulatedCall) -> Thread:
    """One call of which others keep each rank's result (rule R20)."""
    core = process.core
    while True:
        position = core.progress.position
        step = core.progress.begin(call.signature, SITE)
        if step is NextStep.WAIT:
            yield None
            continue
        if isinstance(step, LogEntry) and step.signature != call.signature:
            accuse(process, core.view.epoch, step.signature)
            continue
        if isinstance(step, LogEntry):
            value = yield from _replayed(process, position)
        else:
            value = yield from _executed(process, call, position)
        if value is not None:
            return value


def _replayed(process: "SimulatedProcess", position: Position) -> Thread:
    """Take this rank's result from who holds it; None while something is missing."""
    core = process.core
    value = core.copied.own()
    if value is None:
        if core.view.error is None:
            yield None
        return None
    yield from race(process)
    while True:
        outcome = core.copied.replay(now=process.world.now)
        if outcome is not Completion.CONFIRM_FIRST:
            break
        yield None
    if outcome is not Completion.DONE:
        return None
    process.sim.counters["replayed from copies"] += 1
    process.monitor.on_result(process, position, value, epoch=None)
    return value


def _executed(process: "SimulatedProcess", call: SimulatedCall, position: Position) -> Thread:
    """Exchange the parts and the digests of the results, and copy these."""
    core, epoch = process.core, process.core.view.epoch
    process.point("entered")
    source = call.source_of(core.view.rank, process.port)
    work = yield from execute(process, call, call.signature, source, 0)
    if work is None:
        return None
    process.point("exchanged")
    value = tuple(work)
    gather = SimulatedCall(Kind.ALLGATHER, 1)
    own = (float(input_digest(value)),)
    numbers = yield from execute(process, gather, call.signature, own, STAGE)
    if numbers is None:
        return None
    witnessed = InputDigests.of(numbers)
    if not (yield from _copied(process, call, value, witnessed.digests)):
        return None
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


def _copied(
    process: "SimulatedProcess", call: SimulatedCall, value: Value, digests: bytes
) -> Thread:
    """Send the own result to each holder, keep the others'; a barrier proves that all have."""
    core, size, epoch = process.core, process.core.contact.world_size, process.core.view.epoch

    def keep(owner: int, result: Value) -> bool:
        digest = digests[owner * DIGEST_BYTES : (owner + 1) * DIGEST_BYTES]
        return core.copied.keep(epoch, owner, digest, result)

    if not keep(core.view.rank, value):
        return False
    base = 2 * STAGE
    for distance in local_distances(size, core.contact.limits.replicas):
        schedule = shift(core.view.keep_order, core.view.rank, distance, (call.count,) * size)
        work = yield from run(process, schedule, call.signature, value, base)
        if work is None or not keep(schedule.steps[0].recv_from, tuple(work)):
            return False
        process.point("copied")
        base += STAGE
    barrier = SimulatedCall(Kind.BARRIER)
    return (yield from execute(process, barrier, call.signature, (), base)) is not None
