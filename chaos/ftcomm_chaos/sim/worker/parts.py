"""Links by which a simulated rank asks others for their parts of a call that it replays."""

from typing import TYPE_CHECKING

from ftcomm.recovery.contributions.contributed_calls import Offer
from ftcomm.recovery.events import FetchParts, PartFetched, PartLost
from ftcomm.recovery.machine import WorkerState
from ftcomm_chaos.sim.workload import part_for

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

LOOKS_S = 0.02  # between two looks whether the other rank has made the call meanwhile


class PartLink:
    """One rank's part: asked for once, answered as soon as that rank has made the call."""

    def __init__(self, process: "SimulatedProcess", order: FetchParts, rank: int) -> None:
        self.process, self.world = process, process.world
        self.epoch, self.position, self.rank = order.epoch, order.position, rank
        self.far = process.net.processes[process.core.view.members[rank].port]
        self._over = False

    def ask(self) -> None:
        """The request reaches the other rank, or does not."""
        if not self._is_wanted:
            return
        way = self.process.net.way(self.epoch, self.process, self.rank)
        if way is None:
            self._lose("refused")
        elif way.hurdle is not None:
            self.world.after(self.process.sim.settings.detect_within, self._lose, "nothing comes")
        elif self.far.core.view.epoch < self.epoch:
            self.far.parked.append(self.ask)  # newer waits (rule R1)
        else:
            self._watch()  # first: that rank may die when it is asked
            self.far.deliver(self._answer)

    @property
    def _is_wanted(self) -> bool:
        return not self._over and self.process.alive and self.process.core.view.epoch == self.epoch

    def _watch(self) -> None:
        """A process that has died or left the epoch ends the link, also while it is asked."""
        if not self._is_wanted:
            return
        if self.far.alive and self.far.core.view.epoch == self.epoch:
            self.world.after(LOOKS_S, self._watch)
        else:
            self._lose("the link broke")

    def _answer(self) -> None:
        """The other rank looks into its log; while it has not come so far it looks again."""
        core = self.far.core
        if not self._is_wanted or core.view.epoch != self.epoch:
            return
        if core.view.state not in (WorkerState.RUNNING, WorkerState.CATCHING_UP):
            return
        offer = core.contributed.offer(self.position)
        if offer is Offer.NOT_YET:
            self.world.after(LOOKS_S, self.far.deliver, self._answer)
        elif isinstance(offer, Offer):
            self._hear(PartLost(self.epoch, self.position, self.rank, offer.value, is_gone=True))
        else:
            rank, size = self.process.core.view.rank, core.contact.world_size
            value = part_for(rank, offer.value, size)
            self.far.point("serving")
            self._hear(PartFetched(self.epoch, self.position, self.rank, value))

    def _lose(self, why: str) -> None:
        if self._is_wanted:
            self._hear(PartLost(self.epoch, self.position, self.rank, why))

    def _hear(self, event: PartFetched | PartLost) -> None:
        self._over = True
        self.world.after(self.world.transit(), self.process.deliver, self.process.hear, event)


def fetch_parts(process: "SimulatedProcess", order: FetchParts) -> None:
    """Ask all ranks that the core names."""
    for rank in order.ranks:
        link = PartLink(process, order, rank)
        process.world.after(process.world.transit(), link.ask)
