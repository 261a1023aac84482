"""The commands `checkpoint ls`, `verify`, `gc` and `export`."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftcomm.durable.directory_store import TEMPORARY, DirectoryStore
from ftcomm.durable.store import LEFTOVER_AGE_S, DamagedRecordError
from tests.unit.durable.stored_job import SERIES, StoredJob
from tests.unit.tracker.test_cli import invoke

STATE = {"w": np.arange(2000.0)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two attempts: versions 1 to 3 of the first, and 4 of the second, which began from 3."""
    job = StoredJob(DirectoryStore(tmp_path / "store"))
    job.begin()
    job.attempt(1)
    for version in (1, 2, 3):
        last = job.version(1, version, STATE, ({"r": 0}, {"r": 1}))
    job.attempt(2, parent=last)
    job.version(2, 4, STATE)
    return tmp_path / "store"


def document(*arguments: str) -> Any:
    status, text = invoke("checkpoint", *arguments, "--json")
    return status, json.loads(text)


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in (root / "data").rglob("*.ftc")}


def test_ls_lists_attempts_and_versions(root: Path) -> None:
    status, found = document("ls", str(root))
    rows = found.pop("versions")
    assert (status, found) == (
        0,
        {
            "url": str(root),
            "series": SERIES,
            "world_size": 2,
            "finished": None,
            "attempts": [
                {"record": 2, "attempt": 1, "parent": None},
                {"record": 6, "attempt": 2, "parent": 5},
            ],
        },
    )
    keys = ("record", "attempt", "version", "objects", "missing", "state")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (3, 1, 1, 5, [], "complete"),
        (4, 1, 2, 5, [], "complete"),
        (5, 1, 3, 5, [], "complete"),
        (7, 2, 4, 3, [], "complete"),
    ]
    status, text = invoke("checkpoint", "ls", str(root))
    lines = text.splitlines()
    assert (status, lines[0]) == (0, f"job {SERIES}, 2 workers, 2 attempts, 4 versions")
    assert lines[-1].split()[:3] + lines[-1].split()[-1:] == ["7", "2", "4", "complete"]


def test_one_attempt_with_one_version_is_singular(tmp_path: Path) -> None:
    job = StoredJob(DirectoryStore(tmp_path / "store"))
    job.begin()
    job.attempt(1)
    job.version(1, 1, STATE)
    _, text = invoke("checkpoint", "ls", str(tmp_path / "store"))
    assert text.splitlines()[0] == f"job {SERIES}, 2 workers, 1 attempt, 1 version"


def test_verify_reads_every_byte(root: Path) -> None:
    status, text = invoke("checkpoint", "verify", str(root))
    assert (status, [line.split()[0] for line in text.splitlines()]) == (0, ["ok"] * 4)
    victim = next(each for each in sorted(files(root)) if each.startswith("data/1/2/local-1-1"))
    path = root / victim
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
    status, text = invoke("checkpoint", "verify", str(root))
    assert (status, text.splitlines()[1:3]) == (
        71,
        [
            "DAMAGED  version 2 of attempt 1 (record 4)",
            f"         object {victim} was changed: the digest of its bytes does not fit",
        ],
    )
    assert invoke("checkpoint", "verify", str(root), "--newest")[0] == 0
    path.unlink()
    status, found = document("verify", str(root))
    assert (status, [bool(row["damage"]) for row in found["versions"]]) == (
        71,
        [False, True, False, False],
    )
    assert found["versions"][1]["state"] == "incomplete"


def states(root: Path) -> list[str]:
    return [row["state"] for row in document("ls", str(root))[1]["versions"]]


def test_the_loss_of_the_newest_version_is_damage(root: Path, tmp_path: Path) -> None:
    """Neither --keep nor gc deletes it."""
    shutil.rmtree(root / "data")
    assert states(root) == ["deleted"] * 3 + ["incomplete"]
    for options in ((), ("--newest",)):
        status, found = document("verify", str(root), *options)
        damage = [(row["record"], len(row["damage"])) for row in found["versions"]]
        assert (status, damage) == (71, [(7, 3)])
    assert invoke("checkpoint", "export", str(root), str(tmp_path / "a.npz"))[0] == 71


def test_the_loss_of_the_version_that_an_attempt_began_from_is_damage(root: Path) -> None:
    StoredJob(DirectoryStore(root), 90).attempt(3, parent=5)
    shutil.rmtree(root / "data" / "1")
    assert states(root) == ["deleted", "deleted", "incomplete", "incomplete"]
    assert invoke("checkpoint", "verify", str(root))[0] == 71


