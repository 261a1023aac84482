"""Messages of a simulated worker: sent to the log, and received from the inbox (rule R21)."""

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ftcomm.recovery.events import (
    AskForMessages,
    MessagesClaimed,
    MessagesLost,
    MessagesWanted,
)
from ftcomm.recovery.machine import Completion
from ftcomm.recovery.messages.message_exchange import Cursor, MessageArrived
from ftcomm.recovery.messages.sent_log import SentMessage
from ftcomm_chaos.sim.partitions import PathLoss
from ftcomm_chaos.sim.worker.execution import SITE, Thread
from ftcomm_chaos.sim.worker.parts import LOOKS_S, RankLink
from ftcomm_chaos.sim.workload import SimulatedMessage

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

WRITTEN_AT_ONCE = 0.5  # by the thread that sends, of large messages
DIGEST_BYTES = 16


def own_messages(
    process: "SimulatedProcess", version: int, index: int
) -> Iterator[SimulatedMessage]:
    """The messages before a call that this rank sends or receives, in order."""
    rank = process.core.view.rank
    for message in process.sim.program.messages.get((version, index), ()):
        if rank in (message.source, message.target):
            yield message


def pass_message(process: "SimulatedProcess", message: SimulatedMessage) -> Thread:
    """Send a message, or receive it."""
    if process.core.view.rank == message.source:
        yield from _send(process, message)
    else:
        yield from _receive(process, message)


def _send(process: "SimulatedProcess", message: SimulatedMessage) -> Thread:
    """Every other message is large: the log gets its content when it is on its way already."""
    content, late = message.content, is_large(message)
    digest = hashlib.blake2b(content.encode(), digest_size=DIGEST_BYTES).digest()
    process.point("sending")
    messages = process.core.messages
    kept = None if late else content
    found = messages.send(message.target, message.tag, digest, kept, SITE)
    process.require(found is None, f"a script that computes the same sent another {message}")
    if late:
        entry = messages.sent.newest((message.source, message.target, message.tag))
        feed = process.feeds.get(message.target)
        assert entry is not None, "it was logged"
        if feed is not None and process.world.chance(WRITTEN_AT_ONCE):
            feed.write(entry, content)
        process.in_call = False  # who is cut short here leaves
        yield process.world.between(0.0, 2 * LOOKS_S)
        process.sim.counters["messages missed"] += entry.keep(content)
    process.point("sent")


def is_large(message: SentMessage | SimulatedMessage) -> bool:
    """Tell whether a message is large: every other one of its stream."""
    return message.number % 2 == 0


class DirectTake:
    """A message that the thread which waits for it takes as it comes.

    Attributes:
        source: the rank that sends it.
        tag: of the message.
        has_taken: it is taken.
        content: of it, then.
    """

    def __init__(self, source: int, tag: bytes) -> None:
        self.source, self.tag = source, tag
        self.has_taken = False
        self.content: object = None


def _receive(process: "SimulatedProcess", message: SimulatedMessage) -> Thread:
    """Every other process takes what it waits for as it comes, the others from the inbox."""
    core, direct = process.core, DirectTake(message.source, message.tag)
    process.direct_take = direct if process.port % 2 else None
    while True:
        if core.view.error is not None:
            raise core.view.error
        outcome, content = None, direct.content
        if not direct.has_taken:
            outcome, content = core.messages.receive(message.source, message.tag, process.world.now)
        if outcome is Completion.DONE or direct.has_taken:
            process.direct_take = None
            process.monitor.on_message(process, message, content)
            process.sim.counters["messages"] += 1
            process.sim.counters["messages taken as they came"] += direct.has_taken
            process.point("received")
            return
        if outcome is None:
            process.hear(MessagesWanted(message.source))
            process.point("receiving")
        yield None


class MessageLink(RankLink):
    """A source's messages to one rank: asked for once, then sent as they are made."""

    def __init__(self, process: "SimulatedProcess", order: AskForMessages) -> None:
        super().__init__(process, order.epoch, order.source)
        self.order = order
        self._to = process.core.view.rank
        self._cursor = Cursor(order.version, {tag: mark.number for tag, mark in order.marks})
        self._is_writing = self._is_looking = False

    def _answer(self) -> None:
        order = self.order
        self.far.hear(MessagesClaimed(order.epoch, self._to, order.version, order.marks))
        self.far.feeds[self._to] = self
        self._serve()

    def _lost(self, why: str) -> MessagesLost:
        return MessagesLost(self.epoch, self.rank, why)

    def write(self, message: SentMessage, content: str) -> None:
        """The thread that has just logged a message writes it, if it comes next."""
        if self._is_writing or not self._is_served:
            return
        found = self.far.core.messages.newest_behind(self._to, self._cursor)
        if found is not None and found[1] is message:
            self._cursor, _ = found
            self.far.point("serving")
            self._send(message, content)
            self.process.sim.counters["messages sent as they were logged"] += 1

    def _serve(self) -> None:
        """The source looks into its log; where nothing follows yet it looks again."""
        if self._is_writing or not self._is_served:
            return
        self._cursor, found = self.far.core.messages.following(self._to, self._cursor, 1)
        if found:
            self.far.point("serving")
            self._send(found[0], found[0].value)
        elif not self._is_looking:
            self._is_looking = True
            self.world.after(LOOKS_S, self.far.deliver, self._look)

    def _look(self) -> None:
        self._is_looking = False
        self._serve()

    def _send(self, message: SentMessage, content: str) -> None:
        self._is_writing = True
        if is_large(message) and self._hurdle is PathLoss.LARGE:
            self._fall_silent()
        arrive = self._arrive, self._cursor.version, message, content
        self.world.after(self.world.transit(), self.process.deliver, *arrive)

    def _written(self) -> None:
        self._is_writing = False
        self._serve()

    def _arrive(self, version: int, message: SentMessage, content: str) -> None:
        if not self._is_wanted or self._is_silent:
            return
        order, tag = self.order, message.stream.tag
        arrived = MessageArrived(
            order.epoch,
            order.source,
            version,
            tag,
            message.number,
            message.digest,
            content,
        )
        if self._is_taken(arrived) or self.process.core.messages.arrive(arrived):
            self.process.poke()
        self.world.after(self.world.transit(), self.far.deliver, self._written)

    def _is_taken(self, arrived: MessageArrived) -> bool:
        direct, messages = self.process.direct_take, self.process.core.messages
        if direct is None or (direct.source, direct.tag) != (arrived.source, arrived.tag):
            return False
        if not messages.pass_on(arrived, direct, self.world.now):
            return False
        direct.content = arrived.value
        return True


def ask_for_messages(process: "SimulatedProcess", order: AskForMessages) -> None:
    """Ask the source that the core names."""
    process.world.after(process.world.transit(), MessageLink(process, order).ask)
