"""A call with a result for each rank (rule R20), executed with all or replayed.

Of a contributed call each rank keeps its own input, and a replay combines the others' inputs.  Of a
copied call other ranks keep each rank's result, and a replay takes it from one of them.
"""

from typing import TYPE_CHECKING

from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.archive.archive import Contribution
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.contributions.contributed_calls import DIGEST_BYTES
from ftcomm.recovery.events import PartsWanted
from ftcomm_chaos.sim.worker.execution import (
    STAGE,
    Thread,
    begun,
    completed,
    copied_to_holders,
    execute,
    replay,
)
from ftcomm_chaos.sim.workload import InputDigests, SimulatedCall, Value, input_digest, part_for

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess


def rank_result_call(process: "SimulatedProcess", call: SimulatedCall) -> Thread:
    """One contributed or copied call."""
    core, source = process.core, call.source(process.core.view.rank)
    digest = input_digest(source).to_bytes(DIGEST_BYTES, "big")
    contribution = Contribution(call.signature, digest, source)
    while True:
        step = yield from begun(process, call.signature)
        position = core.progress.position
        if call.is_contributed and not core.contributed.contribute(contribution):
            process.hear(core.contributed.differs())
            continue
        if not isinstance(step, LogEntry):
            value = yield from _executed(process, call, position)
        elif call.is_contributed:
            value = yield from _combined(process, source, position)
        else:
            value = yield from _taken(process, position)
        if value is not None:
            return value


def _combined(process: "SimulatedProcess", source: Value, position: Position) -> Thread:
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
    if not (yield from replay(process, core.contributed.replay)):
        return None
    value = tuple(x for rank in range(size) for x in parts[rank])
    process.sim.counters["replayed from inputs"] += 1
    process.monitor.on_result(process, position, value, epoch=None)
    return value


def _taken(process: "SimulatedProcess", position: Position) -> Thread:
    """Take this rank's result from who holds it; None while something is missing."""
    core = process.core
    value = core.copied.own()
    if value is None:
        if core.view.error is None:
            yield None
        return None
    if not (yield from replay(process, core.copied.replay)):
        return None
    process.sim.counters["replayed from copies"] += 1
    process.monitor.on_result(process, position, value, epoch=None)
    return value


def _executed(process: "SimulatedProcess", call: SimulatedCall, position: Position) -> Thread:
    """Exchange the parts, then the digests of inputs or results; copy the results."""
    core, epoch = process.core, process.core.view.epoch
    process.point("entered")
    source = call.source_of(core.view.rank, process.port)
    work = yield from execute(process, call, call.signature, source, 0)
    if work is None:
        return None
    process.point("exchanged")
    value = tuple(work)
    own = (float(input_digest(value if call.is_copied else source)),)
    gather = SimulatedCall(Kind.ALLGATHER, 1)
    numbers = yield from execute(process, gather, call.signature, own, STAGE)
    if numbers is None:
        return None
    witnessed = InputDigests.of(numbers)
    if call.is_copied and not (yield from _copied(process, call, value, witnessed.digests)):
        return None
    entry = LogEntry(call.signature, witnessed, len(witnessed.digests))
    return (yield from completed(process, (epoch, position), entry, value))


def _copied(
    process: "SimulatedProcess", call: SimulatedCall, value: Value, digests: bytes
) -> Thread:
    core, epoch = process.core, process.core.view.epoch

    def keep(owner: int, result: Value) -> bool:
        digest = digests[owner * DIGEST_BYTES : (owner + 1) * DIGEST_BYTES]
        return core.copied.keep(epoch, owner, digest, result)

    if not keep(core.view.rank, value):
        return False
    replicas = core.contact.limits.replicas
    done: bool = yield from copied_to_holders(
        process, call.signature, value, replicas, 2 * STAGE, keep
    )
    return done
