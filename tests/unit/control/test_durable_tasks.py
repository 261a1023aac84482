"""Durable checkpoints of a rank without memory: its work fails, and the rank goes on."""

import logging
import threading
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import trio

from ftcomm.control.durable_tasks import DurableTasks
from ftcomm.protocol.durable.store_messages import ObjectOrder
from ftcomm.recovery.events import (
    Event,
    ObjectFailed,
    ObjectWrite,
    PackVersion,
    RestoreEnded,
    StartRestore,
    WriteVersion,
)
from ftcomm.state.lazy import LazyState

pytestmark = pytest.mark.trio
CAUSE = "this process has no memory left for it: of 3 TiB"
WRITE = ObjectWrite(ObjectOrder("state", -1, 0, 9), b"state")


class HugeState(LazyState):
    """A state for whose packed form there is no memory."""

    def raw(self) -> NoReturn:
        raise MemoryError("of 3 TiB")


def without_memory(*_: object) -> NoReturn:
    raise MemoryError("of 3 TiB")


@pytest.mark.parametrize(
    ("order", "failed"),
    [
        (PackVersion(3, HugeState({"w": 1}), b""), ObjectFailed(3, CAUSE)),
        (WriteVersion(1, 3, 7, 9, b"d", (WRITE,)), ObjectFailed(3, CAUSE)),
        (StartRestore(5), RestoreEnded(5, CAUSE)),
    ],
    ids=["packing", "writing", "reading"],
)
async def test_work_without_memory_is_a_failure_of_that_work(
    monkeypatch: pytest.MonkeyPatch, order: Any, failed: Event
) -> None:
    for name in ("_put", "_read"):
        monkeypatch.setattr(DurableTasks, name, without_memory)
    applied: list[Event] = []
    core = SimpleNamespace(durables=SimpleNamespace(awaits=lambda _: True))
    hub = SimpleNamespace(core=core, lock=threading.Lock(), log=logging.getLogger("t"))
    async with trio.open_nursery() as nursery:
        driver: Any = SimpleNamespace(hub=hub, nursery=nursery, apply=applied.append)
        DurableTasks(driver).start(order)
    assert applied == [failed]
