"""The store in a directory: durable when it says so, never torn, one creator of a name."""

import contextlib
import errno
import os
import shutil
import stat
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ftcomm.durable.chain import Chain
from ftcomm.durable.directory_store import TEMPORARY, DirectoryStore
from ftcomm.durable.file_calls import SystemFiles
from ftcomm.durable.opening import find_sign, leave_sign, probe
from ftcomm.durable.records import AttemptRecord, SeriesRecord, VersionRecord
from ftcomm.durable.store import (
    LEFTOVER_AGE_S,
    DamagedObjectError,
    MissingObjectError,
    StoredObject,
    StoreError,
)
from ftcomm.errors import ConfigError
from tests.unit.durable.file_model import FileModel, PowerLostError

SERIES = SeriesRecord("job", 2, (0, 1), (), b"")
ROOT = Path("/store")


def version(number: int) -> VersionRecord:
    return VersionRecord(1, number, 1, 0, 8, b"d", 0, None, ())


def play(files: FileModel, done: list[str]) -> None:
    """Two processes write to one store: a chain, and two objects in a folder that is new."""
    first = DirectoryStore(ROOT, files)
    chain = Chain(first)
    chain.append(SERIES, b"1" * 16, attempt=0)
    done.append("chain/00000001.rec")
    chain.append(AttemptRecord(1, 0), b"2" * 16, attempt=1)
    done.append("chain/00000002.rec")
    first.put("data/1/1/state-a", [b"ab" * 8, b"c"])
    done.append("data/1/1/state-a")
    second = DirectoryStore(ROOT, files)
    second.put("data/1/1/state-b", [b"d" * 17])
    done.append("data/1/1/state-b")
    Chain(second).append(version(1), b"3" * 16, attempt=1)
    done.append("chain/00000003.rec")


def disks_after_power_loss() -> Any:
    whole = FileModel({Path("/")})
    play(whole, [])
    for calls in range(whole.calls + 1):
        files, done = FileModel({Path("/")}, calls_left=calls), []
        with contextlib.suppress(PowerLostError):
            play(files, done)
        files.calls_left = float("inf")
        for disk in files.after_power_loss():
            yield done, disk


def test_what_was_written_survives_a_loss_of_power_at_any_call_and_no_record_is_torn() -> None:
    states = 0
    for done, disk in disks_after_power_loss():
        states += 1
        store = DirectoryStore(ROOT, disk)
        names = {each.name for each in store.list("")}
        assert names >= set(done), done
        links = Chain(store).read()  # raises if one is torn or missing
        assert len(links) >= sum(name.startswith("chain/") for name in done)
        for name in names:
            if name.startswith("data/"):
                assert len(store.get(name)) == 17
    assert states > 300


def restart(files: FileModel, done: list[str]) -> None:
    """The tracker's next process, with the nonces that it drew before, and a worker's next."""
    store = DirectoryStore(ROOT, files)
    chain = Chain(store)
    for nonce, number in ((b"1" * 16, 1), (b"2" * 16, 2)):
        record = SERIES if number == 1 else AttemptRecord(1, 0)
        assert chain.append(record, nonce, attempt=number - 1) == number
        done.append(f"chain/{number:08d}.rec")
    store.put("data/1/1/state-r", [b"r" * 17])
    done.append("data/1/1/state-r")


def disks_after_death_restart_and_power_loss() -> Any:
    whole = FileModel({Path("/")})
    play(whole, [])
    for calls in range(whole.calls + 1):
        files, done = FileModel({Path("/")}, calls_left=calls), []
        with contextlib.suppress(PowerLostError):  # here: the process is killed
            play(files, [])
        files.calls_left = float("inf")
        restart(files, done)
        for disk in files.after_power_loss():
            yield calls, done, disk


