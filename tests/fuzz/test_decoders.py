"""Any bytes give a value or a typed error, in bounded memory and steps."""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.corpora import SEED, seed_files
from tests.fuzz.decoders import CORPORA, TABLE, Decoder
from tests.fuzz.limits import TooExpensive, bounded
from tests.fuzz.mutations import mutations

ROWS = {decoder.name: decoder for decoder in TABLE}
# Seeds that are wrong on purpose, by the row's name; all others are understood.
REFUSED = {
    "control-body": {
        "Calls-calls-too-many",
        "FetchItem-shape-too-many",
        "Hello-asked-too-many",
        "KnownRoster-lost-too-many",
        "KnownRoster-settings-too-many",
        "PartItem-shape-too-many",
        "Report-locals-too-many",
        "Welcome-settings-too-many",
    },
    "handshake-tampered": {
        "acceptance",
        "client-proof",
        "context",
        "role",
        "server-proof",
        "version",
    },
    "from-holder": {"missing", "packed", "too-little", "twice"},
    "relay-answer": {"badly"},
    "sharing": {"refusal"},
    "ring-words": {"read-all", "taken-back", "too-far"},
    "common-head": {"of-three"},
    "common-placed": {"behind", "no-row"},
    "common-extent": {"behind", "odd"},
    "common-taken": {"behind"},
    "fault-plan": {"written"},
}
FILES = [(row.name, name) for row in TABLE for name in row.files()]


def feed(decoder: Decoder, raw: bytes) -> None:
    with contextlib.suppress(*decoder.allowed), bounded(len(raw)):
        decoder.feed(raw)


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """Import and cache everything at first, so that no input is charged for it."""
    for decoder in TABLE:
        with contextlib.suppress(*decoder.allowed):
            decoder.feed(b"")


def test_the_seeds_are_those_of_today() -> None:
    """If a format has changed: `python -m tests.fuzz.corpora` writes them again."""
    there = {path: path.read_bytes() for path in CORPORA.glob(f"*/{SEED}*")}
    assert there == dict(seed_files())


@pytest.mark.parametrize("name", ROWS)
def test_every_seed_is_understood_or_refused_as_it_should_be(name: str) -> None:
    """Seeds reach the end of what they are for: a corpus that is refused at once tests nothing."""
    row, refused = ROWS[name], set()
    for seed, raw in row.seeds().items():
        try:
            row.feed(raw)
        except row.allowed:
            refused.add(seed)
    assert refused == REFUSED.get(name, set())
    assert len(refused) < len(row.seeds())


@pytest.mark.parametrize(("name", "file"), FILES)
def test_every_file_of_the_corpora_gives_a_value_or_a_typed_error(name: str, file: str) -> None:
    feed(ROWS[name], ROWS[name].files()[file])


@pytest.mark.parametrize("name", ROWS)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_mutation_gives_a_value_or_a_typed_error(name: str, data: st.DataObject) -> None:
    row = ROWS[name]
    feed(row, data.draw(mutations(set(row.files().values()), row.limit)))


def _never_end() -> None:
    while True:
        pass


def test_the_bounds_catch_what_has_none() -> None:
    with pytest.raises(TooExpensive, match="more than"), bounded(1):
        _never_end()
    with pytest.raises(TooExpensive, match="of memory"), bounded(1):
        bytearray(1 << 24)
