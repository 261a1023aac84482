"""Everything is lost: with a store the job goes on from its newest durable version."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ftcomm.durable.chain import Chain
from ftcomm.durable.chain_state import chain_state
from ftcomm.durable.opening import open_store
from ftcomm.durable.records import VersionRecord
from tests.unit.tracker.test_launcher import run

pytestmark = pytest.mark.process

TRAIN = '''
import hashlib, os, signal, time
import numpy as np, ftcomm

LAUNCHER = os.getppid()  # behind its death there is another parent

def die_once(step, rank):
    """The first of the three that runs when all have come ends all, launcher included if WHOLE.

    One that died before the others would be started again in time to take a checkpoint from them.
    """
    mark = f"{MARKS}/{step}-{rank}"
    if not MARKS or step not in (3, 5) or os.path.exists(mark):
        return
    with open(f"{mark}~", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{mark}~", mark)
    others = [f"{MARKS}/{step}-{other}" for other in range(3) if other != rank]
    while not all(map(os.path.exists, others)):
        time.sleep(0.001)
    victims = [int(open(other).read()) for other in others]
    for pid in [LAUNCHER] * WHOLE + victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # another one was faster
    os.kill(os.getpid(), signal.SIGKILL)

with ftcomm.init() as comm:
    base = comm.allreduce(np.arange(3.0) * (comm.rank + 1))
    restored = comm.load_checkpoint(np.zeros(100), local_default=comm.rank)
    version, weights, own = restored
    print("from", version)
    for step in range(version, 8):
        weights = weights + comm.allreduce(np.sin(weights * (comm.rank + 1)) + step) + base[0]
        own = own * 31 % 1000 + step
        comm.checkpoint(weights, own, durable=DURABLE)
        die_once(step, comm.rank)
print("model", hashlib.sha256(weights.tobytes()).hexdigest(), own)
'''


def job(
    store: Path | str,
    *,
    marks: Path | None = None,
    whole: bool = False,
    option: str = "--checkpoint",
) -> subprocess.CompletedProcess[str]:
    """Run the script once more on `store`; it dies at each step of `marks` that has no mark."""
    head = f"MARKS, WHOLE, DURABLE = {str(marks or '')!r}, {whole}, True\n"
    options = (option, str(store), "--checkpoint-every", "1v")
    return run(*options, script=head + TRAIN, n=3)


def plain(marks: Path, *options: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run the script without a store that anybody named; it dies as in `job` if `marks` is there.

    Its checkpoints are durable if it has a store.
    """
    named = str(marks) if marks.exists() else ""
    has_store = options[:1] != ("--checkpoint",)
    head = f"MARKS, WHOLE, DURABLE = {named!r}, False, {has_store}\n"
    return run("--checkpoint-every", "1v", *options, script=head + TRAIN, n=3, **extra)


def models(done: subprocess.CompletedProcess[str]) -> set[str]:
    return set(re.findall(r"model (\w+ \w+)", done.stdout))


def versions(done: subprocess.CompletedProcess[str]) -> set[int]:
    return {int(version) for version in re.findall(r"from (\d+)", done.stdout)}


@pytest.mark.smoke
def test_all_workers_die_at_once_and_the_job_goes_on_by_itself(tmp_path: Path) -> None:
    clean = job(tmp_path / "clean")
    assert clean.returncode == 0, clean.stderr
    marks = tmp_path / "marks"
    marks.mkdir()
    killed = job(tmp_path / "store", marks=marks)
    assert killed.returncode == 0, killed.stderr
    assert models(killed) == models(clean)
    assert len(models(clean)) == 3  # a local state for each rank
    assert versions(killed) == {0, 4, 6}
    assert "attempt 3 begins from checkpoint 6" in killed.stderr


def test_workers_and_tracker_die_and_the_same_command_goes_on(tmp_path: Path) -> None:
    clean = job(tmp_path / "clean")
    marks, store = tmp_path / "marks", tmp_path / "store"
    marks.mkdir()
    ends = [job(store, marks=marks, whole=True) for _ in range(3)]
    assert [done.returncode for done in ends] == [-9, -9, 0], ends[-1].stderr
    assert [max(versions(done)) for done in ends] == [0, 4, 6]
    assert models(ends[-1]) == models(clean)
    again = job(store)
    assert again.returncode == 77  # it has finished
    assert "has finished at version 8" in again.stderr


def test_a_state_directory_is_a_store_too(tmp_path: Path) -> None:
    clean = job(tmp_path / "clean", option="--state-dir")
    marks, state = tmp_path / "marks", tmp_path / "state"
    marks.mkdir()
    ends = [job(state, marks=marks, whole=True, option="--state-dir") for _ in range(3)]
    assert [done.returncode for done in ends] == [-9, -9, 0], ends[-1].stderr
    assert [max(versions(done)) for done in ends] == [0, 4, 6]
    assert models(ends[-1]) == models(clean)
    assert f"{state / 'store'}: attempt 3 begins from checkpoint 6, written " in ends[-1].stderr
    again = job(state, option="--state-dir")
    assert (again.returncode, again.stdout, again.stderr.count("\n")) == (77, "", 1)
    assert f"the job in {state} has finished at version 8" in again.stderr


