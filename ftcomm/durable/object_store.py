"""A store in a bucket of an object store: retries, parts of large objects, and errors in words.

A call that failed for a moment is made again a few times.  So a create-only put whose reply was
lost may find its own object: `put_new` says False then, and the chain reads back whose it is.
"""

import contextlib
import functools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ftcomm.config.backoff import STORE_ATTEMPTS, STORE_BACKOFF
from ftcomm.durable.bucket_calls import NO_RANGE, BucketCalls, BucketError, NoSuchKeyError
from ftcomm.durable.store import (
    LEFTOVER_AGE_S,
    Buffer,
    MissingObjectError,
    StoredObject,
    StoreError,
    checked_name,
    is_name,
)

# Of a large object, held in memory one at a time. S3 takes 10,000 parts: 160 GiB an object.
PART_BYTES = 16 << 20
R = TypeVar("R")


class ObjectStore:
    """A store below a prefix of a bucket."""

    def __init__(
        self,
        url: str,
        bucket: BucketCalls,
        prefix: str,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Make the store; nothing is called yet."""
        self._url = url
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._pause = pause

    @property
    def url(self) -> str:
        """See `Store.url`."""
        return self._url

    def put_new(self, name: str, data: Buffer) -> bool:
        """See `Store.put_new`."""
        return self._create(name, data)[0]

    def put(self, name: str, parts: Iterable[Buffer]) -> int:
        """See `Store.put`."""
        pieces = _in_pieces(parts)
        first = next(pieces, b"")
        second = next(pieces, None)
        if second is not None:
            return self._put_in_parts(name, first, second, pieces)
        is_new, failures = self._create(name, first)
        # The name has something random in it: an object that was there after a failure is ours.
        if not is_new and not failures:
            raise StoreError(f"{self._url}: object {name} exists, and its name was to be new")
        return len(first)

    def get(self, name: str) -> bytes:
        """See `Store.get`."""
        return self._read(name, 0, None)

    def read_into(self, name: str, offset: int, out: memoryview) -> int:
        """See `Store.read_into`."""
        if not len(out):
            return 0
        data = self._read(name, offset, len(out))
        if len(data) > len(out):
            raise StoreError(f"{self._url}: {name}: {NO_RANGE}")
        out[: len(data)] = data
        return len(data)

    def list(self, prefix: str) -> list[StoredObject]:
        """See `Store.list`."""
        found = self._again(prefix, lambda: self._bucket.list(self._prefix + prefix))[0]
        length = len(self._prefix)
        named = ((key[length:], nbytes) for key, nbytes in found)
        objects = [StoredObject(name, nbytes) for name, nbytes in named if is_name(name)]
        return sorted(objects, key=lambda each: each.name)

    def delete(self, name: str) -> None:
        """See `Store.delete`."""
        key = self._key(name)
        self._again(name, lambda: self._bucket.delete(key))

    def remove_leftovers(self) -> int:
        """See `Store.remove_leftovers`: uploads that began an hour ago and have not ended."""
        abort = self._bucket.abort_older
        return self._again("uploads", lambda: abort(self._prefix, LEFTOVER_AGE_S))[0]

    # --- calls --------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return self._prefix + checked_name(name)

    def _create(self, name: str, data: Buffer) -> tuple[bool, int]:
        """Create an object; return whether it is new, and how many tries failed before."""
        key = self._key(name)
        return self._again(name, lambda: self._bucket.create(key, data))

    def _read(self, name: str, offset: int, nbytes: int | None) -> bytes:
        key = self._key(name)
        try:
            return self._again(name, lambda: self._bucket.read(key, offset, nbytes))[0]
        except NoSuchKeyError:
            raise MissingObjectError(f"{self._url} has no object {name}") from None

    def _put_in_parts(
        self, name: str, first: Buffer, second: Buffer, rest: Iterator[Buffer]
    ) -> int:
        key = self._key(name)
        upload = self._again(name, lambda: self._bucket.begin(key))[0]
        nbytes = 0
        try:
            for number, piece in enumerate(_chained(first, second, rest), 1):
                self._send(name, functools.partial(upload.send, number, piece))
                nbytes += len(piece)
            self._finish(name, upload.finish, nbytes)
        except BaseException:
            with contextlib.suppress(BucketError):  # then `gc` does, or a rule of the bucket
                upload.abort()
            raise
        return nbytes

    def _send(self, name: str, send: Callable[[], None]) -> None:
        try:
            self._again(name, send)
        except NoSuchKeyError:  # `gc` takes an upload that has lasted an hour for a dead writer's
            raise self._aborted(name) from None

    def _finish(self, name: str, finish: Callable[[], None], nbytes: int) -> None:
        key = self._key(name)
        try:
            self._again(name, finish)
        except NoSuchKeyError:  # the reply of a first try was lost: is the object there?
            try:
                found = self._again(name, lambda: self._bucket.size(key))[0]
            except NoSuchKeyError:
                found = -1
            if found != nbytes:
                raise self._aborted(name) from None

    def _aborted(self, name: str) -> StoreError:
        return StoreError(f"{self._url}: {name}: its upload was aborted")

    def _again(self, name: str, call: Callable[[], R]) -> tuple[R, int]:
        """Make a call until it succeeds; return what it returned, and how often it failed.

        Raises:
            StoreError: it cannot succeed, or failed too often.
        """
        failures = 0
        while True:
            try:
                return call(), failures
            except BucketError as error:
                failures += 1
                if not error.is_temporary or failures == STORE_ATTEMPTS:
                    # Without its cause, whose text may hold more of a request than people may see.
                    raise StoreError(f"{self._url}: {name}: {error.reason}") from None
            self._pause(STORE_BACKOFF.delay_s(failures, random.random()))  # noqa: S311 - a delay


def _in_pieces(parts: Iterable[Buffer]) -> Iterator[Buffer]:
    """The bytes of `parts`, `PART_BYTES` at a time."""
    piece = bytearray()
    for part in parts:
        view = memoryview(part).cast("B")
        while len(view):
            taken = view[: PART_BYTES - len(piece)]
            piece += taken
            view = view[len(taken) :]
            if len(piece) == PART_BYTES:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)


def _chained(first: Buffer, second: Buffer, rest: Iterator[Buffer]) -> Iterator[Buffer]:
    yield first
    yield second
    yield from rest
