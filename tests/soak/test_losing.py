"""Losing sessions: what they count, what they call wrong, and one that is run."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.chaos.scripts import UNSEEDED
from tests.soak.losing import LosingSession, counted_losses, judged
from tests.soak.ways import WAYS

SESSION = LosingSession("disk", WAYS["disk"], 7, Path("/there/losing-7"))
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd")


def delivery(kind: str, *dies: int, failed: str = "") -> dict[str, Any]:
    return {"kind": kind, "dies": dies, "failed": failed}


def test_what_was_delivered_is_counted_by_kind() -> None:
    deliveries = [
        delivery("lose_all", 1, 2, 3),
        delivery("sigkill", 4),
        delivery("node_lost", 5),
        delivery("tracker_kill", 6),
        delivery("tracker_disk_lost", failed="tracker does not run"),
    ]
    document = {"status": 0, "runs": [{"deliveries": deliveries, "attempts": ["a second"]}]}
    assert counted_losses(document) == {
        "everything": 1,
        "tracker_disks": 0,
        "trackers": 1,
        "machines": 1,
        "sessions": 1,
        "untested": 0,
        "kills": 2,
        "attempts": 1,
    }


@pytest.mark.parametrize(
    ("status", "reasons", "wrong"),
    [
        (0, [], []),
        (2, ["0 faults were delivered"], []),
        (1, ["the last result differs"], ["the last result differs"]),
        (64, [], ["status 64: no such option"]),
        (None, [], ["it does not end"]),
    ],
)
def test_a_session_is_judged_by_its_status(
    status: int | None, reasons: list[str], wrong: list[str]
) -> None:
    assert judged(status, {"reasons": reasons, "runs": []}, "no such option") == wrong


def test_a_session_says_how_to_repeat_it() -> None:
    again = "python -m tests.soak.losing /there/losing-7-again --way disk --seed 7 --versions 9"
    assert replace(SESSION, arguments=("--versions", "9")).again() == again


def test_all_options_of_a_session_come_before_the_command() -> None:
    command = SESSION.command()
    options, script = command[: command.index("--")], command[command.index("--") + 1 :]
    assert options[3:8] == ["run", "-n", "3", "--spares", "0"]
    assert script[1:] == ["-m", "tests.soak.training", "130", "0.3"]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(400)
@ON_LINUX
def test_a_short_session_loses_everything_and_leaves_nothing(tmp_path: Path) -> None:
    way = replace(WAYS["launcher"], versions=40)
    folder = tmp_path / "session"
    found = LosingSession("launcher", way, 3, folder).run()
    assert found["violations"] == []
    assert found["losses"]["everything"] >= 1
    assert found["losses"]["attempts"] == found["losses"]["everything"]
    assert {"launcher sessions' tracker fds", "launcher sessions' worker rss_kib"} <= set(
        found["peaks"]
    )
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(400)
@ON_LINUX
def test_a_wrong_byte_is_found_and_the_session_is_kept(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNSEEDED.replace("0.02", "0.3"))
    session = LosingSession("trackers", WAYS["trackers"], 3, tmp_path / "session", (str(script),))
    found = session.run()
    assert found["losses"]["violations"] == len(found["violations"]) > 0
    assert "differ" in found["violations"][0]
    assert session.again() in found["violations"][0]
    assert (session.folder / "kept" / "run-1" / "output.txt").exists()
