"""Setup of the shared window through rank 0, or the run without it."""

import logging
import os
import platform
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ftcomm.config.job_settings import JobSettings
from ftcomm.control.driver import EpochScopes
from ftcomm.control.hub import Hub
from ftcomm.control.links import shared_window_setup
from ftcomm.control.links.dial import Near
from ftcomm.control.links.shared_window_setup import (
    locate_shared_window,
    own_shared_window,
    serve_shared_window,
)
from ftcomm.errors import ProtocolError
from ftcomm.protocol.link_messages import Sharing
from ftcomm.recovery.machine import WorkerState
from ftcomm.transport.shared_window import SharedWindow
from ftcomm.transport.shm_segment import NoSharedMemory

pytestmark = [
    pytest.mark.trio,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd_create on this system"),
]
EPOCH = 7


class Rank:
    """As much of a worker as coming to shared window needs."""

    def __init__(self, nursery: trio.Nursery, rank: int, hosts: tuple[str, ...] = ("h", "h")):
        core = SimpleNamespace(
            view=SimpleNamespace(
                rank=rank,
                epoch=EPOCH,
                state=WorkerState.RUNNING,
                members=[SimpleNamespace(host=host) for host in hosts],
            ),
            contact=SimpleNamespace(identity=SimpleNamespace(host=hosts[rank])),
        )
        self.hub: Any = Hub.__new__(Hub)
        self.hub.core, self.hub.settings, self.hub.shared_window = (
            core,
            JobSettings(log_limit=1 << 20),
            None,
        )
        self.hub.lock, self.hub.log = _Lock(), logging.getLogger("ftcomm.test_common")
        self.driver: Any = SimpleNamespace(
            hub=self.hub, nursery=nursery, epoch_scopes=EpochScopes()
        )


