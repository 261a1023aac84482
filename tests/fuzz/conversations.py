"""Feeders of a token holder's messages to a fetcher, holder, tracker or worker."""

import contextlib
import logging
import struct
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import trio

from ftcomm.config.job_settings import JobSettings
from ftcomm.control.fetching import fetch
from ftcomm.control.fetching.fetch import _receive_item, _serve
from ftcomm.control.links.relay import _hear_relay
from ftcomm.memory.pool import EMPTY
from ftcomm.protocol.codec import Decoder, encode
from ftcomm.protocol.member_deltas import MemberDeltaReader, MemberDeltaWriter
from ftcomm.protocol.messages import ControlMessage, Fetch, Hello, LocalFetch, Revoke, Welcome
from ftcomm.protocol.position import Position, PositionRange
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import SendControl, StartFetch
from ftcomm.recovery.fetch_orders import ExpectedItems
from ftcomm.recovery.machine import Checkpoint, Identity, MachineLimits, WorkerMachine
from ftcomm_tracker.server.connections.connection import Connection
from ftcomm_tracker.server.operators import Operators
from ftcomm_tracker.server.server import of_a_member
from tests.fuzz.wire import SIGNATURE, feed_stream
from tests.unit.recovery.worker_scenario import a_member, hear, plan
from tests.unit.tracker.roster_scenario import ScenarioRun, hello, running

ROOM = 1 << 20  # bytes that a transfer may announce here


class Script:
    """A socket, or a stream, on which a peer has said something and then hung up."""

    def __init__(self, raw: bytes) -> None:
        self._left = memoryview(raw)
        self.answer = b""

    async def recv_into(self, view: memoryview) -> int:
        count = min(len(view), len(self._left))
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    async def receive_some(self, limit: int) -> bytes:
        piece = bytes(self._left[:limit])
        self._left = self._left[limit:]
        return piece

    async def send(self, data: bytes | memoryview) -> int:
        self.answer += bytes(data)
        return len(data)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` where trio's deadlines are; they are far away, and nothing waits."""
    trio.run(work)


def feed_from_holder(raw: bytes) -> None:
    """Feed a holder's answers to a restarted worker: checkpoint, local states, results."""
    core = a_member()
    hear(core, Revoke(2, "rank 1 died"))
    fetches = (Fetch(1, PositionRange(-1, 0, 2)),)
    frontier = Position(0, 1, 0)
    order = hear(
        core,
        plan(2, frontier, load=1, load_from=(1,), fetches=fetches, locals=(LocalFetch(1, 0),)),
    )[0]
    assert isinstance(order, StartFetch)
    sock: Any = Script(raw)
    driver: Any = SimpleNamespace(hub=_hub(core), apply=lambda e: core.handle(e, now=0.0))

    async def receive() -> None:
        due = ExpectedItems(order)
        while await _receive_item(driver, sock, order.epoch, due):
            pass

    before, fetch.STATE_LIMIT = fetch.STATE_LIMIT, ROOM
    try:
        run(receive)
    finally:
        fetch.STATE_LIMIT = before
    _must_go_on(core)


def _must_go_on(core: WorkerMachine) -> None:
    """The next epoch's report can be made, and sent."""
    for effect in hear(core, Revoke(core.view.revoke_epoch + 1, "next")):
        if isinstance(effect, SendControl):
            encode(effect.message)


def _hub(core: WorkerMachine) -> Any:
    settings = JobSettings(log_limit=ROOM, replicas=1)
    return SimpleNamespace(
        core=core,
        settings=settings,
        fault=lambda _: None,
        lock=contextlib.nullcontext(),
        log=logging.getLogger("fuzz"),
    )


def feed_to_holder(raw: bytes) -> None:
    """Feed a fetcher's questions to a holder, whose answer a fetcher must understand."""
    core = a_member()
    for seqno in range(3):
        core.log.add(Position(0, -1, seqno), LogEntry(SIGNATURE.encode(), EMPTY))
    core.archive.committed = Checkpoint(1, b"state")
    core.archive.locals.put(1, 0, b"local")
    sock: Any = Script(raw)
    driver: Any = SimpleNamespace(hub=_hub(core))
    try:
        run(lambda: _serve(driver, sock, 1))
    finally:
        _read_answer(sock.answer)


def _read_answer(answer: bytes) -> None:
    """Messages, with the announced bytes behind each."""
    while answer:
        (length,) = struct.unpack(">I", answer[:4])
        (message,) = Decoder().feed(answer[: 4 + length])
        answer = answer[4 + length + getattr(message, "nbytes", 0) :]


def feed_relay(raw: bytes) -> None:
    """Feed a relay's answers to a process that asks it for a path."""
    sock: Any = Script(raw)
    run(lambda: _hear_relay(sock, 2, 1))


class _Desk:
    """A tracker as its operators see it, over a real roster."""

    detect_within_s = 5.0
    sends_away = is_between_attempts = False

    def __init__(self) -> None:
        self.scenario = running(2)

    def send(self, conn: int, message: ControlMessage) -> None:
        encode(message)

    def post(self, event: Any, then: Callable[[], object] | None = None) -> None:
        self.scenario.tell(event)
        if then is not None:
            then()

    def host_of(self, conn: int) -> str:
        return "192.0.2.1"

    async def catch_up(self) -> None:
        pass

    def snapshot(self) -> Any:
        return self.scenario.roster.snapshot(0.0)

    def standing_of(self, worker_id: str, number: int) -> Any:
        return self.scenario.roster.standing_of(worker_id, number)


class _NoDial:
    async def dial(self, host: str, port: int, nonce: bytes) -> str:
        return "nobody is dialled here"


def feed_operator(raw: bytes) -> None:
    """Feed an operator's questions to the tracker."""
    desk: Any = _Desk()
    operators = Operators(desk)
    operators._dial_backs = _NoDial()  # type: ignore[assignment]  # nobody may be dialled here
    stream: Any = Script(raw)

    async def listen() -> None:
        messages: AsyncGenerator[ControlMessage, None] = Connection(
            1, stream, "here", MemberDeltaWriter()
        ).messages()
        first = await anext(messages, None)
        if first is not None:
            await operators.hear(1, "operator", first, messages)
        await messages.aclose()

    run(listen)
    desk.scenario.roster.snapshot(1.0)


def feed_tracker(raw: bytes) -> None:
    """Feed messages of members and a spare; the tracker continues, and can report its status."""
    scenario = running(2)
    sent = scenario.joined(3, hello("spare"))
    for number, message in enumerate(feed_stream(raw)):
        scenario.now += 0.1
        sent += _tell(scenario, 10 + number, 1 + number % 3, message)
    sent += scenario.joined(9999, hello("w0", "again"))
    for _, answer in sent:
        encode(answer)
    scenario.roster.snapshot(scenario.now)


def _tell(scenario: ScenarioRun, fresh: int, conn: int, message: Any) -> list[tuple[int, Any]]:
    if isinstance(message, Hello):
        return scenario.joined(fresh, message)
    return scenario.said(conn, of_a_member(message))


def feed_worker(raw: bytes) -> None:
    """Feed a tracker's messages to a worker, which continues or raises one typed error."""
    core = WorkerMachine(
        Identity("w0", b"n" * 16, "h", "127.0.0.1", 1000), MachineLimits(), now=0.0
    )
    hear(core, Welcome("job", 1, 1, 2, 0, ()))
    member_deltas = MemberDeltaReader()
    for message in feed_stream(raw):
        heard = member_deltas.take(message)
        for effect in () if heard is None else hear(core, heard):
            if isinstance(effect, SendControl):
                encode(effect.message)
