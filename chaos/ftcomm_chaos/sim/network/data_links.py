"""Simulated data links as whole frames: ordered, delayed, breakable, silent if told so."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ftcomm.recovery.events import LinkDown, StartFetch
from ftcomm_chaos.sim.network.byte_pipe import Pipe
from ftcomm_chaos.sim.network.frames import SMALL_ITEMS, Frame, FrameStream
from ftcomm_chaos.sim.partitions import NetworkPath, Partitions, PathLoss
from ftcomm_chaos.sim.worker.fetch import FetchLink
from ftcomm_chaos.sim.world import World

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess


class Network:
    """All data streams and fetches of the job."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.processes: dict[int, SimulatedProcess] = {}  # by port
        self.streams: dict[tuple[int, int, int], FrameStream] = {}
        self.fetches: list[FetchLink] = []
        self.barriers = Partitions()

    # --- data ---------------------------------------------------------------------------------

    def send(self, process: "SimulatedProcess", rank: int, frame: Frame) -> bool:
        """Send to `rank` of the frame's epoch; False if the link is known to be broken."""
        epoch = frame.header.epoch
        stream = self._stream(epoch, process, rank)
        if stream is None or stream.broken:
            return False
        stream.silent |= stream.has_hole and len(frame.payload) > SMALL_ITEMS
        if not stream.silent:
            far = stream.other(process)
            self._deliver(stream, far, far.on_frame, epoch, process.core.view.rank, frame)
        return True

    def connect(self, process: "SimulatedProcess", rank: int) -> None:
        """Open the link to `rank` in the present epoch, as a schedule needs it."""
        self._stream(process.core.view.epoch, process, rank)

    def is_linked(self, process: "SimulatedProcess", rank: int) -> bool:
        """Tell whether the link exists, or is known to be broken; frames need no handshake."""
        del process, rank
        return True

    def _stream(self, epoch: int, process: "SimulatedProcess", rank: int) -> FrameStream | None:
        port = process.core.view.members[rank].port
        low, high = sorted((process.port, port))
        known = self.streams.get((epoch, low, high))
        if known is not None:
            return known
        way, far = self.way(epoch, process, rank), self.processes.get(port)
        if way is None or far is None:
            process.on_link_broken(epoch, rank)
            return None
        ends, ranks = (process, far), (process.core.view.rank, rank)
        stream = FrameStream(epoch, ends, ranks, via=way.via)
        if way.hurdle is not None:
            self.hinder(stream, way.hurdle)
        self.streams[epoch, low, high] = stream
        return stream

    def _deliver(
        self, stream: FrameStream, far: "SimulatedProcess", action: Callable[..., None], *args: Any
    ) -> None:
        delay = self.world.transit()
        when = max(self.world.now + delay, stream.arrives.get(far.port, 0.0))
        stream.arrives[far.port] = when
        self.world.at(when, self._arrive, stream, far, action, args)

    @staticmethod
    def _arrive(
        stream: FrameStream,
        far: "SimulatedProcess",
        action: Callable[..., None],
        args: tuple[Any, ...],
    ) -> None:
        if not stream.broken:
            far.deliver(action, *args)

    def way(self, epoch: int, process: "SimulatedProcess", rank: int) -> NetworkPath | None:
        """Return the path of `process` to a rank of its epoch; None if there is none."""
        core = process.core
        far, relay = self.processes.get(core.view.members[rank].port), core.view.relay_to(rank)
        if far is None or not far.accepts(epoch):
            return None
        if relay is None:
            return self.barriers.straight(process, far)
        via = self.processes[core.view.members[relay].port]
        way = self.barriers.through(epoch, process, via, far)
        if isinstance(way, NetworkPath):
            return way
        if way is process:
            process.hear(LinkDown(epoch, relay, "the relay cannot be reached"))
        else:
            via.deliver(via.hear, LinkDown(epoch, rank, "cannot connect, as a relay"))
        return None

    def hurdle(self, process: "SimulatedProcess", rank: int) -> PathLoss | None:
        """Return what is lost now on the way to a rank of the epoch, on a link that is open."""
        core = process.core
        far, relay = self.processes[core.view.members[rank].port], core.view.relay_to(rank)
        if relay is None:
            way = self.barriers.straight(process, far)
            return None if way is None else way.hurdle
        via = self.processes[core.view.members[relay].port]
        through = self.barriers.through(core.view.epoch, process, via, far)
        return through.hurdle if isinstance(through, NetworkPath) else None

    def put_up(self, names: frozenset[str], hurdle: PathLoss) -> None:
        """A barrier goes up; a silent one swallows what is under way, too."""
        self.barriers.put_up(names, hurdle)
        for stream in self.open_streams():
            hops = [{end.worker_id, stream.via.worker_id} for end in stream.ends if stream.via]
            hops = hops or [{end.worker_id for end in stream.ends}]
            if hurdle is not PathLoss.REFUSED and set(names) in hops:
                self.hinder(stream, hurdle)

    def hinder(self, stream: FrameStream, hurdle: PathLoss) -> None:
        """A barrier that swallows bytes has gone up on the stream's way."""
        if hurdle is PathLoss.LARGE:
            stream.has_hole = True
        else:
            self.silence(stream)

    def silence(self, stream: FrameStream) -> None:
        """Swallows everything from now on, and nobody is told."""
        stream.silent = True

    def cut(self, stream: FrameStream) -> None:
        """The connection breaks: what is under way is lost, both ends are told in their time."""
        stream.broken = True
        for process in stream.ends:
            self._tell(stream, process, self.world.now + self.world.between(0.001, 0.1))

    def close(self, process: "SimulatedProcess", below_epoch: int | None = None) -> None:
        """`process` shuts its streams down (of older epochs only, if given) or has died."""
        for stream in [s for s in self.streams.values() if process in s.ends]:
            if stream.broken or (below_epoch is not None and stream.epoch >= below_epoch):
                continue
            far = stream.other(process)
            process.on_link_broken(stream.epoch, stream.other_rank(process))
            if self.world.chance(0.5):  # a reset overtakes what is under way
                stream.broken = True
                self._tell(stream, far, self.world.now + self.world.transit())
            else:
                self._deliver(stream, far, self._end, stream, far)

        for stream in [s for s in self.open_streams() if s.via is process]:
            if below_epoch is None or stream.epoch < below_epoch:
                self.cut(stream)
        for link in self.fetches:
            if process in (link.far, link.via) and (
                below_epoch is None or link.epoch < below_epoch
            ):
                link.fail("connection reset")
            elif process is link.process and (below_epoch is None or link.epoch < below_epoch):
                link.over = True

    def _end(self, stream: FrameStream, process: "SimulatedProcess") -> None:
        stream.broken = True
        process.on_link_broken(stream.epoch, stream.other_rank(process))

    def _tell(self, stream: FrameStream, process: "SimulatedProcess", when: float) -> None:
        self.world.at(
            when, process.deliver, process.on_link_broken, stream.epoch, stream.other_rank(process)
        )

    def open_streams(self) -> list[FrameStream]:
        """Streams that a fault may still hurt."""
        return [s for s in self.streams.values() if not s.broken and not s.silent]

    def open_pipes(self) -> list[Pipe]:
        """Connections that are bytes; here there are none."""
        return []

    # --- fetches ------------------------------------------------------------------------------

    def fetch(self, process: "SimulatedProcess", order: StartFetch) -> None:
        """Begin what the core ordered."""
        far = self.processes[process.core.view.members[order.source].port]
        link = FetchLink(self.world, process, far, order)
        self.fetches = [f for f in self.fetches if not f.over] + [link]
        self.world.after(self.world.transit(), link.ask)
