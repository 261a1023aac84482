"""A tracker that starts on a state directory and a store: what it goes on with, and refuses."""

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from ftcomm.config.job_settings import JobSettings
from ftcomm.durable.chain import Chain, OvertakenError
from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.records import EpochMember, EpochRecord
from ftcomm.errors import ConfigError, JobFinishedError, JobLostError
from ftcomm.protocol.messages import FatalDecision, Plan, Revoke
from ftcomm.protocol.position import START
from ftcomm_tracker.core.durable.attempts import (
    ANOTHER_STORE,
    BOTH_OF_ONE_JOB,
    MOUNT,
    NOT_NEVER,
    RESTORE,
    SAME_OR_ANOTHER,
)
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.server.journal import Journal
from ftcomm_tracker.server.open_job import OpenJob, ServeOptions, open_job
from ftcomm_tracker.server.store.chain_task import ChainTask
from tests.unit.durable.stored_job import SERIES, StoredJob
from tests.unit.tracker.harness import client, hello, tracker
from tests.unit.tracker.roster_scenario import report

pytestmark = pytest.mark.trio


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


async def run_job(state_dir: Path, store: Path) -> Durable:
    """Form a group of two, and kill the tracker when the series is in the store."""
    async with (
        tracker(state_dir, checkpoint=str(store)) as job,
        client(job) as a,
        client(job) as b,
    ):
        known: list[Durable] = []
        is_in_store = trio.Event()

        def watch(durable: Durable) -> None:
            known[:] = [durable]
            if durable.in_store:
                is_in_store.set()

        job.server.watch_job = watch
        for worker, name in ((a, "0"), (b, "1")):
            await worker.send(hello(name))
        for worker in (a, b):
            await worker.receive_a(Revoke)
            await worker.send(report(1))
        await a.receive_a(Plan)
        await is_in_store.wait()
        return known[0]


def rewrite(state_dir: Path, **changes: Any) -> None:
    """Change what the journal says."""
    journal = Journal.open(state_dir)
    document = journal.load()
    assert document is not None
    durable = replace(Durable.from_wire(document), **changes)
    journal.write(durable.to_wire())
    journal.close()


async def open_again(state_dir: Path, *, takes_up: bool = False, **options: Any) -> OpenJob:
    """Start as `run` does, or as `serve` with `takes_up`."""
    job = await open_job(ServeOptions(state_dir=state_dir, takes_up=takes_up, **options))
    await job.server.close()
    return job


@pytest.mark.parametrize("takes_up", [False, True])
async def test_a_store_that_is_not_mounted_is_refused(
    state_dir: Path, store: Path, tmp_path: Path, takes_up: bool
) -> None:
    durable = await run_job(state_dir, store)
    shutil.move(store, tmp_path / "elsewhere")
    with pytest.raises(ConfigError) as refused:
        await open_again(state_dir, takes_up=takes_up)
    known = f"{durable.job_id} of the state directory has records in it"
    cause = f"{store}: the store is empty, and {known}"
    assert (refused.value.cause, refused.value.remedy) == (cause, MOUNT)
    shutil.rmtree(store)
    shutil.move(tmp_path / "elsewhere", store)
    job = await open_again(state_dir, takes_up=takes_up)
    assert job.durable.attempt == (1 if takes_up else 2)


async def test_a_stopped_job_does_not_begin_anew_where_its_store_is_empty(
    state_dir: Path, store: Path
) -> None:
    await run_job(state_dir, store)
    rewrite(state_dir, fatal_decision=FatalDecision("JobStoppedError", "ctrl-c", 1, START, -1))
    shutil.rmtree(store)
    with pytest.raises(ConfigError, match="the store is empty"):
        await open_again(state_dir)


async def test_a_job_that_never_reached_its_store_begins_anew(state_dir: Path, store: Path) -> None:
    """Its store was away all the time, or its tracker died before the first record.

    Workers of the attempt before may live: its name is not given again.
    """
    first = await run_job(state_dir, store)
    rewrite(state_dir, in_store=False)
    shutil.rmtree(store)
    job = await open_again(state_dir)
    assert job.durable.attempt == 1
    assert job.durable.job_id.endswith(".1")
    assert job.durable.job_id != first.job_id


async def test_a_record_that_lands_late_is_gone_on_from(state_dir: Path, store: Path) -> None:
    """The write of the first attempt was on its way while the second began over the empty store."""
    first = await run_job(state_dir, store)
    kept = store.with_name("kept")
    shutil.copytree(store, kept)
    rewrite(state_dir, in_store=False)
    shutil.rmtree(store)
    second = await open_again(state_dir)
    name = first.job_id.rpartition(".")[0]
    assert second.durable.former == (name,)
    rewrite(state_dir, first_nonces=first.first_nonces, places=first.places,
            incarnations=first.incarnations, grouping=first.grouping)  # fmt: skip
    shutil.rmtree(store)
    shutil.move(kept, store)
    third = await open_again(state_dir)
    assert (third.durable.job_id, third.durable.former) == (f"{name}.2", ())


