"""The beat of the control thread beside a user's thread that does not wait for it."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from ftcomm.config.deadline import Limit
from ftcomm.config.job_settings import JobSettings
from ftcomm.control import thread
from ftcomm.control.driver import Driver
from ftcomm.control.hub import Deadline, HostSegment, Hub
from ftcomm.control.thread import BLOCKED_AFTER_S, _keep_beating
from ftcomm.protocol.position import START
from ftcomm.protocol.signature import signature_text
from ftcomm.recovery.events import Beat, Event
from ftcomm.recovery.recent_calls import Called
from ftcomm.transport.waiting import WaitProgress

pytestmark = pytest.mark.trio
SETTINGS = JobSettings(detect_within=30.0)
Said = list[tuple[tuple[int, ...], int]]


def a_blocked_worker() -> Any:
    """Its user's thread has been waiting for rank 1 in step 2 for ever; `said` is what it beats."""
    said: Said = []

    receives: list[Called] = []

    def apply(beat: Beat) -> None:
        said.append((beat.blocked_peers, beat.blocked_step))
        receives.append(beat.receive)

    hub = SimpleNamespace(
        settings=SETTINGS,
        progress=SimpleNamespace(peers=(1,), step=2, since=0.0),
        lock=threading.Lock(),
        receives=SimpleNamespace(overdue=lambda: None, longest_awaited=lambda: None),
        late_parts={},
        core=SimpleNamespace(
            progress=SimpleNamespace(position=START),
            view=SimpleNamespace(epoch=1),
            durables=SimpleNamespace(waited_s=lambda now: 0.0),
            messages=SimpleNamespace(nbytes=0),
            log=SimpleNamespace(unasked=SimpleNamespace(is_in_flight=False)),
        ),
        deadline=None,
        queued_limit=lambda: None,
        log_bytes=int,
    )
    hub.awaited = lambda: (hub.progress.peers, hub.progress.since)
    return SimpleNamespace(hub=hub, outbox=object(), apply=apply, said=said, receives=receives)


async def said_at_the_next(looks: int, driver: Any, clock: trio.testing.MockClock) -> Said:
    driver.said.clear()
    for _ in range(looks):
        clock.jump(BLOCKED_AFTER_S)
        await trio.testing.wait_all_tasks_blocked()
    return list(driver.said)


