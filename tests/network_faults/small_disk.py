"""A small disk of its own, which can be filled: a tmpfs in a mount namespace.

Nothing is mounted where others see it: a command is brought there by a prefix, and everybody else
reads the files through the process that holds the mount (but not sqlite's, which resolves such
paths).  Root is not needed where the kernel lets users have namespaces.
"""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

TOOLS = ("unshare", "nsenter", "mount")
FILLER = "filler"
BLOCK_BYTES = 4096  # of tmpfs: what is left below that is no room for anything
END_WITHIN_S = 10.0


class DiskError(Exception):
    """This machine does not let us make such a disk; the text says why."""


def missing() -> str:
    """Name what this machine lacks for a separate disk; empty if nothing."""
    return _lacking() if sys.platform == "linux" else "needs Linux (mount namespaces)"


def _lacking() -> str:
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"needs {', '.join(absent)}"
    try:
        with tempfile.TemporaryDirectory() as folder, SmallDisk(Path(folder), 1 << 16):
            return ""
    except DiskError as error:
        return str(error)


class SmallDisk:
    """A file system of so many bytes; a context manager. What is on it is gone at the end.

    Attributes:
        prefix: to be put before a command that shall find the disk at its folder; it execs the
            command, and leaves it in the folder ``/``.
        path: the folder as others see it, to read what is there.
    """

    def __init__(self, folder: Path, size_bytes: int, *, unprivileged: bool | None = None) -> None:
        """Prepare one at an existing folder, in a user namespace too unless we are root."""
        self._folder = folder.absolute()
        self._size_bytes = size_bytes
        self._user = os.geteuid() != 0 if unprivileged is None else unprivileged
        self._end = contextlib.ExitStack()
        self.prefix: list[str] = []
        self.path = Path()

    def __enter__(self) -> Self:
        """Make it.

        Raises:
            DiskError: the system does not let us.
        """
        options = f"mode=0700,size={self._size_bytes}"
        mount = f'mount -t tmpfs -o {options} ftcomm-chaos "$0" && echo up && exec cat'
        make = ["unshare", "-Urm" if self._user else "-m"]
        holder = subprocess.Popen(
            [*make, "sh", "-c", mount, str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._end.callback(holder.communicate, timeout=END_WITHIN_S)
        self._end.callback(holder.kill)
        assert holder.stdout is not None
        if holder.stdout.readline() != "up\n":
            assert holder.stderr is not None
            why = holder.stderr.read().strip()
            self._end.close()
            raise DiskError(f"cannot mount a file system in a namespace: {why}")
        user = ["-U", "--preserve-credentials"] if self._user else []
        self.prefix = ["nsenter", "-t", str(holder.pid), *user, "-m"]
        self.path = Path(f"/proc/{holder.pid}/root{self._folder}")
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def fill(self) -> int:
        """Write until nothing more goes in; returns the bytes written."""
        written = 0
        file = os.open(self.path / FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            while True:
                written += os.write(file, bytes(BLOCK_BYTES))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        finally:
            os.close(file)
        return written

    def free(self) -> None:
        """Take away what `fill` wrote."""
        (self.path / FILLER).unlink(missing_ok=True)
