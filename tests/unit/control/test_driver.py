"""Promises of the driver to a process that is about to end."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio
import trio.testing

from ftcomm.config.environment import WorkerOptions
from ftcomm.config.job_settings import JobSettings
from ftcomm.control.driver import Driver
from ftcomm.control.hub import Hub
from ftcomm.control.messages.direct_receive import DirectReceive
from ftcomm.memory.message_value import MessageValue
from ftcomm.memory.pool import LoggedResult
from ftcomm.protocol.link_messages import Content
from ftcomm.protocol.message_head import HeadFields
from ftcomm.protocol.messages import HeartbeatAck, Leave, Welcome, WorkerMessage
from ftcomm.protocol.position import START
from ftcomm.recovery.events import DescribeState, Received, SendControl
from ftcomm.recovery.machine import WorkerMachine
from ftcomm.recovery.states import Identity, MachineLimits
from tests.unit.control.test_posted_receives import TAG, Receives


async def a_driver_with_one_unwritten_message(nursery: trio.Nursery) -> Driver:
    driver = Driver(cast("Hub", None), nursery)
    sender, _ = trio.open_memory_channel[WorkerMessage](4)
    driver.opened(sender)
    driver.perform([SendControl(Leave("an error", START))])
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


@pytest.mark.trio
async def test_a_tracker_that_takes_no_more_is_cut_off_and_nothing_is_left_out(
    nursery: trio.Nursery,
) -> None:
    """On the next connection all that matters is said again; on this one it would be missing."""
    driver = await a_driver_with_one_unwritten_message(nursery)
    driver.cut_control = trio.CancelScope()
    for _ in range(4):
        assert not driver.cut_control.cancel_called
        driver.perform([SendControl(Leave("an error", START))])
    assert driver.cut_control.cancel_called


@pytest.mark.trio
async def test_the_jobs_settings_hold_for_the_core_from_the_welcome_on(
    nursery: trio.Nursery,
) -> None:
    job = JobSettings(detect_within=1.5, replicas=3, local_replicas=1)
    identity = Identity("0", b"n" * 16, "here", "127.0.0.1", 1)
    core = WorkerMachine(identity, MachineLimits(), now=0.0)
    hub = Hub(core, WorkerOptions(tracker_timeout=7.0), b"")
    Driver(hub, nursery).apply(Received(Welcome("job", 1, 1, 2, 0, job.to_wire())))
    assert core.contact.limits == MachineLimits(1.5, 3, 1, 7.0)
    assert hub.settings == job
    hub.close()


@pytest.mark.trio
async def test_a_spare_takes_the_settings_once_though_many_messages_come(
    nursery: trio.Nursery,
) -> None:
    job = JobSettings(detect_within=1.5)
    core = WorkerMachine(Identity("0", b"n" * 16, "here", "127.0.0.1", 1), MachineLimits(), now=0.0)
    hub = Hub(core, WorkerOptions(), b"")
    driver = Driver(hub, nursery)
    driver.apply(Received(Welcome("job.1", 1, 1, 2, 0, job.to_wire())))
    taken = hub.settings
    driver.apply(Received(HeartbeatAck(1)))
    assert hub.settings is taken
    hub.close()


@pytest.mark.trio
async def test_a_state_that_a_users_function_cannot_unpack_is_not_described(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The tracker asks for it to explain a mismatch, and decides without it."""

    def from_state(_: object) -> None:
        raise ZeroDivisionError("in from_state")

    monkeypatch.setattr("ftcomm.control.driver.leaves_of", from_state)
    identity = Identity("0", b"n" * 16, "here", "127.0.0.1", 1)
    hub = Hub(WorkerMachine(identity, MachineLimits(), now=0.0), WorkerOptions(), b"")
    sender, sent = trio.open_memory_channel[WorkerMessage](4)
    async with trio.open_nursery() as nursery:
        driver = Driver(hub, nursery)
        driver.opened(sender)
        driver.perform([DescribeState(1, b"packed")])
    assert caplog.messages == ["the state cannot be described: ZeroDivisionError: in from_state"]
    with pytest.raises(trio.WouldBlock):
        sent.receive_nowait()
    hub.close()


@pytest.mark.trio
async def test_a_message_that_its_reader_cannot_take_is_held_outside_the_readers_array(
    nursery: trio.Nursery,
) -> None:
    """The array is the user's again before the message is taken."""
    receives, out, told = Receives(), np.zeros(1), list[Any]()
    core, lock = receives.core, receives.posted._lock
    hub: Any = SimpleNamespace(core=core, lock=lock, receives=receives.posted)
    driver = Driver(hub, nursery)
    receives.want(1)
    for number, is_taken in ((1, False), (2, True)):  # the first of a stream is held
        direct = DirectReceive(1, TAG, None, None, out)
        place = direct.place_for(1, HeadFields(0, TAG, Content.ARRAY, 0, (1,), 8), out.dtype)
        assert place is not None
        out[:] = number
        receives.numbers = number
        value = MessageValue(LoggedResult(out, out.shape), Content.ARRAY)
        driver.arrived(receives.next_message()._replace(value=value, nbytes=8), direct)
        assert (direct.is_over, direct.value is value) == (True, is_taken)
        if not is_taken:
            out[:] = -1.0
            receives.post(told)
    assert told == [[1.0]]
