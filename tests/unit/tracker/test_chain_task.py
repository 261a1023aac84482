"""Records that a tracker puts: a version whose objects are gone holds up no other record."""

import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

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
from ftcomm_tracker.server.store import old_versions, record_puts
from ftcomm_tracker.server.store.chain_task import ChainTask
from ftcomm_tracker.server.store.old_versions import OldVersions
from tests.unit.durable.stored_job import StoredJob

VERSION = 3


def written(kind: str, name: str) -> ObjectWritten:
    return ObjectWritten(VERSION, ObjectOrder(kind), name, 1, b"d" * 16, b"s" * 16)


async def events_of(
    chain: ChainTask,
    *puts: PutVersion | PutFinished,
    until: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
) -> list[Event]:
    """Return all that the roster hears, until the job's end is in the chain, and `until`."""
    heard: list[Event] = []
    finished = trio.Event()

    def post(event: Event) -> None:
        heard.append(event)
        if isinstance(event, FinishedPut):
            finished.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(chain.run, post)
        for each in puts:
            chain.put(each)
        await finished.wait()
        await until()
        nursery.cancel_scope.cancel()
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


class Watched(DirectoryStore):
    """A directory that tells what is deleted of its checkpoints, each when it `may_delete`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.deleted: list[str] = []
        self.is_asked, self.may_delete = threading.Event(), threading.Event()
        self.may_delete.set()
        self._changes = threading.Condition()

    def delete(self, name: str) -> None:
        if not name.startswith(DATA):
            super().delete(name)
            return
        self.is_asked.set()
        self.may_delete.wait()
        super().delete(name)
        with self._changes:
            self.deleted.append(name)
            self._changes.notify_all()

    async def is_left_with(self, *names: str) -> None:
        """Return when it has no other objects of checkpoints than these."""

        def wait() -> None:
            with self._changes:
                self._changes.wait_for(lambda: [each.name for each in self.list(DATA)] == [*names])

        await trio.to_thread.run_sync(wait)


@pytest.mark.trio
async def test_a_restarted_tracker_deletes_only_what_is_there(tmp_path: Path) -> None:
    """A long job has thousands of versions, and each call to a bucket takes its time."""
    store = Watched(tmp_path)
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
    left = partial(store.is_left_with, "data/2/5/state.ftc")
    await events_of(chain, version, PutFinished(2, 5), until=left)
    deleted = {name.rpartition("/")[0] for name in store.deleted if name.startswith("data/")}
    assert deleted == {"data/1/1", "data/1/3", "data/1/4"}


@pytest.mark.trio
async def test_no_record_waits_for_old_versions_to_be_deleted(tmp_path: Path) -> None:
    store = Watched(tmp_path)
    job = StoredJob(store)
    job.begin()
    job.attempt(1)
    job.version(1, 1, {"w": 1})
    chain = ChainTask(store, keep=1, max_attempts=9)
    await chain.begin(Durable.fresh("new", 2), survivors=False)
    store.may_delete.clear()
    store.put("data/2/2/state.ftc", [b"state"])
    version = PutVersion(2, 2, 1, (written("state", "data/2/2/state.ftc"),), 1, b"s" * 16, 1, None)

    async def deleted() -> None:
        await trio.to_thread.run_sync(store.is_asked.wait)
        assert store.deleted == []
        store.may_delete.set()
        await store.is_left_with("data/2/2/state.ftc")

    heard = await events_of(chain, version, PutFinished(2, 2), until=deleted)
    assert heard == [VersionPut(2), FinishedPut()]


@pytest.mark.trio
async def test_behind_a_stop_nothing_is_deleted_any_more(tmp_path: Path) -> None:
    store = Watched(tmp_path)
    job = StoredJob(store)
    job.begin()
    job.attempt(1)
    for number in (1, 2):
        job.version(1, number, {"w": number})
    store.may_delete.clear()
    old, stopped = OldVersions(store, 1), trio.Event()

    async def stop() -> None:
        await old.stop()
        stopped.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(old.run)
        old.note(Chain(store).read())
        await trio.to_thread.run_sync(store.is_asked.wait)
        nursery.start_soon(stop)
        await trio.testing.wait_all_tasks_blocked()
        assert not stopped.is_set()
        store.may_delete.set()
        await stopped.wait()
        nursery.cancel_scope.cancel()
    assert len(store.deleted) == 1


@pytest.mark.trio
async def test_what_no_record_can_name_any_more_is_deleted(tmp_path: Path) -> None:
    """As of versions that were given up, or that were on their way when an attempt ended."""
    store = Watched(tmp_path)
    job = StoredJob(store)
    job.begin()
    job.attempt(1)
    job.version(1, 1, {"w": 1})
    chain = ChainTask(store, keep=1, max_attempts=9)
    await chain.begin(Durable.fresh("new", 2), survivors=False)
    kept = ["data/2/5/state.ftc", "data/2/6/state-a.ftc"]  # the second is being written
    for name in (*kept, "data/1/7/state-b.ftc", "data/2/4/state-c.ftc"):
        store.put(name, [b"state"])
    version = PutVersion(2, 5, 1, (written("state", kept[0]),), 1, b"s" * 16, 1, None)
    left = partial(store.is_left_with, *kept)
    await events_of(chain, version, PutFinished(2, 5), until=left)


class Kept(DirectoryStore):
    """A store that retains what is in its checkpoints, as a bucket can."""

    def delete(self, name: str) -> None:
        if name.startswith(DATA):
            raise StoreError("403 Forbidden")
        super().delete(name)


@pytest.mark.trio
async def test_an_old_version_that_cannot_be_deleted_is_said_by_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Kept(tmp_path)
    job = StoredJob(store)
    job.begin()
    job.attempt(1)
    job.version(1, 1, {"w": 1})
    chain = ChainTask(store, keep=1, max_attempts=9)
    await chain.begin(Durable.fresh("new", 2), survivors=False)
    said, is_said = list[tuple[str, int]](), trio.Event()

    def warning(text: str, *arguments: object) -> None:
        said.append((text % arguments, threading.get_ident()))
        is_said.set()

    monkeypatch.setattr(old_versions.log, "warning", warning)
    store.put("data/2/2/state.ftc", [b"state"])
    version = PutVersion(2, 2, 1, (written("state", "data/2/2/state.ftc"),), 1, b"s" * 16, 1, None)
    heard = await events_of(chain, version, PutFinished(2, 2), until=is_said.wait)
    why = "an old checkpoint cannot be deleted: 403 Forbidden"
    assert (heard, said) == ([VersionPut(2), FinishedPut()], [(why, threading.get_ident())])
