"""The network of a job whose links are bytes: who dials, who accepts, what closes."""

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftcomm.errors import ProtocolError
from ftcomm.protocol.handshake import (
    HANDSHAKE_DEADLINE_S,
    DataContext,
    HandshakeRequest,
    ServerHandshake,
    epoch_key,
)
from ftcomm.recovery.events import StartFetch
from ftcomm.recovery.machine import WorkerState
from ftcomm_chaos.sim.network.byte_pipe import End, Pipe
from ftcomm_chaos.sim.network.data_links import Network
from ftcomm_chaos.sim.network.endpoint import JOB, TOKEN, HandshakeRun, nonce
from ftcomm_chaos.sim.network.frames import Frame, FrameStream
from ftcomm_chaos.sim.network.wire_data import LinkEnd, frame_bytes
from ftcomm_chaos.sim.network.wire_fetch import FetchServer, WireFetch
from ftcomm_chaos.sim.partitions import NetworkPath, PathLoss
from ftcomm_chaos.sim.world import World

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess


@dataclass(eq=False)
class WireStream(FrameStream):
    """A data link or a fetch link, as faults see it."""

    pipe: Pipe | None = None


class WireNetwork(Network):
    """A `Network` over pipes."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._links: dict[tuple[int, int, int], LinkEnd] = {}  # by port, epoch, far rank
        self._ends: dict[int, list[tuple[int, End]]] = defaultdict(list)  # by port: epoch, end
        self._pipes: list[WireStream] = []
        self._nonces = 1 << 32  # control connections have the lower ones

    # --- data ---------------------------------------------------------------------------------

    def send(self, process: "SimulatedProcess", rank: int, frame: Frame) -> bool:
        """Send to `rank` of the frame's epoch; False if the link is known to be broken."""
        link = self._link(process, frame.header.epoch, rank)
        if link.broken:
            return False
        link.send(frame_bytes(frame))
        return True

    def connect(self, process: "SimulatedProcess", rank: int) -> None:
        """The lower rank dials, the higher one waits for it."""
        self._link(process, process.core.view.epoch, rank)

    def is_linked(self, process: "SimulatedProcess", rank: int) -> bool:
        """Tell whether the handshake is done, or the link is known to be broken."""
        return self._link(process, process.core.view.epoch, rank).is_settled

    def _link(self, process: "SimulatedProcess", epoch: int, rank: int) -> LinkEnd:
        link = self._links.get((process.port, epoch, rank))
        if link is None:
            link = LinkEnd(self, process, epoch, rank)
            self._links[process.port, epoch, rank] = link
            if process.core.view.rank < rank:
                self.world.after(self.world.between(0.0, 0.002), process.deliver, link.dial)
        return link

    def fetch(self, process: "SimulatedProcess", order: StartFetch) -> None:
        """Begin what the core ordered."""
        fetch = WireFetch(self, process, order)
        self.world.after(self.world.transit(), process.deliver, fetch.ask)

    # --- connections --------------------------------------------------------------------------

    def next_nonce(self) -> bytes:
        """One that no other connection has."""
        self._nonces += 1
        return nonce(self._nonces)

    def open(self, process: "SimulatedProcess", rank: int, epoch: int, way: NetworkPath) -> End:
        """Connect `process` to `rank`, whose process will welcome it; the dialling end."""
        far = self.processes[process.core.view.members[rank].port]
        pipe = Pipe(self.world, process, far)
        for owner, end in zip((process, far), pipe.ends, strict=True):
            self._ends[owner.port].append((epoch, end))
        ranks = (process.core.view.rank, rank)
        stream = WireStream(epoch, (process, far), ranks, via=way.via, pipe=pipe)
        self._pipes = [s for s in self._pipes if s.pipe and s.pipe.is_open] + [stream]
        if way.hurdle is not None:
            self.hinder(stream, way.hurdle)
        far.deliver(self._welcome, far, pipe.ends[1])
        return pipe.ends[0]

    def _welcome(self, process: "SimulatedProcess", end: End) -> None:
        LinkWelcome(self, process, end)

    def accepted(
        self, process: "SimulatedProcess", epoch: int, rank: int, talk: HandshakeRun
    ) -> None:
        """The handshake of a data link that `rank` has dialled is done."""
        self._link(process, epoch, rank).take_over(talk)

    # --- what breaks --------------------------------------------------------------------------

    def open_streams(self) -> list[FrameStream]:
        """Links that a fault may still hurt, those of fetches too."""
        return [s for s in self._pipes if s.pipe is not None and s.pipe.is_open]

    def open_pipes(self) -> list[Pipe]:
        """The same, as pipes."""
        return [s.pipe for s in self._pipes if s.pipe is not None and s.pipe.is_open]

    def silence(self, stream: FrameStream) -> None:
        """Swallows everything from now on, and nobody is told."""
        assert isinstance(stream, WireStream)
        assert stream.pipe is not None
        stream.pipe.silence()

    def hinder(self, stream: FrameStream, hurdle: PathLoss) -> None:
        """One way, the other still works; through a relay that would be hard to tell."""
        assert isinstance(stream, WireStream)
        assert stream.pipe is not None
        if hurdle is PathLoss.LARGE:
            stream.pipe.has_hole = True
            return
        first = min(stream.ends, key=lambda process: process.worker_id)
        one_way = hurdle is PathLoss.ONE_WAY and stream.via is None
        stream.pipe.silence(*[end for end in stream.pipe.ends if one_way and end.owner is first])

    def cut(self, stream: FrameStream) -> None:
        """The connection breaks."""
        assert isinstance(stream, WireStream)
        assert stream.pipe is not None
        stream.pipe.reset()

    def close(self, process: "SimulatedProcess", below_epoch: int | None = None) -> None:
        """`process` shuts its links down (of older epochs only, if given) or has died."""
        kept = []
        for epoch, end in self._ends[process.port]:
            if below_epoch is not None and epoch >= below_epoch:
                kept.append((epoch, end))
            else:
                end.close()
        self._ends[process.port] = kept
        for (port, epoch, _), link in self._links.items():
            if port == process.port and (below_epoch is None or epoch < below_epoch):
                link.fail()
        for stream in self._pipes:
            if stream.via is process and (below_epoch is None or stream.epoch < below_epoch):
                self.cut(stream)


