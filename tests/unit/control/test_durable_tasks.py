"""Durable checkpoints of a rank without memory: its work fails, and the rank goes on."""

import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
import trio

from ftcomm.control.durable_tasks import DurableTasks, _prelude_of
from ftcomm.durable.container import ContainerHeader, Entry, container_parts
from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.records import StoredPart, VersionRecord
from ftcomm.durable.store import DamagedObjectError, MissingObjectError
from ftcomm.protocol.durable.store_messages import ObjectOrder
from ftcomm.protocol.position import PRELUDE, PositionRange
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

CAUSE = "this process has no memory left for it: of 3 TiB"
WRITE = ObjectWrite(ObjectOrder("state", -1, 0, 9), b"state")


class HugeState(LazyState):
    """A state for whose packed form there is no memory."""

    def raw(self) -> NoReturn:
        raise MemoryError("of 3 TiB")


def without_memory(*_: object) -> NoReturn:
    raise MemoryError("of 3 TiB")


@pytest.mark.trio
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


def prelude_object(store: DirectoryStore, name: str) -> StoredPart:
    """An object with the one result of a prelude."""
    raw = np.arange(8, dtype=np.float32).tobytes()
    entries = (Entry(0, bytes(48), 11, (8,), 0, len(raw)),)
    header = ContainerHeader(
        "job", 1, 3, 1, "prelude", -1, 0, 0, len(raw), b"", "xxh3-128", len(raw), entries
    )
    digests: list[bytes] = []
    store.put(name, container_parts(header, [raw], digests.append))
    runs = (PositionRange(PRELUDE, 0, 1),)
    return StoredPart("prelude", -1, 0, 0, name, len(raw), digests[0], runs)


@pytest.mark.parametrize("damaged", [0, 1])
def test_the_prelude_is_read_from_a_copy_that_is_whole(tmp_path: Path, damaged: int) -> None:
    store = DirectoryStore(tmp_path)
    parts = tuple(prelude_object(store, f"data/1/3/{name}.ftc") for name in "ab")
    record = VersionRecord(1, 3, 1, 0, 0, b"", 1, None, parts)
    (expected,) = _prelude_of(store, record, "job")
    path = tmp_path / parts[damaged].name
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
    ((position, entry),) = _prelude_of(store, record, "job")
    assert (position, bytes(entry.value.raw())) == (expected[0], bytes(expected[1].value.raw()))
    store.delete(parts[1 - damaged].name)
    with pytest.raises((DamagedObjectError, MissingObjectError)):
        _prelude_of(store, record, "job")
