"""A rank that lacks a part of a call asks for it; it gets its own part alone, or a clear word."""

import logging
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from ftcomm.collectives.dtypes import dtype_code
from ftcomm.config.job_settings import JobSettings
from ftcomm.control.driver import EpochScopes, UserNews
from ftcomm.control.fetching import parts, request_link
from ftcomm.control.fetching.parts import ask_for_parts, part_for
from ftcomm.control.message_stream import receive_message, send_all, send_message
from ftcomm.errors import ProtocolError
from ftcomm.memory.pool import LoggedResult
from ftcomm.protocol.codec import encode
from ftcomm.protocol.link_messages import FetchEnd, FetchItem, FetchWait, PartItem, PartRequest
from ftcomm.protocol.messages import FatalReport, Revoke, Suspect
from ftcomm.protocol.signature import Kind, LogMode, Signature
from ftcomm.recovery.archive.archive import Contribution
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import FetchParts, PartsWanted, SendControl
from ftcomm.recovery.machine import WorkerMachine
from tests.helpers.kept_sockets import KeptSockets
from tests.unit.recovery.worker_scenario import a_member, at, hear, plan

pytestmark = pytest.mark.trio
CALL = Signature(Kind.ALLTOALL, count=6, log=LogMode.CONTRIBUTIONS).encode()
OTHER = Signature(Kind.ALLTOALL, count=7, log=LogMode.CONTRIBUTIONS).encode()
# A link is silent after so long, and says that it waits four times as often.
LONG_S, SHORT_S = 600.0, 0.2
FLOAT = dtype_code(np.dtype(np.float64))


def contribution(*, rows: int = 4) -> Contribution:
    """One row for rank 0, and the others for rank 1."""
    flat = np.arange(2.0 * rows)
    value = LoggedResult(flat, (rows, 2))
    return Contribution(CALL, b"d" * 16, value, ((0, 1), (1, rows)))


class Digests:
    digests = bytes(32)


def loaded() -> WorkerMachine:
    core = a_member()
    core.progress.begin_load(b"", "t.py:1")
    core.progress.complete_load(1, "zero", b"", now=0.0)
    return core


def lagging() -> WorkerMachine:
    """Rank 0 at 0.0, which others have completed."""
    core = loaded()
    hear(core, Revoke(2, "rank 1 died"))
    hear(core, plan(2, at(0, 1)))
    core.log.add(at(0, 0), LogEntry(CALL, Digests()))
    core.progress.begin(CALL, "t.py:7")
    return core


def a_driver(
    core: WorkerMachine, nursery: trio.Nursery, detect_within: float = LONG_S, **more: Any
) -> Any:
    said: list[Any] = []
    token = trio.lowlevel.current_trio_token()
    hub = SimpleNamespace(
        core=core,
        lock=threading.Lock(),
        settings=JobSettings(detect_within=detect_within),
        fault=lambda _: None,
        kept_from_children=KeptSockets(),
        log=logging.getLogger("t"),
        digest=None,
        late_parts={},
    )

    def apply(event: Any) -> None:
        effects = core.handle(event, now=0.0)
        said.extend(effect.message for effect in effects if isinstance(effect, SendControl))

    def run_soon(function: Callable[[], object]) -> None:
        token.run_sync_soon(function)

    return SimpleNamespace(
        hub=hub, nursery=nursery, epoch_scopes=EpochScopes(), apply=apply, said=said,
        contributions=UserNews(run_soon), **more,
    )  # fmt: skip


def asker(epoch: int = 2) -> Any:
    return SimpleNamespace(epoch=epoch, from_rank=0)


# --- the rank that is asked ---------------------------------------------------------------------


async def test_a_rank_gets_its_rows_and_no_others(nursery: trio.Nursery) -> None:
    core = loaded()
    core.contributed.contribute(contribution())
    near, far = trio.socket.socketpair()
    with near, far:
        nursery.start_soon(parts._serve, a_driver(core, nursery), far, asker())
        await send_message(near, PartRequest(2, at(0, 0)))
        assert await receive_message(near) == PartItem(CALL, FLOAT, (1, 2), 16)
        assert np.frombuffer(await near.recv(100)).tolist() == [0.0, 1.0]


async def test_who_has_not_come_so_far_says_so_and_answers_when_it_has(
    nursery: trio.Nursery,
) -> None:
    core = loaded()
    driver = a_driver(core, nursery, SHORT_S)
    near, far = trio.socket.socketpair()
    with near, far:
        nursery.start_soon(parts._serve, driver, far, asker())
        await send_message(near, PartRequest(2, at(0, 0)))
        assert await receive_message(near) == FetchWait()
        with driver.hub.lock:
            core.contributed.contribute(contribution())
        await trio.to_thread.run_sync(driver.contributions.note)
        while (answer := await receive_message(near)) == FetchWait():
            pass
        assert answer == PartItem(CALL, FLOAT, (1, 2), 16)


async def test_who_waits_is_woken_at_once_and_nobody_else_costs_anything(
    nursery: trio.Nursery,
) -> None:
    woken: list[Callable[[], object]] = []
    news = UserNews(woken.append)
    news.note()
    assert woken == []
    with news.watched():
        made = news.next()
        news.note()
        woken.pop()()
        assert made.is_set()
        assert not news.next().is_set()
    news.note()
    assert woken == []


