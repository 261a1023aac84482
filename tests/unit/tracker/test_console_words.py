"""Lines of a job on the console: few, and in words."""

import logging
import re
from typing import Any

import pytest
import trio

import ftcomm
from ftcomm.protocol.position import Position
from ftcomm_tracker.core.reporting.incident_words import (
    done_text,
    duration_text,
    incident_words,
)
from ftcomm_tracker.core.reporting.live_line import StepRate, group_text, position_text
from ftcomm_tracker.launcher import console_session
from ftcomm_tracker.launcher.console import Console
from ftcomm_tracker.launcher.console_session import LogOptions
from ftcomm_tracker.launcher.log_lines import NOTICE, LineFormat
from tests.unit.tracker.fake_children import FakeChild, FakeWorkers, exits, joins


def incident(*victims: str, how: str = "", **changed: Any) -> dict[str, Any]:
    return {
        "reason": f"lost worker {victims[0]}: its connection ended (rank 0)" if victims else "",
        "victims": list(victims),
        "causes": [{"worker": worker, "how": how} for worker in victims if how],
        "completed": True,
        "frontier": "46.3",
        "ms": {"detect": 100.0, "total": 1234.5},
        **changed,
    }


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            incident("2", how="was killed by SIGKILL"),
            "worker 2 killed (SIGKILL) at step 46: restarted, all go on after 1.3 s",
        ),
        (
            incident("10", "2", how="exited with status 1: KeyError: 'a'"),
            (
                "workers 2, 10 exited with status 1 (KeyError: 'a') at step 46: restarted, all"
                " go on after 1.3 s"
            ),
        ),
        (
            incident("2", "0"),
            (
                "worker 0 lost; worker 2 lost (its connection ended) at step 46: restarted, all"
                " go on after 1.3 s"
            ),
        ),
        (
            incident("2", reason="worker 2 left: KeyError: 'a' (rank 2)", completed=False),
            "worker 2 left: KeyError: 'a': not recovered after 1.3 s",
        ),
        (
            incident("2", how=f"exited with status 1: [rank2]: OSError: {'bad ' * 50}"),
            (
                f"worker 2 exited with status 1 (OSError: {'bad ' * 37}...) at step 46: restarted,"
                " all go on after 1.3 s"
            ),
        ),
        (
            incident("9", "0", how="was killed by SIGKILL", frontier="1:-1.4"),
            "worker 9 killed (SIGKILL) at the start: a spare takes over, all go on after 1.3 s",
        ),
        (
            incident(reason="rank 0 lost its link to rank 1"),
            "rank 0 lost its link to rank 1 at step 46: all go on after 1.3 s",
        ),
    ],
)
def test_an_incident_is_one_line_in_words(record: dict[str, Any], words: str) -> None:
    assert incident_words(record, ["0", "1", "2", "10"]) == words


def test_the_end_of_a_job_says_its_time_checkpoints_and_restarts() -> None:
    assert [done_text(27.2, 200, 1), done_text(8.44, 0, 0)] == [
        "done in 27 s, 200 checkpoints, 1 restart",
        "done in 8.4 s",
    ]
    assert [duration_text(s) for s in (119, 121, 7500)] == ["119 s", "2 min", "2 h 5 min"]


def test_a_rate_follows_the_last_seconds_of_a_job() -> None:
    rate = StepRate()
    said = []
    for now, version in ((0.0, -1), (1.0, 8), (20.0, 28), (22.0, 28), (33.0, 28), (34.0, 5)):
        rate.observe(Position(0, version, 0), now)
        said.append(position_text(Position(0, version, 0), rate.text()))
    assert said == [
        "",
        "step 8 (8/s), ",
        "step 28 (1.05/s), ",
        "step 28 (0.952/s), ",
        "step 28, ",
        "step 5, ",
    ]


