"""Calls that use the shared window, and the announcements of it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.execution import shared_results
from ftcomm.execution.header_check import CallHeader
from ftcomm.execution.shared_results import SharedResults
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.protocol.signature import Kind
from ftcomm.requests.request import CollectiveSpec

EPOCH = 3
LARGE, SMALL = 200_000, 1_000
FLOATS = np.dtype(np.float64)


class Memory:
    """Notes what it is told."""

    def __init__(self, epoch: int = EPOCH) -> None:
        self.epoch = epoch
        self.looks = False  # this rank, into a place of an epoch that is over
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda: self.told.append(name)

    def shrink(self) -> bool:
        self.told.append("shrink")
        return self.looks


class Group:
    """One rank's view, whose control thread is asked for shared window."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, may: bool = True) -> None:
        self.sought: list[int] = []
        self.hub: Any = SimpleNamespace(shared_window=None)
        driver = SimpleNamespace(run_soon=lambda ask: ask())
        monkeypatch.setattr(shared_results, "may_have_shared_window", lambda _: may)
        monkeypatch.setattr(
            shared_results, "locate_shared_window", lambda _, epoch: self.sought.append(epoch)
        )
        control: Any = SimpleNamespace(driver=driver)
        self.results = SharedResults(self.hub, control)

    def memory_for(self, count: int = LARGE, *, epoch: int = EPOCH, version: int = 0) -> Any:
        schedule = ring_allreduce(2, 0, count)
        form = CollectiveSpec(
            Kind.ALLREDUCE, b"", "", b"", schedule, FLOATS, (count,), count, 8 * count
        )
        header = CallHeader(epoch, Position(0, version, 0), b"")
        return self.results.memory_for(form, header)


def test_the_first_large_call_of_an_epoch_has_it_sought_and_none_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(monkeypatch)
    assert group.memory_for(SMALL) is None
    assert group.sought == []
    assert [group.memory_for(), group.memory_for()] == [None, None]
    assert group.memory_for(epoch=EPOCH + 1) is None
    assert group.sought == [EPOCH, EPOCH + 1]


def test_where_there_can_be_none_it_is_not_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch, may=False)
    assert group.memory_for() is None
    assert group.sought == []


def test_the_call_that_finds_it_joins_and_each_releases_what_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(monkeypatch)
    group.hub.shared_window = memory = Memory()
    assert group.memory_for(SMALL) is None
    assert [group.memory_for(), group.memory_for()] == [memory, memory]
    group.results.next_version()
    assert memory.told == ["join", "release", "release", "next_version"]


def test_what_comes_before_the_first_load_is_not_made_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(monkeypatch)
    group.hub.shared_window = memory = Memory()
    assert group.memory_for(version=PRELUDE) is None
    assert memory.told == []


@pytest.mark.parametrize("later", [None, Memory(EPOCH + 1)], ids=["none", "another"])
def test_that_of_an_epoch_that_is_over_is_left(
    later: Memory | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(monkeypatch)
    group.hub.shared_window = old = Memory()
    group.memory_for()
    group.hub.shared_window = later
    assert group.memory_for(epoch=EPOCH + 1) is later
    assert old.told[-1] == "shrink"
    assert group.memory_for(epoch=EPOCH + 1) is later
    assert old.told.count("shrink") == 1


def test_that_of_an_epoch_that_is_over_shrinks_while_this_rank_looks_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(monkeypatch)
    group.hub.shared_window = old = Memory()
    group.memory_for()
    old.looks, group.hub.shared_window = True, None
    group.results.next_version()  # also where nothing large is ever called again
    assert old.told == ["join", "release", "shrink", "shrink"]
    old.looks = False
    for _ in range(3):
        group.results.next_version()
    assert old.told.count("shrink") == 3


def test_memory_of_another_epoch_than_the_calls_is_not_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(monkeypatch)
    group.hub.shared_window = memory = Memory(EPOCH + 1)
    assert group.memory_for() is None
    assert memory.told == []
