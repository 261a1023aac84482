"""A holder sends what was ordered, each item once, and all of it; else it is suspected."""

import contextlib
import logging
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from ftcomm.collectives import chunking
from ftcomm.collectives.dtypes import dtype_code
from ftcomm.config.job_settings import JobSettings
from ftcomm.control.fetching import fetch, request_link
from ftcomm.control.fetching.fetch import _fetch_from, _largest_result
from ftcomm.control.message_stream import receive_message, send_all
from ftcomm.protocol.codec import encode
from ftcomm.protocol.link_messages import FetchEnd, FetchItem, FetchWait
from ftcomm.protocol.messages import (
    Fetch,
    LocalFetch,
    Revoke,
    Suspect,
)
from ftcomm.protocol.position import Position, PositionRange
from ftcomm.recovery.events import Effect, SendControl, StartFetch
from tests.helpers.kept_sockets import KeptSockets
from tests.unit.recovery.worker_scenario import SIG, a_member, hear, plan

pytestmark = pytest.mark.trio
BYTE = dtype_code(np.dtype(np.uint8))
STATE, SITE = b"a state.", "theirs.py:5"


def item(what: str, version: int, seqno: int = 0, rank: int = -1, raw: bytes = STATE) -> bytes:
    return head(what, version, len(raw), seqno, rank) + raw


def head(what: str, version: int, nbytes: int, seqno: int = 0, rank: int = -1) -> bytes:
    signature, site = (SIG, SITE) if what == "result" else (b"", "")
    position = Position(0, version, seqno)
    return encode(FetchItem(what, position, signature, BYTE, (nbytes,), nbytes, rank, site=site))


CHECKPOINT, LOCAL = item("checkpoint", 1), item("local", 1, rank=0)
RESULTS = [item("result", 1, seqno) for seqno in (0, 2)]
WAIT, END = encode(FetchWait()), encode(FetchEnd())


async def fetched(monkeypatch: pytest.MonkeyPatch, said: bytes) -> Any:
    """A member that is to load version 1 and fetch 1.0 and 1.2, to which rank 1 has `said` that."""
    return await fetched_from(monkeypatch, lambda far: _say(far, said))


async def fetched_from(
    monkeypatch: pytest.MonkeyPatch, holder: Callable[[Any], Awaitable[None]], **more: Any
) -> Any:
    """The same with a `holder` at the other end, and `more` in the member's hub."""
    core = a_member()
    hear(core, Revoke(2, "rank 1 died"))
    runs = (Fetch(1, PositionRange(1, 0, 3, 2)),)
    locals_ = (LocalFetch(1, 0),)
    todo = plan(2, Position(0, 1, 3), load=1, load_from=(1,), fetches=runs, locals=locals_)
    order = hear(core, todo)[0]
    assert isinstance(order, StartFetch)
    near, far = trio.socket.socketpair()

    async def open_peer(*_: object) -> Any:
        return near

    monkeypatch.setattr(request_link, "open_peer", open_peer)
    effects: list[Effect] = []
    parts = {
        "settings": JobSettings(),
        "fault": lambda _: None,
        "log": logging.getLogger("t"),
        "kept_from_children": lambda _: contextlib.nullcontext(),
    }
    hub = SimpleNamespace(core=core, **(parts | more))
    driver: Any = SimpleNamespace(
        hub=hub, apply=lambda event: effects.extend(core.handle(event, now=0.0))
    )
    with near, far:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(holder, far)
            await _fetch_from(driver, order)
            near.close()
    suspects = [e.message for e in effects if isinstance(e, SendControl)]
    return core, suspects