async def test_who_has_passed_the_call_and_holds_nothing_says_that(nursery: trio.Nursery) -> None:
    core = lagging()  # at 0.0: it has passed the prelude
    near, far = trio.socket.socketpair()
    with near, far:
        nursery.start_soon(parts._serve, a_driver(core, nursery), far, asker())
        await send_message(near, PartRequest(2, at(-1, 0)))
        answer = await receive_message(near)
    assert isinstance(answer, FetchEnd)
    assert "holds nothing of it" in answer.missing


@pytest.mark.parametrize("request_", [PartRequest(1, at(0, 0)), FetchWait()])
async def test_a_request_of_another_epoch_or_of_something_else_gets_nothing(
    request_: Any, nursery: trio.Nursery
) -> None:
    core = loaded()
    core.contributed.contribute(contribution())
    near, far = trio.socket.socketpair()
    with near, far:
        await send_message(near, request_)
        with pytest.raises(ProtocolError, match="expected a request of epoch 2"):
            await parts._serve(a_driver(core, nursery), far, asker())


async def test_a_part_lies_in_the_inputs_own_memory() -> None:
    given = contribution()
    part = part_for(given, 1)
    assert (part.shape, part.flat.tolist()) == ((3, 2), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert np.shares_memory(part.flat, given.value.flat)
    assert part_for(contribution(rows=1), 1).shape == (0, 2)


# --- the rank that asks -------------------------------------------------------------------------


async def asked(monkeypatch: pytest.MonkeyPatch, said: bytes) -> tuple[WorkerMachine, list[Any]]:
    """A rank that lacks the part of rank 1, which has `said` that."""
    core = lagging()
    with_input = Contribution(CALL, bytes(16), contribution().value, contribution().extents)
    assert core.contributed.contribute(with_input)
    order = core.handle(PartsWanted(), now=0.0)[0]
    assert order == FetchParts(2, at(0, 0), (1,))
    near, far = trio.socket.socketpair()

    async def open_peer(*_: object) -> Any:
        return near

    monkeypatch.setattr(request_link, "open_peer", open_peer)
    with near, far:
        async with trio.open_nursery() as nursery:
            driver = a_driver(core, nursery)
            ask_for_parts(driver, order)
            assert await receive_message(far) == PartRequest(2, at(0, 0))
            assert driver.hub.kept_from_children.now == [near]
            await send_all(far, said)
            far.shutdown(trio.socket.SHUT_WR)
    return core, driver.said


async def test_a_rank_that_has_yet_to_come_is_named_until_its_part_begins(
    nursery: trio.Nursery,
) -> None:
    near, far = trio.socket.socketpair()
    driver = a_driver(lagging(), nursery)
    with near, far:
        await send_message(near, FetchWait())
        await send_message(near, FetchWait())
        async with trio.open_nursery() as asking:
            asking.start_soon(parts._first_but_waits, driver, far, 1)
            while not driver.hub.late_parts:
                await trio.lowlevel.checkpoint()
            assert list(driver.hub.late_parts) == [1]
            await send_message(near, PartItem(CALL, FLOAT, (2, 2), 32))
        assert driver.hub.late_parts == {}


ROWS = np.arange(4.0)
ITEM = encode(PartItem(CALL, FLOAT, (2, 2), 32))


async def test_the_part_is_taken_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    core, said = await asked(monkeypatch, 5 * encode(FetchWait()) + ITEM + ROWS.tobytes())
    found = core.contributed.parts()
    assert found is not None
    assert (found[1].shape, found[1].flat.tolist()) == ((2, 2), ROWS.tolist())
    assert said == []


async def test_a_part_that_is_gone_ends_the_job_and_names_its_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, said = await asked(monkeypatch, encode(FetchEnd("it has passed that call")))
    assert isinstance(said[0], FatalReport)
    assert said[0].error == "JobLostError"
    assert "rank 1 has no part of call 0.0 to give: it has passed that call" in said[0].cause


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"", "the other end closed"),
        (encode(PartItem(OTHER, FLOAT, (2, 2), 32)) + ROWS.tobytes(), "a part of another call"),
        (encode(PartItem(CALL, FLOAT, (1 << 36,), 8 << 36)), "a result of 549755813888 bytes"),
        (encode(PartItem(CALL, FLOAT, (2, 2), 24)) + bytes(24), r"announced as float64\[2, 2\]"),
        (encode(FetchItem("result", at(0, 0), CALL, FLOAT, (2,), 16)), "got FetchItem"),
        (ITEM + bytes(31), "the other end closed"),
    ],
    ids=["nothing", "other call", "too large", "sizes", "other message", "cut"],
)
async def test_what_is_no_part_of_this_call_has_its_rank_suspected(
    answer: bytes, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, said = await asked(monkeypatch, answer)
    assert core.contributed.parts() is None
    [suspicion] = said
    assert isinstance(suspicion, Suspect)
    assert suspicion.ranks == (1,)
    assert re.search(cause, suspicion.reason), suspicion.reason