@pytest.mark.parametrize("command", ["ls", "verify"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-1], "record chain/00000004.rec is cut short"),
        (lambda data: data[:20] + b"!" + data[21:], "record chain/00000004.rec was changed"),
        (lambda _: None, "record chain/00000004.rec of its chain is missing"),
    ],
)
def test_a_damaged_chain_is_told(
    root: Path, damage: Callable[[bytes], bytes | None], words: str, command: str
) -> None:
    """The remedy is not to verify it: that is what was done."""
    record = root / "chain" / "00000004.rec"
    data = damage(record.read_bytes())
    record.unlink()
    if data is not None:
        record.write_bytes(data)
    status, text = invoke("checkpoint", command, str(root))
    assert status == 71
    assert f"{root}: {words}" in text
    assert text.rstrip().endswith(f" - {DamagedRecordError.default_remedy}")
    assert f"{SERIES}, 2 workers" in text or "ok       version 4 of attempt 2" in text


@pytest.mark.parametrize("number", [2, 4])
def test_a_version_is_exported_past_a_damaged_record(
    root: Path, tmp_path: Path, number: int
) -> None:
    """Also past one of another kind, of which no job can go on."""
    (root / "chain" / f"{number:08d}.rec").unlink()
    status, text = invoke("checkpoint", "export", str(root), str(tmp_path / "a.npz"))
    assert (status, text.partition(":")[0]) == (0, "version 4 of attempt 2")
    assert invoke("checkpoint", "gc", str(root))[0] == 71


def test_an_older_version_is_exported_only_when_it_is_named(root: Path, tmp_path: Path) -> None:
    newest = root / "chain" / "00000007.rec"
    newest.write_bytes(newest.read_bytes()[:-1])
    status, text = invoke("checkpoint", "export", str(root), str(tmp_path / "a.npz"))
    assert (status, "record chain/00000007.rec is cut short" in text) == (71, True)
    assert "--record 5 exports version 3" in text
    assert not (tmp_path / "a.npz").exists()
    named = ("export", str(root), str(tmp_path / "a.npz"), "--record", "5")
    assert document(*named)[0] == 0


def test_a_record_of_a_later_format_needs_a_later_ftcomm(root: Path) -> None:
    record = root / "chain" / "00000004.rec"
    data = record.read_bytes()
    record.write_bytes(data[:8] + b"\2" + data[9:])
    _, text = invoke("checkpoint", "verify", str(root))
    assert f"{root}: record chain/00000004.rec has format 2" in text
    assert text.rstrip().endswith(" - use the ftcomm that wrote it")


def test_gc_keeps_the_newest_and_the_parent_of_the_attempt(root: Path) -> None:
    before = files(root)
    status, found = document("gc", str(root), "--keep", "1", "--dry-run")
    assert (status, files(root)) == (0, before)
    StoredJob(DirectoryStore(root), 90).attempt(3, parent=5)
    status, deleted = document("gc", str(root), "--keep", "1")
    # Version 3 is the parent; the object of the prelude stands with version 1 and belongs to all.
    kept = {each for each in before if each.startswith(("data/1/3/", "data/2/4/"))}
    assert files(root) == kept | {each for each in before if "prelude" in each}
    assert (status, set(deleted["deleted"])) == (0, before - files(root))
    assert set(found["deleted"]) > set(deleted["deleted"])  # of the dry run: attempt 2 has its own
    assert states(root) == ["deleted", "deleted", "complete", "complete"]
    assert invoke("checkpoint", "verify", str(root))[0] == 0
    assert document("gc", str(root), "--keep", "1")[1]["deleted"] == []


