"""A peer that cannot be reached is reported within `detect_within`, whatever it is dialled for."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from ftcomm.config.job_settings import JobSettings
from ftcomm.control.fetching.fetch import _fetch_from
from ftcomm.control.links import relay as relays
from ftcomm.control.links.manager import _dial_patiently
from ftcomm.control.messages.asking import _SourceLink
from ftcomm.protocol.handshake import HANDSHAKE_DEADLINE_S
from ftcomm.recovery.events import AskForMessages, FetchEnded, LinkDown, MessagesLost, StartFetch
from tests.unit.control.test_relay import EPOCH, a_driver, listening

pytestmark = pytest.mark.trio
DETECT_WITHIN_S = 2.0


async def _for_data(driver: Any) -> None:
    await _dial_patiently(driver, EPOCH, 1)


async def _for_messages(driver: Any) -> None:
    await _SourceLink(driver, AskForMessages(EPOCH, 1, 0, ())).run()


async def _for_a_fetch(driver: Any) -> None:
    await _fetch_from(driver, StartFetch(EPOCH, 1, -1, (), -1, ()))


DIALS = pytest.mark.parametrize("dial", [_for_data, _for_messages, _for_a_fetch])
Dial = Callable[[Any], Awaitable[None]]


def a_patient_driver(ports: list[int], relay: int | None = None) -> Any:
    driver = a_driver(0, ports, relay)
    driver.hub.settings = JobSettings(transport="tcp", detect_within=DETECT_WITHIN_S)
    driver.hub.fault = lambda _: None
    return driver


def suspected(event: LinkDown | MessagesLost | FetchEnded) -> int:
    return event.rank if isinstance(event, LinkDown) else event.source


@DIALS
@pytest.mark.parametrize(("relay", "rank"), [(None, 1), (2, 2)])
async def test_a_peer_whose_packets_vanish_is_reported_in_time(
    dial: Dial,
    relay: int | None,
    rank: int,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The relay on the way is named where it is that one."""

    async def vanish(*_: object, **__: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "open_tcp_stream", vanish)
    driver = a_patient_driver([0, 1, 1], relay)
    await dial(driver)
    ((event),) = driver.events
    assert (suspected(event), trio.current_time()) == (rank, DETECT_WITHIN_S)


@DIALS
async def test_a_peer_that_never_answers_the_handshake_is_reported_in_time(
    dial: Dial, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """As behind a network that passes small packets alone, or none any more."""

    async def silent(*_: object) -> None:
        with trio.fail_after(HANDSHAKE_DEADLINE_S):
            while True:
                mock_clock.jump(DETECT_WITHIN_S / 4)
                await trio.lowlevel.checkpoint()

    monkeypatch.setattr("ftcomm.control.links.dial.client_handshake", silent)
    async with listening(silent) as port:
        driver = a_patient_driver([0, port])
        await dial(driver)
    ((event),) = driver.events
    assert (suspected(event), trio.current_time()) == (1, DETECT_WITHIN_S)


async def test_a_dial_through_a_relay_in_a_scope_that_is_over_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def dial(*_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(relays, "open_direct", dial)
    with trio.CancelScope() as scope:
        scope.cancel()
        await relays.open_through(a_patient_driver([]), EPOCH, 2, 0)
    assert scope.cancelled_caught