async def test_that_a_rank_is_blocked_is_said_once_and_then_five_times_in_detect_within(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    driver = a_blocked_worker()
    nursery.start_soon(_keep_beating, driver)
    await trio.testing.wait_all_tasks_blocked()
    assert driver.said == [((1,), 2)]
    looks = round(SETTINGS.detect_within / BLOCKED_AFTER_S)
    assert await said_at_the_next(looks, driver, mock_clock) == [((1,), 2)] * 5


async def test_a_replay_that_waits_for_a_rank_behind_it_names_it(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    driver = a_blocked_worker()
    driver.hub.progress.peers, driver.hub.late_parts[2] = (), 0.0
    nursery.start_soon(_keep_beating, driver)
    await trio.testing.wait_all_tasks_blocked()
    assert driver.said == [((2,), 2)]
    driver.hub.late_parts.clear()
    looks = round(SETTINGS.detect_within / BLOCKED_AFTER_S)
    assert await said_at_the_next(looks, driver, mock_clock) == [((), 2)] * 5


async def test_a_rank_that_waits_for_a_message_names_its_source(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    driver = a_blocked_worker()
    driver.hub.progress.peers = ()
    awaited = SimpleNamespace(source=3, site="t.py:9", since=0.0)
    driver.hub.receives.longest_awaited = lambda: awaited
    nursery.start_soon(_keep_beating, driver)
    await trio.testing.wait_all_tasks_blocked()
    assert driver.said == [((3,), 2)]
    assert signature_text(driver.receives[-1].signature) == "recv(source=3)"
    assert driver.receives[-1].site == "t.py:9"
    driver.hub.receives.longest_awaited = lambda: None
    looks = round(SETTINGS.detect_within / BLOCKED_AFTER_S)
    assert await said_at_the_next(looks, driver, mock_clock) == [((), 2)] * 5


async def test_a_rank_that_computes_and_calls_nothing_beats_five_times_in_detect_within(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    driver = a_blocked_worker()
    driver.hub.progress.peers = ()
    nursery.start_soon(_keep_beating, driver)
    await trio.testing.wait_all_tasks_blocked()
    looks = round(SETTINGS.detect_within / BLOCKED_AFTER_S)
    assert await said_at_the_next(looks, driver, mock_clock) == [((), 2)] * 5


async def test_that_a_rank_waits_for_a_record_is_said_at_once_and_so_is_its_end(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    driver = a_blocked_worker()
    driver.hub.progress.peers = ()
    driver.apply = lambda beat: driver.said.append(beat.record_ms)
    nursery.start_soon(_keep_beating, driver)
    await trio.testing.wait_all_tasks_blocked()
    said = []
    for waited_s in (BLOCKED_AFTER_S * 0.9, BLOCKED_AFTER_S, 1.0, 0.0):
        driver.hub.core.durables.waited_s = lambda now, waited_s=waited_s: waited_s
        said.append(await said_at_the_next(1, driver, mock_clock))
    assert said == [[], [int(BLOCKED_AFTER_S * 1000)], [], [0]]


@pytest.mark.parametrize(
    "change",
    [
        # another tracker, or another incarnation
        lambda driver: setattr(driver, "outbox", object()),
        lambda driver: setattr(
            driver.hub.core.view, "epoch", 2
        ),  # what was said of 1 counts no more
        lambda driver: setattr(driver.hub.progress, "step", 3),
    ],
    ids=["connection", "epoch", "step"],
)
async def test_who_may_not_know_that_a_rank_is_blocked_is_told_at_once(
    change: Any, mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    driver = a_blocked_worker()
    nursery.start_soon(_keep_beating, driver)
    await trio.testing.wait_all_tasks_blocked()
    change(driver)
    said = await said_at_the_next(1, driver, mock_clock)
    assert said == [((1,), driver.hub.progress.step)]
    assert await said_at_the_next(1, driver, mock_clock) == []


async def test_a_call_that_the_core_makes_is_at_its_first_step(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """R12: that of a call before it would seem to be behind what is waited for."""
    driver = a_blocked_worker()
    driver.hub.core.log.unasked.is_in_flight = True
    nursery.start_soon(_keep_beating, driver)
    assert await said_at_the_next(1, driver, mock_clock) == [((1,), 0)]


async def test_the_jobs_own_settings_count_as_soon_as_they_are_known(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Else a job with a short deadline would miss a worker that has just joined it."""
    driver = a_blocked_worker()
    nursery.start_soon(_keep_beating, driver)
    await trio.testing.wait_all_tasks_blocked()
    driver.hub.settings = JobSettings(detect_within=1.0)
    assert await said_at_the_next(3, driver, mock_clock) == [((1,), 2)] * 3


async def test_a_wait_begins_anew_after_a_stop_of_this_process(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two ranks whose machine was paused in a transfer would accuse their link."""
    monkeypatch.setattr(thread, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    driver = a_blocked_worker()
    nursery.start_soon(_keep_beating, driver)
    await trio.testing.wait_all_tasks_blocked()
    driver.said.clear()
    mock_clock.jump(SETTINGS.detect_within)
    await trio.testing.wait_all_tasks_blocked()
    assert driver.said == [((), 2)]


class HubOfACallThatEnds:
    """The user's thread ends its call as soon as its deadline has been looked at."""

    log_bytes = int
    queued_limit = staticmethod(lambda: None)

    def __init__(self) -> None:
        self.progress = WaitProgress()
        self.awaited = lambda: (self.progress.peers, self.progress.since)
        self.late_parts: dict[int, float] = {}
        self.settings = SimpleNamespace(heartbeat_every=0.001, detect_within=600.0)
        self.lock = threading.Lock()
        self.receives = SimpleNamespace(overdue=lambda: None, longest_awaited=lambda: None)
        self.core = SimpleNamespace(
            progress=SimpleNamespace(position=START),
            durables=SimpleNamespace(waited_s=lambda now: 0.0),
            messages=SimpleNamespace(nbytes=0),
            log=SimpleNamespace(unasked=SimpleNamespace(is_in_flight=False)),
        )
        self._looks = 0

    @property
    def deadline(self) -> Deadline | None:
        self._looks += 1
        return Deadline(START, Limit(1.0, float("inf"))) if self._looks == 1 else None


async def test_a_call_may_end_while_its_deadline_is_looked_at() -> None:
    beats: list[Event] = []
    with trio.CancelScope() as scope:

        def apply(event: Event) -> None:
            beats.append(event)
            if len(beats) == 2:
                scope.cancel()

        driver: Any = SimpleNamespace(hub=HubOfACallThatEnds(), apply=apply)
        await _keep_beating(cast("Driver", driver))
    assert [type(beat) for beat in beats] == [Beat, Beat]


@pytest.mark.parametrize("since", [0.0, 5.0])
async def test_who_is_waited_for_in_the_segment_is_said_of_a_call_that_sleeps(since: float) -> None:
    """One that moves waits for microseconds again and again: nobody is to blame."""
    core: Any = SimpleNamespace(missing=lambda: (1,), sleeps_since=lambda: since)
    hub: Any = Hub.__new__(Hub)
    hub.progress, hub.segment = WaitProgress(), HostSegment(1, core, (2, 5))
    assert hub.awaited() == (((5,), since) if since else ((), 0.0))
