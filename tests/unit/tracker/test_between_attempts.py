"""A served job between two attempts: what its supervisors hear, and that none may follow."""

import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import pytest
import trio
import trio.testing

from ftcomm.config.environment import read_token
from ftcomm.config.job_settings import JobSettings
from ftcomm.durable.chain import Chain, OvertakenError
from ftcomm.durable.chain_state import chain_state
from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.records import EndedRecord
from ftcomm.durable.store import StoreError
from ftcomm.errors import JobLostError
from ftcomm.protocol.operator_messages import WorkerStatusReply, WorkerStatusRequest
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import JobEnded, StartAttempt, Tick
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.launcher.remote_tracker import RemoteJob
from ftcomm_tracker.server.journal import Journal
from ftcomm_tracker.server.open_job import OpenJob, ServeOptions, open_job
from ftcomm_tracker.server.store import chain_task
from ftcomm_tracker.server.store.chain_task import ChainTask
from tests.unit.durable.stored_job import StoredJob
from tests.unit.tracker.harness import client
from tests.unit.tracker.test_remote_tracker import remote

pytestmark = pytest.mark.trio


@pytest.fixture
def stored(tmp_path: Path) -> StoredJob:
    """A store with a version of the first attempt."""
    job = StoredJob(DirectoryStore(tmp_path / "store"))
    job.begin()
    job.attempt(1)
    job.version(1, 1, {"w": 1})
    return job


async def open_stored(tmp_path: Path, **settings: object) -> OpenJob:
    """Begin the second attempt, as with no member of the first one left."""
    settings = {"checkpoint": str(tmp_path / "store"), **settings}
    state_dir = tmp_path / "state"
    return await open_job(ServeOptions(2, state_dir=state_dir, takes_up=False, settings=settings))