def test_what_a_restarted_process_finds_is_durable_before_it_relies_on_it() -> None:
    """Its predecessor may have died between naming a record and making the name durable."""
    for calls, done, disk in disks_after_death_restart_and_power_loss():
        store = DirectoryStore(ROOT, disk)
        assert {each.name for each in store.list("")} >= set(done), calls
        assert [link.number for link in Chain(store).read()][:2] == [1, 2]
        assert store.get("data/1/1/state-r") == b"r" * 17


class LateListing(DirectoryStore):
    """A list made while records are put: it has the last one and lacks the one before."""

    def list(self, prefix: str) -> list[StoredObject]:
        found = super().list(prefix)
        return [*found[:-2], *found[-1:]]


def test_a_record_that_a_list_lacks_is_read_by_its_name(tmp_path: Path) -> None:
    chain = Chain(DirectoryStore(tmp_path))
    for number, record in enumerate((SERIES, AttemptRecord(1, 0), version(1)), 1):
        chain.append(record, bytes([number]) * 16, attempt=1)
    late = LateListing(tmp_path)
    assert [each.name[-5] for each in late.list("chain/")] == ["1", "3"]
    assert Chain(late).read() == chain.links
    late.delete("chain/00000002.rec")
    with pytest.raises(DamagedObjectError, match=r"record chain/00000002\.rec .* is missing"):
        Chain(late).read()


def test_leftovers_of_dead_writers_are_removed_and_files_being_written_stay(
    tmp_path: Path,
) -> None:
    store = DirectoryStore(tmp_path)
    store.put("data/a.ftc", [b"a"])
    old, new = tmp_path / TEMPORARY / "old", tmp_path / TEMPORARY / "new"
    for path in (old, new):
        path.write_bytes(b"half")
    now = new.stat().st_mtime
    os.utime(old, (now, now - LEFTOVER_AGE_S - 60))
    assert (store.remove_leftovers(), store.remove_leftovers()) == (1, 0)
    assert list((tmp_path / TEMPORARY).iterdir()) == [new]
    assert [each.name for each in store.list("")] == ["data/a.ftc"]


def test_opening_without_creating_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no checkpoint store"):
        DirectoryStore(tmp_path, create=False)
    with pytest.raises(ConfigError, match="is no checkpoint store"):
        DirectoryStore(tmp_path / "none", create=False)
    assert list(tmp_path.iterdir()) == []
    DirectoryStore(tmp_path).put("data/a", [b"a"])
    assert DirectoryStore(tmp_path, create=False).get("data/a") == b"a"


def test_objects_come_back_whole_and_in_parts(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "new" / "store")
    assert store.put("data/a.ftc", [b"abc", memoryview(b"defg")]) == 7
    assert store.put_new("chain/1.rec", b"xyz") is True
    out = bytearray(4)
    assert store.read_into("data/a.ftc", 2, memoryview(out)) == 4
    assert (store.get("data/a.ftc"), bytes(out)) == (b"abcdefg", b"cdef")
    assert store.read_into("data/a.ftc", 5, memoryview(out)) == 2
    assert store.list("") == [StoredObject("chain/1.rec", 3), StoredObject("data/a.ftc", 7)]
    assert store.list("data/a") == [StoredObject("data/a.ftc", 7)]
    store.delete("data/a.ftc")
    store.delete("data/a.ftc")
    assert store.list("data/") == []


def test_a_folder_that_somebody_removes_is_made_anew_for_objects_alone(tmp_path: Path) -> None:
    """A chain that begins anew behind its lost records would be one that nobody can read."""
    store = DirectoryStore(tmp_path)
    store.put("data/1/7/a.ftc", [b"a"])
    store.put_new("chain/1.rec", b"r")
    shutil.rmtree(tmp_path / "data")
    shutil.rmtree(tmp_path / "chain")
    with pytest.raises(StoreError, match=r"data/1/7/b.ftc: No such file"):
        store.put("data/1/7/b.ftc", [b"b"])
    assert store.put("data/1/7/b.ftc", [b"b"]) == 1
    for _ in range(2):
        with pytest.raises(StoreError, match=r"chain/2.rec: No such file"):
            store.put_new("chain/2.rec", b"r")
    assert store.list("") == [StoredObject("data/1/7/b.ftc", 1)]


