"""Simulated fetches: a holder serves its checkpoint, local states and log, item by item."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ftcomm.protocol.link_messages import FetchRequest
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.recovery.events import (
    CheckpointFetched,
    FetchEnded,
    LocalFetched,
    ResultFetched,
    StartFetch,
)
from ftcomm.recovery.machine import WorkerState
from ftcomm_chaos.sim.workload import packed
from ftcomm_chaos.sim.world import Violation, World

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

Item = CheckpointFetched | LocalFetched | ResultFetched


class FetchLink:
    """One ordered fetch: asked once, served item by item, ended by `FetchEnded`."""

    def __init__(
        self, world: World, process: "SimulatedProcess", far: "SimulatedProcess", order: StartFetch
    ) -> None:
        self.world, self.process, self.far, self.order = world, process, far, order
        self.epoch, self.source = order.epoch, order.source
        self.over = False
        self.via: SimulatedProcess | None = None
        self._items = items_of(far, process, order)
        self._arrives = 0.0

    def ask(self) -> None:
        """The request reaches the source."""
        if self.over or self.process.core.view.epoch != self.epoch:
            return  # a later epoch has come before the connection was there
        way = self.process.net.way(self.epoch, self.process, self.source)
        if way is None:
            self.fail("refused")
            return
        self.via = way.via
        if way.hurdle is not None:
            self.world.after(self.process.sim.dial_s, self.fail, "nothing comes")
        elif self.far.core.view.epoch < self.epoch:
            self.far.parked.append(self.ask)  # newer waits (rule R1)
        else:
            self.step()

    def step(self) -> None:
        """The source sends one item; it must still be in the epoch."""
        if not self.over:
            self.far.deliver(self._send_one)

    def _send_one(self) -> None:
        if self.over:
            return
        core = self.far.core
        if not self.far.alive or core.view.epoch != self.epoch:
            self.fail("the source has gone")
            return
        if core.view.state not in (WorkerState.RUNNING, WorkerState.CATCHING_UP):
            self.fail("the source has stopped")
            return
        event = next(self._items, None)
        if event is None:
            self.over = True
            self._deliver(FetchEnded(self.epoch, self.source))
            return
        self._deliver(event)
        self.far.point("serving")
        slow = 0.3 if self.world.chance(0.1) else self.world.transit_s
        self.world.after(self.world.between(0.0005, slow), self.step)

    def fail(self, why: str) -> None:
        """The link ends early."""
        if not self.over:
            self.over = True
            self._deliver(FetchEnded(self.epoch, self.source, why))

    def _deliver(self, event: Item | FetchEnded) -> None:
        when = max(self.world.now + self.world.transit(), self._arrives)
        self._arrives = when
        self.world.at(when, self.process.deliver, self.process.hear, event)


def items_of(
    far: "SimulatedProcess", process: "SimulatedProcess", order: StartFetch | FetchRequest
) -> Iterator[Item]:
    """Yield the items that `far` sends to `process`; a plan names only true holders (rule R2)."""
    core, load, epoch = far.core, order.load, order.epoch
    if load > PRELUDE:
        held = core.archive.committed
        if held is None or held.version != load:
            raise Violation(f"{far} was named as a holder of checkpoint {load}, but has {held}")
        yield CheckpointFetched(epoch, load, packed(held.value))
    version = order.local_version
    for rank in order.locals:
        local = core.archive.locals.get(version, rank)
        if local is None:
            raise Violation(
                f"{far} was named as a holder of the local state of rank {rank} in "
                f"{version} for {process}, but has {core.archive.report_locals()}"
            )
        yield LocalFetched(epoch, version, rank, local)
    for run in order.runs:
        for seqno in run.seqnos():
            position = Position(0, run.version, seqno)
            entry = core.log.get(position)
            if entry is None:
                raise Violation(
                    f"{far} was named as a holder of {position} for {process} in epoch "
                    f"{epoch}, but has {core.log.runs()}"
                )
            yield ResultFetched(epoch, position, entry.signature, entry.value, entry.nbytes)
