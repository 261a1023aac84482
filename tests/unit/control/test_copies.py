"""A rank that lacks results asks for them by name; it gets what it may have, or a clear word."""

import logging
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
import trio.lowlevel

from ftcomm.config.job_settings import JobSettings
from ftcomm.control.driver import EpochScopes, UserNews
from ftcomm.control.fetching import copies, request_link
from ftcomm.control.fetching.copies import ask_for_copies
from ftcomm.control.message_stream import receive_message, send_all, send_message
from ftcomm.errors import ProtocolError
from ftcomm.memory.packed_result import result_digest
from ftcomm.memory.pool import LoggedResult
from ftcomm.protocol.codec import encode
from ftcomm.protocol.link_messages import CopyItem, CopyName, CopyRequest, FetchItem, FetchWait
from ftcomm.protocol.messages import Fetch, Fetched, Revoke, Suspect
from ftcomm.protocol.position import PositionRange
from ftcomm.protocol.signature import Kind, LogMode, Signature
from ftcomm.recovery.contributions.contributed_calls import Offer
from ftcomm.recovery.events import (
    CopyLost,
    FetchCopies,
    FetchEnded,
    ResultFetched,
    SendControl,
)
from ftcomm.recovery.machine import WorkerMachine
from tests.helpers.kept_sockets import KeptSockets
from tests.unit.recovery.worker_scenario import a_member, at, hear, plan

pytestmark = pytest.mark.trio
CALL = Signature(Kind.ALLTOALL, count=6, log=LogMode.COPIES).encode()
# A link is silent after so long, and says that it waits four times as often.
LONG_S, SHORT_S = 600.0, 0.2
OWN, OTHER = (np.full(5, rank, np.uint8) for rank in (0, 1))
OF_OTHER = CopyName(at(0, 0), 1)
NAMES = tuple(CopyName(at(0, seqno), 0) for seqno in (0, 1))  # of two calls


class Digests:
    digests = result_digest(OWN) + result_digest(OTHER)


def loaded() -> WorkerMachine:
    core = a_member()
    core.progress.begin_load(b"", "t.py:1")
    core.progress.complete_load(1, "zero", b"", now=0.0)
    return core


def holding() -> WorkerMachine:
    """Rank 0, which holds its own result of 0.0 and that of rank 1."""
    core = loaded()
    core.progress.begin(CALL, "t.py:7")
    for owner, flat in enumerate((OWN, OTHER)):
        value = LoggedResult(flat, flat.shape)
        assert core.copied.keep(1, owner, result_digest(flat), value)
    return core


def lagging() -> WorkerMachine:
    """Rank 0, which has fetched two entries and lacks its results; rank 1 has none of its own."""
    core = loaded()
    hear(core, Revoke(2, "rank 1 died"))
    hear(core, plan(2, at(0, 2), fetches=(Fetch(1, PositionRange(0, 0, 2)),)))
    for name in NAMES:
        core.handle(ResultFetched(2, name.position, CALL, Digests(), 8), now=0.0)
    assert core.handle(FetchEnded(2, 1), now=0.0)[0] == FetchCopies(2, 1, NAMES)
    for name in NAMES:
        none = CopyLost(2, CopyName(name.position, 1), 1, "none", is_gone=True)
        core.handle(none, now=0.0)
    return core


def a_driver(core: WorkerMachine, nursery: trio.Nursery, detect_within: float = LONG_S) -> Any:
    said: list[Any] = []
    token = trio.lowlevel.current_trio_token()
    hub = SimpleNamespace(
        core=core, lock=threading.Lock(), settings=JobSettings(detect_within=detect_within),
        fault=lambda _: None, log=logging.getLogger("t"), digest=None,
        kept_from_children=KeptSockets(),
    )  # fmt: skip

    def apply(event: Any) -> None:
        effects = core.handle(event, now=0.0)
        said.extend(effect.message for effect in effects if isinstance(effect, SendControl))

    def run_soon(function: Callable[[], object]) -> None:
        token.run_sync_soon(function)

    return SimpleNamespace(
        hub=hub, nursery=nursery, epoch_scopes=EpochScopes(), apply=apply, said=said,
        contributions=UserNews(run_soon),
    )  # fmt: skip


def asker(rank: int, epoch: int = 1) -> Any:
    return SimpleNamespace(epoch=epoch, from_rank=rank)


# --- the rank that is asked ---------------------------------------------------------------------


