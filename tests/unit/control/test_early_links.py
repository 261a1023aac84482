"""A peer may have the plan before this side has it: its link waits, and an old one does not."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ftcomm.control.links.manager import wait_for_epoch
from ftcomm.errors import ProtocolError
from ftcomm.recovery.states import WorkerState

pytestmark = pytest.mark.trio


class Side:
    """View of a listener on its worker: the core's state, and its changes."""

    def __init__(self) -> None:
        self.hub = SimpleNamespace(core=SimpleNamespace(view=SimpleNamespace()))
        self.changed = trio.Event()
        self.is_at(WorkerState.RUNNING, epoch=1, revoke_epoch=1)

    def is_at(self, state: WorkerState, *, epoch: int, revoke_epoch: int) -> None:
        core: Any = self.hub.core
        core.view.state, core.view.epoch, core.view.revoke_epoch = state, epoch, revoke_epoch
        self.changed.set()
        self.changed = trio.Event()


async def test_a_link_of_an_epoch_to_come_waits_for_the_plan_and_no_longer() -> None:
    side: Any = Side()
    entered: list[str] = []

    async def wait() -> None:
        await wait_for_epoch(side, 2)
        entered.append(side.hub.core.view.state.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for state, epoch, revoked in ((WorkerState.STOPPED, 1, 2), (WorkerState.CATCHING_UP, 2, 2)):
            await trio.testing.wait_all_tasks_blocked()
            assert entered == []
            side.is_at(state, epoch=epoch, revoke_epoch=revoked)
    assert entered == [WorkerState.CATCHING_UP.value]


async def test_a_link_whose_epoch_is_passed_over_is_refused() -> None:
    side: Any = Side()
    with pytest.RaisesGroup(ProtocolError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_epoch, side, 2)
            await trio.testing.wait_all_tasks_blocked()
            side.is_at(WorkerState.STOPPED, epoch=1, revoke_epoch=3)


async def test_a_link_of_an_epoch_that_is_over_is_refused() -> None:
    side: Any = Side()
    side.is_at(WorkerState.STOPPED, epoch=1, revoke_epoch=2)
    with pytest.raises(ProtocolError, match="a link of epoch 1, this side is at 2"):
        await wait_for_epoch(side, 1)
