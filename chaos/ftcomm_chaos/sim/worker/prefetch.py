"""Simulated prefetch: a spare takes a committed checkpoint from a member that may die meanwhile."""

from typing import TYPE_CHECKING

from ftcomm.recovery.events import PrefetchEnded, StartPrefetch
from ftcomm_chaos.sim.workload import UsersState

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

SLOW_S = 1.0  # a large state, or a low rate


def begin_prefetch(process: "SimulatedProcess", start: StartPrefetch) -> None:
    """Ask the member, and bring what it sends."""
    order, world = start.order, process.world
    far = next((x for x in process.net.processes.values() if x.port == order.port), None)

    def end(ended: PrefetchEnded) -> None:
        process.point("prefetching")
        process.hear(ended)
        if ended.value is not None and process.core.prefetching.held == ended.version:
            process.monitor.on_prefetched(process, ended)

    def serve() -> None:
        ended = PrefetchEnded(start.number)
        held = far.core.checkpoints.committed if far is not None and far.alive else None
        is_packed = held is not None and not isinstance(held.value, UsersState)
        if held is not None and is_packed and held.version >= order.version:
            assert far is not None
            locals_ = far.core.checkpoints.locals.of(held.version)
            ended = PrefetchEnded(
                start.number, held.version, held.value, 8, has_locals=locals_ is not None
            )
        slow = SLOW_S if world.chance(0.2) else world.transit_s
        world.after(world.between(0.0005, slow), process.deliver, end, ended)

    world.after(world.transit(), serve)
