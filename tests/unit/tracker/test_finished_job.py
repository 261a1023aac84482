"""Output of the commands about a job that is over when its tracker has ended too."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from ftcomm.config.job_settings import JobSettings
from ftcomm.protocol.messages import FatalDecision
from ftcomm.protocol.position import Position
from ftcomm_tracker.core.durable_state import Durable, RankOwner
from ftcomm_tracker.server.journal import Journal, Remembered
from ftcomm_tracker.server.recovery_log import INCIDENTS_FILE, last_incidents
from tests.unit.tracker.harness import tracker
from tests.unit.tracker.serving import serve
from tests.unit.tracker.test_cli import invoke

FORMED = Durable(
    "job-1",
    2,
    epoch=3,
    first_nonces=(b"a", b"b"),
    incarnations=(("w0", 1), ("w1", 2)),
    places=(RankOwner("w0", 1, b"a", "here"), RankOwner("w1", 2, b"c", "there")),
    grouping=(0, 1),
    version=5,
    closed_ranks=(0,),
)
INCIDENT = {
    "wall_started": 1795255636.1,
    "epoch": 3,
    "reason": "lost worker w1: its connection ended (rank 1)",
    "victims": ["w1"],
    "suspects": [],
    "causes": [{"worker": "w1", "pid": 4711, "host": "h", "how": "was killed by SIGKILL"}],
    "completed": True,
    "frontier": "4.0",
    "routes": [],
    "fetched": 1,
    "replayed": 2,
    "ms": {"detect": 0.0, "total": 7.5},
}
LINE = (
    "epoch 3: lost worker w1: its connection ended (rank 1);"
    " worker w1 (pid 4711 on h) was killed by SIGKILL; 7.5 ms (detect 0.0),"
    " 2 results replayed, 1 fetched"
)
VERDICT = FatalDecision("JobStoppedError", "the job was stopped: lunch", 3, Position(0, 4, 2), -1)


def ended(folder: Path, **end: Any) -> str:
    """A state directory whose job is over, and whose token has been tidied away."""
    durable = replace(FORMED, settings=JobSettings().to_wire(), **end)
    journal = Journal.open(folder)
    journal.write(durable.to_wire())
    journal.remember(Remembered("127.0.0.1", 4711, str(folder / "token")))
    journal.close()
    (folder / INCIDENTS_FILE).write_text(f'{json.dumps(INCIDENT)}\n{{"epoch": 4, "rea')
    return str(folder)


FINISHED = {"closed_ranks": (0, 1), "final_version": 6, "version": 6}
FAILED = {"fatal_decision": VERDICT}


@pytest.mark.parametrize(
    ("end", "lines"),
    [
        (
            FINISHED,
            [
                "job job-1: over, epoch 3, 0/2 ranks up, at 6.0",
                "finished at version 6",
                "0     w0      1     here   closed  -         -",
                "1     w1      2     there  closed  -         -",
            ],
        ),
        (
            FAILED,
            [
                "job job-1: over, epoch 3, 0/2 ranks up, at 4.2",
                "verdict JobStoppedError: the job was stopped: lunch",
                "0     w0      1     here   closed  -         -",
                "1     w1      2     there  gone    -         -",
            ],
        ),
    ],
)
def test_status_shows_the_last_state(
    tmp_path: Path, end: dict[str, object], lines: list[str]
) -> None:
    status, text = invoke("status", "--state-dir", ended(tmp_path, **end), "--watch")
    said = text.splitlines()
    expected = [*lines, f"which has ended, state in {tmp_path}", f"  {LINE}"]
    assert (status, [line for line in expected if line not in said]) == (0, []), text


@pytest.mark.trio
async def test_the_document_has_the_fields_of_a_running_trackers(tmp_path: Path) -> None:
    (tmp_path / "ended").mkdir()
    arguments = ("status", "--state-dir", ended(tmp_path / "ended", **FINISHED), "--json")
    status, text = await trio.to_thread.run_sync(lambda: invoke(*arguments))
    found = json.loads(text)
    async with tracker(tmp_path / "running") as job:
        live = job.server.snapshot()
    assert (status, found.keys(), found["schema"]) == (0, live.keys(), live["schema"])
    known = {
        "job_id": "job-1",
        "state": "OVER",
        "epoch": 3,
        "generation": 1,
        "progress": "6.0",
        "final_version": 6,
        "verdict": None,
        "incidents": [INCIDENT],
        "address": "127.0.0.1:4711",
        "pid": None,
        "uptime_s": None,
    }
    assert {name: found[name] for name in known} == known


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (FINISHED, "the job has finished at version 6.\n"),
        (
            FAILED,
            """\
the job has ended with JobStoppedError.
  - the job was stopped: lunch
  To do: nothing to do here: the operator stopped the job.
""",
        ),
    ],
)
def test_explain_says_how_it_ended(tmp_path: Path, end: dict[str, object], said: str) -> None:
    status, text = invoke("explain", "--state-dir", ended(tmp_path, **end))
    how, _, happened = text.partition("\nWhat happened:\n\n")
    assert (status, how) == (0, said)
    assert happened.startswith("  who       worker w1, process 4711 on h: killed (SIGKILL)\n")


def test_there_is_nothing_to_stop(tmp_path: Path) -> None:
    assert invoke("stop", "--state-dir", ended(tmp_path, **FINISHED)) == (
        0,
        f"nothing to stop: the job in {tmp_path} has finished at version 6\n",
    )


def test_a_job_that_is_not_over_is_still_asked_for(tmp_path: Path) -> None:
    for command in ("status", "explain", "stop"):
        status, text = invoke(command, "--state-dir", ended(tmp_path))
        assert (status, "token: No such file" in text) == (64, True), text


@pytest.mark.process
def test_a_tracker_of_an_ended_job_says_what_it_does(tmp_path: Path) -> None:
    with serve(Path(ended(tmp_path, **FINISHED))) as (process, _):
        assert process.stderr is not None
        assert process.stderr.readline().partition(" NOTICE ")[2] == (
            "ftcomm: the job has finished at version 6; late workers are told so for 30 s\n"
        )


@pytest.mark.parametrize("line", ["3", "[]", '{"ms": 3}', "{", "", '{"ms": {}}'])
def test_what_is_no_record_of_a_recovery_is_left_out(tmp_path: Path, line: str) -> None:
    (tmp_path / INCIDENTS_FILE).write_text(f"{line}\n{json.dumps(INCIDENT)}\n")
    assert last_incidents(tmp_path) == [INCIDENT]


def test_run_and_serve_say_what_their_directory_is_for() -> None:
    texts = [" ".join(invoke(command, "--help")[1].split()) for command in ("serve", "run")]
    assert "Journal and token; give it again to resume the job" in texts[0]
    assert "Journal and checkpoints of this job [default: temporary]" in texts[1]
