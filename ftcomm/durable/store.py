"""Store: where durable checkpoints are kept, as named objects that are never changed.

A store has few promises, so that a directory and an object store can both keep them:

- `put_new` creates an object whole or not at all, and at most one creator of a name is told so.
- What `put` or `put_new` has returned for survives the machine.
- Objects are never written a second time.

All methods block and may be called by several threads.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ftcomm.errors import FtcommError

Buffer = bytes | bytearray | memoryview

# Of a file or upload of a dead writer: a write that lasts longer has failed for all that training
# knows.
LEFTOVER_AGE_S = 3600.0
MAX_NAME = 200  # characters, as they fit a message and any file system's path
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class StoreError(FtcommError):
    """The store could not be reached, or refused; whether a write took effect may be unclear."""

    exit_code = 69
    default_remedy = "see that the store is reachable and has room"


class MissingObjectError(FtcommError):
    """The store has no object of that name: unlike a `StoreError`, this is damage."""

    exit_code = 71
    default_remedy = "run `ftcomm-tracker checkpoint verify` on the store"


class DamagedObjectError(FtcommError):
    """An object is cut short, changed, foreign, or of a later format."""

    exit_code = 71
    default_remedy = "run `ftcomm-tracker checkpoint verify` on the store"


class DamagedRecordError(DamagedObjectError):
    """A record of the chain is missing or damaged: without it no version of the store is known."""

    default_remedy = (
        "put it back from a copy of the store; `ftcomm-tracker checkpoint export` writes the"
        " checkpoints of other records to a file, for a new job with another store"
    )


class ChangedRecordError(DamagedRecordError):
    """A record of the chain is cut short, missing, or its bytes have changed."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that a store lists: its name and its size in bytes."""

    name: str
    nbytes: int


class Store(Protocol):
    """A place for objects with names such as ``chain/00000001.rec``."""

    @property
    def url(self) -> str:
        """Name of the store for people, without credentials."""

    def put_new(self, name: str, data: Buffer) -> bool:
        """Create an object, durably, unless one has the name.

        Returns:
            False if one has the name, and that one is durable; it may be our own, of a try whose
            reply was lost.

        Raises:
            StoreError: it is unclear whether the object was created.
        """

    def put(self, name: str, parts: Iterable[Buffer]) -> int:
        """Write an object under a name that was never used before, durably.

        Args:
            name: contains something random.
            parts: the content, one after the other; each is read before the next is asked for.

        Returns:
            the number of bytes.

        Raises:
            StoreError: it was not written, or that is unclear.
        """

    def get(self, name: str) -> bytes:
        """Return a small object whole; raises MissingObjectError or StoreError."""

    def read_into(self, name: str, offset: int, out: memoryview) -> int:
        """Read bytes of an object into `out`; return how many there were.

        Raises:
            MissingObjectError: there is none.
            StoreError: it could not be read.
        """

    def list(self, prefix: str) -> list[StoredObject]:
        """List the objects whose names begin with `prefix`, in order of their names.

        What has another name than an object can have was put there by somebody else: it is not
        among them.

        Raises:
            StoreError: it could not be read.
        """

    def delete(self, name: str) -> None:
        """Delete an object; nothing happens if there is none; raises StoreError."""

    def remove_leftovers(self) -> int:
        """Remove what writers have left that died within a put; return how many files.

        Raises:
            StoreError: not all could be removed.
        """


def checked_name(name: str) -> str:
    """Return `name` if it is one for an object, in any store; raises ValueError."""
    if not is_name(name):
        raise ValueError(f"{name!r} is no name of an object")
    return name


def is_name(name: str) -> bool:
    """Tell whether an object can have that name, in any store."""
    return len(name) <= MAX_NAME and all(_PART.fullmatch(part) for part in name.split("/"))
