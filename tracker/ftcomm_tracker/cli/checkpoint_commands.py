"""The commands `checkpoint ls`, `verify`, `gc` and `export`: a job's durable checkpoints."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from ftcomm.config.plurals import counted
from ftcomm.durable.chain import Chain
from ftcomm.durable.chain_state import ChainState, chain_state
from ftcomm.durable.export import export_version
from ftcomm.durable.garbage import DATA, garbage, needed_though_damaged
from ftcomm.durable.opening import open_store
from ftcomm.durable.records import SeriesRecord, VersionRecord
from ftcomm.durable.store import DamagedRecordError, MissingObjectError, Store
from ftcomm.durable.verification import damage_of, is_deleted, loss_of
from ftcomm.errors import ConfigError
from ftcomm.protocol.position import PRELUDE
from ftcomm_tracker.cli.options import FILE, run_and_exit, with_options
from ftcomm_tracker.core.reporting.text_table import aligned

DAMAGED: Final = MissingObjectError.exit_code
DEFAULT_KEEP = 3  # versions, as --keep of a job
LEAST_KEEP = 1  # versions: the least that --keep of a job and of gc can be
HEADS = ("RECORD", "ATTEMPT", "VERSION", "WRITTEN", "STATE SIZE", "OBJECTS", "STATE")
COMPLETE, INCOMPLETE, DELETED = "complete", "incomplete", "deleted"

CHECKPOINT_EPILOG = """\b
Examples:
  ftcomm-tracker checkpoint ls /shared/job1
  ftcomm-tracker checkpoint verify s3://bucket/job1
  ftcomm-tracker checkpoint gc /shared/job1 --keep 2 --dry-run
  ftcomm-tracker checkpoint export /shared/job1 model.npz
"""
LS_EPILOG = """\b
Examples:
  ftcomm-tracker checkpoint ls /shared/job1
  ftcomm-tracker checkpoint ls s3://bucket/job1 --json | jq '.versions[-1].version'
"""
VERIFY_EPILOG = """\b
Examples:
  ftcomm-tracker checkpoint verify /shared/job1
  ftcomm-tracker checkpoint verify s3://bucket/job1 --newest && echo good
"""
GC_EPILOG = """\b
Examples:
  ftcomm-tracker checkpoint gc /shared/job1 --dry-run
  ftcomm-tracker checkpoint gc /shared/job1 --keep 1
"""
EXPORT_EPILOG = """\b
Examples:
  ftcomm-tracker checkpoint export /shared/job1 model.npz
  ftcomm-tracker checkpoint export s3://bucket/job1 old.npz --record 17
\b
Then, in Python, without ftcomm:
  archive = numpy.load("model.npz")
  document = json.loads(archive["checkpoint.json"])
