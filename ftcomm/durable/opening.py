"""Opening the store that a setting names, and the proof that it keeps a store's promises."""

import hashlib
import secrets
from urllib.parse import SplitResult, unquote, urlsplit

from ftcomm.config.extras import pip_install
from ftcomm.config.named_paths import absolute_path
from ftcomm.config.setting_kinds import can_be_recorded
from ftcomm.durable.bucket_calls import BucketCalls
from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.store import MissingObjectError, Store, StoreError
from ftcomm.errors import ConfigError

BUCKETS = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}  # scheme -> package that fsspec needs
PROBES = "probe/"  # of short-lived objects, by which a store is tried
_KINDS = f"a directory that all hosts share, or {', '.join(f'{each}://' for each in BUCKETS)}"


def open_store(url: str, *, create: bool = True) -> Store:
    """Open the store of `url`.

    Args:
        url: a directory, ``file://`` and its path, or ``s3://``, ``gs://``, ``az://`` with bucket
            and prefix. Credentials come from the environment alone.
        create: False: a directory must be a store already, and opening writes nothing.

    Raises:
        ConfigError: no such store can be opened here, or `url` has credentials in it.
        StoreError: the store could not be reached.
    """
    if not url:
        raise ConfigError("the checkpoint store has no name", remedy=f"give {_KINDS}")
    if "://" not in url:
        return _open_directory(url, create=create)
    parts = _parts_of(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        # Not repeated: logs, `status` and lists of processes show such a text to others.
        raise ConfigError(
            f"the {parts.scheme}:// URL of the checkpoint store has more than a place in it",
            remedy="give bucket and prefix alone; credentials come from the environment",
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or len(parts.path) < 2:
            raise ConfigError(f"{url} names no directory of this host", remedy=f"give {_KINDS}")
        return _open_directory(unquote(parts.path), create=create)
    if parts.scheme not in BUCKETS:
        raise ConfigError(
            f"checkpoint stores of the kind {parts.scheme}:// are not supported",
            remedy=f"give {_KINDS}",
        )
    if not parts.netloc:
        raise ConfigError(f"{url} names no bucket", remedy=f"give {parts.scheme}://BUCKET/PREFIX")
    return _open_bucket(parts.scheme, f"{parts.netloc}{parts.path}".rstrip("/"))


def _parts_of(url: str) -> SplitResult:
    """Scheme, host and path of a URL.

    Raises:
        ConfigError: it is none; not repeated, since it may have credentials in it all the same.
    """
    try:
        if can_be_recorded(url):
            return urlsplit(url)
    except ValueError:
        pass
    raise ConfigError("the URL of the checkpoint store is malformed", remedy=f"give {_KINDS}")


def _open_directory(path: str, *, create: bool) -> Store:
    """Open a directory of this host; raises ConfigError."""
    return DirectoryStore(absolute_path(path, "checkpoint store"), create=create)


def _open_bucket(scheme: str, place: str) -> Store:
    """Open a prefix of a bucket.

    Raises:
        ConfigError: a package is missing, or it refuses what the environment says.
        StoreError: this process can open no more files.
    """
    from ftcomm.durable.object_store import ObjectStore  # noqa: PLC0415 - of buckets alone

    name, _, prefix = place.partition("/")
    bucket: BucketCalls
    try:
        if scheme == "s3":
            from ftcomm.durable.s3_bucket import S3Bucket  # noqa: PLC0415 - of the extra `durable`

            bucket = S3Bucket(name)
        else:
            from ftcomm.durable.fsspec_bucket import FsspecBucket  # noqa: PLC0415 - likewise

            bucket = FsspecBucket(scheme, name)
    except ImportError:
        package = BUCKETS[scheme]
        extra = pip_install("durable")
        raise ConfigError(
            f"a checkpoint store on {scheme}:// needs the package {package}",
            remedy=extra if scheme == "s3" else f"{extra} {package}",
        ) from None
    except OSError as error:
        raise StoreError(f"{scheme}://{place}: {error.strerror or type(error).__name__}") from None
    except Exception as error:  # noqa: BLE001 - each package has errors of its own
        # Without its text, which may have credentials in it.
        raise ConfigError(
            f"{scheme}://{place} cannot be opened: {type(error).__name__} in {BUCKETS[scheme]}",
            remedy="look at the account, credentials and endpoint in the environment",
        ) from None
    return ObjectStore(f"{scheme}://{place}", bucket, prefix.strip("/"))


def probe(store: Store) -> None:
    """Prove that `store` creates a name once, and returns what was put.

    Raises:
        ConfigError: it does not; two trackers could both believe that they lead the job.
        StoreError: it could not be reached.
    """
    name = f"{PROBES}{secrets.token_hex(16)}"
    mine, other = secrets.token_bytes(16), secrets.token_bytes(16)
    store.put_new(name, mine)  # False where a first reply was lost: the content tells
    try:
        created_again = store.put_new(name, other)
        found = store.get(name)
    finally:
        store.delete(name)
    if created_again or found == other:
        raise ConfigError(
            f"the store {store.url} creates one name twice: it ignores create-only puts",
            remedy="use a directory, or an object store with conditional writes (If-None-Match)",
        )
    if found != mine:
        raise ConfigError(f"the store {store.url} does not return what was put")


def leave_sign(store: Store, job_id: str) -> None:
    """Put what every host must find in the store of this attempt; before any worker is welcomed.

    Raises:
        StoreError: it could not be put.
    """
    store.put_new(_sign(job_id), job_id.encode())


def find_sign(store: Store, job_id: str) -> None:
    """Prove that this host's `store` is the one in which the tracker has left its sign.

    Raises:
        ConfigError: it is another: a directory that hosts do not share.
        StoreError: it could not be reached.
    """
    try:
        store.get(_sign(job_id))
    except MissingObjectError:
        raise ConfigError(
            f"{store.url} of this host is not the store in which the tracker has begun {job_id}",
            remedy="give --checkpoint a directory that all hosts share",
        ) from None


def _sign(job_id: str) -> str:
    """Name of the object; a job id may have characters that no name has."""
    return f"{PROBES}{hashlib.blake2b(job_id.encode(), digest_size=16).hexdigest()}"
