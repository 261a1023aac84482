"""Simulated data links and fetch links: ordered, delayed, breakable, silent if told so."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ftcomm.errors import ProtocolError
from ftcomm.protocol.frames import FrameHeader, pack_header, unpack_header
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.recovery.events import (
    CheckpointFetched,
    FetchEnded,
    LinkDown,
    LocalFetched,
    ResultFetched,
    StartFetch,
)
from ftcomm.recovery.worker import State
from ftcomm_chaos.sim.barriers import Barriers, Hurdle, Way
from ftcomm_chaos.sim.world import Violation, World

if TYPE_CHECKING:
    from ftcomm_chaos.sim.process import Life


Item = CheckpointFetched | LocalFetched | ResultFetched


class Frame(NamedTuple):
    """One step's block with its header."""

    header: FrameHeader
    payload: tuple[Any, ...]


@dataclass(eq=False)
class Stream:
    """One connection between two lives in one epoch."""

    epoch: int
    ends: tuple["Life", "Life"]
    ranks: tuple[int, int]  # of the ends, in this epoch: the far one may not know its own yet
    broken: bool = False
    silent: bool = False  # swallows everything, and nobody is told (rule R12)
    via: "Life | None" = None  # who passes everything on
    arrives: dict[int, float] = field(default_factory=dict)  # by receiver: order is kept

    def other(self, life: "Life") -> "Life":
        """The far end."""
        return self.ends[1] if life is self.ends[0] else self.ends[0]

    def other_rank(self, life: "Life") -> int:
        """The far end's rank."""
        return self.ranks[1] if life is self.ends[0] else self.ranks[0]