def test_the_live_line_has_workers_and_the_durable_checkpoint() -> None:
    members = [
        {"connected": True, "late": False, "worker_id": "0"},
        {"connected": True, "late": True, "worker_id": "1"},
        {"connected": False, "late": False, "worker_id": "2"},
    ]
    document = {"state": "COLLECTING", "world_size": 3, "members": members}
    store = {"newest": 40, "age_s": 12.3}
    assert [group_text({**document, "store": each}) for each in (store, None)] == [
        "recovering, 2/3 workers up, late: 1, durable checkpoint 40, 12 s old",
        "recovering, 2/3 workers up, late: 1",
    ]
    unknown = {"state": "REBUILDING", "world_size": None, "members": [], "store": None}
    assert group_text(unknown) == "rebuilding"


def test_a_line_without_its_time_has_a_colour_where_it_is_to_be_seen() -> None:
    plain = LineFormat(as_json=False, clock=lambda: 0.0, dated=False)
    coloured = LineFormat(as_json=False, clock=lambda: 0.0, dated=False, coloured=True)
    assert plain.own("WARNING", "one\ntwo") == b"ftcomm: one\nftcomm: two\n"
    assert coloured.own("ERROR", "one") == b"\x1b[31mftcomm: one\x1b[0m\n"
    assert coloured.own("NOTICE", "one") == b"ftcomm: one\n"


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_has_colours_unless_its_user_wants_none(
    variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(console_session.sys.stderr, "isatty", lambda: True)
    assert LogOptions().form.coloured is coloured


@pytest.mark.trio
@pytest.mark.parametrize(
    ("shown", "lines"),
    [
        (logging.ERROR, b"ftcomm: failed\n"),
        (NOTICE, b"ftcomm: done\nftcomm: lost\nftcomm: failed\n"),
        (logging.INFO, b"ftcomm: joined\nftcomm: done\nftcomm: lost\nftcomm: failed\n"),
    ],
)
async def test_a_console_shows_what_is_at_least_so_grave(shown: int, lines: bytes) -> None:
    written: list[bytes] = []
    form = LineFormat(as_json=False, clock=lambda: 0.0, dated=False)
    console = Console(form, write=lambda _, data: written.append(bytes(data)), shown=shown)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(console.run)
        console.say("connected", "DEBUG")
        console.say("joined")
        console.announce("done")
        console.warn("lost")
        console.say("failed", "ERROR")
        console.close()
    assert b"".join(written) == lines


def train(comm: ftcomm.Communicator) -> None:
    comm.load_checkpoint(default=0)
    for step in range(3):
        comm.checkpoint(step)


def test_a_job_without_incident_is_two_lines(workers: FakeWorkers) -> None:
    workers.verbosity = ()
    done = workers.run(joins(train))
    first, last = done.stderr.splitlines()
    assert (done.returncode, first) == (
        0,
        (
            "ftcomm: 2 workers, checkpoint every 60s to a temporary folder; to resume by another"
            " command give --state-dir DIR"
        ),
    )
    assert re.fullmatch(r"ftcomm: done in \d\.\d s, 3 checkpoints", last), last


def test_a_restart_is_one_line_and_quiet_none(workers: FakeWorkers) -> None:
    async def script(child: FakeChild) -> int:
        def die(comm: ftcomm.Communicator) -> None:
            for step in range(comm.load_checkpoint(default=0).version, 2):
                if step == 1 and child.worker_id == "1" and child.start == 1:
                    raise KeyError("a")
                comm.checkpoint(step + 1)

        return await joins(die)(child)

    for workers.verbosity, lines in (((), 3), (("-q",), 0)):
        done = workers.run(script)
        own = [line for line in done.stderr.splitlines() if line.startswith("ftcomm: ")]
        assert (done.returncode, len(own)) == (0, lines), done.stderr
        assert not re.search("epoch|frontier", "".join(own))
        if lines:
            incident_line = r"ftcomm: worker 1 exited with status 1 \(KeyError: 'a'\) at step 1: "
            assert re.match(incident_line + r"restarted, all go on after ", own[1]), own
            assert re.search(r", 2 checkpoints, 1 restart$", own[2]), own


def test_quiet_and_verbose_exclude_each_other(workers: FakeWorkers) -> None:
    workers.verbosity = ("-q", "-v")
    done = workers.run(exits(0))
    assert (done.returncode, "exclude each other" in done.stderr) == (2, True)
