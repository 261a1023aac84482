"""Verification: what of a version is damaged, and what a record itself lacks."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ftcomm.durable.chain import Chain
from ftcomm.durable.chain_state import chain_state
from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.records import VersionRecord
from ftcomm.durable.store import StoreError
from ftcomm.durable.verification import damage_of, loss_of
from ftcomm.protocol.position import PositionRange
from tests.unit.durable.stored_job import SERIES, StoredJob


@pytest.fixture
def stored(tmp_path: Path) -> tuple[DirectoryStore, VersionRecord]:
    store = DirectoryStore(tmp_path / "store")
    job = StoredJob(store)
    job.begin()
    job.attempt(1)
    number = job.version(1, 7, {"a": 1}, ({"r": 0}, {"r": 1}))
    return store, chain_state(Chain(store).read()).versions[number]


def test_a_whole_version_has_no_damage(stored: tuple[DirectoryStore, VersionRecord]) -> None:
    assert damage_of(stored[0], SERIES, stored[1]) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: {"nbytes": r.nbytes + 1}, "its record names .* bytes of a state of"),
        (lambda r: {"parts": r.parts[1:]}, "names no object for the bytes 0 to"),
        (lambda r: {"parts": r.parts[:2] + r.parts[3:]}, r"names local states of the ranks \[1\]"),
        (lambda r: {"local_ranks": None}, r"names local states of the ranks \[0, 1\]"),
        (lambda r: {"digest": b"t" * 16}, "is of another state than its record"),
    ],
)
def test_what_does_not_fit_the_record_is_told(stored, change, words: str) -> None:
    store, record = stored
    assert damage_of(store, SERIES, record) == []
    found = damage_of(store, SERIES, replace(record, **change(record)))
    assert re.search(words, found[0]), found


def test_objects_that_were_exchanged_are_told(stored) -> None:
    store, record = stored
    first, second, *rest = record.parts
    changed = (replace(first, name=second.name), replace(second, name=first.name), *rest)
    found = damage_of(store, SERIES, replace(record, parts=changed))
    assert found == [
        f"object {name} is not the one that its record describes"
        for name in (second.name, first.name)
    ]


def test_an_object_of_another_job_is_told(stored) -> None:
    store, record = stored
    found = damage_of(store, "another", record)
    assert found[0] == f"object {record.parts[0].name} is of job {SERIES}, and this is job another"


def test_a_store_that_is_away_is_no_damage(stored, tmp_path: Path) -> None:
    store, record = stored
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        damage_of(store, SERIES, record)


def with_second_prelude(store: DirectoryStore, record: VersionRecord) -> VersionRecord:
    """The record, of which two objects have the prelude's two results."""
    runs = (PositionRange(-1, 0, 2),)
    first = replace(record.parts[-1], runs=runs)
    name = first.name.replace("prelude-1-0", "prelude-1-1")
    store.put(name, [store.get(first.name)])
    return replace(record, parts=(*record.parts[:-1], first, replace(first, name=name)))


@pytest.mark.parametrize("which", [-1, -2])
def test_one_damaged_copy_of_the_prelude_leaves_the_version_usable(stored, which: int) -> None:
    store = stored[0]
    record = with_second_prelude(*stored)
    assert loss_of(store, SERIES, record) == ("", [])
    store.delete(record.parts[which].name)
    why = f"{store.url} has no object {record.parts[which].name}"
    assert loss_of(store, SERIES, record) == ("", [why])
    assert damage_of(store, SERIES, record) == [why]
    fewer = replace(record.parts[-3 - which], runs=(PositionRange(-1, 1, 2),))
    parts = [fewer if part.name == fewer.name else part for part in record.parts]
    assert loss_of(store, SERIES, replace(record, parts=tuple(parts)))[0] == why
    store.delete(record.parts[-3 - which].name)
    problem, spared = loss_of(store, SERIES, record)
    assert ("has no object" in problem, len(spared)) == (True, 1)


def test_any_other_damaged_object_makes_a_version_useless(stored) -> None:
    store, record = stored
    store.delete(record.parts[2].name)  # a local state
    why = f"{store.url} has no object {record.parts[2].name}"
    assert loss_of(store, SERIES, record) == (why, [])
