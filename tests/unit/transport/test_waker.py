"""Between the look and the sleep: what the control thread says just then is not missed."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ftcomm.collectives.schedules.recursive_doubling import barrier
from ftcomm.config.environment import WorkerOptions
from ftcomm.control.hub import HostSegment, Hub
from ftcomm.engine.locked_machine import LockedMachine
from ftcomm.execution.data_plane import DataPlane
from ftcomm.recovery.machine import WorkerMachine
from ftcomm.recovery.states import Completion, Identity, MachineLimits, NextStep
from ftcomm.transport import waker
from ftcomm.transport.waker import Waker


class Busy:
    """The core's lock, which the control thread takes as soon as it is free, to say something."""

    def __init__(self, wake: Waker) -> None:
        self.wake = wake

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.wake.set()


@pytest.fixture
def hub() -> Iterator[Hub]:
    identity = Identity("0", b"n" * 16, "here", "127.0.0.1", 1)
    core = WorkerMachine(identity, MachineLimits(), now=0.0)
    core.view.grouping = (0, 0)
    hub = Hub(core, WorkerOptions(), b"")
    yield hub
    hub.close()


@pytest.fixture
def control() -> Any:
    return SimpleNamespace(driver=SimpleNamespace(request_links=lambda *_: None))


def note_sleeps(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Instead of sleeping, note whether that would have ended at once."""
    slept: list[bool] = []
    monkeypatch.setattr(hub, "sleep", lambda: slept.append(hub.wake.is_set))
    return slept


def test_what_is_said_behind_a_look_at_the_core_is_still_there_for_the_sleep(
    hub: Hub, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "lock", Busy(hub.wake))
    LockedMachine(hub, control).ask(lambda: NextStep.WAIT)
    assert hub.wake.is_set


def test_what_is_said_behind_an_attempt_is_still_there_for_the_sleep(
    hub: Hub, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, slept = LockedMachine(hub, control), note_sleeps(hub, monkeypatch)
    monkeypatch.setattr(hub, "lock", Busy(hub.wake))
    outcomes = [Completion.CONFIRM_FIRST, Completion.DONE]
    assert machine._settle(lambda: outcomes.pop(0))
    assert slept == [True]


def test_what_is_said_behind_a_condition_is_still_there_for_the_sleep(
    hub: Hub, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, slept = LockedMachine(hub, control), note_sleeps(hub, monkeypatch)
    monkeypatch.setattr(hub, "lock", Busy(hub.wake))
    answers = [False, True]
    machine.wait_for(lambda: answers.pop(0))
    assert slept == [True]


def test_a_link_that_is_made_behind_a_look_ends_the_sleep(
    hub: Hub, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Links(dict[int, Any]):
        """The peer's link comes just when this side has looked for the second time."""

        looks = 0

        def __contains__(self, rank: object) -> bool:
            known = super().__contains__(rank)
            self.looks += 1
            if self.looks == 2:
                self[1] = object()
                hub.wake.set()
            return known

    slept, hub.segment = note_sleeps(hub, monkeypatch), HostSegment(0)
    monkeypatch.setattr(DataPlane, "_must_ask", lambda *_: False)
    assert DataPlane(hub, control)._ensure_links(barrier(2, 0), Links(), epoch=0)
    assert slept == [True]


def test_a_waker_that_is_set_while_it_is_cleared_stays_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the flag stayed down, the descriptor would wake every poll and nobody would leave it."""
    made = Waker()
    read = waker.os.read

    def read_and_set(fd: int, size: int) -> bytes:
        data = read(fd, size)
        made.set()
        return data

    made.set()
    with monkeypatch.context() as patch:
        patch.setattr(waker.os, "read", read_and_set)
        made.clear()
    assert made.is_set
    made.close()


def test_an_interrupt_is_forgotten_when_the_next_collective_may_begin_and_not_before(
    hub: Hub, control: Any
) -> None:
    machine, after = LockedMachine(hub, control), []
    hub.interrupt.set()
    for step in (NextStep.WAIT, NextStep.EXECUTE):
        machine.ask(lambda step=step: step)
        after.append(hub.interrupt.is_set)
    assert after == [True, False]


def test_the_end_of_an_epoch_is_known_before_its_links_are_shut_down(hub: Hub) -> None:
    """Else a transfer would take this side's own shutdown for a peer's death, and blame it."""
    seen: list[bool] = []
    shutdown = SimpleNamespace(
        shutdown=lambda: seen.append(hub.interrupt.is_set), close=lambda: None
    )
    hub.links[1] = shutdown  # type: ignore[assignment]  # what a hub uses of a link
    hub.retire_links()
    assert seen == [True]
