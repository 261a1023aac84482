"""The jobs of this user: one small file for each, written by `run` and `serve`.

A file stays when its job fails or is cut short, so that `list` shows the job.  The process id and
its start tell whether the job's process still runs.  Of the jobs that have ended the newest stay,
`KEPT_ENDED` of them; a job that begins removes the others, and the directories that commands have
made up for them.
"""

import contextlib
import json
import logging
import os
import platform
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ftcomm.config.environment import jobs_folder
from ftcomm.config.process_identity import (
    ProcessName,
    is_another_container,
    process_space,
    this_process,
)
from ftcomm.errors import ConfigError
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.server.journal import FILE_NAME
from ftcomm_tracker.server.open_job import OpenJob
from ftcomm_tracker.server.state_dir import StateLock

log = logging.getLogger("ftcomm_tracker")

MAX_ENTRY_BYTES = 16 * 1024  # four paths of the longest kind; an entry has 500
MAX_ENTRIES = 10_000  # a folder with more is not ours, or has not been cleaned for years
SUFFIX = ".json"
_NAME = re.compile(r"[A-Za-z0-9-]{1,64}(\.[0-9]{1,7})?")  # of a job with a store: .ATTEMPT
KEPT_ENDED = 10  # enough to look into a failure of this week, and little of a disk
UNKNOWN_SIZE = 0  # in place of the world size of a job that its workers have yet to name


@dataclass(frozen=True, slots=True)
class JobEntry:
    """One job, as its file describes it.

    Attributes:
        job_id: of the tracker.
        command: ``run`` or ``serve``.
        state_dir: absolute.
        temporary: True if the command has made the state directory up.
        address: ``host:port`` of the tracker.
        workers: world size, or `UNKNOWN_SIZE`.
        host: where the command runs.
        space: see `process_space`.
        pid: of its process.
        start: of its process, see `ProcessName`.
        began: seconds since 1970.
    """

    job_id: str
    command: str
    state_dir: str
    temporary: bool
    address: str
    workers: int
    host: str
    space: str
    pid: int
    start: int
    began: float

    @property
    def is_here(self) -> bool:
        """True if the job's process is, or was, on this host, and in no other container of it."""
        return self.host == platform.node() and not is_another_container(self.space)

    def is_running(self) -> bool:
        """True if the job's process is one of this host and has not ended."""
        return self.is_here and ProcessName(self.pid, self.start).is_running()


@dataclass(frozen=True, slots=True)
class Registry:
    """The content of the folder.

    Attributes:
        entries: by the time of the jobs' start.
        damaged: files that are no entries, each with the reason.
    """

    entries: tuple[JobEntry, ...]
    damaged: Mapping[Path, str]

    def running(self) -> tuple[JobEntry, ...]:
        """Jobs whose process runs on this host."""
        return tuple(entry for entry in self.entries if entry.is_running())


def register(job: OpenJob, command: str, *, temporary: bool) -> None:
    """Write the entry of a job of this process, and again whenever the job gets another id.

    Entries that say nothing any more go: those of earlier attempts, and of earlier jobs in the
    same state directory.  A failure is logged, since the job can go on.
    """
    process = this_process()
    is_known = job.server.snapshot()["world_size"] is not None
    entry = JobEntry(
        job_id=job.durable.job_id,
        command=command,
        state_dir=str(job.state_dir),
        temporary=temporary,
        address=job.address,
        workers=job.durable.world_size if is_known else UNKNOWN_SIZE,
        host=platform.node(),
        space=process_space(),
        pid=process.pid,
        start=process.start,
        began=round(time.time(), 3),
    )
    if _put(entry):
        _forget_old()

    def renew(durable: Durable) -> None:
        nonlocal entry
        if durable.job_id != entry.job_id:
            entry = replace(entry, job_id=durable.job_id, workers=durable.world_size)
            _put(entry)

    job.server.watch_job = renew


def _put(entry: JobEntry) -> bool:
    """Write `entry` and remove the entries that it replaces; False if it cannot be written."""
    try:
        folder = jobs_folder()
    except ConfigError as error:
        log.warning("`ftcomm-tracker list` will not show this job: %s", error)
        return False
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(entry_path(entry), json.dumps(asdict(entry)))
    except OSError as error:
        log.warning("`ftcomm-tracker list` will not show this job: %s: %s", folder, error.strerror)
        return False
    _remove(old for old in read_registry().entries if _is_replaced(old, entry))
    return True


def _is_replaced(old: JobEntry, new: JobEntry) -> bool:
    """True if `new` says all that is to be said of `old`.

    A temporary directory stays known until `_forget_old` removes it.
    """
    if old.job_id == new.job_id or old.host != new.host:
        return False
    if old.state_dir == new.state_dir:
        return True
    is_series = old.job_id.partition(".")[0] == new.job_id.partition(".")[0]
    return is_series and not old.temporary and not old.is_running()


