"""Chain: the numbered records of a store, read to the end and continued at the lowest free number.

One sequence for all kinds of records is commit and fence at once: who begins an attempt takes the
next number, and a writer of an earlier attempt that wants the same number finds it taken, reads on,
and sees that it has been overtaken.

A version's record that was changed costs that version, as if its objects were damaged.  Without a
record of another or an unknown kind nobody can tell who leads the job, or whether it has finished:
then the chain is not read on.
"""

import contextlib
import re
from dataclasses import dataclass, field

from ftcomm.config.plurals import counted
from ftcomm.durable.records import (
    MAX_RECORD_BYTES,
    AttemptRecord,
    ChainLink,
    ChainRecord,
    DamagedLink,
    EndedRecord,
    EpochRecord,
    SeriesRecord,
    VersionRecord,
    decode_record,
    encode_record,
    is_of_a_version,
)
from ftcomm.durable.store import (
    ChangedRecordError,
    DamagedRecordError,
    MissingObjectError,
    Store,
    StoreError,
)
from ftcomm.errors import FtcommError

PREFIX = "chain/"
NONCE_BYTES = 16  # drawn by a writer, by which it knows its own record
_NAME = re.compile(r"chain/(\d{8})\.rec")


class OvertakenError(FtcommError):
    """A later attempt, or a later tracker, has written to the store: this one has lost."""

    exit_code = 75
    default_remedy = "nothing to do here: the later one goes on from the store"


class LaterTrackerError(OvertakenError):
    """A later tracker leads the same attempt: its workers are members, and follow that one."""


def record_name(number: int) -> str:
    """Name of the object of record `number`."""
    return f"{PREFIX}{number:08d}.rec"


