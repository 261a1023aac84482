"""Reading what a version record names, and finding what of it is damaged."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator

from ftcomm.durable.container import OpenContainer, open_container
from ftcomm.durable.records import StoredPart, VersionRecord
from ftcomm.durable.store import DamagedObjectError, MissingObjectError, Store

STATE, LOCAL, PRELUDE_RESULTS = "state", "local", "prelude"  # kinds of parts


def open_part(store: Store, part: StoredPart, series: str) -> OpenContainer:
    """Open an object, which must be the one that its record describes.

    Raises:
        DamagedObjectError: it is another one, or cannot be read as one.
        MissingObjectError: there is none.
        StoreError: the store could not be read.
    """
    opened = open_container(store, part.name, series)
    header = opened.header
    described = (part.kind, part.rank, part.lo, part.hi, part.nbytes)
    if (header.kind, header.rank, header.lo, header.hi, header.nbytes) != described:
        raise DamagedObjectError(f"object {part.name} is not the one that its record describes")
    return opened


def parts_of(record: VersionRecord, kind: str) -> list[StoredPart]:
    """The parts of one kind, a state's in the order of their bytes."""
    found = [part for part in record.parts if part.kind == kind]
    return sorted(found, key=lambda part: (part.rank, part.lo))


def damage_of(store: Store, series: str, record: VersionRecord) -> list[str]:
    """Read every byte that a version record names; return what is wrong, in words.

    Raises:
        StoreError: the store could not be read: that is no damage.
    """
    return [why for _, why in _each_damage(store, series, record)]


def loss_of(store: Store, series: str, record: VersionRecord) -> tuple[str, list[str]]:
    """Read what a version record names, up to the first damage by which it cannot be used.

    Returns:
        that damage in words, empty if it can be used; and damaged objects of the prelude of which
        another object has all results.

    Raises:
        StoreError: the store could not be read: that is no damage.
    """
    copies = Counter(seqno for part in record.parts for seqno in prelude_of(part))
    spared: list[str] = []
    for part, why in _each_damage(store, series, record):
        if part is None or part.kind != PRELUDE_RESULTS:
            return why, spared
        copies.subtract(prelude_of(part))
        if not all(copies[seqno] for seqno in prelude_of(part)):
            return why, spared
        spared.append(why)
    return "", spared


def prelude_of(part: StoredPart) -> set[int]:
    """Numbers of the prelude's results that an object has."""
    return {seqno for run in part.runs for seqno in run.seqnos()}


def _each_damage(
    store: Store, series: str, record: VersionRecord
) -> Iterator[tuple[StoredPart | None, str]]:
    """Read on to the next thing that is wrong: of which part, None for the record; in words."""
    for gap in _gaps(record):
        yield None, gap
    for part in record.parts:
        try:
            opened = open_part(store, part, series)
            if part.kind == STATE and opened.header.state_digest != record.digest:
                yield part, f"object {part.name} is of another state than its record"
            opened.verify(part.digest)
        except (DamagedObjectError, MissingObjectError) as error:
            yield part, error.cause


def is_deleted(record: VersionRecord, present: Container[str]) -> bool:
    """Tell whether all objects of a version are gone, as --keep and gc leave it."""
    own = [part for part in record.parts if part.kind != PRELUDE_RESULTS]  # others name it too
    return not any(part.name in present for part in own)


def _gaps(record: VersionRecord) -> Iterable[str]:
    """Yield what the record itself lacks: bytes of the state, and local states."""
    end = 0
    for part in sorted(parts_of(record, STATE), key=lambda part: part.lo):
        if part.lo != end or part.hi - part.lo != part.nbytes:
            yield f"its record names no object for the bytes {end} to {part.lo} of the state"
        end = part.hi
    if end != record.nbytes:
        yield f"its record names {end} bytes of a state of {record.nbytes}"
    have = [part.rank for part in parts_of(record, LOCAL)]
    if have != sorted(record.local_ranks or ()):
        yield f"its record names local states of the ranks {have}"