@contextlib.asynccontextmanager
async def served(tmp_path: Path, **settings: object) -> AsyncIterator[OpenJob]:
    job = await open_stored(tmp_path, **settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(job.server.run)
        yield job
        nursery.cancel_scope.cancel()
    job.journal.close()


def end_attempt(job: OpenJob) -> None:
    """Let the present attempt be over; the next one begins from the store."""
    job.server._store.perform(StartAttempt())
    job.server.post(Tick())


def journalled(tmp_path: Path) -> Durable:
    with contextlib.closing(Journal.open(tmp_path / "state")) as journal:
        document = journal.load()
    assert document is not None
    return Durable.from_wire(document)


async def test_supervisors_hear_that_no_attempt_follows(tmp_path: Path, stored: StoredJob) -> None:
    """A tracker that is started again says the same: it begins no attempt by itself."""
    cause = f"{stored.store.url}: attempt 3 would be above max_attempts 2"
    with trio.fail_after(30):
        async with served(tmp_path, max_attempts=2) as job, remote(job) as view:
            await view.catch_up()
            end_attempt(job)
            await view.over.wait()
            assert job.server.over.is_set()
    assert view.outcome == JobEnded(False, "JobLostError", cause)
    end = journalled(tmp_path).fatal_decision
    assert end is not None
    assert (end.error, end.cause) == ("JobLostError", cause)
    again = await open_job(ServeOptions(state_dir=tmp_path / "state"))
    await again.server.close()
    assert (again.durable.attempt, again.durable.fatal_decision) == (2, end)


async def test_who_serves_a_job_that_no_attempt_follows_hears_what_to_do(
    tmp_path: Path, stored: StoredJob
) -> None:
    job = await open_stored(tmp_path, max_attempts=2, reattach_within=0.5)
    end_attempt(job)
    with trio.fail_after(30), pytest.raises(JobLostError, match="above max_attempts 2") as lost:
        await job.server.run()
    job.journal.close()
    assert lost.value.remedy.startswith("raise --max-attempts")
    assert "another --state-dir" in lost.value.remedy


async def test_workers_of_this_process_end_with_it_at_once(
    tmp_path: Path, stored: StoredJob
) -> None:
    job = await open_stored(tmp_path, max_attempts=2, reattach_within=600)
    job.server.launcher_kills = lambda _: False
    end_attempt(job)
    with trio.fail_after(30), pytest.raises(JobLostError, match="above max_attempts 2"):
        await job.server.run()
    job.journal.close()


async def test_a_store_that_is_away_ends_the_tracker_and_not_the_job(
    tmp_path: Path, stored: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> NoReturn:
        raise StoreError("it is away")

    job = await open_stored(tmp_path)
    monkeypatch.setattr(job.server._store, "next_roster", away)
    end_attempt(job)
    with trio.fail_after(30), pytest.raises(StoreError, match="it is away"):
        await job.server.run()
    job.journal.close()
    assert journalled(tmp_path).fatal_decision is None


@pytest.mark.parametrize("overtaken", [False, True])
async def test_a_tracker_that_waits_beside_is_kept_from_attempts_of_its_own(
    tmp_path: Path, stored: StoredJob, overtaken: bool
) -> None:
    chain = ChainTask(stored.store, keep=3, max_attempts=2, has_standby=True)
    fresh = Durable.fresh("job", 2, JobSettings().to_wire())
    durable, facts = await chain.begin(fresh, survivors=False)
    lost = Roster(JobSettings(), durable, generation=1, now=0.0, store=facts)
    with contextlib.closing(Journal.open(tmp_path)) as journal:
        with pytest.raises(JobLostError) as why:
            await chain.next_roster(lost, journal)
        if overtaken:
            stored.attempt(3)
            with pytest.raises(OvertakenError):
                await chain.ended_roster(lost, journal, why.value)
            assert journal.load() is None
            return
        await chain.ended_roster(lost, journal, why.value)
    record = chain_state(Chain(stored.store).read()).ended
    assert isinstance(record, EndedRecord)
    assert (record.attempt, record.error, record.cause) == (2, "JobLostError", why.value.cause)


class Blocked:
    """A verification that lasts until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = trio.Event()
        self.go_on = threading.Event()
        monkeypatch.setattr(chain_task, "loss_of", self._verify)

    def _verify(self, *_: object) -> tuple[str, list[str]]:
        trio.from_thread.run_sync(self.begun.set)
        self.go_on.wait()
        return "", []


async def test_supervisors_are_answered_while_a_checkpoint_is_verified(
    tmp_path: Path, stored: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is to no question of theirs: they wait for the attempt, and start no worker."""
    with trio.fail_after(30):
        async with (
            served(tmp_path, detect_within=3) as job,
            contextlib.AsyncExitStack() as stack,
            trio.open_nursery() as nursery,
        ):
            blocked = Blocked(monkeypatch)
            try:
                end_attempt(job)
                await blocked.begun.wait()
                supervisor = await stack.enter_async_context(client(job, "operator"))
                await supervisor.send(WorkerStatusRequest(7, "0", "host", 0, 0))
                meanwhile = await supervisor.receive_a(WorkerStatusReply)
                assert isinstance(meanwhile, WorkerStatusReply)
                assert (meanwhile.number, meanwhile.over, meanwhile.attempt) == (0, False, 2)
                token = read_token(job.token_file)
                view = RemoteJob([job.server.address], token, "0", patience_s=30)
                nursery.start_soon(view.run)
                while not view.attempt:
                    await trio.testing.wait_all_tasks_blocked(0.01)
                assert not view._answered
            finally:
                blocked.go_on.set()
            answer = await supervisor.receive_a(WorkerStatusReply)
            assert isinstance(answer, WorkerStatusReply)
            assert (answer.number, answer.attempt) == (7, 3), (
                "it is answered, and need not ask again"
            )
            await view.catch_up()
            assert view.attempt == 3
            nursery.cancel_scope.cancel()
