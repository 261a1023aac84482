"""A bucket of S3, or of a service like it, through s3fs.

s3fs brings the session: credentials, region and endpoint from the environment, the files of AWS, or
the instance.  The calls are made here, each with a time limit and without retries of its own, so
that `ObjectStore` knows of every failure.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import aiohttp
import botocore.exceptions
import s3fs
from fsspec.asyn import sync

from ftcomm.durable.bucket_calls import NO_RANGE, BucketError, NoSuchKeyError, size_of
from ftcomm.durable.store import Buffer

CONNECT_LIMIT_S = 10.0
CALL_LIMIT_S = 60.0  # of one call: a part of 16 MiB at 300 kB/s takes so long
_BUSY = frozenset((408, 409, 425, 429, 500, 502, 503, 504))  # HTTP statuses that pass
_BUSY_CODES = frozenset(("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout"))
_TAKEN = 412  # by another object: the answer to If-None-Match
_BEYOND_END = 416
_WHOLE = 200  # the object, and not a range of it
_LOST = (  # connections that were lost, or not made
    botocore.exceptions.ConnectionError,
    botocore.exceptions.HTTPClientError,
    aiohttp.ClientError,
    asyncio.TimeoutError,
    OSError,
)
R = TypeVar("R")


def _failure(error: Exception) -> Exception:
    """Translate an error; its own text may have more of the request in it than people may see."""
    if isinstance(error, botocore.exceptions.ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in ("NoSuchKey", "NoSuchUpload"):
            return NoSuchKeyError(code)
        busy = status in _BUSY or code in _BUSY_CODES
        return BucketError(f"{code[:60]} (HTTP {status})", is_temporary=busy)
    if isinstance(error, botocore.exceptions.NoCredentialsError):
        return BucketError("there are no credentials for it", is_temporary=False)
    return BucketError(type(error).__name__, is_temporary=isinstance(error, _LOST))


def _status(error: botocore.exceptions.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _part(answer: Any, *names: str) -> Any:
    """A part of an answer.

    Raises:
        BucketError: it is not there: the service is not quite like S3, or a proxy has left it out.
    """
    for name in names:
        if name not in answer:
            raise BucketError(f"its answer has no {name}", is_temporary=False)
        answer = answer[name]
    return answer


def _date(answer: Any) -> datetime:
    """The service's time; raises BucketError."""
    text = _part(answer, "ResponseMetadata", "HTTPHeaders", "date")
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        raise BucketError("its answer has a date that is none", is_temporary=False) from None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


