"""Records that an incarnation writes of itself."""

import logging
import os
from pathlib import Path

import pytest

from ftcomm.diagnostics.history import Ended, Over, Planned, Raised, Resources
from ftcomm.diagnostics.logs import JobLogger, LogContext
from ftcomm.diagnostics.recorder import Recorder
from ftcomm.errors import ConfigError, FencedError
from ftcomm.protocol.messages import Member
from ftcomm.protocol.position import START
from ftcomm.recovery.machine import WorkerMachine
from ftcomm.recovery.states import Identity, MachineLimits
from ftcomm_chaos.history import read_history

LOG = JobLogger(LogContext())


def member_of(epoch: int) -> WorkerMachine:
    core = WorkerMachine(Identity("w1", b"nonce", "host", "", 0), MachineLimits(), now=0.0)
    (
        core.view.epoch,
        core.view.rank,
        core.contact.world_size,
        core.contact.incarnation,
        core.contact.job_id,
    ) = epoch, 0, 1, 2, "job"
    core.view.members = (Member(0, "w1", 2, "host", "", 0),)
    return core


def test_nothing_is_written_before_the_first_plan(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "new" / "folder", LOG)
    recorder.note(member_of(epoch=0))
    recorder.end("left", "")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_each_plan_and_the_end_of_a_process_are_noted_once(tmp_path: Path) -> None:
    recorder, core = Recorder(tmp_path, LOG), member_of(epoch=3)
    recorder.note(core)
    recorder.note(core)
    core.view.epoch, core.progress.position = 5, START.next()
    recorder.note(core)
    core.view.error = FencedError("the place is taken")
    recorder.note(core)
    recorder.note(core)
    recorder.end("FencedError", "the place is taken")
    (incarnation,) = read_history(tmp_path).records
    members = (("w1", 2),)
    assert (incarnation.name, [line.event for line in incarnation.lines]) == (
        "w1-2",
        [
            Planned(3, 0, START, START, members),
            Planned(5, 0, START.next(), START, members),
            Over("FencedError", "the place is taken", 5, START.next()),
            Ended("FencedError", "the place is taken"),
        ],
    )


def test_resources_are_noted_at_checkpoints_and_now_and_then(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, LOG)
    recorder.note(member_of(epoch=1))
    recorder.count_call(is_checkpoint=True)
    for _ in range(255):
        recorder.count_call(is_checkpoint=False)
    recorder.end("closed", "")
    (incarnation,) = read_history(tmp_path).records
    taken = [line.event for line in incarnation.lines if isinstance(line.event, Resources)]
    assert len(taken) == 2
    assert all(sample.rss > 1 << 20 and sample.fds > 2 for sample in taken)


def test_whatever_an_exception_says_can_be_read(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, LOG)
    recorder.note(member_of(epoch=1))
    recorder.write(Raised(START, "allreduce", "ValueError", "x" * 10_000, 1))
    recorder.end("left", "no file \udcff")  # as the system gives names that are not UTF-8
    (incarnation,) = read_history(tmp_path).records
    assert [line.event for line in incarnation.lines][-2:] == [
        Raised(START, "allreduce", "ValueError", "x" * 4096, 1),
        Ended("left", "no file ?"),
    ]


def test_a_full_disk_ends_the_history_and_not_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(os, "close", closed.append)
    (tmp_path / "w1-2.jsonl").symlink_to("/dev/full")
    recorder = Recorder(tmp_path, LOG)
    with caplog.at_level(logging.WARNING):
        recorder.note(member_of(epoch=1))
        assert closed == []  # the script's thread may be about to write to it
        recorder.end("closed", "")
    monkeypatch.undo()
    (number,) = closed
    os.close(number)
    (record,) = caplog.records
    assert "the history ends here" in record.getMessage()
    assert "No space left" in record.getMessage()


def test_a_short_write_ends_the_history_so_that_only_its_last_line_is_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path, LOG)
    recorder.note(member_of(epoch=1))
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, line: whole(file, line[:7]))
    recorder.count_call(is_checkpoint=True)
    recorder.end("closed", "")
    (incarnation,) = read_history(tmp_path).records
    assert Ended("closed") not in [line.event for line in incarnation.lines]


def test_a_folder_that_cannot_be_made_is_refused_before_the_job_is_joined(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"FTCOMM_HISTORY: .*Not a directory"):
        Recorder(tmp_path / "file" / "folder", LOG)
