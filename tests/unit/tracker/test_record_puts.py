"""Records of an attempt that is lost while they are put: the next one begins beside that."""

import threading
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ftcomm.durable.chain import Chain
from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.records import AttemptRecord, FinishedRecord, SeriesRecord, VersionRecord
from ftcomm.durable.store import StoreError
from ftcomm.protocol.durable.store_messages import ObjectOrder, ObjectWritten
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    Event,
    FinishedPut,
    Overtaken,
    PutDelayed,
    PutFinished,
    PutVersion,
)
from ftcomm_tracker.server.store.chain_task import ChainTask
from tests.unit.durable.stored_job import StoredJob

VERSION = 3
STATE = f"data/2/{VERSION}/state.ftc"
IDLE_S = 0.05  # a step of an attempt's beginning takes less


class SlowStore(DirectoryStore):
    """Takes its time over the record of `VERSION`, or does not take it.

    Attributes:
        lands: the record is there before the time is over.
        is_away: the store does not take it.
        asked: set when it is given.
        may_answer: awaited then.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.lands = self.is_away = False
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def put_new(self, name: str, data: bytes) -> bool:
        if not name.startswith("chain/") or STATE.encode() not in data:
            return super().put_new(name, data)
        if self.is_away:
            raise StoreError("it is away")
        is_new = super().put_new(name, data) if self.lands else None
        self.asked.set()
        self.may_answer.wait()
        return super().put_new(name, data) if is_new is None else is_new


class Job:
    """A job whose second attempt puts the record of `VERSION`."""

    def __init__(self, root: Path) -> None:
        self.store = SlowStore(root)
        stored = StoredJob(self.store)
        stored.begin()
        stored.attempt(1)
        stored.version(1, 1, {"w": 1})
        self.chain = ChainTask(self.store, keep=3, max_attempts=9)
        self.heard: list[Event] = []
        self.delayed, self.finished = trio.Event(), trio.Event()
        self._durable = Durable.fresh("new", 2)

    async def begin(self) -> None:
        """Begin the next attempt."""
        self._durable, _ = await self.chain.begin(self._durable, survivors=False)

    def put_version(self) -> None:
        self.store.put(STATE, [b"state"])
        written = ObjectWritten(VERSION, ObjectOrder("state"), STATE, 1, b"d" * 16, b"s" * 16)
        self.chain.put(PutVersion(2, VERSION, 1, (written,), 1, b"s" * 16, 0, None))

    def post(self, event: Event) -> None:
        self.heard.append(event)
        if isinstance(event, PutDelayed):
            self.delayed.set()
        if isinstance(event, FinishedPut | Overtaken):
            self.finished.set()

    def records(self) -> list[tuple[type, int]]:
        """Kind and attempt of each record; of a version, the version."""
        return [
            (
                type(record),
                record.version
                if isinstance(record, VersionRecord)
                else getattr(record, "attempt", 0),
            )
            for record in (link.record for link in Chain(self.store).read())
        ]


BEFORE = [(SeriesRecord, 0), (AttemptRecord, 1), (VersionRecord, 1), (AttemptRecord, 2)]


@pytest.mark.trio
@pytest.mark.parametrize("lands", [True, False])
async def test_the_next_attempt_begins_behind_a_record_that_is_on_its_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, lands: bool
) -> None:
    """Else it does not see that version, or two threads count the record, and a number is free."""
    job = Job(tmp_path)
    await job.begin()
    job.store.lands = lands
    async with trio.open_nursery() as whole:
        whole.start_soon(job.chain.run, job.post)
        job.put_version()
        await trio.to_thread.run_sync(job.store.asked.wait)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.begin)
            await wait_all_tasks_blocked(IDLE_S)
            job.store.may_answer.set()
        whole.cancel_scope.cancel()
    assert job.records() == [*BEFORE, (VersionRecord, VERSION), (AttemptRecord, 3)]
    assert f"checkpoint {VERSION} of the store is damaged" in caplog.text, "it has been looked at"
    assert job.heard == [], "the roster of the next attempt has not put it"


@pytest.mark.trio
async def test_a_record_that_was_not_taken_is_not_put_in_the_next_attempt(tmp_path: Path) -> None:
    job = Job(tmp_path)
    await job.begin()
    job.store.is_away = True
    job.store.may_answer.set()
    async with trio.open_nursery() as whole:
        whole.start_soon(job.chain.run, job.post)
        job.put_version()
        await job.delayed.wait()
        await job.begin()
        job.store.is_away = False
        job.chain.put(PutFinished(3, 1))
        await job.finished.wait()
        whole.cancel_scope.cancel()
    assert job.records() == [*BEFORE, (AttemptRecord, 3), (FinishedRecord, 3)]
    assert {*job.heard} == {PutDelayed("it is away"), FinishedPut()}
