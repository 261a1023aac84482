"""The line a minute about a running job."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ftcomm.protocol.messages import Heartbeat
from ftcomm.protocol.position import Position
from ftcomm_tracker.server.progress_log import ProgressLog, write_progress
from ftcomm_tracker.server.recovery_log import PROGRESS_FILE, record_progress
from tests.unit.tracker.test_roster import Said, running


def snapshot(*log_bytes: int | None) -> dict[str, Any]:
    members = [{"log_bytes": nbytes, "connected": nbytes is not None} for nbytes in log_bytes]
    return {"state": "RUNNING", "epoch": 3, "world_size": len(members), "members": members}


def test_a_record_says_where_a_job_stands_and_how_fast_it_goes() -> None:
    progress = ProgressLog.begin(100.0)
    progress.observe(Position(0, 2, 4), 110.0)
    progress.observe(Position(0, 2, 9), 130.0)
    first = progress.record(snapshot(100, 400, None), 1000, 160.0)
    assert first == {
        "state": "RUNNING",
        "epoch": 3,
        "connected": 2,
        "world_size": 3,
        "position": "2.9",
        "checkpoints_per_s": 0.0333,
        "calls_per_s": None,
        "log_fill": 0.4,
        "checkpoint_age_s": 50.0,
    }
    progress.observe(Position(0, 2, 39), 200.0)
    second = progress.record(snapshot(0), 1000, 220.0)
    rates = (second["checkpoints_per_s"], second["calls_per_s"], second["checkpoint_age_s"])
    assert (rates, progress.due) == ((0.0, 0.5, 110.0), 280.0)


def test_a_heartbeat_tells_how_much_the_log_holds() -> None:
    scenario = running()
    scenario.tell(Said(1, Heartbeat(1, 1, Position(0, 0, 1), None, 77)))
    rows = scenario.roster.snapshot(0.0)["members"]
    assert [row["log_bytes"] for row in rows] == [77, None]


@pytest.mark.trio
async def test_the_tracker_writes_a_line_a_minute_until_it_cannot(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    roster = running().roster
    with trio.move_on_after(150):
        await write_progress(lambda: roster, tmp_path)
    lines = (tmp_path / PROGRESS_FILE).read_text().splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["RUNNING", "RUNNING"]
    (tmp_path / PROGRESS_FILE).unlink()
    (tmp_path / PROGRESS_FILE).mkdir()
    assert not record_progress(tmp_path, {})
    await write_progress(lambda: roster, tmp_path)  # it returns