@dataclass(slots=True)
class Chain:
    """The chain of one store, as far as it was read. Not thread-safe."""

    store: Store  # where the records are
    links: list[ChainLink] = field(default_factory=list)  # all records that were read, in order
    # Of every kind but the first record's; for one who puts nothing.
    reads_past_damage: bool = False

    def read(self) -> list[ChainLink]:
        """Read on to the end of the chain; return all of it.

        Raises:
            DamagedRecordError: a record other than a version's is not readable, or one is missing.
            StoreError: the store could not be read.
        """
        for number in range(len(self.links) + 1, self._last_number() + 1):
            try:
                self.links.append(self._read_listed(number))
            except ChangedRecordError as error:
                if number == 1:
                    raise
                if not self.reads_past_damage:
                    raise self._with_what_is_left(error) from None
                why = error.cause.removeprefix(f"{self.store.url}: ")
                self.links.append(_damaged(number, why))
        return self.links

    def put_next(self, record: ChainRecord, nonce: bytes) -> bool:
        """Put `record` behind what was read; False if another record has taken that number.

        Raises:
            StoreError: the outcome is unclear. Called again with the same nonce, it finds out.
        """
        number = len(self.links) + 1
        link = ChainLink(number, nonce, record)
        if self.store.put_new(record_name(number), encode_record(link)):
            self.links.append(link)
            return True
        try:  # ours, of a try whose reply was lost, or another's
            found = self.read_one(number)
        except MissingObjectError as error:
            raise StoreError(f"{self.store.url} is inconsistent: {error.cause}") from error
        self.links.append(found)
        return found.nonce == nonce

    def put_after(self, record: ChainRecord, nonce: bytes, after: int) -> bool:
        """Put `record` as number `after` + 1; False if another record has that number.

        `nonce` is drawn once for this record, also when the call is repeated.

        Raises:
            StoreError: the outcome is unclear. Called again with the same nonce, it finds out.
        """
        self.read()
        if len(self.links) == after:
            return self.put_next(record, nonce)
        found = self.links[after]
        if found.nonce == nonce:  # of a try whose reply was lost: see `append`
            self.store.put_new(record_name(found.number), encode_record(found))
        return found.nonce == nonce

    def append(
        self, record: ChainRecord, nonce: bytes, *, attempt: int, generation: int = 0
    ) -> int:
        """Put `record` at the lowest free number; return the number.

        `nonce` is drawn once for this record, also when the call is repeated.

        Raises:
            OvertakenError: a later attempt has begun; nothing was put.
            LaterTrackerError: a tracker of a later generation leads the attempt; likewise.
            StoreError: the outcome is unclear. Called again with the same nonce, it finds out.
        """
        while True:
            self.read()
            mine = next((link for link in self.links if link.nonce == nonce), None)
            if mine is not None:
                # It can be read, but the try that put it may not have made its name durable.
                self.store.put_new(record_name(mine.number), encode_record(mine))
                return mine.number
            self._must_not_be_overtaken(attempt, generation)
            if self.put_next(record, nonce):
                return len(self.links)

    def look(self, *, attempt: int, generation: int) -> None:
        """Read on, and see that nobody has overtaken this writer.

        Raises:
            OvertakenError: a later attempt has begun.
            LaterTrackerError: a tracker of a later generation leads the attempt.
            StoreError: the store could not be read.
        """
        self.read()
        self._must_not_be_overtaken(attempt, generation)

    def _must_not_be_overtaken(self, attempt: int, generation: int) -> None:
        for link in self.links:
            record = link.record
            if isinstance(record, AttemptRecord) and record.attempt > attempt:
                raise OvertakenError(
                    f"{self.store.url}: attempt {record.attempt} of the job has begun; this is"
                    f" attempt {attempt}"
                )
            if (
                isinstance(record, EpochRecord | EndedRecord)
                and record.attempt == attempt
                and record.generation > generation
            ):
                raise LaterTrackerError(
                    f"{self.store.url}: a tracker of generation {record.generation} leads attempt"
                    f" {attempt}; this is generation {generation}"
                )

    def _with_what_is_left(self, error: ChangedRecordError) -> ChangedRecordError:
        """Add what the other records have: a reader of the error may think that all is lost.

        The same error where they cannot be read either.
        """
        whole = Chain(self.store, list(self.links), reads_past_damage=True)
        with contextlib.suppress(FtcommError):
            records = [link.record for link in whole.read()]
            versions = [each for each in records if isinstance(each, VersionRecord)]
            words = "no other record is of a version"
            if versions:
                newest = versions[-1]
                words = (
                    f"{counted(len(versions), 'version')} of other records can be read, the newest"
                    f" is version {newest.version} of attempt {newest.attempt}"
                )
            return ChangedRecordError(f"{error.cause}; {words}", remedy=error.remedy)
        return error

    def _last_number(self) -> int:
        last = 0
        for stored in self.store.list(PREFIX):
            name = _NAME.fullmatch(stored.name)
            if name is None:
                raise DamagedRecordError(
                    f"{self.store.url}: {stored.name} is no record",
                    remedy="move it out of the store, if it is not ftcomm's",
                )
            last = max(last, int(name[1]))
        return last

    def _read_listed(self, number: int) -> ChainLink:
        """Read a record that is there, since a later one is.

        It may not have been listed: a list that is made while records are put may have a later one
        and lack an earlier one.
        """
        try:
            return self.read_one(number)
        except MissingObjectError:
            raise ChangedRecordError(
                f"{self.store.url}: record {record_name(number)} of its chain is missing"
            ) from None

    def read_one(self, number: int) -> ChainLink:
        """Read a record, whatever is before it.

        Raises:
            DamagedRecordError: it is not readable, and not known to be a version's.
            MissingObjectError: there is none.
            StoreError: the store could not be read.
        """
        name = record_name(number)
        data = self.store.get(name)
        if len(data) > MAX_RECORD_BYTES:
            raise DamagedRecordError(f"{self.store.url}: record {name} has {len(data)} bytes")
        try:
            link = decode_record(data, number, name)
        except DamagedRecordError as error:
            if isinstance(error, ChangedRecordError) and is_of_a_version(data, number):
                return _damaged(number, error.cause)
            cause = f"{self.store.url}: {error.cause}"
            raise type(error)(cause, remedy=error.remedy) from None
        if isinstance(link.record, SeriesRecord) != (number == 1):
            raise DamagedRecordError(f"{self.store.url}: record {name} is out of its place")
        return link


def _damaged(number: int, why: str) -> ChainLink:
    """In the place of a record that nobody knows as its own."""
    return ChainLink(number, b"", DamagedLink(why))
