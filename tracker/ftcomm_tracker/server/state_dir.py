"""A state directory: private to its owner, and locked by the tracker that serves from it.

The lock is the system's (``flock``): it ends with its process, however that ends.  It keeps
mistakes out.  What keeps two trackers apart for certain is the journal's generation.
"""

import contextlib
import os
import platform
import stat
import sys
from pathlib import Path

import trio

from ftcomm.config.named_paths import absolute_path
from ftcomm.errors import ConfigError

if sys.platform != "win32":  # there no tracker serves: see `ftcomm.config.platforms`
    import fcntl

LOCK_NAME = "tracker.lock"
TAKE_OVER_WITHIN_S = 10.0  # a tracker that runs sees within a second that it was replaced
_LOOK_EVERY_S = 0.1
_MAX_OWNER = 200  # characters of what the file may say


class StateLock:
    """The lock of one tracker on its state directory, as long as `close` is not called.

    Attributes:
        path: the file.
        keeps_others_out: False where the file system has no locks: others may have it as well.
    """

    def __init__(self, path: Path, file: int, *, keeps_others_out: bool = True) -> None:
        self.path = path
        self._file = file
        self.keeps_others_out = keeps_others_out

    @classmethod
    def take(cls, state_dir: Path) -> "StateLock | None":
        """Take the lock of `state_dir`; None if another tracker holds it.

        Where the file system has no locks, two trackers are kept apart by the journal alone.

        Raises:
            ConfigError: the file cannot be written.
        """
        path = state_dir / LOCK_NAME
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"lock {path}: {error.strerror or error}") from error
        keeps_others_out = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        except OSError:  # a file system without locks
            keeps_others_out = False
        with contextlib.suppress(OSError):  # who holds it is for people
            os.truncate(file, 0)
            os.pwrite(file, f"pid {os.getpid()} on {platform.node()}\n".encode(), 0)
        return cls(path, file, keeps_others_out=keeps_others_out)

    def close(self) -> None:
        """Give the lock back, also where a forked child has yet to close its copy of the file."""
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)

    def abandon(self) -> None:
        """In a forked child: close its copy; the parent keeps the lock."""
        os.close(self._file)


def owner_of(state_dir: Path) -> str:
    """Describe the process that holds the lock."""
    try:
        text = (state_dir / LOCK_NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return text.strip()[:_MAX_OWNER] or "unknown process"


def served_already(state_dir: Path) -> ConfigError:
    """The refusal of a second tracker on the directory of one that serves."""
    return ConfigError(
        f"a tracker ({owner_of(state_dir)}) serves the job in {state_dir}",
        remedy=f"ask it: ftcomm-tracker status --state-dir {state_dir}; to take its place, give"
        " --take-over; for a new job give another --state-dir",
    )


async def lock_of_the_replaced(state_dir: Path) -> StateLock | None:
    """The lock of `state_dir` once the tracker that was replaced has ended.

    None if it has not in time: it is stopped, and will end as soon as it goes on.
    """
    with trio.move_on_after(TAKE_OVER_WITHIN_S):
        while True:
            lock = StateLock.take(state_dir)
            if lock is not None:
                return lock
            await trio.sleep(_LOOK_EVERY_S)
    return None


def make_state_dir(path: Path) -> Path:
    """Create `path` with mode 0700 if it is absent, and return it absolute.

    Raises:
        ConfigError: it cannot be had under that name, is no directory, or others may write to it.
    """
    path = absolute_path(path, "state directory")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"state directory {path}: {error.strerror or error}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"state directory {path} can be written by other users (mode {stat.S_IMODE(mode):o})",
            remedy=f"chmod 700 {path}, or give another directory",
        )
    return path