@pytest.mark.parametrize("standby", [False, True])
@pytest.mark.parametrize("takes_up", [False, True])
async def test_nothing_is_put_into_the_store_of_another_job(
    state_dir: Path, store: Path, takes_up: bool, standby: bool
) -> None:
    """Its newest epoch is low: a tracker of that job would claim it."""
    durable = await run_job(state_dir, store)
    shutil.rmtree(store)
    foreign = StoredJob(DirectoryStore(store))
    foreign.begin()
    foreign.attempt(1)
    roster = tuple(EpochMember(str(rank), 1, b"n" * 16, present=True) for rank in range(2))
    records = foreign.put(EpochRecord(1, 0, 0, roster))
    with pytest.raises(ConfigError) as refused:
        await open_again(state_dir, takes_up=takes_up, standby=standby)
    own = durable.job_id.rpartition(".")[0]
    cause = f"{store}: the store has job {SERIES}, and the state directory has job {own}"
    assert (refused.value.cause, refused.value.remedy) == (cause, BOTH_OF_ONE_JOB)
    assert len(Chain(DirectoryStore(store)).read()) == records


@pytest.fixture
def stored(store: Path) -> StoredJob:
    """A store with two versions of the first attempt."""
    job = StoredJob(DirectoryStore(store))
    job.begin()
    job.attempt(1)
    for version in (1, 2):
        job.version(1, version, {"w": version})
    return job


async def test_never_forbids_to_resume_a_job_that_was_stopped(
    state_dir: Path, store: Path, stored: StoredJob
) -> None:
    first = await open_again(state_dir, world_size=2, settings={"checkpoint": str(store)})
    assert (first.durable.attempt, first.durable.version) == (2, 2)
    stopped = FatalDecision("JobStoppedError", "ctrl-c", 1, START, -1)
    rewrite(state_dir, fatal_decision=stopped)
    with pytest.raises(ConfigError) as refused:
        await open_again(state_dir, resume="never")
    cause = f"{store}: the store has a job up to checkpoint 2, and --resume never was given"
    assert (refused.value.cause, refused.value.remedy) == (cause, NOT_NEVER)
    assert (await open_again(state_dir)).durable.attempt == 3


async def test_never_is_said_of_the_first_attempt_alone(store: Path, stored: StoredJob) -> None:
    chain = ChainTask(stored.store, keep=3, max_attempts=9, resume="never")
    fresh = Durable.fresh("job", 2, JobSettings().to_wire())
    with pytest.raises(ConfigError):
        await chain.begin(fresh, survivors=False)
    lost = Roster(JobSettings(), fresh, generation=1, now=0.0)
    with contextlib.closing(Journal.open(store.parent)) as journal:
        assert (await chain.next_roster(lost, journal)).durable.attempt == 2


@pytest.mark.parametrize("standby", [False, True])
async def test_a_tracker_whose_attempt_is_lost_begins_none_over_another_trackers(
    store: Path, stored: StoredJob, standby: bool
) -> None:
    records = stored.attempt(2)
    first = replace(Durable.fresh(f"{SERIES}.1", 2, JobSettings().to_wire()), attempt=1)
    lost = Roster(JobSettings(), first, generation=1, now=0.0)
    chain = ChainTask(stored.store, keep=3, max_attempts=9, has_standby=standby)
    with (
        contextlib.closing(Journal.open(store.parent)) as journal,
        pytest.raises(OvertakenError) as overtaken,
    ):
        await chain.next_roster(lost, journal)
    cause = f"{store}: attempt 2 of the job has begun; this tracker led attempt 1"
    assert overtaken.value.cause == cause
    assert len(Chain(stored.store).read()) == records


async def test_more_attempts_can_be_given_to_the_same_directory(
    state_dir: Path, store: Path, stored: StoredJob
) -> None:
    """So can the other settings on which no byte of a result depends."""
    asked = {"checkpoint": str(store), "max_attempts": 1}
    with pytest.raises(JobLostError) as lost:
        await open_again(state_dir, world_size=2, settings=asked)
    cause = f"{store}: attempt 2 would be above max_attempts 1"
    assert (lost.value.cause, lost.value.remedy) == (cause, "raise --max-attempts")
    new = {
        "max_attempts": 5,
        "checkpoint_every": "10v",
        "keep": 7,
        "spares": 1,
    }
    job = await open_again(state_dir, settings=new)
    assert {name: getattr(job.settings, name) for name in new} == new
    assert job.durable.attempt == 2
    assert (await open_again(state_dir)).settings == job.settings  # and they are journalled


