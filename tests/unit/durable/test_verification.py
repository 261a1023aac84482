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
from ftcomm.durable.verification import damage_of
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
