"""A control connection as bytes: the real handshake, codec and decoder at both ends."""

from collections import deque
from typing import TYPE_CHECKING, Any

from ftcomm.config.job_settings import SILENT_WINDOWS
from ftcomm.protocol.codec import Decoder, encode
from ftcomm.protocol.handshake import (
    HANDSHAKE_DEADLINE_S,
    ClientHandshake,
    HandshakeRequest,
    ServerHandshake,
    control_key,
)
from ftcomm.protocol.member_deltas import MemberDeltaReader, MemberDeltaWriter
from ftcomm.protocol.messages import Member, Plan
from ftcomm_chaos.sim.network.byte_pipe import Pipe
from ftcomm_chaos.sim.network.control_connection import ControlConn
from ftcomm_chaos.sim.network.endpoint import TOKEN, HandshakeRun, nonce
from ftcomm_tracker.core.events import ConnectionLost

if TYPE_CHECKING:
    from ftcomm_chaos.sim.tracker import SimulatedTracker
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

KEY = control_key(TOKEN)


class WiredControl(ControlConn):
    """Implementation of `ControlConn` over a `Pipe`."""

    def __init__(
        self, tracker: "SimulatedTracker", process: "SimulatedProcess", number: int
    ) -> None:
        super().__init__(tracker, process, number)
        self.pipe = pipe = Pipe(self.world, process, tracker)
        near, far = pipe.ends
        near.on_over, far.on_over = self._worker_learns, self._tracker_learns
        self._sent_at: deque[float] = deque()  # of the tracker's messages, in order
        self._last_heard = self.world.now
        self._from_tracker, self._from_worker = Decoder(), Decoder()
        self._deltas_read, self._deltas_written = MemberDeltaReader(), MemberDeltaWriter()
        self._told: tuple[Member, ...] = ()
        self._near = HandshakeRun(
            near,
            ClientHandshake(KEY, role="worker", context=b"", nonce=nonce(2 * number)),
            on_ready=self._attach,
            take=self._read_near,
        )
        self._far = HandshakeRun(
            far,
            ServerHandshake(nonce(2 * number + 1)),
            take=self._read_far,
        )
        self._far.answer(self._choose_key)

    def begin(self) -> None:
        """The tracker's kernel has accepted it."""
        process, tracker = self.process, self.tracker
        self._near.begin()
        self.world.after(HANDSHAKE_DEADLINE_S, tracker.deliver, self._late_for_the_tracker)
        self.world.after(HANDSHAKE_DEADLINE_S, process.deliver, self._late_for_the_worker)

    # --- the worker's end ---------------------------------------------------------------------

    def _attach(self) -> None:
        self._last_heard = self.world.now
        self.process.on_attached(self)
        self._watch()

    def _late_for_the_worker(self) -> None:
        if not self._near.ready:
            self._give_up("the handshake takes too long")

    def _watch(self) -> None:
        """The tracker answers every heartbeat: a long silence is the end of the connection."""
        if self._near.end.over:
            return
        due = self._last_heard + SILENT_WINDOWS * self.tracker.sim.settings.detect_within
        if self.world.now >= due:
            self._give_up("the tracker does not answer heartbeats")
        else:
            self.world.at(due, self.process.deliver, self._watch)

    def _give_up(self, reason: str) -> None:
        if not self._near.end.over:
            self._near.end.close()
            self._worker_learns(reason)

    def _worker_learns(self, reason: str) -> None:
        self.process.on_detached(self, reason)

    def to_tracker(self, message: Any) -> None:
        """The worker sends; before the tracker is proven nothing is said."""
        if self._near.ready:
            self._near.send(encode(message))

    def _read_near(self, data: bytes) -> None:
        self._last_heard = self.world.now
        for message in map(self._deltas_read.take, self._from_tracker.feed(data)):
            if message is None:
                continue
            sent_at = self._sent_at.popleft()
            self.process.deliver(self.process.on_control, self, message, sent_at)

    def hang_up(self) -> None:
        """The worker's process ends it, or has ended."""
        self._near.end.close()

    worker_gone = hang_up

    # --- the tracker's end --------------------------------------------------------------------

    def _choose_key(self, request: HandshakeRequest) -> None:
        assert (request.role, request.context) == ("worker", b"")
        self._far.use_key(KEY)

    def _late_for_the_tracker(self) -> None:
        if not self.joined and not self._far.end.over:
            self._far.end.close()
            self._tracker_learns("no hello in time")

    def _tracker_learns(self, reason: str) -> None:
        if self.tracker.forget(self):
            self.tracker.hear(ConnectionLost(self.number, reason))

    def to_worker(self, message: Any) -> None:
        """The tracker sends."""
        if self._far.ready and not self._far.end.over:
            self._sent_at.append(self.world.now)
            for frame in self._frames(message):
                self._far.send(frame)

    def _frames(self, message: Any) -> list[bytes]:
        if not isinstance(message, Plan):
            return [encode(message)]
        frames = self._deltas_written.frames(message, self._told)
        self._told = message.members
        return frames

    def _read_far(self, data: bytes) -> None:
        for message in self._from_worker.feed(data):
            self.tracker.deliver(self.take, message)

    def close(self) -> None:
        """The tracker ends it."""
        self.tracker.forget(self)
        self._far.end.close(gently=True)

    def tracker_gone(self) -> None:
        """The tracker's process has been killed."""
        self._far.end.close()

    # --- faults -------------------------------------------------------------------------------

    def cut(self) -> None:
        """The connection breaks."""
        assert self.pipe is not None
        self.pipe.reset()
