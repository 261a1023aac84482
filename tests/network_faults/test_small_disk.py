"""The tracker's disk is full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftcomm.errors import ConfigError
from tests.conformance.plans import worker_environment
from tests.helpers.forker import die_with_parent
from tests.network_faults.jobs import Reference, job
from tests.network_faults.small_disk import SmallDisk, missing

pytestmark = pytest.mark.process

AT_A_GATE = """
import sys
import ftcomm
with ftcomm.init() as comm:
    comm.load_checkpoint(default=0)
    open(sys.argv[1]).close()
    comm.allreduce(1)
"""


@pytest.fixture(scope="session")
def disks() -> None:
    lacking = missing()
    if lacking:
        pytest.skip(lacking)


@pytest.mark.usefixtures("disks")
@pytest.mark.parametrize("unprivileged", [False, True])
def test_a_small_disk_can_be_filled_and_freed_and_is_seen_by_who_is_brought_there(
    tmp_path: Path, unprivileged: bool
) -> None:
    with SmallDisk(tmp_path, 1 << 16, unprivileged=unprivileged) as disk:
        assert disk.fill() == 1 << 16
        with pytest.raises(OSError, match="No space left"):
            (disk.path / "news").write_bytes(b"news")
        disk.free()
        (disk.path / "news").write_bytes(b"news")
        assert sorted(path.name for path in disk.path.iterdir()) == ["news"]
        assert not (tmp_path / "news").exists()
        listed = subprocess.run(
            [*disk.prefix, "ls", tmp_path], capture_output=True, text=True, check=True
        )
        assert listed.stdout == "news\n"
    assert not disk.path.exists()


@pytest.mark.usefixtures("disks")
@pytest.mark.trio
async def test_a_tracker_whose_disk_is_full_ends_and_is_started_again_when_there_is_room(
    tmp_path: Path, reference: Reference
) -> None:
    """It cannot journal the epoch that a death needs, so it must not announce it."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with SmallDisk(state, 1 << 20) as disk:
        async with job(tmp_path, 3, [6]) as made:
            token = ("--token-file", str(tmp_path / "token"))
            await made.serve(*token, "--reattach-within", "2", prefix=disk.prefix)
            for worker in range(3):
                await made.start(worker)
            await made.gate(6)
            disk.fill()
            made.kill("1")
            assert await made.end_of("tracker") == ConfigError.exit_code, made.scenario()
            said = "\n".join(made.tracker.lines)
            assert "journal.sqlite: database or disk is full" in said
            assert "make room" in said
            disk.free()
            await made.serve(prefix=disk.prefix)
            await made.start(1)
            await made.open_gate()
            assert await made.models() == {await reference(3)}, made.scenario()


@pytest.mark.slow
@pytest.mark.usefixtures("disks")
def test_a_launcher_whose_disk_is_full_says_so_and_ends_with_its_workers(tmp_path: Path) -> None:
    state, gate = tmp_path / "state", tmp_path / "gate"
    state.mkdir(mode=0o700)
    os.mkfifo(gate)
    with SmallDisk(state, 1 << 20) as disk:
        run = ["-m", "ftcomm_tracker", "run", "-v", "-n", "2", "--state-dir", str(state), "--"]
        command = [sys.executable, "-c", AT_A_GATE, str(gate)]
        with subprocess.Popen(
            [*disk.prefix, sys.executable, *run, *command],
            env={**worker_environment(), "FTCOMM_FAULTS": "1.0.0.0@enter"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the test has one thread
        ) as launcher:
            assert launcher.stdout is not None
            assert any("epoch 1 runs" in line for line in launcher.stdout)
            disk.fill()
            opened = os.open(gate, os.O_RDWR)
            said, _ = launcher.communicate(timeout=60)  # whose workers hold this pipe too
            os.close(opened)
    assert "journal.sqlite: database or disk is full - make room on its disk" in said
    assert launcher.returncode == ConfigError.exit_code
