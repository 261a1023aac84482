"""Records that a tracker puts: a version whose objects are gone holds up no other record."""

import threading
from pathlib import Path

import pytest
import trio

from ftcomm.durable.chain import Chain
from ftcomm.durable.chain_state import chain_state
from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.garbage import DATA
from ftcomm.durable.records import VersionRecord
from ftcomm.durable.store import StoreError
from ftcomm.protocol.durable.store_messages import ObjectOrder, ObjectWritten
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    Event,
    FinishedPut,
    ObjectsMissing,
    PutDelayed,
    PutFinished,
    PutVersion,
    VersionPut,
)
from ftcomm_tracker.server.store import record_puts
from ftcomm_tracker.server.store.chain_task import ChainTask
from tests.unit.durable.stored_job import StoredJob

VERSION = 3


def written(kind: str, name: str) -> ObjectWritten:
    return ObjectWritten(VERSION, ObjectOrder(kind), name, 1, b"d" * 16, b"s" * 16)


async def events_of(chain: ChainTask, *puts: PutVersion | PutFinished) -> list[Event]:
    """Return all that the roster hears, until the job's end is in the chain."""
    heard: list[Event] = []
    async with trio.open_nursery() as nursery:

        def post(event: Event) -> None:
            heard.append(event)
            if isinstance(event, FinishedPut):
                nursery.cancel_scope.cancel()

        nursery.start_soon(chain.run, post)
        for each in puts:
            chain.put(each)
    return heard


@pytest.mark.trio
@pytest.mark.parametrize("patience_s", [0.0, 0.02])
@pytest.mark.parametrize("gone", ["state", "prelude"])
async def test_a_version_of_which_an_object_is_gone_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str, patience_s: float
) -> None:
    """All versions of an attempt name the prelude's objects, which the first one has written."""
    monkeypatch.setattr(record_puts, "MISSING_FOR_S", patience_s)
    store = DirectoryStore(tmp_path)
    job = StoredJob(store)
    job.begin()
    job.attempt(1)
    record = job.version(1, 1, {"w": 1})
    chain = ChainTask(store, keep=3, max_attempts=9)
    await chain.begin(Durable.fresh("new", 2), survivors=False)
    first = chain_state(Chain(store).read()).versions[record]
    (prelude,) = (part.name for part in first.parts if part.kind == "prelude")
    state = f"data/2/{VERSION}/state.ftc"
    store.put(state, [b"state"])
    name = {"state": state, "prelude": prelude}[gone]
    store.delete(name)
    objects = (written("state", state), written("prelude", prelude))
    version = PutVersion(2, VERSION, 1, objects, 1, b"s" * 16, 1, None)
    *delayed, missing, finished = await events_of(chain, version, PutFinished(2, VERSION))
    why = f"{name} is not in the tracker's {tmp_path}"
    assert (missing, finished) == (ObjectsMissing(VERSION, (name,), why), FinishedPut())
    assert set(delayed) == ({PutDelayed(why)} if patience_s else set())
    newest = [link.record for link in Chain(store).read() if isinstance(link.record, VersionRecord)]
    assert newest == [first]


class Counted(DirectoryStore):
    """A directory that counts what is deleted."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.deleted: list[str] = []

    def delete(self, name: str) -> None:
        self.deleted.append(name)
        super().delete(name)


@pytest.mark.trio
async def test_a_restarted_tracker_deletes_only_what_is_there(tmp_path: Path) -> None:
    """A long job has thousands of versions, and each call to a bucket takes its time."""
    store = Counted(tmp_path)
    job = StoredJob(store)
    job.begin()
    job.attempt(1)
    for version in (1, 2, 3, 4):
        job.version(1, version, {"w": version})
    for each in store.list("data/1/2/"):
        store.delete(each.name)
    chain = ChainTask(store, keep=1, max_attempts=9)
    await chain.begin(Durable.fresh("new", 2), survivors=False)
    store.put("data/2/5/state.ftc", [b"state"])
    store.deleted.clear()
    version = PutVersion(2, 5, 1, (written("state", "data/2/5/state.ftc"),), 1, b"s" * 16, 1, None)
    await events_of(chain, version, PutFinished(2, 5))
    deleted = {name.rpartition("/")[0] for name in store.deleted if name.startswith("data/")}
    assert deleted == {"data/1/1", "data/1/3", "data/1/4"}
    assert [each.name for each in store.list("data/")] == ["data/2/5/state.ftc"]


class Kept(DirectoryStore):
    """A store that retains what is in its checkpoints, as a bucket can."""

    def delete(self, name: str) -> None:
        if name.startswith(DATA):
            raise StoreError("403 Forbidden")
        super().delete(name)


@pytest.mark.trio
async def test_an_old_version_that_cannot_be_deleted_is_said_by_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Kept(tmp_path)
    job = StoredJob(store)
    job.begin()
    job.attempt(1)
    job.version(1, 1, {"w": 1})
    chain = ChainTask(store, keep=1, max_attempts=9)
    await chain.begin(Durable.fresh("new", 2), survivors=False)
    caplog.clear()
    store.put("data/2/2/state.ftc", [b"state"])
    version = PutVersion(2, 2, 1, (written("state", "data/2/2/state.ftc"),), 1, b"s" * 16, 1, None)
    heard = await events_of(chain, version, PutFinished(2, 2))
    said = [(record.getMessage(), record.thread) for record in caplog.records]
    why = "an old checkpoint cannot be deleted: 403 Forbidden"
    assert (heard, said) == ([VersionPut(2), FinishedPut()], [(why, threading.get_ident())])
