"""Opening the store that a job's setting names."""

from pathlib import Path
from urllib.parse import urlsplit

from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.store import Store
from ftcomm.errors import ConfigError


def open_store(url: str) -> Store:
    """Open the store of `url`: a directory, or ``file://`` and its path.

    Raises:
        ConfigError: no such store can be opened here.
    """
    scheme = urlsplit(url).scheme
    if not scheme:
        return DirectoryStore(Path(url).absolute())
    if scheme == "file":
        return DirectoryStore(Path(urlsplit(url).path))
    raise ConfigError(
        f"checkpoint stores of the kind {scheme!r} are not supported",
        remedy="give a directory that all hosts share",
    )
