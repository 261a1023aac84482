"""The chain: whoever was told that a version is durable finds it in every later attempt."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import cast

import pytest

from ftcomm.durable.chain import Chain, LaterTrackerError, OvertakenError, record_name
from ftcomm.durable.chain_state import chain_state
from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.records import (
    AttemptRecord,
    ChainLink,
    ChainRecord,
    EndedRecord,
    EpochRecord,
    SeriesRecord,
    VersionRecord,
    decode_record,
    encode_record,
)
from ftcomm.durable.store import StoreError
from ftcomm.protocol.position import Position
from tests.unit.durable.chain_search import PlayedStore, Process, Search, World

FENCED = "fenced"
Outcome = tuple[int | str, ...]  # numbers that a process was told, and `FENCED` behind them


def version(number: int) -> VersionRecord:
    return VersionRecord(1, number, 1, 0, 8, b"d", 0, None, ())


START: list[ChainRecord] = [
    SeriesRecord("job", 2, (0, 1), (), b""),
    AttemptRecord(1, 0),
    EpochRecord(1, 1, 1, ()),
    version(6),
]


def nonces(letter: str) -> list[bytes]:
    """Of the records of one process, in their order."""
    return [f"{letter}{count}".encode() * 8 for count in range(2)]


def objects(records: list[ChainRecord]) -> dict[str, bytes]:
    links = [ChainLink(number, bytes(16), each) for number, each in enumerate(records, 1)]
    return {record_name(link.number): encode_record(link) for link in links}


def until_clear(call: Callable[[], int | bool]) -> int:
    """Repeat a call whose outcome is unclear, as callers do."""
    while True:
        try:
            return call()
        except StoreError:
            pass


def appends(letter: str, *records: ChainRecord, generation: int = 1) -> Process:
    """A process of attempt 1 that appends records; its outcome is their numbers."""

    def process(store: PlayedStore) -> Outcome:
        chain, numbers = Chain(store), []
        for own, record in zip(nonces(letter), records, strict=False):
            append = partial(chain.append, record, own, attempt=1, generation=generation)
            try:
                numbers.append(until_clear(append))
            except OvertakenError:
                return (*numbers, FENCED)
        return tuple(numbers)

    return process


def resumes(letter: str) -> Process:
    """A tracker that begins the next attempt; its outcome is the number of that record."""

    def process(store: PlayedStore) -> Outcome:
        chain = Chain(store)
        while True:
            state = chain_state(chain.read())
            record = AttemptRecord(state.newest_attempt + 1, max(state.versions))
            if until_clear(partial(chain.put_next, record, nonces(letter)[0])):
                return (len(chain.links),)

    return process


@cache
def decoded(data: bytes, number: int) -> ChainLink:
    return decode_record(data, number, record_name(number))


def links_of(world: World) -> list[ChainLink]:
    """The chain, which must have no gap."""
    content = world.content
    assert sorted(content) == [record_name(number) for number in range(1, len(content) + 1)]
    return [decoded(content[name], number) for number, name in enumerate(sorted(content), 1)]


def check_told(search: Search, world: World, letters: str) -> list[Outcome]:
    """Check that a process was told what is in the chain, once, and its own; return it."""
    links = links_of(world)
    found = [link.nonce for link in links if any(link.nonce)]
    assert len(found) == len(set(found)), search.path(world)
    outcomes = [cast("Outcome", each or ()) for each in search.outcomes(world)]
    for letter, outcome in zip(letters, outcomes, strict=True):
        told = [number for number in outcome if isinstance(number, int)]
        theirs = [links[number - 1].nonce for number in told]
        assert theirs == nonces(letter)[: len(told)], search.path(world)
        if FENCED in outcome:  # and then nothing else was put
            assert set(nonces(letter)) & set(found) == set(theirs), search.path(world)
    return outcomes


@pytest.mark.parametrize(("trackers", "faults"), [("pq", 1), ("p", 2)])
def test_an_acknowledged_version_is_in_every_later_attempt(trackers: str, faults: int) -> None:
    """A writer of attempt 1 puts versions 7 and 8, while trackers begin later attempts."""
    writer = appends("v", version(7), version(8))
    search = Search((writer, *(resumes(letter) for letter in trackers)))
    ends = set()
    for world in search.worlds(objects(START), faults=faults):
        outcomes = check_told(search, world, "v" + trackers)
        attempts = {
            link.number: link.record
            for link in links_of(world)
            if isinstance(link.record, AttemptRecord)
        }
        assert [each.attempt for each in attempts.values()] == list(range(1, len(attempts) + 1))
        for number, record in list(attempts.items())[1:]:
            lost = [n for n in outcomes[0] if isinstance(n, int) and n > min(number, record.parent)]
            assert lost == [], search.path(world)
        assert FENCED not in outcomes[0] or len(attempts) > 1
        if all(outcomes):
            ends.add(outcomes[0])
    assert ends == {(FENCED,), (5, FENCED), (5, 6)}
    states = len(search.seen)
    assert states > 3000


def test_a_tracker_of_an_earlier_generation_puts_nothing_behind_a_later_one() -> None:
    later = (EpochRecord(1, 2, 5, ()), version(7))
    search = Search((appends("v", version(7), version(8)), appends("p", *later, generation=2)))
    for world in search.worlds(objects(START), faults=1):
        check_told(search, world, "vp")
        place = {link.nonce: link.number for link in links_of(world)}
        led = place.get(nonces("p")[0], 100)
        assert all(place.get(own, 0) < led for own in nonces("v")), search.path(world)
    states = len(search.seen)
    assert states > 1000


def takes_over(letter: str) -> Process:
    """A tracker that waited; its outcome is the number of the record by which it leads."""

    def process(store: PlayedStore) -> Outcome:
        chain = Chain(store)
        while True:
            after = len(chain.read())
            generation = 1 + max(each.generation for each in chain_state(chain.links).epochs)
            # Its epoch says from how much of the chain it was made.
            record = EpochRecord(1, generation, after, ())
            if until_clear(partial(chain.put_after, record, nonces(letter)[0], after)):
                return (len(chain.links),)

    return process


@pytest.mark.parametrize("trackers", ["p", "pq"])
def test_whoever_takes_over_knows_all_that_the_older_tracker_has_recorded(trackers: str) -> None:
    older = appends("v", EpochRecord(1, 1, 2, ()), version(7))
    search = Search((older, *(takes_over(letter) for letter in trackers)))
    seen = set()
    for world in search.worlds(objects(START), faults=1 if trackers == "p" else 0):
        claims = {
            link.number: cast("EpochRecord", link.record)
            for link in links_of(world)
            if link.nonce in {nonces(letter)[0] for letter in trackers}
        }
        for number, claim in claims.items():
            assert number == claim.epoch + 1, search.path(world)
        generations = [claim.generation for claim in claims.values()]
        assert len(set(generations)) == len(generations), search.path(world)
        led = min(claims, default=100)
        own = [link.number for link in links_of(world) if link.nonce in nonces("v")]
        assert all(number < led for number in own), search.path(world)
        seen.add((len(own), len(claims)))
    assert {(0, 1), (1, 1), (2, 1)} <= seen


@pytest.mark.parametrize(
    ("record", "by_tracker"),
    [
        (EpochRecord(1, 2, 5, ()), True),
        (EndedRecord(1, 2, "JobStoppedError", "", 5, Position(0, 0, 0), -1), True),
        (AttemptRecord(2, 4), False),
    ],
)
def test_a_tracker_that_looks_sees_who_has_overtaken_it(
    tmp_path: Path, record: ChainRecord, *, by_tracker: bool
) -> None:
    store = DirectoryStore(tmp_path)
    for name, data in objects([*START, record]).items():
        store.put_new(name, data)
    with pytest.raises(OvertakenError) as raised:
        Chain(store).look(attempt=1, generation=1)
    assert isinstance(raised.value, LaterTrackerError) == by_tracker
    Chain(store).look(attempt=2, generation=2)
