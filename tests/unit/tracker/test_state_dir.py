"""The state directory of a tracker that runs: deleted under it, and asked for by another one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import trio
import trio.testing

from ftcomm.config.environment import read_token
from ftcomm.errors import ConfigError
from ftcomm.protocol.messages import Revoke, Welcome
from ftcomm_tracker.server.journal import Journal, SupersededError, last_written, remembered
from ftcomm_tracker.server.open_job import ServeOptions, open_job
from ftcomm_tracker.server.state_dir import StateLock
from ftcomm_tracker.server.state_dir_watch import LOOK_S
from tests.unit.tracker.harness import client, hello, tracker
from tests.unit.tracker.serving import CLI, serve
from tests.unit.tracker.test_launcher import environment


@pytest.mark.trio
async def test_a_deleted_directory_is_made_again_before_anything_is_told(tmp_path: Path) -> None:
    home = tmp_path / "state"
    async with tracker(home) as job, client(job) as a, client(job) as b:
        before = (remembered(home), read_token(job.token_file))
        await a.send(hello("0"))
        await a.receive_a(Welcome)
        shutil.rmtree(home)
        await b.send(hello("1"))
        await b.receive_a(Revoke)  # the group is complete, and that is journalled
        written = last_written(home)
        assert written is not None
        assert [place[0] for place in written[0]["places"]] == ["0", "1"]  # type: ignore[attr-defined]  # as JSON
        assert (remembered(home), read_token(job.token_file)) == before
        with pytest.raises(ConfigError, match=r"serves the job.*give --take-over;"):
            await open_job(ServeOptions(state_dir=home))


@pytest.mark.trio
async def test_a_deleted_directory_is_made_again_though_nothing_happens(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    home = tmp_path / "state"
    async with tracker(home, detect_within=60.0) as job:
        before = (job.durable.job_id, job.server.address, job.token_file.read_text())
        shutil.rmtree(home)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(LOOK_S)
        await trio.testing.wait_all_tasks_blocked()
    async with tracker(home, detect_within=60.0) as again:
        assert before == (
            again.durable.job_id,
            again.server.address,
            again.token_file.read_text(),
        )


@pytest.mark.trio
async def test_a_second_tracker_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job:
        before = remembered(tmp_path)
        for options in (
            ServeOptions(state_dir=tmp_path),
            ServeOptions(state_dir=tmp_path, host="localhost", port=job.server.address[1] ^ 1),
        ):
            with pytest.raises(ConfigError) as refused:
                await open_job(options)
            assert "serves the job in" in refused.value.cause
            assert "--take-over" in str(refused.value)
        assert remembered(tmp_path) == before
        job.journal.check()


@pytest.mark.trio
async def test_a_tracker_that_was_replaced_ends_though_nothing_happens(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    assert autojump_clock
    job = await open_job(ServeOptions(2, state_dir=tmp_path))
    newer = Journal.open(tmp_path)
    with pytest.raises(SupersededError):
        await job.server.run()
    newer.close()
    job.journal.close()


@pytest.mark.process
def test_serve_takes_a_job_over_only_if_it_is_told_to(tmp_path: Path) -> None:
    with serve(tmp_path, "-n", "2") as (first, ready):
        again = [*CLI, "serve", "--state-dir", str(tmp_path)]
        refused = subprocess.run(
            again, env=environment(), capture_output=True, text=True, timeout=60, check=False
        )
        assert refused.returncode == ConfigError.exit_code
        assert f"a tracker (pid {first.pid} on " in refused.stderr
        with serve(tmp_path, "--take-over") as (_, taken):
            assert first.wait(timeout=60) == SupersededError.exit_code
            assert taken == ready


def test_a_lock_is_given_back_while_a_forked_child_has_a_copy_of_its_file(tmp_path: Path) -> None:
    """A child closes its copy when it first runs, and may be late."""
    lock = StateLock.take(tmp_path)
    assert lock is not None
    copy = os.dup(lock._file)
    lock.close()
    again = StateLock.take(tmp_path)
    os.close(copy)
    assert again is not None
    again.close()


def test_a_forked_child_that_closes_its_copy_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    lock = StateLock.take(tmp_path)
    assert lock is not None
    StateLock(lock.path, os.dup(lock._file)).abandon()
    assert StateLock.take(tmp_path) is None
    lock.close()