class LinkWelcome:
    """The accepting end of a link: who calls, for which epoch, for what."""

    def __init__(self, net: WireNetwork, process: "SimulatedProcess", end: End) -> None:
        self.net, self.process = net, process
        self._request: HandshakeRequest | None = None
        self._context: DataContext | None = None
        shake = ServerHandshake(net.next_nonce())
        self._talk = HandshakeRun(end, shake, on_ready=self._ready)
        self._talk.answer(self._asked)
        net.world.after(HANDSHAKE_DEADLINE_S, process.deliver, self._late)

    def _late(self) -> None:
        if not self._talk.ready:
            self._talk.end.close()

    def _asked(self, request: HandshakeRequest) -> None:
        self._request, self._context = request, DataContext.decode(request.context)
        self._look()

    def _look(self) -> None:
        """An older epoch is dropped, a newer one waits for its plan (rule R1)."""
        core, context = self.process.core, self._context
        assert context is not None
        live = core.view.state in (WorkerState.RUNNING, WorkerState.CATCHING_UP)
        if self._talk.end.over:
            return
        if live and core.view.epoch == context.epoch:
            self._admit(context)
        elif context.epoch < core.view.revoke_epoch or (
            context.epoch == core.view.epoch and not live
        ):
            self._talk.end.close()
        else:
            self.process.parked.append(self._look)

    def _admit(self, context: DataContext) -> None:
        core = self.process.core
        member = core.view.members[context.from_rank]
        if (context.job_id, context.to_rank, context.incarnation) != (
            JOB, core.view.rank, member.incarnation,
        ):  # fmt: skip
            raise ProtocolError(f"rank {core.view.rank} is called by {context}")
        self._talk.use_key(epoch_key(TOKEN, JOB, context.epoch))

    def _ready(self) -> None:
        assert self._context is not None
        assert self._request is not None
        epoch, rank = self._context.epoch, self._context.from_rank
        if self._request.role == "data":
            self.net.accepted(self.process, epoch, rank, self._talk)
        else:
            FetchServer(self.net, self.process, epoch, rank, self._talk)
