"""Idle connections: a silent peer is disconnected after a stated time."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ftcomm.config.job_settings import SILENT_WINDOWS, JobSettings
from ftcomm.control.fetching import request_link
from ftcomm.control.fetching.fetch import _fetch_from
from ftcomm.control.links import manager
from ftcomm.control.links.manager import Listener
from ftcomm.control.tracker_client import _read_some
from ftcomm.recovery.events import FetchEnded, StartFetch

pytestmark = pytest.mark.trio
SETTINGS = JobSettings(detect_within=30.0)
MUCH_LATER_S = 10_000.0  # on the test's clock


@pytest.fixture
def driver() -> Any:
    events: list[Any] = []
    members = [SimpleNamespace(host="here")] * 3
    core = SimpleNamespace(view=SimpleNamespace(members=members, rank=0, relay_to=lambda _: None))
    hub = SimpleNamespace(settings=SETTINGS, core=core, kept_from_children=lambda _: nullcontext())
    return SimpleNamespace(hub=hub, apply=events.append, events=events)


async def test_a_holder_that_falls_silent_while_it_serves_is_suspected(
    driver: Any, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = trio.socket.socketpair()

    async def open_peer(*_: object) -> Any:
        return near

    monkeypatch.setattr(request_link, "open_peer", open_peer)
    with near, far, trio.move_on_after(MUCH_LATER_S):
        await _fetch_from(driver, StartFetch(2, 1, -1, (), -1, ()))
    ((ended),) = driver.events
    assert isinstance(ended, FetchEnded)
    assert (ended.epoch, ended.source, bool(ended.failure)) == (2, 1, True)
    assert trio.current_time() == SETTINGS.detect_within


async def test_a_tracker_that_falls_silent_is_dialled_again(
    driver: Any, autojump_clock: trio.testing.MockClock
) -> None:
    near, far = trio.socket.socketpair()
    with near, far, pytest.raises(trio.TooSlowError, match="does not answer"):
        with trio.move_on_after(MUCH_LATER_S):
            await _read_some(driver, near)
    assert trio.current_time() == SILENT_WINDOWS * SETTINGS.detect_within


@pytest.mark.parametrize(("world_size", "stay"), [(1, 2), (2, 3)])
async def test_of_too_many_who_say_nothing_the_one_that_came_first_is_dropped(
    nursery: trio.Nursery,
    mock_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    world_size: int,
    stay: int,
) -> None:
    """No time passes here, so it is not the deadline that ends it.

    There are as many places as members may need, who wait for a plan before they prove themselves.
    """
    monkeypatch.setattr(manager, "MAX_UNAUTHENTICATED", 2)
    hub = SimpleNamespace(
        kept_from_children=lambda _: nullcontext(),
        core=SimpleNamespace(contact=SimpleNamespace(world_size=world_size)),
        settings=SETTINGS,
    )
    unused: Any = SimpleNamespace(hub=hub)
    listener = Listener(unused, {}, unused)
    callers = []
    for _ in range(3):
        near, far = trio.socket.socketpair()
        nursery.start_soon(listener._welcome, near)
        await trio.testing.wait_all_tasks_blocked()
        callers.append(far)
    assert [scope.cancel_called for scope in listener._pending.values()] == [False] * stay
    if stay < len(callers):
        assert await callers[0].recv(1) == b""
    for caller in callers:
        caller.close()
    nursery.cancel_scope.cancel()