"""
_URL = click.argument("url", metavar="URL")
_JSON = click.option("--json", "as_json", is_flag=True, help="For scripts: one JSON document.")
_STORE_OPTIONS = (_URL, _JSON)


@dataclass(frozen=True, slots=True)
class OpenedSeries:
    """A store, and what its chain says."""

    store: Store
    series: SeriesRecord
    state: ChainState


@click.group(
    "checkpoint", short_help="List, verify, delete, export stored checkpoints.",
    epilog=CHECKPOINT_EPILOG,
)  # fmt: skip
def checkpoint() -> None:
    """Look after the durable checkpoints of a job; the job may run meanwhile.

    URL is the job's --checkpoint: a directory, or s3://BUCKET/PREFIX (also gs:// and az://), for
    which the extra `durable` is needed. Credentials come from the environment.
    """


@checkpoint.command("ls", short_help="List the versions in a store.", epilog=LS_EPILOG)
@with_options(_STORE_OPTIONS)
def ls(url: str, *, as_json: bool) -> None:
    """List attempts and versions: when they were written, how large they are, what is there.

    A version is complete (every object that its record names is there), incomplete, or deleted
    (by --keep or gc; its record stays). The newest is never deleted: without its objects it is
    incomplete. Only verify reads the objects themselves. Damaged records are named behind the list,
    and it ends with 71.
    """
    run_and_exit(_ls, url, as_json)


@checkpoint.command("verify", short_help="Read every byte of a store.", epilog=VERIFY_EPILOG)
@with_options(_STORE_OPTIONS)
@click.option("--newest", is_flag=True, help="Only the newest version.")
def verify(url: str, *, as_json: bool, newest: bool) -> None:
    """Read every byte of every version that is not deleted, and compare the digests.

    Ends with 0 if all is as it was written, with 71 if a record or an object is damaged or
    missing, and with 69 if the store could not be read, which says nothing of its content.
    """
    run_and_exit(_verify, url, as_json, newest)


@checkpoint.command("gc", short_help="Delete what is not kept.", epilog=GC_EPILOG)
@with_options(_STORE_OPTIONS)
@click.option(
    "--keep",
    type=click.IntRange(LEAST_KEEP),
    default=DEFAULT_KEEP,
    show_default=True,
    help="Number of the newest versions to keep.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
def gc(url: str, *, as_json: bool, keep: int, dry_run: bool) -> None:
    """Delete the objects of versions older than the --keep newest, and what dead writers left.

    The version from which the newest attempt began stays until that attempt has --keep of its own.
    Records are never deleted: they are small, and the next attempt reads them.

    Every byte of the newest versions is read first. A damaged one does not count for --keep, and an
    older one stays in its place. What a damaged record may name stays too, if its version would.
    The command ends with 71 then.
    """
    run_and_exit(_gc, url, as_json, keep, dry_run)


@checkpoint.command("export", short_help="Write a version for numpy.", epilog=EXPORT_EPILOG)
@_URL
@click.argument("path", metavar="FILE", type=FILE)
@click.option(
    "--record", type=click.IntRange(1), help="Record to export; see `ls` [default: newest]."
)
@_JSON
def export(url: str, path: Path, *, record: int | None, as_json: bool) -> None:
    """Write one version to the new FILE, an .npz that numpy reads without ftcomm.

    It holds every array of the state and of the local states, and checkpoint.json, which says
    where each belongs and holds everything else. All bytes are verified. Nothing is unpickled, and
    the script's own types appear as plain content. Needs as much memory as the state is large.
    """
    run_and_exit(_export, url, path, record, as_json)


async def _ls(url: str, as_json: bool) -> int:
    opened = _opened(url)
    present = _present(opened.store)
    rows = [_row(opened, number, present) for number in sorted(opened.state.versions)]
    if as_json:
        click.echo(json.dumps({**_summary(opened), "versions": rows}))
    else:
        click.echo(_headline(opened))
        if rows:
            click.echo(_table(rows))
    _tell_damaged_records(opened)
    return 0


async def _verify(url: str, as_json: bool, newest: bool) -> int:
    opened = _opened(url)
    present = _present(opened.store)
    numbers = [
        number
        for number in sorted(opened.state.versions)
        if _state_of(opened, number, present) != DELETED
    ]
    found = []
    for number in numbers[-1:] if newest else numbers:
        record = opened.state.versions[number]
        damage = damage_of(opened.store, opened.series.series, record)
        found.append({**_row(opened, number, present), "damage": damage})
        if not as_json:
            click.echo(_verified(number, record, damage))
    if as_json:
        click.echo(json.dumps({**_summary(opened), "versions": found}))
    elif not found:
        click.echo("no version to verify")
    _tell_damaged_records(opened)
    return DAMAGED if any(each["damage"] for each in found) else 0


async def _gc(url: str, as_json: bool, keep: int, dry_run: bool) -> int:
    store = open_store(url, create=False)
    objects = store.list(DATA)  # before the chain: what is written from now on is not in it
    opened = _read(Chain(store))
    present = {each.name: each.nbytes for each in objects}
    reach, damaged = _reach_of(opened, keep, present)
    deleted = garbage(opened.state, objects, reach)
    numbers = sorted({*damaged, *opened.state.damaged})
    leftovers = 0
    if not dry_run:
        for each in deleted:
            store.delete(each.name)
        leftovers = store.remove_leftovers()
    nbytes = sum(each.nbytes for each in deleted)
    if as_json:
        names = [each.name for each in deleted]
        click.echo(
            json.dumps(
                {
                    "deleted": names,
                    "nbytes": nbytes,
                    "leftovers": leftovers,
                    "dry_run": dry_run,
                    "damaged": numbers,
                }
            )
        )
        return DAMAGED if numbers else 0
    for each in deleted:
        click.echo(f"{'would delete' if dry_run else 'deleted'} {each.name}")
    counts = f"{counted(len(deleted), 'object')}, {_size(nbytes)}"
    click.echo(f"{counts}; {counted(leftovers, 'leftover')} of dead writers")
    for number, why in damaged.items():
        version = opened.state.versions[number].version
        click.echo(f"version {version} is damaged, and an older one stays in its place: {why}")
    needed = needed_though_damaged(opened.state, reach)
    for number, why in opened.state.damaged.items():
        fate = "stays" if number in needed else "is older than what is kept"
        click.echo(f"{why}; what it may name {fate}: put the record back from a copy of the store")
    return DAMAGED if numbers else 0


def _reach_of(
    opened: OpenedSeries, keep: int, present: dict[str, int]
) -> tuple[int, dict[int, str]]:
    """Count the newest versions, so that `keep` whole ones are among them if the store has them.

    Returns:
        their number; and by record those of them that are damaged, and why.
    """
    damaged: dict[int, str] = {}
    whole = reach = 0
    for count, number in enumerate(sorted(opened.state.versions, reverse=True), 1):
        if whole == keep:
            break
        if _state_of(opened, number, present) == DELETED:
            continue
        reach = count
        why, _ = loss_of(opened.store, opened.series.series, opened.state.versions[number])
        if why:
            damaged[number] = why
        else:
            whole += 1
    return max(reach, keep), damaged


async def _export(url: str, path: Path, number: int | None, as_json: bool) -> int:
    opened = _opened(url)
    chosen = _newest(opened) if number is None else number
    if chosen in opened.state.damaged:
        cause = f"{opened.store.url}: {opened.state.damaged[chosen]}"
        raise DamagedRecordError(cause, remedy=_another(opened))
    record = opened.state.versions.get(chosen)
    if record is None:
        raise ConfigError(
            f"record {chosen} of {opened.store.url} is no version",
            remedy=f"see ftcomm-tracker checkpoint ls {opened.store.url}",
        )
    written = export_version(opened.store, opened.series.series, record, path)
    if as_json:
        document = {"file": str(path), "arrays": written.arrays, "nbytes": written.nbytes}
        click.echo(json.dumps({**document, "attempt": record.attempt, "version": record.version}))
        return 0
    click.echo(
        f"version {record.version} of attempt {record.attempt}: {counted(written.arrays, 'array')},"
        f" {_size(written.nbytes)}, to {path}"
    )
    return 0


def _newest(opened: OpenedSeries) -> int:
    """Record number of the newest version, or of a later record that may be one and is damaged.

    Raises:
        ConfigError: there is none.
    """
    numbers = [*opened.state.versions, *opened.state.damaged]
    if not numbers:
        raise ConfigError(f"{opened.store.url} has no version yet")
    return max(numbers)


def _another(opened: OpenedSeries) -> str | None:
    """Remedy of who wants a version whose record is damaged; None where there is no other one."""
    if not opened.state.versions:
        return None
    number = max(opened.state.versions)
    version = opened.state.versions[number].version
    return f"put it back from a copy; --record {number} exports version {version}"


# --- reading -------------------------------------------------------------------------------------


def _opened(url: str) -> OpenedSeries:
    """Read a store, and past records that are damaged, but for the first."""
    return _read(Chain(open_store(url, create=False), reads_past_damage=True))


def _read(chain: Chain) -> OpenedSeries:
    """Read the chain of a store.

    Raises:
        ConfigError: it is empty.
        DamagedRecordError: a record is damaged.
    """
    state, store = chain_state(chain.read()), chain.store
    if state.series is None:
        raise ConfigError(
            f"{store.url} holds no checkpoints of a job", remedy="give the job's --checkpoint"
        )
    return OpenedSeries(store, state.series, state)


def _present(store: Store) -> dict[str, int]:
    return {each.name: each.nbytes for each in store.list(DATA)}


def _missing(record: VersionRecord, present: dict[str, int]) -> list[str]:
    """Names of the objects that are not there, or smaller than their raw bytes."""
    return [part.name for part in record.parts if present.get(part.name, -1) < part.nbytes]


def _state_of(opened: OpenedSeries, number: int, present: dict[str, int]) -> str:
    record = opened.state.versions[number]
    if not _missing(record, present):
        return COMPLETE
    # The store does not say how many are kept. Every job keeps this many: their loss is damage.
    is_kept = number in opened.state.kept(LEAST_KEEP)
    return DELETED if is_deleted(record, present) and not is_kept else INCOMPLETE


def _tell_damaged_records(opened: OpenedSeries) -> None:
    """End with the damaged records of the chain, if there are any; the versions have been told.

    Raises:
        DamagedRecordError: there are.
    """
    damaged = opened.state.damaged
    if damaged:
        causes = "; ".join(damaged[number] for number in sorted(damaged))
        raise DamagedRecordError(f"{opened.store.url}: {causes}")


# --- output --------------------------------------------------------------------------------------


def _summary(opened: OpenedSeries) -> dict[str, Any]:
    state = opened.state
    return {
        "url": opened.store.url,
        "series": opened.series.series,
        "world_size": opened.series.world_size,
        "finished": None if state.finished == PRELUDE else state.finished,
        "attempts": [
            {"record": number, "attempt": each.attempt, "parent": each.parent or None}
            for number, each in sorted(state.attempts.items())
        ],
    }


def _row(opened: OpenedSeries, number: int, present: dict[str, int]) -> dict[str, Any]:
    record = opened.state.versions[number]
    return {
        "record": number,
        "attempt": record.attempt,
        "version": record.version,
        "written_at": record.written_at / 1e6,
        "nbytes": record.nbytes,
        "stored_nbytes": sum(present.get(part.name, 0) for part in record.parts),
        "objects": len(record.parts),
        "missing": _missing(record, present),
        "state": _state_of(opened, number, present),
    }


def _headline(opened: OpenedSeries) -> str:
    state, series = opened.state, opened.series
    words = [f"job {series.series}", counted(series.world_size, "worker")]
    words.append(counted(len(state.attempts), "attempt"))
    words.append(counted(len(state.versions), "version"))
    if state.finished != PRELUDE:
        words.append(f"finished at version {state.finished}")
    return ", ".join(words)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        (
            row["record"],
            row["attempt"],
            row["version"],
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["written_at"])),
            _size(row["nbytes"]),
            row["objects"],
            _in_words(row),
        )
        for row in rows
    ]
    return aligned([HEADS, *cells])


def _in_words(row: dict[str, Any]) -> str:
    if row["state"] != INCOMPLETE:
        return str(row["state"])
    missing = counted(len(row["missing"]), "object")
    return f"incomplete: {missing} missing, such as {row['missing'][0]}"


def _verified(number: int, record: VersionRecord, damage: Sequence[str]) -> str:
    name = f"version {record.version} of attempt {record.attempt} (record {number})"
    if not damage:
        return f"ok       {name}: {counted(len(record.parts), 'object')}, {_size(record.nbytes)}"
    return "\n".join([f"DAMAGED  {name}", *(f"         {each}" for each in damage)])


def _size(nbytes: int) -> str:
    """Write a size for people, as ``1.5 MiB``."""
    size, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{size:.1f} {unit}"
