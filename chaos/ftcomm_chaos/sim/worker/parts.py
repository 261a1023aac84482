"""Links by which a simulated rank asks another for its part of a call, or for a rank's result."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftcomm.protocol.link_messages import CopyName
from ftcomm.recovery.archive.archive import ResultCopy
from ftcomm.recovery.contributions.contributed_calls import Offer
from ftcomm.recovery.events import (
    CopyFetched,
    CopyLost,
    Event,
    FetchCopies,
    FetchParts,
    PartFetched,
    PartLost,
)
from ftcomm.recovery.machine import WorkerMachine, WorkerState
from ftcomm_chaos.sim.partitions import PathLoss
from ftcomm_chaos.sim.workload import part_for

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

LOOKS_S = 0.02  # between two looks whether the other rank has made the call meanwhile
Answer = PartFetched | PartLost | CopyFetched | CopyLost


@dataclass(frozen=True)
class PartQuestion:
    """The part of a contributed call."""

    order: FetchParts
    rank: int

    @property
    def epoch(self) -> int:
        """Of the link."""
        return self.order.epoch

    def answer(self, asked: WorkerMachine, asker: int) -> Answer | None:
        """The part out of that rank's contribution log."""
        offer = asked.contributed.offer(self.order.position)
        if isinstance(offer, Offer):
            return None if offer is Offer.NOT_YET else self.lost(offer.value, is_gone=True)
        part = part_for(asker, offer.value, asked.contact.world_size)
        return PartFetched(self.epoch, self.order.position, self.rank, part)

    def lost(self, why: str, *, is_gone: bool = False) -> Answer:
        """No part comes."""
        return PartLost(self.epoch, self.order.position, self.rank, why, is_gone)


@dataclass(frozen=True)
class CopyQuestion:
    """One rank's result of a copied call."""

    epoch: int
    rank: int
    name: CopyName

    def answer(self, asked: WorkerMachine, asker: int) -> Answer | None:
        """The result out of that rank's copy store."""
        offer = asked.copied.offer(self.name, asker)
        if isinstance(offer, ResultCopy):
            return CopyFetched(self.epoch, self.name, self.rank, offer)
        return None if offer is Offer.NOT_YET else self.lost(offer.value, is_gone=True)

    def lost(self, why: str, *, is_gone: bool = False) -> Answer:
        """No result comes."""
        return CopyLost(self.epoch, self.name, self.rank, why, is_gone)


class RankLink(ABC):
    """A link of one epoch by which a rank asks another once."""

    def __init__(self, process: "SimulatedProcess", epoch: int, rank: int) -> None:
        self.process, self.world = process, process.world
        self.epoch, self.rank = epoch, rank
        self.far = process.net.processes[process.core.view.members[rank].port]
        self._over = self._is_silent = False

    def ask(self) -> None:
        """The request reaches the other rank, or does not."""
        if not self._is_wanted:
            return
        way = self.process.net.way(self.epoch, self.process, self.rank)
        if way is None:
            self._lose("refused")
        elif way.hurdle not in (None, PathLoss.LARGE):
            self.world.after(self.process.sim.dial_s, self._lose, "no connection")
        elif self.far.core.view.epoch < self.epoch:
            self.far.parked.append(self.ask)  # newer waits (rule R1)
        else:
            self._watch()  # first: that rank may die when it is asked
            self.far.deliver(self._answer)

    @property
    def _is_wanted(self) -> bool:
        return not self._over and self.process.alive and self.process.core.view.epoch == self.epoch

    @property
    def _is_served(self) -> bool:
        """True while the other rank can answer in this epoch."""
        view = self.far.core.view
        live = view.state in (WorkerState.RUNNING, WorkerState.CATCHING_UP)
        return self._is_wanted and not self._is_silent and view.epoch == self.epoch and live

    def _watch(self) -> None:
        """A process that has died or left the epoch ends the link, also while it is asked."""
        if not self._is_wanted:
            return
        if self.far.alive and self.far.core.view.epoch == self.epoch:
            if self._hurdle not in (None, PathLoss.LARGE):
                self._fall_silent()
            self.world.after(LOOKS_S, self._watch)
        else:
            self._lose("the link broke")

    @property
    def _hurdle(self) -> PathLoss | None:
        return self.process.net.hurdle(self.process, self.rank)

    def _fall_silent(self) -> None:
        """Nothing comes any more, and the rank that asked finds that out."""
        if not self._is_silent:
            self._is_silent = True
            limit_s = self.process.sim.settings.detect_within
            self.world.after(limit_s, self._lose, "nothing comes")

    def _lose(self, why: str) -> None:
        if self._is_wanted:
            self._hear(self._lost(why))

    def _hear(self, event: Event) -> None:
        self._over = True
        self.world.after(self.world.transit(), self.process.deliver, self.process.hear, event)

    @abstractmethod
    def _answer(self) -> None:
        """The other rank has the request."""

    @abstractmethod
    def _lost(self, why: str) -> Event:
        """Nothing comes."""


class PartLink(RankLink):
    """One question: asked once, answered as soon as the other rank can."""

    def __init__(
        self,
        process: "SimulatedProcess",
        question: PartQuestion | CopyQuestion,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """`then` follows when the question has been answered."""
        super().__init__(process, question.epoch, question.rank)
        self._then = then
        self.question = question

    def _answer(self) -> None:
        """The other rank looks into its log; while it has not come so far it looks again."""
        if not self._is_served:
            return
        answer = self.question.answer(self.far.core, self.process.core.view.rank)
        if answer is None:
            self.world.after(LOOKS_S, self.far.deliver, self._answer)
            return
        if isinstance(answer, PartFetched | CopyFetched):
            if self._hurdle is PathLoss.LARGE:
                self._fall_silent()
                return
            self.far.point("serving")
        self._hear(answer)
        self._then()

    def _lost(self, why: str) -> Event:
        return self.question.lost(why)


def fetch_parts(process: "SimulatedProcess", order: FetchParts) -> None:
    """Ask all ranks that the core names."""
    for rank in order.ranks:
        link = PartLink(process, PartQuestion(order, rank))
        process.world.after(process.world.transit(), link.ask)


def fetch_copies(process: "SimulatedProcess", order: FetchCopies, first: int = 0) -> None:
    """Ask one rank for all that the core names, in order: each when the last was answered."""
    if first == len(order.names):
        return
    question = CopyQuestion(order.epoch, order.rank, order.names[first])
    link = PartLink(process, question, lambda: fetch_copies(process, order, first + 1))
    process.world.after(process.world.transit(), link.ask)
