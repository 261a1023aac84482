"""Paths of files and directories as users name them: in their home, or temporary ones."""

import tempfile
from pathlib import Path

from ftcomm.config.setting_kinds import can_be_recorded
from ftcomm.errors import ConfigError


def with_home(path: str | Path, what: str) -> Path:
    """`path`; ``~`` in front is the user's home, as a shell has it where it stands alone.

    Raises:
        ConfigError: nobody has that home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{what} {str(path)!r}: there is no such home directory") from None


def absolute_path(path: str | Path, what: str) -> Path:
    """`path` as any process finds it; other arguments as of `with_home`.

    Raises:
        ConfigError: nobody has that home, or it cannot be written in messages and records.
    """
    found = with_home(path, what)
    if not can_be_recorded(str(found)):
        raise ConfigError(
            f"{what} {str(path)!r}: its name is not UTF-8 text, which records and messages are",
            remedy="rename it, or give another one",
        )
    return found.absolute()


def temporary_folder(prefix: str) -> Path:
    """Make a directory that this user alone can read, in the system's folder for such.

    Raises:
        ConfigError: there is none in which one can be made.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        place = f" in {Path(error.filename).parent}" if error.filename else ""
        raise ConfigError(
            f"no temporary directory can be made{place}: {error.strerror or error}",
            remedy="set TMPDIR to a directory that this user can write to",
        ) from None