def test_the_next_attempt_can_leave_its_sign_where_somebody_has_removed_the_last_one(
    tmp_path: Path,
) -> None:
    store = DirectoryStore(tmp_path)
    probe(store)
    leave_sign(store, "job.1")
    shutil.rmtree(tmp_path / "probe")
    with pytest.raises(StoreError, match=r"probe/\w+: No such file"):
        probe(store)
    probe(store)
    leave_sign(store, "job.2")
    find_sign(store, "job.2")


def test_files_that_no_store_writes_are_not_listed(tmp_path: Path) -> None:
    """NFS keeps a deleted file under such a name while somebody reads it, and desktops add some."""
    store = DirectoryStore(tmp_path)
    store.put("beat/a-1", [b"x"])
    for name in (".nfs00001", ".DS_Store", "a copy", "ü", "a:1"):
        (tmp_path / "beat" / name).write_bytes(b"y")
    assert store.list("beat/") == [StoredObject("beat/a-1", 1)]


def test_a_name_is_given_once(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    assert [store.put_new("chain/1.rec", data) for data in (b"a", b"b")] == [True, False]
    with pytest.raises(StoreError, match="exists, and its name was to be new"):
        store.put("chain/1.rec", [b"c"])
    assert store.get("chain/1.rec") == b"a"
    assert list((tmp_path / TEMPORARY).iterdir()) == []


def _race(root: Path, number: int) -> bool:
    return DirectoryStore(root).put_new("chain/1.rec", str(number).encode())


def test_of_many_processes_one_creates_the_name(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        won = list(pool.map(_race, [tmp_path] * 16, range(16)))
    assert won.count(True) == 1
    assert DirectoryStore(tmp_path).get("chain/1.rec") == str(won.index(True)).encode()


def test_only_the_user_can_read_what_is_stored(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.put("data/1/a.ftc", [b"a"])
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "store").rglob("*")
    }
    assert modes == {TEMPORARY: 0o700, "data": 0o700, "1": 0o700, "a.ftc": 0o600}


class WithoutLinks(SystemFiles):
    """A file system such as exFAT: no hard links."""

    def name_new(self, old: Path, new: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "hardlink_to", _refuse_link)
            super().name_new(old, new)


def _refuse_link(self: Path, target: Path) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_a_file_system_without_links_renames_without_replacing(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, WithoutLinks())
    assert [store.put_new("chain/1.rec", data) for data in (b"a", b"b")] == [True, False]
    assert store.get("chain/1.rec") == b"a"
    assert list((tmp_path / TEMPORARY).iterdir()) == []


class Full(SystemFiles):
    """A disk that is full after some bytes."""

    def write(self, file: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_an_error_that_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, Full())
    with pytest.raises(StoreError, match=r"No space left on device.*make room on its disk"):
        store.put("data/1/a.ftc", [b"a"])
    assert store.list("") == []
    assert list((tmp_path / TEMPORARY).iterdir()) == []


def test_a_store_that_has_gone_is_not_damage(tmp_path: Path) -> None:
    """Else an older version, or none, would be resumed while a disk is not mounted."""
    store = DirectoryStore(tmp_path / "mounted")
    store.put("chain/1.rec", [b"a"])
    with pytest.raises(MissingObjectError):
        store.get("chain/2.rec")
    (tmp_path / "mounted").rename(tmp_path / "elsewhere")
    for read in (lambda: store.get("chain/1.rec"), lambda: store.list("chain/")):
        with pytest.raises(StoreError):
            read()


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used: Not a directory"):
        DirectoryStore(tmp_path / "file")


@pytest.mark.parametrize("name", ["", "../x", "a//b", "/etc/x", "a/.hid", "a b", "a\n", "x" * 201])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    store = DirectoryStore(tmp_path)
    with pytest.raises(ValueError, match="is no name of an object"):
        store.put(name, [b"a"])
