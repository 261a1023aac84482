"""Fetch links as bytes: one framed request, then framed items with raw bytes behind them."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ftcomm.config.job_settings import PACKING_SIGNS
from ftcomm.errors import ProtocolError
from ftcomm.protocol.codec import LENGTH_BYTES, Decoder, decode_body, encode, frame_length
from ftcomm.protocol.link_messages import FetchEnd, FetchItem, FetchRequest, FetchWait
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.recovery.events import (
    CheckpointFetched,
    FetchEnded,
    LocalFetched,
    ResultFetched,
    StartFetch,
)
from ftcomm.recovery.fetch_orders import ExpectedItems
from ftcomm.recovery.machine import WorkerState
from ftcomm_chaos.sim.network.endpoint import HandshakeRun, dial
from ftcomm_chaos.sim.worker.fetch import Item, items_of
from ftcomm_chaos.sim.workload import FLOAT64, InputDigests

if TYPE_CHECKING:
    from ftcomm_chaos.sim.network.wire_network import WireNetwork
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

SLOWLY = 0.1  # share of items that are long in coming
PACKED_SLOWLY = 0.5  # share of lazy checkpoints whose packing may outlast the fetcher's patience
LONGEST_PACKING = 4.0  # times `detect_within`
RESULT = struct.Struct("<d")
STATE = struct.Struct("<q")


class WireFetch:
    """The fetcher's end of one ordered fetch."""

    def __init__(self, net: "WireNetwork", process: "SimulatedProcess", order: StartFetch) -> None:
        self.net, self.process, self.order = net, process, order
        self.epoch, self.source = order.epoch, order.source
        self._over = False
        self._talk: HandshakeRun | None = None
        self._heard = 0.0
        self._items = ItemReader(order)

    def ask(self) -> None:
        """Dial the source; one attempt, as in production."""
        core = self.process.core
        if core.view.epoch != self.epoch or core.view.state is not WorkerState.CATCHING_UP:
            return
        way = self.net.way(self.epoch, self.process, self.source)
        if way is None:
            self._end("refused")
            return
        end = self.net.open(self.process, self.source, self.epoch, way)
        self._talk = dial(
            end, self.process, self.epoch, self.source, "fetch", self.net.next_nonce()
        )
        self._talk.on_ready, self._talk.take = self._request, self._take
        end.on_over = self._end
        self._heard = self.net.world.now
        self._watch()

    def _request(self) -> None:
        order = self.order
        request = FetchRequest(
            epoch=order.epoch,
            load=order.load,
            runs=order.runs,
            local_version=order.local_version,
            locals=order.locals,
        )
        assert self._talk is not None
        self._talk.send(encode(request))

    def _watch(self) -> None:
        """A holder that has been silent for `detect_within` counts as lost."""
        assert self._talk is not None
        if self._over or self._talk.end.over:
            return
        due = self._heard + self.process.sim.settings.detect_within
        if self.net.world.now >= due:
            self._end("nothing comes")
        else:
            self.net.world.at(due, self.process.deliver, self._watch)

    def _take(self, data: bytes) -> None:
        self._heard = self.net.world.now
        for event in self._items.feed(data):
            self.process.deliver(self.process.hear, self._sized(event))
        if self._items.ended:
            self._end("")

    def _sized(self, item: Item) -> Item:
        """A result counts as large as its call is taken to be; few bytes stand for it here."""
        if not isinstance(item, ResultFetched):
            return item
        if isinstance(item.value, InputDigests):
            return replace(item, nbytes=len(item.value.digests))
        call = self.process.sim.program.calls[item.position]
        return replace(item, nbytes=call.nbytes_of(item.value))

    def _end(self, failure: str) -> None:
        if self._over:
            return
        self._over = True
        if self._talk is not None:
            self._talk.end.close()
        self.process.deliver(self.process.hear, FetchEnded(self.epoch, self.source, failure))


