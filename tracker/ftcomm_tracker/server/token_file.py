"""The file with the job's token: made for a new job, and again if it is deleted with its folder."""

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from ftcomm.config.environment import read_token
from ftcomm.errors import ConfigError
from ftcomm.protocol.handshake import control_key
from ftcomm_tracker.server.journal_file import give_name

TOKEN_BYTES = 32  # 64 hex characters, what `read_token` demands at least


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Path and content of the job's token file."""

    path: Path
    token: bytes

    @classmethod
    def found_or_made(cls, path: Path) -> "TokenFile":
        """The token of `path`, which is made with a fresh one if it is absent.

        Raises:
            ConfigError: the file cannot be read or made, or holds no token.
        """
        _write(path, secrets.token_hex(TOKEN_BYTES))
        return cls(path, read_token(path))

    @property
    def key(self) -> bytes:
        """Key of connections to the tracker."""
        return control_key(self.token)

    def put_back(self) -> None:
        """Make the file again if it is absent.

        Raises:
            ConfigError: it cannot be made.
        """
        _write(self.path, self.token.decode("ascii"))


def _write(path: Path, token: str) -> None:
    """Write a token that its owner alone can read, unless the file is there.

    It has its name when it is whole and on the disk: a worker may know it from then on, and half a
    token would be in the way of the next start.
    """
    if os.path.lexists(path):
        return
    try:
        new = path.with_name(f"{path.name}.{os.getpid()}.new")
        new.unlink(missing_ok=True)  # of a tracker that died here, with our number
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(file, "w", encoding="ascii") as text:
                text.write(token + "\n")
                text.flush()
                os.fsync(file)
            give_name(new, path)
        finally:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"token file {path}: {_words(error)}") from error


def _words(error: OSError | ValueError) -> str:
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)
