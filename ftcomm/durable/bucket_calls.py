"""Calls of an object store that `ObjectStore` makes: one place for each kind of service."""

from typing import Protocol

from ftcomm.durable.store import Buffer

NO_RANGE = "the service, or a proxy before it, ignores the header Range of a read"


class BucketError(Exception):
    """A call failed."""

    def __init__(self, reason: str, *, is_temporary: bool) -> None:
        super().__init__(reason)
        self.reason = reason  # for people, without credentials
        self.is_temporary = is_temporary  # the same call may succeed in a moment


class NoSuchKeyError(Exception):
    """The bucket can be read, and has no such object."""


class Upload(Protocol):
    """An object that is written in parts. Nobody sees it before `finish`."""

    def send(self, number: int, data: Buffer) -> None:
        """Send part `number`, from 1; the same one may be sent again after a failure.

        Raises:
            NoSuchKeyError: the upload is unknown: somebody has aborted it.
        """

    def finish(self) -> None:
        """Make the object of its parts.

        Raises:
            NoSuchKeyError: the upload is unknown: it has ended, by this call's first try perhaps.
        """

    def abort(self) -> None:
        """Have the service forget the parts."""


class BucketCalls(Protocol):
    """A bucket. Every method raises `BucketError` and may be called again after it."""

    def create(self, key: str, data: Buffer) -> bool:
        """Create an object unless one has the key; False if one has."""

    def begin(self, key: str) -> Upload:
        """Begin an object in parts."""

    def size(self, key: str) -> int:
        """Size of an object in bytes; NoSuchKeyError if there is none."""

    def read(self, key: str, offset: int, nbytes: int | None) -> bytes:
        """Bytes of an object, to its end if `nbytes` is None; NoSuchKeyError if there is none."""

    def list(self, prefix: str) -> list[tuple[str, int]]:
        """Keys that begin with `prefix`, with the sizes of their objects."""

    def delete(self, key: str) -> None:
        """Delete an object if there is one."""

    def abort_older(self, prefix: str, age_s: float) -> int:
        """Abort the uploads below `prefix` that began more than `age_s` ago; return how many."""


def size_of(listed: list[tuple[str, int]], key: str) -> int:
    """Size of the object `key` among those that were listed; raises NoSuchKeyError."""
    for found, nbytes in listed:
        if found == key:
            return nbytes
    raise NoSuchKeyError(key)