def test_gc_keeps_an_older_version_in_the_place_of_a_damaged_one(root: Path) -> None:
    """A job would find nothing else to go on from."""
    assert document("gc", str(root), "--keep", "2")[1]["damaged"] == []
    (newest, *_) = sorted((root / "data/2/4").glob("state*"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    before = files(root)
    status, found = document("gc", str(root), "--keep", "1")
    assert (status, found["damaged"], found["deleted"]) == (71, [7], [])
    assert files(root) == before
    status, text = invoke("checkpoint", "gc", str(root), "--keep", "1")
    assert status == 71
    assert "version 4 is damaged, and an older one stays in its place: object data/2/4/" in text
    status, found = document("gc", str(root), "--keep", "3")  # the others were deleted before
    assert (status, found["damaged"]) == (71, [7])


@pytest.mark.parametrize(
    ("number", "keep", "stays"),
    [
        (5, 1, False),  # version 3 is older than the newest, which is whole
        (5, 2, True),
        (5, 3, True),
        (4, 3, True),
        (7, 1, True),
    ],
)
def test_gc_keeps_what_a_damaged_record_may_name(
    root: Path, number: int, keep: int, stays: bool
) -> None:
    """The record may be put back from a copy of the store."""
    path = root / "chain" / f"{number:08d}.rec"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    text = invoke("checkpoint", "gc", str(root), "--keep", str(keep), "--dry-run")[1]
    fate = "stays" if stays else "is older than what is kept"
    assert f"record chain/{number:08d}.rec was changed: its digest does not fit; what it" in text
    assert f"may name {fate}: put the record back" in text
    status, found = document("gc", str(root), "--keep", str(keep))
    assert (status, found["damaged"]) == (71, [number])
    path.write_bytes(whole)
    row = next(row for row in document("ls", str(root))[1]["versions"] if row["record"] == number)
    assert row["state"] == ("complete" if stays else "deleted")


def test_gc_keeps_what_the_damaged_parent_of_the_newest_attempt_may_name(root: Path) -> None:
    StoredJob(DirectoryStore(root), 90).attempt(3, parent=5)
    path = root / "chain" / "00000005.rec"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    assert document("gc", str(root), "--keep", "1")[0] == 71
    path.write_bytes(whole)
    assert states(root)[2] == "complete"


def test_gc_deletes_what_no_damaged_record_can_name(root: Path) -> None:
    """Versions of the records before and behind it, and what an earlier attempt has left."""
    job = StoredJob(DirectoryStore(root))
    left = [job.object(1, version, "state", -1, 99, b"x", 1).name for version in (0, 3, 9)]
    path = root / "chain" / "00000004.rec"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    _, found = document("gc", str(root), "--keep", "9")
    assert found["deleted"] == left


def test_gc_does_not_count_what_was_deleted_by_hand(tmp_path: Path) -> None:
    """It reads past it to the newest whole version, which must be the one that stays."""
    root = tmp_path / "store"
    job = StoredJob(DirectoryStore(root))
    job.begin()
    job.attempt(1)
    for version in (1, 2, 3, 4):
        job.version(1, version, STATE)
    for version in (2, 3):
        shutil.rmtree(root / f"data/1/{version}")
    (newest, *_) = sorted((root / "data/1/4").glob("state*"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    before = files(root)
    for keep in ("1", "2"):
        status, found = document("gc", str(root), "--keep", keep)
        assert (status, found["damaged"], found["deleted"]) == (71, [6], [])
    assert files(root) == before


def test_gc_keeps_what_may_be_being_written(root: Path) -> None:
    job = StoredJob(DirectoryStore(root))
    unnamed = {
        (attempt, version): job.object(attempt, version, "state", -1, 99, b"x", 1).name
        for attempt, version in ((1, 9), (2, 3), (2, 4), (2, 5))
    }
    _, found = document("gc", str(root), "--keep", "9")
    # Attempt 1 is overtaken, and attempt 2 has recorded version 4.
    assert found["deleted"] == [unnamed[1, 9], unnamed[2, 3]]


def test_gc_removes_old_leftovers_alone(root: Path) -> None:
    old, new = root / TEMPORARY / "old", root / TEMPORARY / "new"
    for path in (old, new):
        path.write_bytes(b"half")
    now = new.stat().st_mtime
    os.utime(old, (now, now - LEFTOVER_AGE_S - 60))
    status, text = invoke("checkpoint", "gc", str(root), "--keep", "9")
    assert (status, text) == (0, "0 objects, 0 B; 1 leftover of dead writers\n")
    assert [path.name for path in (root / TEMPORARY).iterdir()] == ["new"]


def test_export_writes_the_newest_or_the_named_version(root: Path, tmp_path: Path) -> None:
    status, text = invoke("checkpoint", "export", str(root), str(tmp_path / "a.npz"))
    assert (status, text) == (
        0,
        f"version 4 of attempt 2: 1 array, 15.6 KiB, to {tmp_path / 'a.npz'}\n",
    )
    with np.load(tmp_path / "a.npz") as archive:
        assert archive["state.w"].tolist() == STATE["w"].tolist()
    status, found = document("export", str(root), str(tmp_path / "b.npz"), "--record", "3")
    assert (status, found["version"]) == (0, 1)
    status, text = invoke(
        "checkpoint", "export", str(root), str(tmp_path / "c.npz"), "--record", "2"
    )
    assert (status, "record 2 of" in text, "is no version" in text) == (64, True, True)


@pytest.mark.parametrize("command", ["ls", "verify", "gc", "export"])
def test_what_is_no_store_is_refused_and_left_alone(tmp_path: Path, command: str) -> None:
    more = (str(tmp_path / "out.npz"),) if command == "export" else ()
    status, text = invoke("checkpoint", command, str(tmp_path), *more)
    assert (status, "is no checkpoint store" in text) == (64, True)
    assert list(tmp_path.iterdir()) == []
    DirectoryStore(tmp_path / "empty")
    status, text = invoke("checkpoint", command, str(tmp_path / "empty"), *more)
    assert (status, "holds no checkpoints of a job" in text) == (64, True)
    status, text = invoke("checkpoint", command, "s3://key:SECRET@b/x", *more)
    assert (status, "SECRET" in text) == (64, False)


def test_a_finished_job_says_so(root: Path) -> None:
    StoredJob(DirectoryStore(root), 90).finish(2, 4)
    assert "finished at version 4" in invoke("checkpoint", "ls", str(root))[1]


def test_every_command_has_examples() -> None:
    for command in ("ls", "verify", "gc", "export"):
        assert "Examples:" in invoke("checkpoint", command, "--help")[1]