class S3Bucket:
    """Implements `BucketCalls`."""

    def __init__(self, name: str) -> None:
        """Make the session; nothing is called yet."""
        self._name = name
        self._connecting = threading.Lock()
        self._files = s3fs.S3FileSystem(
            skip_instance_cache=True,
            use_listings_cache=False,
            config_kwargs={
                "connect_timeout": CONNECT_LIMIT_S,
                "read_timeout": CALL_LIMIT_S,
                "retries": {"total_max_attempts": 1, "mode": "standard"},
            },
        )

    def create(self, key: str, data: Buffer) -> bool:
        """See `BucketCalls.create`: one PutObject with ``If-None-Match: *``."""
        try:
            self.call("put_object", Key=key, Body=bytes(data), IfNoneMatch="*")
        except _TakenError:
            return False
        return True

    def begin(self, key: str) -> "S3Upload":
        """See `BucketCalls.begin`: a multipart upload."""
        answer = self.call("create_multipart_upload", Key=key)
        return S3Upload(self, key, str(_part(answer, "UploadId")))

    def size(self, key: str) -> int:
        """See `BucketCalls.size`."""
        return size_of(self.list(key), key)

    def read(self, key: str, offset: int, nbytes: int | None) -> bytes:
        """See `BucketCalls.read`."""
        where = {}
        if nbytes is not None:
            where = {"Range": f"bytes={offset}-{offset + nbytes - 1}"}

        async def read(client: Any) -> bytes:
            try:
                answer = await client.get_object(Bucket=self._name, Key=key, **where)
            except botocore.exceptions.ClientError as error:
                if _status(error) == _BEYOND_END:
                    return b""
                raise
            async with answer["Body"] as body:
                if offset and _part(answer, "ResponseMetadata", "HTTPStatusCode") == _WHOLE:
                    raise BucketError(NO_RANGE, is_temporary=False)
                data: bytes = await body.read()
                return data

        return self._within_limit(read)

    def list(self, prefix: str) -> list[tuple[str, int]]:
        """See `BucketCalls.list`."""
        found: list[tuple[str, int]] = []
        more: dict[str, str] = {}
        while True:
            answer = self.call("list_objects_v2", Prefix=prefix, **more)
            found += [(each["Key"], each["Size"]) for each in answer.get("Contents", ())]
            if not answer.get("IsTruncated"):
                return found
            more = {"ContinuationToken": _part(answer, "NextContinuationToken")}

    def delete(self, key: str) -> None:
        """See `BucketCalls.delete`."""
        self.call("delete_object", Key=key)

    def abort_older(self, prefix: str, age_s: float) -> int:
        """See `BucketCalls.abort_older`; the service's own clock says how old an upload is."""
        aborted = 0
        answer = self.call("list_multipart_uploads", Prefix=prefix)
        for each in answer.get("Uploads", ()):
            if (_date(answer) - each["Initiated"]).total_seconds() > age_s:
                S3Upload(self, each["Key"], each["UploadId"]).abort()
                aborted += 1
        return aborted

    # --- calls --------------------------------------------------------------------------------

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of S3 on this bucket; return its answer.

        Raises:
            BucketError: it failed.
            NoSuchKeyError: the object or upload is not there.
        """

        def made(client: Any) -> Awaitable[Any]:
            answer: Awaitable[Any] = getattr(client, method)(Bucket=self._name, **arguments)
            return answer

        return self._within_limit(made)

    def _within_limit(self, call: Callable[[Any], Awaitable[R]]) -> R:
        try:
            answer: R = sync(self._files.loop, call, self._client(), timeout=CALL_LIMIT_S)
        except botocore.exceptions.ClientError as error:
            if _status(error) == _TAKEN:
                raise _TakenError from None
            raise _failure(error) from None
        except (botocore.exceptions.BotoCoreError, aiohttp.ClientError, OSError) as error:
            raise _failure(error) from None
        return answer

    def _client(self) -> Any:
        try:
            with self._connecting:  # once, though several threads may come
                return self._files.s3
        except ValueError:
            what = "its endpoint, as the environment names it, is malformed"
            raise BucketError(what, is_temporary=False) from None


class _TakenError(Exception):
    """Another object has the key of a create-only put."""


class S3Upload:
    """Implements `Upload`: a multipart upload."""

    def __init__(self, bucket: S3Bucket, key: str, upload_id: str) -> None:
        self._bucket = bucket
        self._where = {"Key": key, "UploadId": upload_id}
        self._parts: dict[int, str] = {}

    def send(self, number: int, data: Buffer) -> None:
        """See `Upload.send`."""
        answer = self._bucket.call("upload_part", PartNumber=number, Body=data, **self._where)
        self._parts[number] = _part(answer, "ETag")

    def finish(self) -> None:
        """See `Upload.finish`."""
        parts = [{"PartNumber": at, "ETag": tag} for at, tag in sorted(self._parts.items())]
        self._bucket.call(
            "complete_multipart_upload", MultipartUpload={"Parts": parts}, **self._where
        )

    def abort(self) -> None:
        """See `Upload.abort`."""
        with contextlib.suppress(NoSuchKeyError):  # it has ended
            self._bucket.call("abort_multipart_upload", **self._where)