class _Lock:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def come_together(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Rank], None] = lambda _: None
) -> tuple[Rank, Rank]:
    """Rank 1 asks rank 0; what stands between them, a proven Unix socket, is taken as done."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            asked, asking = Rank(nursery, 0), Rank(nursery, 1)
            change(asking)

            async def open_locally(
                _: Any, epoch: int, rank: int, role: str, *, to_rank: int
            ) -> Any:
                assert (epoch, rank, role, to_rank) == (EPOCH, 0, "common", 0)
                near, far = trio.socket.socketpair()
                nursery.start_soon(_serve, asked, far)
                return Near(near)

            monkeypatch.setattr(shared_window_setup, "open_locally", open_locally)
            locate_shared_window(asking.driver, EPOCH)
    return asked, asking


async def _serve(asked: Rank, sock: trio.socket.SocketType) -> None:
    with sock:
        await serve_shared_window(asked.driver, sock, EPOCH)


async def test_who_asks_gets_the_memory_that_rank_0_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    asked, asking = await come_together(monkeypatch)
    asked.hub.shared_window.join()
    assert not asked.hub.shared_window.is_complete, "rank 1 has joined before its calls know of it"
    asking.hub.shared_window.join()
    assert asked.hub.shared_window.is_complete
    assert own_shared_window(asked.driver, EPOCH) is asked.hub.shared_window
    assert not asking.driver.epoch_scopes
    asked.hub.shared_window.forget_fd()
    del asked, asking
    monkeypatch.undo()
    assert descriptors() == before


def _other_processor(*_: object) -> str:
    return "aarch64"


def _no_room(*_: object, **__: object) -> SharedWindow:
    raise NoSharedMemory("no room")


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ((platform, "machine", _other_processor), "processors of type aarch64"),
        ((shared_window_setup, "create_shared_window", _no_room), "no room"),
        ((shared_window_setup, "receive_shared_window", _no_room), "no room"),
    ],
    ids=["other processor", "not made", "not mapped"],
)
async def test_where_there_is_none_each_rank_says_so_and_goes_on(
    patch: tuple[Any, str, Any],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    before = descriptors()
    monkeypatch.setattr(*patch)
    asked, asking = await come_together(monkeypatch)
    assert asking.hub.shared_window is None
    (said,) = [r.getMessage() for r in caplog.records if "results of its own" in r.getMessage()]
    assert reason in said
    if asked.hub.shared_window is not None:
        asked.hub.shared_window.forget_fd()
    del asked, asking
    monkeypatch.undo()
    # the one that closes it is away
    assert descriptors() == before + (patch[1] == "receive_shared_window")


async def test_who_asks_for_an_epoch_that_rank_0_has_left_gets_no_later_ones_memory() -> None:
    """It would say there that it has joined, in calls that know nothing of it."""
    before = descriptors()
    async with trio.open_nursery() as nursery:
        asked = Rank(nursery, 0)
        asked.hub.core.view.epoch += 1
        later = own_shared_window(asked.driver, EPOCH + 1)
        near, far = trio.socket.socketpair()
        with near:
            await _serve(asked, far)
            assert await near.recv(1) == b""
        assert asked.hub.shared_window is later
        later.forget_fd()
    del asked, later
    assert descriptors() == before


async def test_what_comes_for_an_epoch_that_is_over_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = descriptors()

    def over(asking: Rank) -> None:
        take = shared_window_setup.receive_shared_window

        def take_late(*arguments: Any, **named: Any) -> SharedWindow:
            asking.hub.core.view.epoch += 1
            return take(*arguments, **named)

        monkeypatch.setattr(shared_window_setup, "receive_shared_window", take_late)

    asked, asking = await come_together(monkeypatch, over)
    assert asking.hub.shared_window is None
    asked.hub.shared_window.forget_fd()
    del asked, asking
    monkeypatch.undo()
    assert descriptors() == before


@pytest.mark.parametrize(("ranks", "replicas", "times"), [(2, 2, 1), (6, 2, 3), (2, 9, 1)])
async def test_it_has_room_for_what_all_ranks_may_log(
    ranks: int, replicas: int, times: int
) -> None:
    """A rank logs the results that it keeps, of all that are placed."""
    async with trio.open_nursery() as nursery:
        rank = Rank(nursery, 0, ("h",) * ranks)
        rank.hub.settings = JobSettings(log_limit=1 << 20, replicas=replicas)
        memory = own_shared_window(rank.driver, EPOCH)
        assert memory._layout.nbytes == times << 20
        memory.forget_fd()


async def test_a_job_that_wants_none_has_none() -> None:
    async with trio.open_nursery() as nursery:
        rank = Rank(nursery, 0)
        rank.hub.settings = JobSettings(transport="tcp")
        with pytest.raises(NoSharedMemory):
            own_shared_window(rank.driver, EPOCH)


async def test_a_group_on_two_hosts_has_none_and_only_rank_0_gives_any() -> None:
    async with trio.open_nursery() as nursery:
        with pytest.raises(NoSharedMemory):
            own_shared_window(Rank(nursery, 0, ("h", "g")).driver, EPOCH)
        with pytest.raises(ProtocolError):
            own_shared_window(Rank(nursery, 1).driver, EPOCH)


@pytest.mark.parametrize("said", [b"", b"\0\0\0\1\xc1"], ids=["nothing", "no message"])
async def test_a_rank_0_that_says_something_else_is_not_believed(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trio.open_nursery() as nursery:
        asking = Rank(nursery, 1)

        async def open_locally(*_: object, **__: object) -> Near:
            near, far = trio.socket.socketpair()
            with far:
                await far.send(said)
            return Near(near)

        monkeypatch.setattr(shared_window_setup, "open_locally", open_locally)
        with trio.fail_after(30):
            await shared_window_setup._locate(asking.driver, EPOCH)
    assert asking.hub.shared_window is None


async def test_a_failure_that_brings_a_descriptor_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = descriptors()
    async with trio.open_nursery() as nursery:
        asking = Rank(nursery, 1)

        async def open_locally(*_: object, **__: object) -> Near:
            near, far = trio.socket.socketpair()
            with far:
                fd = os.memfd_create("test")
                await shared_window_setup.send_with(far, Sharing(failure="no room"), fd)
                os.close(fd)
            return Near(near)

        monkeypatch.setattr(shared_window_setup, "open_locally", open_locally)
        with trio.fail_after(30):
            await shared_window_setup._locate(asking.driver, EPOCH)
    assert asking.hub.shared_window is None
    assert descriptors() == before


async def test_another_system_is_not_asked_for_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even for its memory's size, which some do not tell."""
    monkeypatch.setattr(platform, "machine", _other_processor)
    monkeypatch.setattr(os, "sysconf", _no_such_name)
    async with trio.open_nursery() as nursery:
        rank = Rank(nursery, 0)
        assert not shared_window_setup.may_have_shared_window(rank.hub)
        await shared_window_setup._locate(rank.driver, EPOCH)
        assert rank.hub.shared_window is None


def _no_such_name(name: str) -> int:
    raise ValueError(name)


@pytest.mark.parametrize(("limit", "nbytes"), [(1 << 30, 1 << 20), (1 << 20, 1 << 19)])
async def test_results_in_common_take_at_most_half_of_what_the_process_may_use(
    monkeypatch: pytest.MonkeyPatch, limit: int, nbytes: int
) -> None:
    monkeypatch.setattr(shared_window_setup, "memory_limit", lambda: limit)
    async with trio.open_nursery() as nursery:
        memory = own_shared_window(Rank(nursery, 0).driver, EPOCH)
    assert memory._layout.nbytes == nbytes
    memory.forget_fd()