def unregister(job: OpenJob) -> None:
    """Remove the entry of a job, unless another process has taken the job over."""
    process, state_dir = this_process(), str(job.state_dir)
    own = (platform.node(), process.pid, process.start, state_dir)
    _remove(
        entry
        for entry in read_registry().entries
        if (entry.host, entry.pid, entry.start, entry.state_dir) == own
    )


def _forget_old() -> None:
    """Remove all but the newest of the jobs that have ended here, with their temporary directories.

    The newest are those whose journals were written last: a job of weeks that has just crashed is
    newer than a short one of yesterday.  Another command may do the same at the same time.
    """
    entries = read_registry().entries
    ended = [entry for entry in entries if entry.is_here and not entry.is_running()]
    for entry in sorted(ended, key=_last_written)[:-KEPT_ENDED]:
        if not entry.temporary or _is_removed(Path(entry.state_dir)):
            _remove([entry])


def _last_written(entry: JobEntry) -> float:
    """Time at which the journal of a job was last written; of none, the job's start."""
    folder = Path(entry.state_dir)
    written = [entry.began]
    for name in (FILE_NAME, f"{FILE_NAME}-wal"):
        with contextlib.suppress(OSError):
            written.append((folder / name).stat().st_mtime)
    return max(written)


def _is_removed(made_up: Path) -> bool:
    """Remove a directory that a command has made up, if it is still that and unused; True if gone.

    A tracker may have been started on it by its name, and a cleaned temporary folder may have given
    the name to something else.
    """
    try:
        found = made_up.lstat()
    except OSError:
        return True
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not (is_ours and (made_up / FILE_NAME).is_file()):
        return True
    try:
        lock = StateLock.take(made_up)
    except ConfigError:
        return False
    if lock is None:
        return False
    if lock.keeps_others_out:
        shutil.rmtree(made_up, ignore_errors=True)
    lock.close()
    return not made_up.exists()


def _remove(entries: Iterable[JobEntry]) -> None:
    """Remove the files of these entries, but for one that a command has just written anew."""
    for entry in entries:
        with contextlib.suppress(OSError, ValueError):
            if _read(entry_path(entry)) == entry:
                entry_path(entry).unlink()


def read_registry() -> Registry:
    """Read every entry; a file that is none is reported, not believed.

    A user without a home directory has none.
    """
    entries: list[JobEntry] = []
    damaged: dict[Path, str] = {}
    try:
        paths = sorted(path for path in jobs_folder().iterdir() if path.suffix == SUFFIX)
    except (ConfigError, OSError):
        paths = []
    for path in paths[:MAX_ENTRIES]:
        try:
            entries.append(_read(path))
        except FileNotFoundError:  # its job has just ended
            continue
        except (OSError, ValueError) as error:
            damaged[path] = str(error) if isinstance(error, ValueError) else "cannot be read"
    return Registry(tuple(sorted(entries, key=lambda entry: entry.began)), damaged)


def entry_path(entry: JobEntry) -> Path:
    """The file of an entry."""
    return jobs_folder() / f"{entry.job_id}{SUFFIX}"


def write_private(path: Path, text: str) -> None:
    """Replace `path` as a whole; its owner alone can read it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    file = os.open(part, flags, 0o600)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
    part.replace(path)


def _read(path: Path) -> JobEntry:
    """The entry of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no entry; the text says why.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    if sys.platform != "win32":
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(path, flags)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a regular file")
        if sys.platform != "win32" and found.st_uid != os.geteuid():
            raise ValueError("belongs to another user")
        raw = os.read(file, MAX_ENTRY_BYTES + 1)
    finally:
        os.close(file)
    if len(raw) > MAX_ENTRY_BYTES:
        raise ValueError(f"has more than {MAX_ENTRY_BYTES} bytes")
    entry = parse_entry(raw)
    if path.name != f"{entry.job_id}{SUFFIX}":
        raise ValueError("names another job than its file")
    return entry


def parse_entry(raw: bytes) -> JobEntry:
    """The entry that a file holds.

    Raises:
        ValueError: it is none; the text says why.
    """
    try:
        document: Any = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("is not a JSON object")
    kinds = JobEntry.__annotations__
    if set(document) != set(kinds):
        raise ValueError("has other fields than an entry")
    for name, kind in kinds.items():
        accepted = (int, float) if kind is float else (kind,)
        value = document[name]
        if type(value) not in accepted or (kind is str and not value.isprintable()):
            raise ValueError(f"has a damaged field {name}")
    return _checked(JobEntry(**document))


def _checked(entry: JobEntry) -> JobEntry:
    bounds = (
        ("job_id", _NAME.fullmatch(entry.job_id) is not None),
        ("state_dir", Path(entry.state_dir).is_absolute()),
        ("pid", 0 < entry.pid < 1 << 31),
        ("start", 0 <= entry.start < 1 << 63),
        ("workers", UNKNOWN_SIZE <= entry.workers < 1 << 31),
        ("began", 0 <= entry.began < 1 << 40),
    )
    for name, holds in bounds:
        if not holds:
            raise ValueError(f"has a damaged field {name}")
    return replace(entry, began=float(entry.began))
