"""The beat in a store: a tracker that works is seen, one that has ended is not waited for."""

import json
import platform
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from ftcomm.config.process_identity import process_space
from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.errors import ConfigError
from ftcomm_tracker.server.store.beat import BEATS, BeatWatch, StoreBeat

ELSEWHERE = {"host": "elsewhere", "space": "b/1", "pid": 7, "start": 3}
ENDED = {  # its number is above the largest
    "host": platform.node(),
    "space": process_space(),
    "pid": 2**22 + 1,
    "start": 1,
}
IN_A_CONTAINER = {**ENDED, "space": "b/1"}  # with the name of this host


def store_with(path: Path, *beats: object) -> DirectoryStore:
    store = DirectoryStore(path)
    for number, beat in enumerate(beats):
        store.put(f"{BEATS}other-{number}", [json.dumps(beat).encode()])
    return store


def names(store: DirectoryStore) -> list[str]:
    return [each.name for each in store.list(BEATS)]


class Watch:
    """Waits without waiting; what other trackers do meanwhile is done then."""

    def __init__(self, *puts: tuple[DirectoryStore, str]) -> None:
        self.puts = puts
        self.waited: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)
        for store, name in self.puts:
            store.put(name, [json.dumps(ELSEWHERE).encode()])


@pytest.mark.trio
async def test_an_empty_store_is_free(tmp_path: Path) -> None:
    watch = Watch()
    await StoreBeat(store_with(tmp_path), pause=watch).refuse_second()
    assert watch.waited == []


@pytest.mark.trio
async def test_a_tracker_that_beats_elsewhere_is_named(tmp_path: Path) -> None:
    store = store_with(tmp_path, ELSEWHERE)
    watch = Watch((store, f"{BEATS}other-next"))
    with pytest.raises(ConfigError, match="process 7 on elsewhere"):
        await StoreBeat(store, pause=watch).refuse_second()
    assert len(watch.waited) == 1


@pytest.mark.trio
@pytest.mark.parametrize("content", [ELSEWHERE, "nonsense", {"host": 3}])
async def test_a_beat_that_stands_still_is_removed(tmp_path: Path, content: object) -> None:
    store, watch = store_with(tmp_path, content), Watch()
    await StoreBeat(store, pause=watch).refuse_second()
    assert (len(watch.waited), names(store)) == (1, [])


@pytest.mark.trio
async def test_a_process_of_this_host_that_has_ended_is_not_watched(tmp_path: Path) -> None:
    store, watch = store_with(tmp_path, ENDED), Watch()
    await StoreBeat(store, pause=watch).refuse_second()
    assert (watch.waited, names(store)) == ([], [])


@pytest.mark.trio
async def test_a_process_of_a_container_with_this_name_is_watched(tmp_path: Path) -> None:
    store = store_with(tmp_path, IN_A_CONTAINER)
    watch = Watch((store, f"{BEATS}other-next"))
    with pytest.raises(ConfigError, match="works on the store"):
        await StoreBeat(store, pause=watch).refuse_second()
    assert f"{BEATS}other-0" in names(store)


@pytest.mark.trio
async def test_a_process_of_this_host_that_runs_is_refused_at_once(tmp_path: Path) -> None:
    store, watch = store_with(tmp_path), Watch()
    beating = trio.Event()

    async def beats_once(seconds: float) -> None:
        del seconds
        beating.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(StoreBeat(store, pause=beats_once).run)
        await beating.wait()
        assert len(names(store)) == 1
        with pytest.raises(ConfigError, match="works on the store"):
            await StoreBeat(store, pause=watch).refuse_second()
        nursery.cancel_scope.cancel()
    assert (watch.waited, names(store)) == ([], [])  # the last beat is removed


@pytest.mark.trio
async def test_only_the_newest_beat_is_kept(tmp_path: Path) -> None:
    store, seen = store_with(tmp_path), []

    async def three_times(seconds: float) -> None:
        del seconds
        seen.append(names(store))
        if len(seen) == 3:
            scope.cancel()
        await trio.lowlevel.checkpoint()

    with trio.CancelScope() as scope:
        await StoreBeat(store, pause=three_times).run()
    assert [len(each) for each in seen] == [1, 1, 1]
    assert len({name for each in seen for name in each}) == 3


def test_a_beat_that_changes_is_of_a_tracker_that_leads(tmp_path: Path) -> None:
    store = store_with(tmp_path, ELSEWHERE)
    watch = BeatWatch(StoreBeat(store))
    assert watch.look() == ("process 7 on elsewhere", False)
    for number in range(5):
        store.put(f"{BEATS}other-next-{number}", [json.dumps(ELSEWHERE).encode()])
        assert watch.look() == ("process 7 on elsewhere", False)


def test_one_that_stands_still_is_silent_after_three_looks(tmp_path: Path) -> None:
    watch = BeatWatch(StoreBeat(store_with(tmp_path, ELSEWHERE)))
    looks = [watch.look()[1] for _ in range(5)]
    assert looks == [False, False, False, True, True]


def test_without_any_beat_the_second_look_counts(tmp_path: Path) -> None:
    watch = BeatWatch(StoreBeat(store_with(tmp_path)))
    assert [watch.look() for _ in range(2)] == [("", False), ("", True)]


@pytest.mark.trio
async def test_of_two_that_begin_at_once_the_first_name_leads(tmp_path: Path) -> None:
    store = store_with(tmp_path)
    leads: list[bool] = []

    async def both_have_beaten(seconds: float) -> None:
        del seconds
        while len(names(store)) < 2 - len(leads):
            await trio.lowlevel.checkpoint()

    async def begin() -> None:
        leads.append(await StoreBeat(store, pause=both_have_beaten).first_leads())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin)
        nursery.start_soon(begin)
    assert sorted(leads) == [False, True]
    assert len(names(store)) == 1


class HeldStore(DirectoryStore):
    """A store of which the next put begins, and waits to be let on; it says what was deleted."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.token = trio.lowlevel.current_trio_token()
        self.begun, self.let_on, self.deleted = trio.Event(), threading.Event(), trio.Event()

    def put(self, *arguments: Any, **options: Any) -> Any:
        self.token.run_sync_soon(self.begun.set)
        self.let_on.wait()
        return super().put(*arguments, **options)

    def delete(self, name: str) -> None:
        super().delete(name)
        self.token.run_sync_soon(self.deleted.set)


@pytest.mark.trio
async def test_a_beat_that_is_put_while_its_tracker_ends_is_removed(tmp_path: Path) -> None:
    """The process may live on, and would be taken for a tracker for ever."""
    store = HeldStore(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(StoreBeat(store).run)
        await store.begun.wait()
        nursery.cancel_scope.cancel()
        store.let_on.set()
    with trio.move_on_after(10):  # the tracker itself waits for less
        await store.deleted.wait()
    assert names(store) == []
