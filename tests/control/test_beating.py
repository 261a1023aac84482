"""When a worker says that it is blocked, and to whom: at once where that may not be known."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ftcomm.control.thread import BLOCKED_AFTER_S, _keep_beating
from ftcomm.protocol.position import START
from ftcomm.recovery.events import Beat
from ftcomm.settings import JobSettings

pytestmark = pytest.mark.trio
SETTINGS = JobSettings(detect_within=600.0)
LOOK_S = 1.25 * BLOCKED_AFTER_S  # the next look is over, the one after it is not


def a_blocked_worker() -> Any:
    """Its user's thread has been waiting for rank 1 in step 2 for ever; `said` is what it beats."""
    said: list[tuple[tuple[int, ...], int]] = []

    def apply(beat: Beat) -> None:
        said.append((beat.blocked_peers, beat.blocked_step))

    hub = SimpleNamespace(
        settings=SETTINGS,
        progress=SimpleNamespace(peers=(1,), step=2, since=0.0),
        core=SimpleNamespace(position=START, epoch=1),
        deadline=None,
    )
    return SimpleNamespace(hub=hub, outbox=object(), apply=apply, said=said)


async def until_the_next_look(driver: Any) -> list[tuple[tuple[int, ...], int]]:
    driver.said.clear()
    await trio.sleep(LOOK_S)
    return list(driver.said)


async def test_that_a_rank_is_blocked_is_said_once_and_then_ten_times_in_detect_within(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    driver = a_blocked_worker()
    nursery.start_soon(_keep_beating, driver)
    assert await until_the_next_look(driver) == [((1,), 2)]
    assert await until_the_next_look(driver) == []
    driver.said.clear()
    await trio.sleep(SETTINGS.detect_within)
    assert driver.said == [((1,), 2)] * 10


@pytest.mark.parametrize(
    "change",
    [
        lambda driver: setattr(driver, "outbox", object()),  # another tracker, or another life
        lambda driver: setattr(driver.hub.core, "epoch", 2),  # what was said of 1 counts no more
        lambda driver: setattr(driver.hub.progress, "step", 3),
    ],
    ids=["connection", "epoch", "step"],
)
async def test_who_may_not_know_that_a_rank_is_blocked_is_told_at_once(
    change: Any, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    driver = a_blocked_worker()
    nursery.start_soon(_keep_beating, driver)
    await until_the_next_look(driver)
    change(driver)
    assert await until_the_next_look(driver) == [((1,), driver.hub.progress.step)]
