"""The beat of the control thread beside a user's thread that does not wait for it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from ftcomm.control.driver import Driver
from ftcomm.control.hub import Deadline
from ftcomm.control.thread import _keep_beating
from ftcomm.protocol.position import START
from ftcomm.recovery.events import Beat, Event
from ftcomm.transport.waiting import Progress


class HubOfACallThatEnds:
    """The user's thread ends its call as soon as its deadline has been looked at."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.settings = SimpleNamespace(heartbeat_every=0.001)
        self.core = SimpleNamespace(position=START)
        self._looks = 0

    @property
    def deadline(self) -> Deadline | None:
        self._looks += 1
        return Deadline(START, float("inf"), 1.0) if self._looks == 1 else None


@pytest.mark.trio
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
