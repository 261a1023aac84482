"""Data links as bytes: real handshakes, keys of the epoch, frames of 104 bytes and payload."""

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ftcomm.config.backoff import LINK_ATTEMPTS, LINK_BACKOFF
from ftcomm.protocol.frame_header import HEADER_BYTES, FrameHeader, pack_header, unpack_header
from ftcomm.protocol.handshake import HANDSHAKE_DEADLINE_S
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.events import LinkDown
from ftcomm.recovery.machine import WorkerState
from ftcomm_chaos.sim.network.endpoint import HandshakeRun, dial
from ftcomm_chaos.sim.network.frames import Frame

if TYPE_CHECKING:
    from ftcomm_chaos.sim.network.wire_network import WireNetwork
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

ITEM = struct.Struct("<d")
WHOLE_NUMBERS = (Kind.LOAD, Kind.CHECKPOINT)  # states and digests; they fit a float64


def frame_bytes(frame: Frame) -> bytes:
    """A frame as it travels: its length counts bytes."""
    header = frame.header._replace(length=ITEM.size * len(frame.payload))
    return pack_header(header) + b"".join(ITEM.pack(value) for value in frame.payload)


class FrameReader:
    """Cuts bytes into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes."""
        self._bytes += data
        while len(self._bytes) >= HEADER_BYTES:
            header = unpack_header(self._bytes)
            end = HEADER_BYTES + header.length
            if len(self._bytes) < end:
                return
            payload = bytes(self._bytes[HEADER_BYTES:end])
            del self._bytes[:end]
            yield _frame(header, payload)


def _frame(header: FrameHeader, payload: bytes) -> Frame:
    values: tuple[float, ...] = tuple(value for (value,) in ITEM.iter_unpack(payload))
    if header.signature[0] in WHOLE_NUMBERS:
        values = tuple(int(value) for value in values)
    return Frame(header._replace(length=len(values)), values)


class LinkEnd:
    """One process's end of a data link.

    Attributes:
        broken: of no more use in this epoch.
    """

    def __init__(
        self, net: "WireNetwork", process: "SimulatedProcess", epoch: int, rank: int
    ) -> None:
        self.net, self.process, self.epoch, self.rank = net, process, epoch, rank
        self.broken = False
        self._talk: HandshakeRun | None = None
        self._attempts = 0
        self._patient_until = 0.0
        self._frames = FrameReader()

    def send(self, data: bytes) -> None:
        """The link is up."""
        assert self._talk is not None, "sent before the link was there"
        self._talk.send(data)

    @property
    def is_settled(self) -> bool:
        """Up, or broken."""
        return self.broken or self._talk is not None

    def take_over(self, talk: HandshakeRun) -> None:
        """The handshake of `talk` is done; there is one link in an epoch, as in `Hub.add_link`."""
        if self.broken or self._talk is not None:
            talk.end.close()
            return
        self._talk = talk
        talk.take, talk.end.on_over = self._take, self._on_over
        self.process.poke()

    def fail(self) -> None:
        """The kernel knows that it is dead; the user's thread finds out when it uses it."""
        if not self.broken:
            self.broken = True
            self.process.on_link_broken(self.epoch, self.rank)

    def _take(self, data: bytes) -> None:
        if self.epoch == self.process.core.view.epoch:
            self.process.blocked_since = self.net.world.now
        for frame in self._frames.feed(data):
            self.process.on_frame(self.epoch, self.rank, frame)

    def _on_over(self, _reason: str) -> None:
        self.fail()

    # --- dialling: the lower rank -------------------------------------------------------------

    def dial(self) -> None:
        """One attempt to connect, unless the epoch is over."""
        core = self.process.core
        live = core.view.epoch == self.epoch and core.view.state in (
            WorkerState.RUNNING,
            WorkerState.CATCHING_UP,
        )
        if self.broken or not live:
            return
        self._attempts += 1
        if self._attempts == 1:
            self._patient_until = self.net.world.now + self.process.sim.dial_s
        way = self.net.way(self.epoch, self.process, self.rank)
        if way is None:
            self._dial_again("refused")
            return
        end = self.net.open(self.process, self.rank, self.epoch, way)
        talk = dial(end, self.process, self.epoch, self.rank, "data", self.net.next_nonce())
        talk.on_ready = lambda: self.take_over(talk)
        end.on_over = self._dial_again
        left_s = self._patient_until - self.net.world.now
        limit_s = max(min(HANDSHAKE_DEADLINE_S, left_s), 0.0)
        self.net.world.after(limit_s, self.process.deliver, self._late, talk)

    def _late(self, talk: HandshakeRun) -> None:
        if not talk.ready and not talk.end.over:
            talk.end.close()
            self._dial_again("the handshake takes too long")

    def _dial_again(self, reason: str) -> None:
        """Patiently; then the control thread says that it cannot connect."""
        world = self.net.world
        if self.broken:
            return
        if self._attempts < LINK_ATTEMPTS and world.now < self._patient_until:
            pause = LINK_BACKOFF.delay_s(self._attempts, world.rng.random())
            world.after(pause, self.process.deliver, self.dial)
        else:
            self.fail()
            self.process.hear(LinkDown(self.epoch, self.rank, f"cannot connect: {reason}"))