async def _say(far: Any, said: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        await send_all(far, said)
    far.shutdown(trio.socket.SHUT_WR)


async def test_what_was_ordered_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    core, said = await fetched(monkeypatch, CHECKPOINT + LOCAL + b"".join(RESULTS) + END)
    assert (core.archive.committed.value, core.archive.locals.get(1, 0)) == (STATE, STATE)
    assert core.log.positions() == [Position(0, 1, 0), Position(0, 1, 2)]
    assert {core.log.get(position).site for position in core.log.positions()} == {SITE}
    assert not [message for message in said if isinstance(message, Suspect)]


async def test_a_checkpoint_that_is_being_packed_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rest = LOCAL + b"".join(RESULTS) + END
    core, said = await fetched(monkeypatch, 1000 * WAIT + CHECKPOINT + rest)
    assert (core.archive.committed.value, core.archive.locals.get(1, 0)) == (STATE, STATE)
    assert not [message for message in said if isinstance(message, Suspect)]


async def test_a_forked_child_keeps_no_connection_by_which_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = KeptSockets()

    async def holder(far: Any) -> None:
        await receive_message(far)
        assert len(kept.now) == 1
        await _say(far, CHECKPOINT + LOCAL + b"".join(RESULTS) + END)

    core, _ = await fetched_from(monkeypatch, holder, digest=None, kept_from_children=kept)
    assert (core.archive.committed.value, kept.now) == (STATE, [])


STRAY = b"not ours"


@pytest.mark.parametrize(
    ("before", "then", "cause"),
    [
        (b"", item("checkpoint", 2, raw=STRAY), "sends checkpoint 2.0, due is checkpoint 1.0"),
        (CHECKPOINT, item("checkpoint", 1, raw=STRAY), "sends checkpoint 1.0, due is local 1.0"),
        (
            CHECKPOINT,
            item("local", 1, rank=1, raw=STRAY),
            "sends local 1.0 of rank 1, due is local",
        ),
        (
            CHECKPOINT,
            item("local", 0, rank=0, raw=STRAY),
            "sends local 0.0 of rank 0, due is local",
        ),
        (
            CHECKPOINT + LOCAL,
            item("result", 1, 1, raw=STRAY),
            "sends result 1.1, due is result 1.0",
        ),
        (
            CHECKPOINT + LOCAL,
            item("result", 0, 0, raw=STRAY),
            "sends result 0.0, due is result 1.0",
        ),
        (
            CHECKPOINT + LOCAL + RESULTS[0],
            item("result", 1, 0, raw=STRAY),
            "sends result 1.0, due is result 1.2",
        ),
        (
            CHECKPOINT + LOCAL + b"".join(RESULTS),
            item("result", 1, 4, raw=STRAY),
            "sends result 1.4, due is the end",
        ),
        (CHECKPOINT, item("gift", 1, raw=STRAY), "sends gift 1.0, due is local 1.0 of rank 0"),
        (CHECKPOINT + LOCAL, END, "ends before it has sent result 1.0"),
        (CHECKPOINT, WAIT, "says that it packs a checkpoint, due is local 1.0 of rank 0"),
        (
            CHECKPOINT + LOCAL + b"".join(RESULTS),
            WAIT,
            "says that it packs a checkpoint, due is the end",
        ),
    ],
    ids=[
        "another version",
        "the checkpoint twice",
        "of another rank",
        "local of another version",
        "between two results",
        "result of another version",
        "a result twice",
        "one more",
        "of no kind",
        "too little",
        "packs a local state",
        "packs nothing",
    ],
)
async def test_a_holder_that_sends_what_was_not_ordered_is_suspected_and_nothing_is_kept_of_it(
    monkeypatch: pytest.MonkeyPatch, before: bytes, then: bytes, cause: str
) -> None:
    core, said = await fetched(monkeypatch, before + then)
    (suspect,) = said
    assert (suspect.epoch, suspect.ranks) == (2, (1,))
    assert f"rank 1, asked for what is missing here, {cause}" in suspect.reason
    assert "[rank 1, epoch 2]" in suspect.reason
    kept = [
        core.archive.committed and core.archive.committed.value,
        core.archive.locals.get(1, 0),
    ]
    kept += [core.log.get(position).value.raw().tobytes() for position in core.log.positions()]
    assert [value for value in kept if value is not None] == [STATE] * before.count(STATE)


GIB = 1 << 30
PEAK = Path("/proc/self/clear_refs")


def peak_from_here_on() -> int:
    PEAK.write_text("5")
    return peak_bytes()


def peak_bytes() -> int:
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize(
    ("before", "announced"),
    [
        (b"", head("checkpoint", 1, 8 * GIB)),
        (CHECKPOINT, head("local", 1, 8 * GIB, rank=0)),
    ],
    ids=["checkpoint", "local"],
)
async def test_what_is_announced_and_does_not_come_takes_no_memory(
    monkeypatch: pytest.MonkeyPatch, before: bytes, announced: bytes
) -> None:
    tracemalloc.start()
    try:
        _, said = await fetched(monkeypatch, before + announced + b"a little of it")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (suspect,) = said
    assert suspect.ranks == (1,)
    assert peak < 2 * chunking.FIRST_PIECE_BYTES


@pytest.mark.skipif(not PEAK.exists(), reason="needs /proc/self/clear_refs, to see peaks of memory")
async def test_a_result_that_does_not_come_takes_no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    before = peak_from_here_on()
    little = head("result", 1, 2 * GIB) + b"a little of it"
    _, (suspect,) = await fetched(monkeypatch, CHECKPOINT + LOCAL + little)
    assert suspect.ranks == (1,)
    assert peak_bytes() - before < GIB // 8


async def test_what_comes_in_many_pieces_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "FIRST_PIECE_BYTES", 1000)
    raw = np.random.default_rng(1).bytes(100_001)
    state, local = item("checkpoint", 1, raw=raw), item("local", 1, rank=0, raw=raw[:64_000])
    results = [item("result", 1, seqno, raw=raw[seqno:]) for seqno in (0, 2)]
    core, _ = await fetched(monkeypatch, state + local + b"".join(results) + END)
    assert (core.archive.committed.value, core.archive.locals.get(1, 0)) == (
        raw,
        raw[:64_000],
    )
    for position in core.log.positions():
        assert core.log.get(position).value.raw() == raw[position.seqno :]


async def test_what_there_is_no_memory_for_is_a_typed_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system may promise any size, so the refusal is made here."""

    def full(*_: object) -> Any:
        raise MemoryError("no terabyte")

    monkeypatch.setattr(fetch, "behind_each_other", full)
    core, (suspect,) = await fetched(monkeypatch, CHECKPOINT)
    assert "no room for 8 bytes: no terabyte" in suspect.reason
    assert core.archive.committed is None


@pytest.mark.parametrize(("size", "replicas"), [(3, 2), (5, 3), (2, 2), (7, 2), (4, 9)])
async def test_what_the_quota_admits_may_be_fetched(size: int, replicas: int) -> None:
    limit, share = 1 << 20, min(size, replicas) / size
    contact = SimpleNamespace(world_size=size)
    settings = SimpleNamespace(log_limit=limit, replicas=replicas)
    hub = SimpleNamespace(settings=settings, core=SimpleNamespace(contact=contact))
    driver: Any = SimpleNamespace(hub=hub)
    largest = int(limit / share) + 3
    admitted = max(n for n in range(largest - 6, largest + 1) if int(n * share) <= limit)
    assert admitted <= _largest_result(driver) <= admitted + 1