class ItemReader:
    """Cuts the bytes of a fetch into what they bring; `ended` once the holder has said so."""

    def __init__(self, order: StartFetch) -> None:
        self.ended = False
        self._epoch = order.epoch
        self._due = ExpectedItems(order)
        self._bytes = bytearray()
        self._item: FetchItem | None = None

    def feed(self, data: bytes) -> Iterator[Item]:
        """The items that `data` completes."""
        self._bytes += data
        while not self.ended:
            if self._item is None and not self._next_message():
                return
            if self._item is None:
                continue
            if len(self._bytes) < self._item.nbytes:
                return
            item, self._item = self._item, None
            raw = self._cut(item.nbytes)
            yield self._event(item, raw)

    def _next_message(self) -> bool:
        if len(self._bytes) < LENGTH_BYTES:
            return False
        length = frame_length(self._bytes[:LENGTH_BYTES])
        if len(self._bytes) < LENGTH_BYTES + length:
            return False
        message = decode_body(self._cut(LENGTH_BYTES + length)[LENGTH_BYTES:])
        if isinstance(message, FetchItem):
            self._due.take(message)
            self._item = message
        elif isinstance(message, FetchWait):
            self._due.wait()
        elif isinstance(message, FetchEnd) and not message.missing:
            self._due.end()
            self.ended = True
        else:
            raise ProtocolError(f"a fetch brings {message}")
        return True

    def _cut(self, size: int) -> bytes:
        piece = bytes(self._bytes[:size])
        del self._bytes[:size]
        return piece

    def _event(self, item: FetchItem, raw: bytes) -> Item:
        kind = RESULT if item.what == "result" else STATE
        values: tuple[Any, ...] = tuple(value for (value,) in kind.iter_unpack(raw))
        version = item.position.version
        if item.what == "checkpoint":
            return CheckpointFetched(self._epoch, version, values[0])
        if item.what == "local":
            return LocalFetched(self._epoch, version, item.rank, values[0])
        found = InputDigests(item.digests) if item.digests else values
        return ResultFetched(self._epoch, item.position, item.signature, found)


class FetchServer:
    """The holder's end."""

    def __init__(
        self,
        net: "WireNetwork",
        process: "SimulatedProcess",
        epoch: int,
        rank: int,
        talk: HandshakeRun,
    ) -> None:
        self.net, self.process, self.epoch, self.rank = net, process, epoch, rank
        self._talk = talk
        self._requests = Decoder()
        self._items: Iterator[Item] = iter(())
        talk.take = self._take

    def _take(self, data: bytes) -> None:
        for request in self._requests.feed(data):
            assert isinstance(request, FetchRequest), request
            asker = self.net.processes[self.process.core.view.members[self.rank].port]
            self._items = items_of(self.process, asker, request)
            self._pack(self.net.world.now + self._packing_s(request))

    def _packing_s(self, request: FetchRequest) -> float:
        """Return how long packing the checkpoint delays the first byte."""
        sim, world = self.process.sim, self.net.world
        lazy = sim.conditions.lazy and request.load > PRELUDE
        if not lazy or not world.chance(PACKED_SLOWLY):
            return 0.0
        return world.between(0.0, LONGEST_PACKING * sim.settings.detect_within)

    def _pack(self, until: float) -> None:
        """Say that the checkpoint is being packed, again and again until it is."""
        world = self.net.world
        if world.now >= until:
            self._send_one()
        elif self._goes_on():
            self._talk.send(encode(FetchWait()))
            sign = world.now + self.process.sim.settings.detect_within / PACKING_SIGNS
            world.at(min(until, sign), self.process.deliver, self._pack, until)

    def _goes_on(self) -> bool:
        """Tell whether fetcher and epoch still exist; if not, close the connection."""
        core = self.process.core
        live = core.view.epoch == self.epoch and core.view.state in (
            WorkerState.RUNNING,
            WorkerState.CATCHING_UP,
        )
        if not live and not self._talk.end.over:
            self._talk.end.close()
        return live and not self._talk.end.over

    def _send_one(self) -> None:
        world = self.net.world
        if not self._goes_on():
            return
        item = next(self._items, None)
        if item is None:
            self._talk.send(encode(FetchEnd()))
            return
        self._talk.send(item_bytes(item))
        self.process.point("serving")
        slow = 0.3 * self.process.sim.settings.detect_within if world.chance(SLOWLY) else 0.02
        world.after(world.between(0.0005, slow), self.process.deliver, self._send_one)


def item_bytes(item: Item) -> bytes:
    """An item as it travels."""
    if isinstance(item, ResultFetched):
        has_digests = isinstance(item.value, InputDigests)
        digests = item.value.digests if has_digests else b""
        values = () if has_digests else item.value or ()  # a close that was served has no value
        raw = b"".join(RESULT.pack(value) for value in values)
        return _framed("result", item.position, raw, signature=item.signature, digests=digests)
    position, raw = Position(0, item.version, 0), STATE.pack(item.value)
    if isinstance(item, LocalFetched):
        return _framed("local", position, raw, rank=item.rank)
    return _framed("checkpoint", position, raw)


def _framed(
    what: str,
    position: Position,
    raw: bytes,
    *,
    signature: bytes = b"",
    rank: int = -1,
    digests: bytes = b"",
) -> bytes:
    head = FetchItem(
        what=what,
        position=position,
        signature=signature,
        dtype=FLOAT64,
        shape=(len(raw) // RESULT.size,),
        nbytes=len(raw),
        rank=rank,
        digests=digests,
    )
    return encode(head) + raw