def test_a_plain_run_goes_on_by_itself_after_the_loss_of_all_workers(tmp_path: Path) -> None:
    """Its store is in the temporary state directory, and goes with the command."""
    clean = plain(tmp_path / "none")
    marks, place = tmp_path / "marks", tmp_path / "tmp"
    marks.mkdir()
    place.mkdir()
    killed = plain(marks, TMPDIR=str(place))
    assert (killed.returncode, models(killed)) == (0, models(clean)), killed.stderr
    assert versions(killed) == {0, 4, 6}
    assert "attempt 3 begins from checkpoint 6" in killed.stderr
    assert killed.stderr.count("to resume by another command give --state-dir DIR") == 1
    [left] = place.glob("ftcomm-*")  # for its journal, and incidents.jsonl
    assert not (left / "store").exists()
    again = plain(marks, "--state-dir", str(left))
    assert (again.returncode, again.stdout, again.stderr.count("\n")) == (77, "", 1)


def test_a_plain_run_without_a_store_makes_no_attempts(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    killed = plain(marks, "--checkpoint", "")
    assert (killed.returncode, versions(killed)) == (71, {0}), killed.stderr
    assert "cannot resume" not in killed.stderr


def test_a_plain_run_keeps_one_checkpoint_and_no_store_at_a_good_end(tmp_path: Path) -> None:
    """Older ones are deleted behind each record, before the next one is put."""
    script = f"""
import ftcomm
from pathlib import Path
with ftcomm.init() as comm:
    comm.load_checkpoint(0)
    for step in range(5):
        comm.checkpoint(step, durable=True)
    for path in Path({str(tmp_path)!r}).glob("*/store/data/*/*/*.ftc"):
        print("kept", path.parent.name)
"""
    done = run("--checkpoint-every", "1v", script=script, n=2, TMPDIR=str(tmp_path))
    assert (done.returncode, list(tmp_path.iterdir())) == (0, []), done.stderr
    assert {"5"} <= set(re.findall(r"kept (\d+)", done.stdout)) <= {"4", "5"}


def test_a_store_that_went_with_its_command_is_not_begun_anew(tmp_path: Path) -> None:
    failing = """
import ftcomm
with ftcomm.init() as comm:
    comm.load_checkpoint(0)
    comm.checkpoint(1, durable=True)
    comm.checkpoint(comm.rank)
"""
    done = run(script=failing, n=2, TMPDIR=str(tmp_path))
    assert done.returncode == 72, done.stderr
    [left] = tmp_path.glob("ftcomm-*")
    assert not (left / "store").exists()
    again = run("--state-dir", str(left), script=failing, n=2)
    assert (again.returncode, again.stdout, again.stderr.count("\n")) == (64, "", 1)
    assert f"the job in {left} has ended: CollectiveMismatchError" in again.stderr


@pytest.mark.smoke
def test_a_deadline_holds_while_a_store_that_is_away_is_waited_for(tmp_path: Path) -> None:
    store = tmp_path / "store"
    script = f"""
import ftcomm
from pathlib import Path
with ftcomm.init() as comm:
    comm.load_checkpoint(0)
    comm.checkpoint(1, durable=True)
    comm.barrier()
    if comm.rank == 0:
        Path({str(store)!r}).rename({str(tmp_path / "away")!r})
        Path({str(store)!r}).touch()
    comm.barrier()
    comm.checkpoint(2, durable=True, deadline=1)
"""
    done = run("--checkpoint", str(store), script=script, n=2)
    assert done.returncode == 80, done.stderr
    assert re.search(r"rank [01] gave checkpoint\(\) at \S+:\d+ a deadline of 1 s", done.stderr)
    assert "it had committed version 2 and was waiting for the store" in done.stderr


LARGE = """
import hashlib, os, signal
import numpy as np, ftcomm

with ftcomm.init() as comm:
    version, weights = comm.load_checkpoint(np.zeros(1 << 18))
    print("from", version)
    for step in range(version, 6):
        for call in range(4):  # each is held by two of the four ranks
            weights = weights + comm.allreduce(np.sin(weights * (comm.rank + 1)) + step + call)
        for _ in range(3):
            comm.barrier()
        if KILLS and step == 3 and version == 0 and comm.rank != 1:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.barrier()  # a survivor that offers the next checkpoint would have all that is needed
        comm.checkpoint(weights)
print("model", hashlib.sha256(weights.tobytes()).hexdigest(), "all")
"""


def test_the_holders_of_a_large_result_die_and_the_newest_checkpoint_is_used(
    tmp_path: Path,
) -> None:
    """A survivor writes the checkpoint that it holds, though none was due in the hour."""

    def large(name: str, *, kills: bool) -> subprocess.CompletedProcess[str]:
        options = ("--checkpoint", str(tmp_path / name), "--checkpoint-every", "1h")
        return run(*options, script=f"KILLS = {kills}\n" + LARGE, n=4)

    clean, killed = large("clean", kills=False), large("killed", kills=True)
    assert killed.returncode == 0, killed.stderr
    assert models(killed) == models(clean)
    assert versions(killed) == {0, 3}
    assert "checkpoint 3 is in the store" in killed.stderr


def newest_version(store: Path) -> VersionRecord:
    records = chain_state(Chain(open_store(str(store))).read()).versions
    return records[max(records)]


def newest_shard(store: Path) -> Path:
    """File of the newest version's last shard."""
    parts = newest_version(store).parts
    return store / max(each for each in parts if each.kind == "state").name


def flipped(content: bytes) -> bytes:
    return content[:-40] + bytes([content[-40] ^ 1]) + content[-39:]


def cut(content: bytes) -> bytes:
    return content[:-40]


def test_a_damaged_version_is_named_and_an_older_one_is_used(tmp_path: Path) -> None:
    """One after the other: a flipped byte, a cut file, a foreign one, and one that is not there."""
    clean = job(tmp_path / "clean")
    foreign = newest_shard(tmp_path / "clean").read_bytes()
    marks, store = tmp_path / "marks", tmp_path / "store"
    marks.mkdir()
    assert job(store, marks=marks, whole=True).returncode == -9
    damages: tuple[tuple[Callable[[bytes], bytes] | None, str], ...] = (
        (flipped, "was changed: the digest of its bytes does not fit"),
        (cut, "is cut short"),
        (lambda _: foreign, "is of job "),
        (None, "has no object"),
    )
    # Step 3 is marked anew, so each run ends behind version 4, which is damaged next.
    for damage, reason in damages:
        newest, shard = newest_version(store), newest_shard(store)
        content = shard.read_bytes()
        shard.unlink()
        if damage is not None:
            shard.write_bytes(damage(content))
        for mark in marks.glob("3-*"):
            mark.unlink()
        done = job(store, marks=marks, whole=True)
        assert done.returncode == -9, done.stderr
        assert f"checkpoint {newest.version} of the store is damaged" in done.stderr
        assert reason in done.stderr
        assert versions(done) == {newest.version - 1}
    done = job(store, marks=marks)
    assert done.returncode == 0, done.stderr
    assert models(done) == models(clean)


LAZILY = """
import numpy as np, ftcomm
from ftcomm.state.lazy import LazyState

packed, raw = {}, LazyState.raw
def counted(state):
    packed[id(state)] = state
    return raw(state)
LazyState.raw = counted

with ftcomm.init() as comm:
    comm.load_checkpoint(np.zeros(100))
    kept = []
    for step in range(1, 9):
        kept.append({"w": comm.allreduce(np.full(100, float(step)))})
        comm.checkpoint(kept[-1], lazy=True, durable=step == 8)
print("packed", len(packed))
"""


@pytest.mark.smoke
def test_a_lazy_version_is_packed_only_when_it_is_marked(tmp_path: Path) -> None:
    """The first is due and one of the next; the last, which waits for its record, is copied."""
    done = run("--checkpoint", str(tmp_path), "--checkpoint-every", "4v", script=LAZILY, n=3)
    assert done.returncode == 0, done.stderr
    records = chain_state(Chain(open_store(str(tmp_path))).read()).versions.values()
    recorded = [record.version for record in records]
    assert {1, 8} <= set(recorded) <= {1, 5, 6, 7, 8}
    assert re.findall(r"packed (\d+)", done.stdout) == [str(len(recorded) - 1)] * 3


APART = """
import numpy as np, ftcomm
from ftcomm.control import durable_tasks

with ftcomm.init() as comm:
    if comm.rank == 1:
        opened = durable_tasks.open_store
        durable_tasks.open_store = lambda url: opened(url + "-of-another-host")
    comm.load_checkpoint(np.zeros(100))
    comm.checkpoint(np.zeros(100), durable=True)
"""


def test_a_host_with_another_directory_at_that_place_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = run("--checkpoint", str(store), script=APART, n=2)
    assert done.returncode == 64, done.stderr
    other = f"the checkpoint store of rank 1: {store}-of-another-host of this host is not the store"
    assert other in done.stderr
    assert "give --checkpoint a directory that all hosts share" in done.stderr
    assert not list(Path(f"{store}-of-another-host").rglob("*.ftc"))
