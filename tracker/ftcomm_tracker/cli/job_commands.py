"""The commands `list` and `clean`: this user's jobs, and what failed ones have left."""

import contextlib
import json
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from ftcomm.durable.chain import PREFIX
from ftcomm.durable.directory_store import TEMPORARY
from ftcomm.durable.garbage import DATA
from ftcomm.durable.opening import PROBES
from ftcomm.errors import ConfigError
from ftcomm_tracker.cli.options import DIRECTORY, program_name, run_and_exit, say_plainly
from ftcomm_tracker.operator.finished_job import last_state
from ftcomm_tracker.operator.job_registry import (
    UNKNOWN_SIZE,
    JobEntry,
    entry_path,
    read_registry,
)
from ftcomm_tracker.server.journal import FILE_NAME
from ftcomm_tracker.server.open_job import STORE_NAME, TOKEN_NAME
from ftcomm_tracker.server.recovery_log import INCIDENTS_FILE, PROGRESS_FILE
from ftcomm_tracker.server.state_dir import LOCK_NAME, StateLock, served_already
from ftcomm_tracker.server.store.beat import BEATS

LIST_EPILOG = """\b
Examples:
  ftcomm-tracker list
  ftcomm-tracker list --json | jq -r '.jobs[] | select(.state == "running").state_dir'
"""
CLEAN_EPILOG = """\b
Examples:
  ftcomm-tracker clean --dry-run
  ftcomm-tracker clean
  ftcomm-tracker clean --state-dir /var/lib/job1
"""
# The files that a tracker writes into its state directory; nothing else there is removed.
TRACKER_FILES = (
    FILE_NAME,
    f"{FILE_NAME}-wal",
    f"{FILE_NAME}-shm",
    f"{FILE_NAME}-journal",
    INCIDENTS_FILE,
    PROGRESS_FILE,
    TOKEN_NAME,
    LOCK_NAME,
)
# The folders of a store of checkpoints; nothing else in it is removed.
STORE_FOLDERS = tuple(name.rstrip("/") for name in (PREFIX, DATA, BEATS, PROBES, TEMPORARY))


@dataclass(frozen=True, slots=True)
class _Leftover:
    """A file to remove, a directory that is removed if it is empty then, or a job's own store."""

    path: Path
    is_store: bool = False

    def remove(self) -> bool:
        """Remove it; what cannot be removed is said, and left."""
        try:
            if self.is_store:
                self._empty_store()
            if self.path.is_dir() and not self.path.is_symlink():
                self.path.rmdir()
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            say_plainly(f"left {str(self.path)!r}: {error.strerror or error}")
            return False
        return True

    def _empty_store(self) -> None:
        for name in STORE_FOLDERS:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.path / name)


@click.command("list", short_help="List this user's jobs.", epilog=LIST_EPILOG)
@click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON document.")
def list_jobs(*, as_json: bool) -> None:
    """List the jobs of this user that run, and those that failed or left a state directory.

    The state is running, over (its journal says how), cut short (its process ended before the
    job did), gone (its state directory is gone too), or elsewhere (on another host, or in another
    container of this one).
    """
    run_and_exit(_list, as_json)


@click.command(short_help="Remove what failed jobs left.", epilog=CLEAN_EPILOG)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--state-dir", type=DIRECTORY, help="Remove the tracker's files in this one too.")
def clean(*, dry_run: bool, state_dir: Path | None) -> None:
    """Remove entries of jobs that do not run, and temporary directories of `run` and `serve`.

    A job that runs is left alone, and so is a state directory that a user chose, unless
    --state-dir names it. Of a directory only the tracker's own files are removed.
    """
    run_and_exit(_clean, dry_run, state_dir)


async def _list(as_json: bool) -> int:
    registry = read_registry()
    rows = [{**asdict(entry), "state": state_of(entry)} for entry in registry.entries]
    for path, reason in registry.damaged.items():
        say_plainly(f"ignored {str(path)!r}: it {reason}")
    if as_json:
        click.echo(json.dumps({"jobs": rows}))
        return 0
    click.echo("\n".join(_lines(registry.entries)) if rows else "no jobs")
    return 0


def state_of(entry: JobEntry) -> str:
    """The state of a job in words, from its process and its journal."""
    if not entry.is_here:
        return "elsewhere"
    if entry.is_running():
        return "running"
    try:
        last = last_state(Path(entry.state_dir))
    except (ConfigError, OSError):
        return "cut short"
    if last is None:
        return "gone"
    return "over" if last.durable.end else "cut short"


def _lines(entries: tuple[JobEntry, ...]) -> list[str]:
    rows = [("JOB", "STATE", "WORKERS", "PROCESS", "BEGAN", "STATE DIRECTORY")]
    rows += [
        (
            entry.job_id,
            state_of(entry),
            "?" if entry.workers == UNKNOWN_SIZE else str(entry.workers),
            f"{entry.pid} on {entry.host}",
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.began)),
            entry.state_dir,
        )
        for entry in entries
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


async def _clean(dry_run: bool, state_dir: Path | None) -> int:
    found: list[_Leftover] = []
    if state_dir is not None:
        found += _named(state_dir)
    registry = read_registry()
    for entry in registry.entries:
        if entry.is_here and not entry.is_running():
            try:
                if entry.temporary:
                    found += _unserved(Path(entry.state_dir), with_store=True)
            except ConfigError as error:
                say_plainly(f"left {entry.state_dir!r}: {error}")
                continue
            found.append(_Leftover(entry_path(entry)))
    found += map(_Leftover, registry.damaged)
    for leftover in found:
        if not dry_run and not leftover.remove():
            continue
        click.echo(f"{'would remove' if dry_run else 'removed'} {str(leftover.path)!r}")
    if not found:
        click.echo("nothing to remove")
    return 0


def _named(state_dir: Path) -> list[_Leftover]:
    """List the files to remove in a directory that the user names.

    Raises:
        ConfigError: it is no state directory, or a tracker serves from it, or may.
    """
    state_dir = state_dir.absolute()
    if not (state_dir / FILE_NAME).is_file():
        raise ConfigError(
            f"{state_dir} is not the state directory of a job: it has no {FILE_NAME}",
            remedy=f"name a directory that `{program_name()} list` shows",
        )
    found = _unserved(state_dir)
    if not found:
        raise served_already(state_dir)
    return found


def _unserved(state_dir: Path, *, with_store: bool = False) -> list[_Leftover]:
    """The tracker's files in a directory, and the directory; none if a tracker serves from it.

    Args:
        state_dir: the directory.
        with_store: the checkpoints in it too; those in a directory that a user chose stay.

    Raises:
        ConfigError: nobody can tell whether a tracker serves from it.
    """
    if state_dir.is_symlink() or not (state_dir / FILE_NAME).is_file():
        return []
    lock = StateLock.take(state_dir)
    if lock is None:
        return []
    lock.close()
    if not lock.keeps_others_out:
        raise ConfigError(
            f"a tracker may serve from {state_dir}: its file system has no locks, by which that"
            " would be known",
            remedy="see on all hosts that none does, and delete the directory by hand",
        )
    files = [state_dir / name for name in TRACKER_FILES]
    found = [_Leftover(path) for path in files if path.is_file() or path.is_symlink()]
    store = state_dir / STORE_NAME
    if with_store and store.is_dir() and not store.is_symlink():
        found.append(_Leftover(store, is_store=True))
    return [*found, _Leftover(state_dir)]