async def test_what_is_asked_of_members_that_may_live_is_refused(
    state_dir: Path, store: Path
) -> None:
    await run_job(state_dir, store)
    with pytest.raises(ConfigError) as refused:
        await open_again(state_dir, takes_up=True, settings={"keep": 7})
    assert refused.value.cause.startswith(f"{store}: attempt 1 has keep 3, not 7; members")
    with pytest.raises(ConfigError, match=r"has --detect-within 5\.0, 4\.0 was asked for"):
        await open_again(state_dir, settings={"detect_within": 4.0})
    with pytest.raises(ConfigError, match="--keep is 0"):
        await open_again(state_dir, settings={"keep": 0})


async def test_a_start_that_was_refused_leaves_the_next_one_free(
    state_dir: Path, store: Path
) -> None:
    (file := store.with_name("file")).write_bytes(b"no folder")
    with pytest.raises(ConfigError, match="cannot be used"):
        await open_again(state_dir, world_size=2, settings={"checkpoint": str(file)})
    job = await open_again(state_dir, world_size=3, settings={"checkpoint": str(store)})
    assert (job.durable.attempt, job.durable.world_size) == (1, 3)
    with pytest.raises(ConfigError, match="has -n 3, 2 was asked for"):
        await open_again(state_dir, world_size=2)


async def test_a_checkpoint_that_was_deleted_is_not_read(
    state_dir: Path, store: Path, stored: StoredJob, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the three that --keep has left, two are damaged, and the objects of one are missing."""
    for version in range(3, 8):
        stored.version(1, version, {"w": version})
    for version in (2, 3, 4, 7):
        shutil.rmtree(store / "data" / "1" / str(version))
    # Version 1 has the objects of the prelude, which belong to all.
    for path in (store / "data" / "1" / "1").glob("state-*"):
        path.unlink()
    for version in (5, 6):
        for path in (store / "data" / "1" / str(version)).glob("state-*"):
            path.write_bytes(path.read_bytes()[:-1])
    caplog.set_level("INFO", logger="ftcomm_tracker")
    with pytest.raises(JobLostError) as lost:
        await open_again(state_dir, world_size=2, settings={"checkpoint": str(store)})
    assert lost.value.remedy == RESTORE
    gone = "4 older ones were deleted by --keep"
    first, *named = lost.value.cause.split(": ", 2)[2].split("; ")
    assert first.startswith("7: ")
    assert [each[:3] for each in named[:2]] == ["6: ", "5: "]
    assert named[2:] == [gone]
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "is damaged" in line]) == 3
    assert f"{store}: of the checkpoints {gone}" in told


@pytest.mark.parametrize(
    ("options", "cause", "remedy"),
    [
        pytest.param(
            {"world_size": 3}, "the job in the store has 2 workers, not 3", SAME_OR_ANOTHER, id="-n"
        ),
        pytest.param(
            {"settings": {"algorithm": "ring"}},
            "the job in the store has algorithm auto, not ring",
            SAME_OR_ANOTHER,
            id="--algorithm",
        ),
        pytest.param(
            {"resume": "require"},
            "the store has no checkpoint, and --resume require was given",
            "look whether it is the store that was meant; --resume auto begins a new job",
            id="--resume",
        ),
    ],
)
async def test_a_refusal_names_the_store_and_the_remedy(
    state_dir: Path, store: Path, options: dict[str, Any], cause: str, remedy: str
) -> None:
    await run_job(state_dir, store)
    asked = {"world_size": 2, **options}
    asked["settings"] = {"checkpoint": str(store), **options.get("settings", {})}
    with pytest.raises(ConfigError) as refused:
        await open_again(state_dir.parent / "another", **asked)
    assert (refused.value.cause, refused.value.remedy) == (f"{store}: {cause}", remedy)


async def test_a_finished_job_is_told_to_its_operator(
    state_dir: Path, store: Path, stored: StoredJob
) -> None:
    """Its default remedy is for a worker."""
    stored.finish(1, 2)
    with pytest.raises(JobFinishedError) as refused:
        await open_again(state_dir, world_size=2, settings={"checkpoint": str(store)})
    cause = f"{store}: the job of this store has finished at version 2"
    assert (refused.value.cause, refused.value.remedy) == (cause, ANOTHER_STORE)


async def test_a_damaged_record_of_the_newest_version_costs_that_version_alone(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = StoredJob(DirectoryStore(store))
    job.begin()
    job.attempt(1)
    older, newest = (job.version(1, version, {"w": version}) for version in (1, 2))
    record = store / "chain" / f"{newest:08d}.rec"
    whole = record.read_bytes()
    record.write_bytes(whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:])
    chain = ChainTask(DirectoryStore(store), keep=3, max_attempts=9)
    durable, facts = await chain.begin(Durable.fresh("new", 2), survivors=False)
    assert (durable.job_id, durable.restore, durable.version) == (f"{SERIES}.2", older, 1)
    assert facts.durable_version == 1
    damaged = f"record chain/{newest:08d}.rec was changed: its digest does not fit"
    assert f"a checkpoint of the store is damaged: {damaged}; an older one is used" in caplog.text
