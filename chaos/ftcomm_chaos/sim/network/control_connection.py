"""A simulated control connection: whole messages in order, each end told of its end in its time."""

from typing import TYPE_CHECKING, Any

from ftcomm.protocol.messages import Hello
from ftcomm_chaos.sim.network.byte_pipe import Pipe
from ftcomm_tracker.core.events import ConnectionLost, Joined, Said

if TYPE_CHECKING:
    from ftcomm_chaos.sim.tracker import SimulatedTracker
    from ftcomm_chaos.sim.worker.process import SimulatedProcess


class ControlConn:
    """One control connection: two ordered directions, both ends told of its end on their own."""

    def __init__(
        self, tracker: "SimulatedTracker", process: "SimulatedProcess", number: int
    ) -> None:
        self.tracker, self.process, self.number = tracker, process, number
        self.world = tracker.world
        self.open = True
        self.joined = False
        self.pipe: Pipe | None = None  # where it is bytes
        self._arrives = {"up": 0.0, "down": 0.0}

    def _when(self, direction: str) -> float:
        when = max(self.world.now + self.world.transit(), self._arrives[direction])
        self._arrives[direction] = when
        return when

    def begin(self) -> None:
        """The tracker's kernel has accepted it."""
        delay = self.world.transit()
        self.world.after(delay, self.process.deliver, self.process.on_attached, self)

    def to_tracker(self, message: Any) -> None:
        """The worker sends."""
        self.world.at(self._when("up"), self.tracker.deliver, self._read, message)

    def _read(self, message: Any) -> None:
        if self.open:
            self.take(message)

    def take(self, message: Any) -> None:
        """A message has reached the tracker, which may have ended the connection meanwhile."""
        if self.tracker.conns.get(self.number) is not self:
            return
        if isinstance(message, Hello):
            self.joined = True
            self.tracker.hear(Joined(self.number, message))
        else:
            self.tracker.hear(Said(self.number, message))

    def to_worker(self, message: Any) -> None:
        """The tracker sends."""
        if self.open:
            self.world.at(self._when("down"), self._write, message, self.world.now)

    def _write(self, message: Any, sent_at: float) -> None:
        if self.open:
            self.process.deliver(self.process.on_control, self, message, sent_at)

    def cut(self) -> None:
        """The connection breaks: what is under way is lost; each end learns it in its time."""
        if not self.open:
            return
        self.open = False
        late = self.tracker.sim.settings.detect_within * 0.3
        self.world.after(self.world.between(0.001, late), self.tracker.deliver, self._tracker_sees)
        self.world.after(
            self.world.between(0.001, late),
            self.process.deliver,
            self.process.on_detached,
            self,
            "cut",
        )

    def tracker_gone(self) -> None:
        """The tracker's process has ended: its kernel says so, whatever was under way."""
        self.open = False
        self.world.after(
            self.world.between(0.001, 0.05),
            self.process.deliver, self.process.on_detached, self, "the tracker has gone",
        )  # fmt: skip

    def _tracker_sees(self) -> None:
        if self.tracker.forget(self):
            self.tracker.hear(ConnectionLost(self.number, "connection reset"))

    def worker_gone(self) -> None:
        """The worker's process has ended: its kernel says so, after what it had sent."""
        self.world.at(self._when("up"), self.tracker.deliver, self._tracker_sees)

    hang_up = worker_gone

    def close(self) -> None:
        """The tracker closes: the worker sees the end after what was sent."""
        self.tracker.forget(self)
        when = self._when("down")
        self.world.at(
            when, self.process.deliver, self.process.on_detached, self, "closed by the tracker"
        )
