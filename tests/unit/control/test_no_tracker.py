"""Reports of a worker that waits for a tracker, at first and repeatedly."""

import logging
import threading
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import trio
import trio.testing

from ftcomm.config.environment import WorkerOptions
from ftcomm.config.job_settings import JobSettings
from ftcomm.control import tracker_client
from ftcomm.control.message_stream import PeerClosed
from ftcomm.control.tracker_client import keep_tracker_link
from ftcomm.diagnostics.logs import JobLogger, LogContext
from ftcomm.errors import FtcommError
from ftcomm.protocol.codec import encode
from ftcomm.protocol.messages import Refused
from ftcomm.recovery.events import Received

pytestmark = pytest.mark.trio
ROUTES = (("tracker", 4711),)


def driver_of(job_id: str, needs_tracker: bool) -> Any:
    """Build the tracker link's view of a worker in the job `job_id`."""
    hub = SimpleNamespace(
        lock=threading.Lock(),
        core=SimpleNamespace(
            contact=SimpleNamespace(attached=False, welcomed=False, job_id=job_id),
            needs_tracker=needs_tracker,
        ),
        options=WorkerOptions(routes=ROUTES, connect_timeout=600, tracker_timeout=700),
        log=JobLogger(LogContext()),
    )
    return SimpleNamespace(hub=hub, hung_up=trio.Event(), apply=lambda _: None)


async def refuse(*_: object) -> NoReturn:
    raise ConnectionRefusedError("refused")


@pytest.mark.parametrize(
    ("job_id", "needs_tracker", "said"),
    [
        ("", True, "waiting up to 600 s (FTCOMM_TRACKER_TIMEOUT)"),
        ("j", True, "waiting up to 700 s (FTCOMM_TRACKER_TIMEOUT)"),
        ("j", False, ""),
    ],
)
async def test_a_worker_that_waits_says_so_after_seconds_and_each_minute(
    job_id: str,
    needs_tracker: bool,
    said: str,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tracker_client, "_one_connection", refuse)
    with caplog.at_level(logging.INFO, "ftcomm"), trio.move_on_after(150):
        await keep_tracker_link(driver_of(job_id, needs_tracker), refuse)
    line = f"no tracker answers at tracker:4711 (refused); {said}"
    assert caplog.messages == ([line] * 3 if said else [])


async def test_a_worker_that_a_tracker_keeps_waiting_does_not_say_that_none_answered(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one without its journal, which awaits the member that this process replaces."""
    driver = driver_of("", needs_tracker=True)
    driver.hub.options = WorkerOptions(routes=ROUTES, connect_timeout=0)
    failures: list[FtcommError] = []

    async def keep_waiting(*_: object) -> NoReturn:
        driver.hub.core.contact.attached = True
        raise trio.TooSlowError("the tracker does not answer heartbeats")

    driver.fail = failures.append
    monkeypatch.setattr(tracker_client, "_one_connection", keep_waiting)
    await keep_tracker_link(driver, refuse)
    assert str(failures[0]) == (
        "the tracker at tracker:4711 answered, and did not admit this worker within 0 s"
        " - see what it waits for: ftcomm-tracker explain"
    )


async def test_a_tracker_that_comes_and_goes_is_dialled_soon_after_each_outage(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tracker that closes a connection ends it with an exception, as one that is away does."""
    driver, dialled = driver_of("j", needs_tracker=False), []

    async def connect(*_: object) -> NoReturn:
        dialled.append(trio.current_time())
        if len(dialled) == 20:
            driver.hung_up.set()
        driver.hub.core.contact.welcomed = len(dialled) > 10
        raise PeerClosed

    monkeypatch.setattr(tracker_client, "_one_connection", connect)
    monkeypatch.setattr(tracker_client.random, "random", lambda: 0.0)
    await keep_tracker_link(driver, refuse)
    delays = [round(after - before, 3) for before, after in pairwise(dialled)]
    growing, longest = [0.05, 0.1, 0.2, 0.4, 0.8], 1.0
    assert delays == [*growing, *[longest] * 5, *[growing[0]] * 9]


@pytest.mark.parametrize(("routes", "goes_on"), [(ROUTES, False), (ROUTES * 2, True)])
async def test_of_several_trackers_one_that_gives_the_job_up_is_left(
    routes: Any, goes_on: bool
) -> None:
    """It has lost its journal; another one in the list may lead the job (R19)."""
    driver, heard = driver_of("j", needs_tracker=True), []
    driver.hub.options = WorkerOptions(routes=routes)
    driver.hub.settings = JobSettings()
    driver.apply = heard.append
    refused = Refused("TrackerLostError", "this tracker has no journal")
    near, far = trio.socket.socketpair()
    with near, far:
        await far.send(encode(refused))
        far.close()
        with pytest.raises(PeerClosed) as raised:
            await tracker_client._read(driver, near)
    left = ("this tracker has no journal", [])
    assert (str(raised.value), heard) == (
        left if goes_on else (str(PeerClosed()), [Received(refused)])
    )


@pytest.mark.parametrize("host", ["tracker", "127.0.1.1"])
async def test_whoever_never_finds_its_tracker_is_told_what_loopback_is(
    host: str, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``hostname -i`` prints 127.0.1.1 on many a machine, and every machine takes it for itself."""
    monkeypatch.setattr(tracker_client, "_one_connection", refuse)
    driver, failures = driver_of("", needs_tracker=True), []
    driver.hub.options = WorkerOptions(routes=((host, 4711),), connect_timeout=0)
    driver.fail = failures.append
    await keep_tracker_link(driver, refuse)
    wanted = "start ftcomm-tracker serve, or correct FTCOMM_TRACKER"
    if host == "127.0.1.1":
        wanted += ": a loopback address is each machine's own"
    assert [error.remedy for error in failures] == [wanted]
