"""A bucket of any service that fsspec knows, by fsspec's own calls: Google's and Azure's.

Only the calls are tested, on fsspec's file system in memory; the services are not.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import fsspec

from ftcomm.durable.bucket_calls import BucketError, NoSuchKeyError, size_of
from ftcomm.durable.store import Buffer


class FsspecBucket:
    """Implements `BucketCalls`."""

    def __init__(self, scheme: str, name: str) -> None:
        """Make the session; raises ImportError."""
        self._files = fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False)
        self._name = name

    def create(self, key: str, data: Buffer) -> bool:
        """See `BucketCalls.create`."""
        with _translated(), _in_a_bucket():
            try:
                self._files.pipe_file(self._path(key), bytes(data), mode="create")
            except FileExistsError:
                return False
        return True

    def begin(self, key: str) -> "FsspecUpload":
        """See `BucketCalls.begin`."""
        with _translated(), _in_a_bucket():
            return FsspecUpload(self._files.open(self._path(key), "wb"))

    def size(self, key: str) -> int:
        """See `BucketCalls.size`."""
        return size_of(self.list(key), key)

    def read(self, key: str, offset: int, nbytes: int | None) -> bytes:
        """See `BucketCalls.read`."""
        end = None if nbytes is None else offset + nbytes
        with _translated():
            data: bytes = self._files.cat_file(self._path(key), start=offset, end=end)
        return data

    def list(self, prefix: str) -> list[tuple[str, int]]:
        """See `BucketCalls.list`."""
        folder = prefix.rpartition("/")[0]
        with _translated():
            try:
                found = self._files.find(self._path(folder), detail=True)
            except FileNotFoundError:
                return []
        above = len(self._path("").lstrip("/"))
        keys = ((path.lstrip("/")[above:], info["size"]) for path, info in found.items())
        return [(key, nbytes) for key, nbytes in keys if key.startswith(prefix)]

    def delete(self, key: str) -> None:
        """See `BucketCalls.delete`."""
        with _translated(), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(key))

    def abort_older(self, prefix: str, age_s: float) -> int:
        """See `BucketCalls.abort_older`: these services forget uploads by themselves."""
        del prefix, age_s
        return 0

    def _path(self, key: str) -> str:
        return f"{self._name}/{key}"


class FsspecUpload:
    """Implements `Upload`; a part that failed is not sent again, since some of it may be there."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def send(self, number: int, data: Buffer) -> None:
        """See `Upload.send`."""
        del number
        with _translated(is_temporary=False), _in_a_bucket():  # which hears of it here first
            self._file.write(data)

    def finish(self) -> None:
        """See `Upload.finish`."""
        with _translated(is_temporary=False):
            self._file.close()

    def abort(self) -> None:
        """See `Upload.abort`."""
        with _translated(is_temporary=False), contextlib.suppress(FileNotFoundError):
            self._file.discard()


@contextlib.contextmanager
def _translated(*, is_temporary: bool = True) -> Iterator[None]:
    """Raise a service's errors as ours, without their texts."""
    try:
        yield
    except BucketError:
        raise
    except FileNotFoundError:
        raise NoSuchKeyError from None
    except Exception as error:  # noqa: BLE001 - each service has errors of its own
        temporary = is_temporary and isinstance(error, OSError)
        raise BucketError(type(error).__name__, is_temporary=temporary) from None


@contextlib.contextmanager
def _in_a_bucket() -> Iterator[None]:
    """Raise an error of its own where a new object finds nothing that could hold it."""
    try:
        yield
    except FileNotFoundError:
        raise BucketError("there is no such bucket", is_temporary=False) from None
