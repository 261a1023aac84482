"""What the driver promises to a process that is about to end."""

from typing import cast

import pytest
import trio
import trio.testing

from ftcomm.control.driver import Driver
from ftcomm.control.hub import Hub
from ftcomm.protocol.messages import Leave, WorkerMessage
from ftcomm.recovery.events import SendControl


async def a_driver_with_one_unwritten_message(nursery: trio.Nursery) -> Driver:
    driver = Driver(cast("Hub", None), nursery)
    sender, _ = trio.open_memory_channel[WorkerMessage](4)
    driver.opened(sender)
    driver.perform([SendControl(Leave("an error"))])
    return driver


@pytest.mark.trio
async def test_the_last_words_are_awaited_until_the_kernel_has_them(nursery: trio.Nursery) -> None:
    driver = await a_driver_with_one_unwritten_message(nursery)
    flushed = trio.Event()

    async def wait() -> None:
        await driver.flushed()
        flushed.set()

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    assert not flushed.is_set()
    driver.note_written()
    await flushed.wait()


@pytest.mark.trio
async def test_nobody_waits_for_words_to_a_connection_that_has_ended(
    nursery: trio.Nursery,
) -> None:
    driver = await a_driver_with_one_unwritten_message(nursery)
    nursery.start_soon(driver.flushed)
    await trio.testing.wait_all_tasks_blocked()
    driver.closed()
    await trio.testing.wait_all_tasks_blocked()
    assert not nursery.child_tasks