class Network:
    """All data streams and fetches of the job."""

    def __init__(self, world: World, *, wire: bool) -> None:
        self.world = world
        self.wire = wire
        self.lives: dict[int, Life] = {}  # by port
        self.streams: dict[tuple[int, int, int], Stream] = {}
        self.fetches: list[FetchLink] = []
        self.barriers = Barriers()

    # --- data ---------------------------------------------------------------------------------

    def send(self, life: "Life", rank: int, frame: Frame) -> bool:
        """Send to `rank` of the frame's epoch; False if the link is known to be broken."""
        epoch = frame.header.epoch
        stream = self._stream(epoch, life, rank)
        if stream is None or stream.broken:
            return False
        if self.wire:
            frame = Frame(unpack_header(pack_header(frame.header)), frame.payload)
        if not stream.silent:
            far = stream.other(life)
            self._deliver(stream, far, far.on_frame, epoch, life.core.rank, frame)
        return True

    def connect(self, life: "Life", rank: int) -> None:
        """Open the link to `rank` in the present epoch, as a schedule needs it."""
        self._stream(life.core.epoch, life, rank)

    def _stream(self, epoch: int, life: "Life", rank: int) -> Stream | None:
        port = life.core.members[rank].port
        low, high = sorted((life.port, port))
        known = self.streams.get((epoch, low, high))
        if known is not None:
            return known
        way, far = self.way(epoch, life, rank), self.lives.get(port)
        if way is None or far is None:
            life.on_link_broken(epoch, rank)
            return None
        ends, ranks = (life, far), (life.core.rank, rank)
        stream = Stream(epoch, ends, ranks, silent=way.silent, via=way.via)
        self.streams[epoch, low, high] = stream
        return stream

    def _deliver(
        self, stream: Stream, far: "Life", action: Callable[..., None], *args: Any
    ) -> None:
        delay = self.world.between(0.0001, 0.02)
        when = max(self.world.now + delay, stream.arrives.get(far.port, 0.0))
        stream.arrives[far.port] = when
        self.world.at(when, self._arrive, stream, far, action, args)

    @staticmethod
    def _arrive(
        stream: Stream, far: "Life", action: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        if not stream.broken:
            far.deliver(action, *args)

    def way(self, epoch: int, life: "Life", rank: int) -> Way | None:
        """How `life` reaches a rank of its epoch; None if it does not."""
        core = life.core
        far, relay = self.lives.get(core.members[rank].port), core.relay_to(rank)
        if far is None or not far.accepts(epoch):
            return None
        if relay is None:
            return self.barriers.straight(life, far)
        via = self.lives[core.members[relay].port]
        way = self.barriers.through(epoch, life, via, far)
        if isinstance(way, Way):
            return way
        if way is life:
            life.hear(LinkDown(epoch, relay, "the relay cannot be reached"))
        else:
            via.deliver(via.hear, LinkDown(epoch, rank, "cannot connect, as a relay"))
        return None

    def put_up(self, names: frozenset[str], hurdle: Hurdle) -> None:
        """A barrier goes up; a silent one swallows what is under way, too."""
        self.barriers.put_up(names, hurdle)
        for stream in self.open_streams():
            hops = [{end.worker_id, stream.via.worker_id} for end in stream.ends if stream.via]
            hops = hops or [{end.worker_id for end in stream.ends}]
            stream.silent |= hurdle is Hurdle.SILENT and set(names) in hops

    def cut(self, stream: Stream) -> None:
        """The connection breaks: what is under way is lost, both ends are told in their time."""
        stream.broken = True
        for life in stream.ends:
            self._tell(stream, life, self.world.now + self.world.between(0.001, 0.1))

    def close(self, life: "Life", below_epoch: int | None = None) -> None:
        """`life` shuts its streams down (of older epochs only, if given) or has died."""
        for stream in [s for s in self.streams.values() if life in s.ends]:
            if stream.broken or (below_epoch is not None and stream.epoch >= below_epoch):
                continue
            far = stream.other(life)
            life.on_link_broken(stream.epoch, stream.other_rank(life))
            if self.world.chance(0.5):  # a reset overtakes what is under way
                stream.broken = True
                self._tell(stream, far, self.world.now + self.world.between(0.0001, 0.02))
            else:
                self._deliver(stream, far, self._end, stream, far)

        for stream in [s for s in self.open_streams() if s.via is life]:
            if below_epoch is None or stream.epoch < below_epoch:
                self.cut(stream)
        for link in self.fetches:
            if life in (link.far, link.via) and (below_epoch is None or link.epoch < below_epoch):
                link.fail("connection reset")
            elif life is link.life and (below_epoch is None or link.epoch < below_epoch):
                link.over = True

    def _end(self, stream: Stream, life: "Life") -> None:
        stream.broken = True
        life.on_link_broken(stream.epoch, stream.other_rank(life))

    def _tell(self, stream: Stream, life: "Life", when: float) -> None:
        self.world.at(
            when, life.deliver, life.on_link_broken, stream.epoch, stream.other_rank(life)
        )

    def open_streams(self) -> list[Stream]:
        """Streams that a fault may still hurt."""
        return [s for s in self.streams.values() if not s.broken and not s.silent]

    # --- fetches ------------------------------------------------------------------------------

    def fetch(self, life: "Life", order: StartFetch) -> None:
        """Begin what the core ordered."""
        far = self.lives.get(life.core.members[order.source].port)
        link = FetchLink(self.world, life, far, order)
        self.fetches = [f for f in self.fetches if not f.over] + [link]
        self.world.after(self.world.between(0.0005, 0.02), link.ask)


class FetchLink:
    """One ordered fetch: asked once, served item by item, ended by `FetchEnded`."""

    def __init__(self, world: World, life: "Life", far: "Life | None", order: StartFetch) -> None:
        self.world, self.life, self.far, self.order = world, life, far, order
        self.epoch, self.source = order.epoch, order.source
        self.over = False
        self.via: Life | None = None
        self._items = self._serve()
        self._arrives = 0.0

    def ask(self) -> None:
        """The request reaches the source."""
        if self.over or self.life.core.epoch != self.epoch:
            return  # a later epoch has come before the connection was there
        way = self.life.net.way(self.epoch, self.life, self.source)
        if way is None or self.far is None:
            self.fail("refused")
            return
        self.via = way.via
        if way.silent:
            self.world.after(self.life.sim.settings.detect_within, self.fail, "nothing comes")
        elif self.far.core.epoch < self.epoch:
            self.far.waiting_fetches.append(self)  # newer waits (rule R1)
        else:
            self.step()

    def step(self) -> None:
        """The source sends one item; it must still be in the epoch."""
        if not self.over and self.far is not None:
            self.far.deliver(self._send_one)

    def _send_one(self) -> None:
        if self.over or self.far is None:
            return
        core = self.far.core
        if not self.far.alive or core.epoch != self.epoch:
            self.fail("the source has gone")
            return
        if core.state not in (State.RUNNING, State.CATCHING_UP):
            self.fail("the source has stopped")
            return
        event = next(self._items, None)
        if event is None:
            self.over = True
            self._deliver(FetchEnded(self.epoch, self.source))
            return
        self._deliver(event)
        self.far.point("serving")
        slow = 0.3 if self.world.chance(0.1) else 0.02
        self.world.after(self.world.between(0.0005, slow), self.step)

    def fail(self, why: str) -> None:
        """The link ends early."""
        if not self.over:
            self.over = True
            self._deliver(FetchEnded(self.epoch, self.source, why))

    def _deliver(self, event: Item | FetchEnded) -> None:
        when = max(self.world.now + self.world.between(0.0005, 0.02), self._arrives)
        self._arrives = when
        self.world.at(when, self.life.deliver, self.life.hear, event)

    def _serve(self) -> Iterator[Item]:
        assert self.far is not None
        core, load = self.far.core, self.order.load
        if load > PRELUDE:
            held = core.checkpoint
            if held is None or held.version != load:
                raise Violation(
                    f"{self.far} was named as a holder of checkpoint {load}, but has {held}"
                )
            yield CheckpointFetched(self.epoch, load, held.value)
        version = self.order.local_version
        for rank in self.order.locals:
            local = core.locals.get(version, rank)
            if local is None:
                raise Violation(
                    f"{self.far} was named as a holder of the local state of rank {rank} in "
                    f"{version} for {self.life}, but has {core.locals.report()}"
                )
            yield LocalFetched(self.epoch, version, rank, local)
        for run in self.order.runs:
            for seqno in run.seqnos():
                position = Position(0, run.version, seqno)
                entry = core.log.get(position)
                if entry is None:
                    raise Violation(
                        f"{self.far} was named as a holder of {position} for {self.life} in epoch "
                        f"{self.epoch}, but has {core.log.runs()}"
                    )
                yield ResultFetched(self.epoch, position, entry.signature, entry.value)


def check_frame(frame: Frame, epoch: int, position: Position, tag: int) -> None:
    """A stream of one epoch carries the frames of one order of positions, or someone is ahead."""
    header = frame.header
    if (header.epoch, header.position, header.step) != (epoch, position, tag):
        raise Violation(
            f"a frame of epoch {header.epoch}, collective {header.position}, step {header.step} "
            f"came where epoch {epoch}, collective {position}, step {tag} was due"
        )
    if header.length != len(frame.payload):
        raise ProtocolError("a frame is shorter than its header says")