async def test_a_rank_gets_its_own_result_and_that_of_who_it_asks(nursery: trio.Nursery) -> None:
    near, far = trio.socket.socketpair()
    with near, far:
        nursery.start_soon(copies._serve, a_driver(holding(), nursery), far, asker(1))
        await send_message(near, CopyRequest(1, (OF_OTHER, NAMES[0])))
        for flat in (OTHER, OWN):
            assert await receive_message(near) == CopyItem(1, 5)
            assert await near.recv(5) == flat.tobytes()


async def test_no_other_rank_gets_it_whatever_it_names(nursery: trio.Nursery) -> None:
    near, far = trio.socket.socketpair()
    with near, far:
        nursery.start_soon(copies._serve, a_driver(holding(), nursery), far, asker(2))
        await send_message(near, CopyRequest(1, (OF_OTHER,)))
        assert await receive_message(near) == CopyItem(0, 0, Offer.GONE.value)


async def test_who_has_yet_to_get_its_own_says_so_until_it_has(nursery: trio.Nursery) -> None:
    core = lagging()
    driver = a_driver(core, nursery, SHORT_S)
    near, far = trio.socket.socketpair()
    with near, far:
        nursery.start_soon(copies._serve, driver, far, asker(1, 2))
        await send_message(near, CopyRequest(2, (NAMES[0],)))
        assert await receive_message(near) == FetchWait()
        copy = copies.ResultCopy(1, result_digest(OWN), LoggedResult(OWN, OWN.shape))
        driver.apply(copies.CopyFetched(2, NAMES[0], 1, copy))
        driver.contributions.tell()
        while (answer := await receive_message(near)) == FetchWait():
            pass
        assert answer == CopyItem(1, 5)


@pytest.mark.parametrize("request_", [CopyRequest(1, NAMES), FetchWait()])
async def test_a_request_of_another_epoch_or_kind_is_refused(
    nursery: trio.Nursery, request_: Any
) -> None:
    near, far = trio.socket.socketpair()
    with near, far:
        await send_message(near, request_)
        with pytest.raises(ProtocolError, match="expected a request of epoch 2"):
            await copies._serve(a_driver(lagging(), nursery), far, asker(1, 2))


# --- the rank that asks -------------------------------------------------------------------------


async def ask(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> Any:
    """Ask rank 1, which answers with these bytes and closes the link."""
    core = lagging()
    driver = a_driver(core, nursery)
    near, far = trio.socket.socketpair()

    async def opened(*_: object) -> Any:
        return near

    monkeypatch.setattr(request_link, "open_peer", opened)
    with far:
        nursery.start_soon(ask_for_copies, driver, FetchCopies(2, 1, NAMES))
        assert await receive_message(far) == CopyRequest(2, NAMES)
        assert driver.hub.kept_from_children.now == [near]
        await send_all(far, memoryview(answer))
        far.shutdown(trio.socket.SHUT_WR)
        while near.fileno() >= 0:
            await trio.lowlevel.checkpoint()
    return driver


def item(flat: Any) -> bytes:
    return encode(CopyItem(1, len(flat))) + flat.tobytes()


async def test_what_comes_is_held_and_the_rank_has_caught_up(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = encode(FetchWait()) + item(OWN) + item(OWN)
    driver = await ask(nursery, monkeypatch, answer)
    assert driver.said == [Fetched(2)]
    core = driver.hub.core
    core.progress.begin(CALL, "t.py:7")
    assert core.copied.own().flat.tobytes() == OWN.tobytes()
    kept = core.archive.copies.get(NAMES[1].position, NAMES[1].owner)
    assert kept.value.flat.tobytes() == OWN.tobytes()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (encode(FetchItem("local", at(0, 0), b"", 0, (), 0)), "expected a result, got FetchItem"),
        (encode(CopyItem(1, 1 << 39)), "a result of 549755813888 bytes, the log's limit is"),
        (encode(CopyItem(1, 5)) + b"abc", "the other end closed"),
    ],
)
async def test_what_is_no_result_ends_the_link_and_nothing_is_held(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, answer: bytes, words: str
) -> None:
    driver = await ask(nursery, monkeypatch, answer)
    (suspect,) = driver.said
    assert isinstance(suspect, Suspect)
    assert suspect.ranks == (1,)
    assert re.search(words, suspect.reason)
    assert len(driver.hub.core.archive.copies) == 0
