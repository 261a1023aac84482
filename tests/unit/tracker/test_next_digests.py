"""The digest behind the newest durable version, as it lies in the store."""

from pathlib import Path

import pytest
import trio
import trio.testing

from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.records import NextRecord
from ftcomm_tracker.server.store.next_digests import PREFIX, NextDigests

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
