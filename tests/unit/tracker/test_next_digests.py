"""The digest behind the newest durable version, as it lies in the store."""

from pathlib import Path

import pytest
import trio
import trio.testing

from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.opening import leave_sign
from ftcomm.durable.records import ChainLink, NextRecord, encode_record
from ftcomm_tracker.core.durable.store_facts import ExpectedDigest
from ftcomm_tracker.core.events import Event, StoreSeen
from ftcomm_tracker.server.store.chain_task import ChainTask
from ftcomm_tracker.server.store.next_digests import PREFIX, NextDigests
from tests.unit.durable.stored_job import SERIES, StoredJob

LIMIT_S = 30.0


async def keep(digests: NextDigests, store: DirectoryStore, *records: NextRecord) -> list[str]:
    """Note each record behind chain record 4 and more, and return the names in the store."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(digests.run)
        for behind, record in enumerate(records, 4):
            digests.note(record, behind)
            with trio.fail_after(LIMIT_S):
                while not _has(store, behind):
                    await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    return [each.name for each in store.list(PREFIX)]


def _has(store: DirectoryStore, behind: int) -> bool:
    names = [each.name for each in store.list(PREFIX)]
    return len(names) == 1 and f"/{behind:08d}-" in names[0]


@pytest.mark.trio
async def test_one_digest_is_kept_and_found_by_another_process(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    first = NextDigests(store, starts_workers=True)
    records = NextRecord(1, 6, b"d" * 16), NextRecord(1, 9, b"e" * 16)
    assert await keep(first, store, *records) == ["next/00000005-00000001.rec"]
    other = NextDigests(store, starts_workers=True)
    assert first.expected(5) == (records[1], True)
    assert other.expected(5) == (records[1], False)
    assert other.expected(4) is None


@pytest.mark.trio
async def test_workers_that_others_start_may_run_another_script(tmp_path: Path) -> None:
    digests = NextDigests(DirectoryStore(tmp_path), starts_workers=False)
    record = NextRecord(1, 6, b"d" * 16)
    digests.note(record, 4)
    assert digests.expected(4) == (record, False)


def test_a_damaged_digest_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = DirectoryStore(tmp_path)
    store.put_new("next/00000004-00000001.rec", b"damaged")
    assert NextDigests(store, starts_workers=True).expected(4) is None
    assert "record next/00000004-00000001.rec has only 7 bytes" in caplog.text


async def seen_beside_another(store: DirectoryStore) -> StoreSeen:
    """Return what a standby tracker sees first."""
    news, seen = trio.open_memory_channel[Event](9)
    chain = ChainTask(store, keep=3, max_attempts=9, has_standby=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chain.run, news.send_nowait)
        with trio.fail_after(LIMIT_S):
            first = await seen.receive()
        nursery.cancel_scope.cancel()
    assert isinstance(first, StoreSeen)
    return first


@pytest.mark.trio
async def test_who_takes_an_attempt_up_reads_what_the_one_before_committed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    job = StoredJob(store)
    job.begin()
    parent = job.version(1, 5, {"w": 1})
    link = ChainLink(parent, b"n" * 16, NextRecord(1, 6, b"d" * 16))
    store.put_new(f"{PREFIX}{parent:08d}-00000001.rec", encode_record(link))
    job.attempt(2, parent)
    leave_sign(store, f"{SERIES}.2")
    rebuilt = await ChainTask(store, keep=3, max_attempts=9).facts_for(f"{SERIES}.2")
    standby = await seen_beside_another(store)
    expected = ExpectedDigest(6, b"d" * 16, 1, is_binding=False)
    assert (rebuilt.chain.expected, standby.chain.expected) == (expected, expected)
