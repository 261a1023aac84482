"""Explanations of a waiting job: documents of a real roster, and their sentences."""

import json
from pathlib import Path
from typing import Any

import pytest

from ftcomm.protocol.field_types import MAX_CONTROL_FRAME
from ftcomm.protocol.messages import Blocked, Closed, Heartbeat, Resumed, Suspect
from ftcomm.protocol.signature import Kind, OpCode, Signature
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import ConnectionLost, Death, GivenUp, StopAsked
from ftcomm_tracker.core.recovery_record import OpenIncident
from ftcomm_tracker.core.reporting.explain import RULES, explain, explanation
from ftcomm_tracker.core.reporting.status import table
from ftcomm_tracker.core.reporting.status_document import MAX_DOCUMENT, status_document
from tests.unit.tracker.roster_scenario import ScenarioRun, at, hello, report, running
from tests.unit.tracker.test_grace_period import lost_without_the_closed_one

SUM = Signature(Kind.ALLREDUCE, OpCode.SUM, 12, count=3, ndim=1, dims=(3, 0, 0, 0)).encode()


def document(scenario: ScenarioRun) -> dict[str, Any]:
    """The status document of a scenario's roster, as the server completes it."""
    snapshot = scenario.roster.snapshot(scenario.now)
    server = {"address": "10.0.0.5:4711", "uptime_s": 20.0, "pid": 7, "state_dir": "/s"}
    found: dict[str, Any] = json.loads(json.dumps({**snapshot, **server}))
    return found


def sentences(scenario: ScenarioRun) -> list[str]:
    return explanation(explain(document(scenario))).splitlines()


def kinds(scenario: ScenarioRun) -> list[tuple[str, bool]]:
    return [(finding.kind, finding.waiting) for finding in explain(document(scenario))]


def kinds_of(cut: dict[str, Any]) -> list[str]:
    return [finding.kind for finding in explain(cut)]


def blocked(scenario: ScenarioRun, rank: int, *on: int, ms: int = 3200, seqno: int = 4) -> None:
    beat = Heartbeat(1, 1, at(0, seqno), Blocked(SUM, "train.py:12", on, ms))
    scenario.said(rank + 1, beat)


def test_a_group_that_waits_to_form() -> None:
    scenario = ScenarioRun(3)
    scenario.joined(1, hello("w1"))
    assert sentences(scenario) == [
        "the group is waiting to form: 1 of 3 workers are here.",
        "  - joined: worker w1",
        "  - missing: 2 workers",
        "  - the job fails if they do not come within 600 s",
        "  - the tracker has been up for 20 s",
        (
            "  To do: start the others with FTCOMM_TRACKER=10.0.0.5:4711 and a worker id of their"
            " own; on a machine whose workers do not come, run `ftcomm-tracker doctor --tracker"
            " 10.0.0.5:4711`."
        ),
    ]


def test_a_closed_member_that_may_hold_what_is_missing() -> None:
    scenario = lost_without_the_closed_one()
    scenario.tick(3.0)
    assert sentences(scenario) == [
        (
            "no connected worker holds a result or checkpoint that is needed; a worker that has"
            " closed and lost its connection may hold it."
        ),
        "  - epoch 2 began 3.0 s ago: lost worker w1: connection reset (rank 1)",
        "  - worker w0 (rank 0, h) has closed and is away",
        "  - the job is lost if none of them is back in 28 s",
        (
            "  To do: if such a process still runs, repair its way to the tracker; nothing else has"
            " a copy."
        ),
    ]
    scenario.joined(4, hello("w0", plan_epoch=1, revoke_epoch=1, closed=True))
    assert kinds(scenario) == [("report", True)]


def test_a_place_that_is_empty() -> None:
    scenario = running(3)
    scenario.tell(ConnectionLost(2, "its connection was reset"))
    for conn in (1, 3):
        scenario.said(conn, report(2))
    scenario.tick(4.0)
    assert sentences(scenario) == [
        "worker w1 (rank 1, h) is gone, and its place has been empty for 4.0 s.",
        "  - epoch 2 began 4.0 s ago: lost worker w1: its connection was reset (rank 1)",
        "  - the job fails if it stays empty for 56 s more",
        (
            "  To do: start it again with the same worker id, or a spare with another one; under"
            " run, supervise or a scheduler see why that does not happen."
        ),
    ]
    assert "1     w1      1     h     gone   -         -    for 4.0 s" in table(document(scenario))


def test_a_report_that_is_awaited_and_one_that_may_never_come() -> None:
    scenario = running(3)
    scenario.tell(ConnectionLost(2, "gone"))
    scenario.joined(4, hello("w1", "b"))
    scenario.said(4, report(2))
    assert kinds(scenario) == [("report", True), ("report", True)]
    scenario.tick(3.0)
    scenario.said(1, report(2))
    assert sentences(scenario)[:3] == [
        "worker w2 (rank 2, h) has not been heard of for 3.0 s.",
        "  - it has not reported for epoch 2",
        "  - epoch 2 began 3.0 s ago: lost worker w1: gone (rank 1)",
    ]


def test_ranks_that_wait_for_one_that_computes() -> None:
    scenario = running(3)
    scenario.said(2, Heartbeat(1, 1, at(0, 2)))
    blocked(scenario, 0, 2)
    blocked(scenario, 2, 1, ms=500)
    assert sentences(scenario) == [
        (
            "ranks 0 and 2 wait for worker w1 (rank 1, h), which is not in a collective: computing,"
            " reading or asleep."
        ),
        (
            "  - rank 0 has been waiting for 3.2 s in allreduce(op=sum, float64[3]) at train.py:12,"
            " for bytes from rank 2"
        ),
        (
            "  - worker w1 (rank 1, h) stands at 0.2, 2 collectives behind the furthest; heard of"
            " 0.0 s ago"
        ),
        (
            "  To do: nothing if that is its work; else read its output; `py-spy dump --pid 0` on h"
            " shows where it is."
        ),
    ]
    assert table(document(scenario)).splitlines()[-3:] == [
        "0     w0      1     h     blocked  0.4       0    on rank 2 for 3.2 s, train.py:12",
        "1     w1      1     h     up       0.2       2",
        "2     w2      1     h     blocked  0.4       0    on rank 1 for 0.5 s, train.py:12",
    ]


def test_a_blockage_of_an_older_epoch_is_over() -> None:
    scenario = running(2)
    blocked(scenario, 0, 1)
    scenario.tell(ConnectionLost(2, "gone"))
    scenario.joined(3, hello("w1", "b"))
    for conn in (1, 3):
        scenario.said(conn, report(2))
    assert kinds(scenario) == [("nobody_waits", False)]


@pytest.mark.parametrize(("ms", "kind"), [(300, "exchanging"), (4999, "exchanging")])
def test_everyone_waits_for_everyone(ms: int, kind: str) -> None:
    scenario = running(2)
    blocked(scenario, 0, 1, ms=ms)
    blocked(scenario, 1, 0, ms=ms)
    assert kinds(scenario) == [(kind, True)]


def in_a_receive(
    scenario: ScenarioRun, rank: int, source: int, ms: int = 6000, epoch: int = 1
) -> None:
    receive = Blocked(Signature(Kind.RECV, root=source).encode(), "train.py:9", (source,), ms)
    scenario.said(rank + 1, Heartbeat(1, epoch, at(0, 4), receive))


def test_ranks_that_wait_for_each_others_messages_are_named() -> None:
    scenario = running(3)
    in_a_receive(scenario, 0, 2)
    in_a_receive(scenario, 2, 1)
    blocked(scenario, 1, 0, ms=6000)
    assert kinds(scenario) == [("cyclic_wait", True)]
    assert sentences(scenario)[:2] == [
        (
            "rank 0 waits for rank 2, which waits for rank 1, which waits for rank 0: none of them"
            " will go on."
        ),
        (
            "  - rank 0 has been waiting for 6.0 s in recv(source=2) at train.py:9, for bytes from"
            " rank 2"
        ),
    ]


def test_ranks_that_wait_across_a_lost_link_do_not_blame_the_script() -> None:
    scenario = running(3)
    scenario.said(1, Suspect(1, (2,), "cannot connect: no connection within 5 s"))
    for conn in (1, 2, 3):
        scenario.said(conn, report(2))
    for rank, source in ((0, 2), (2, 0), (1, 0)):
        in_a_receive(scenario, rank, source, epoch=2)
    assert kinds(scenario) == [("lost_link", True)]
    assert sentences(scenario)[:2] == [
        "ranks 0 and 2 cannot reach each other, and one of them waits for the other.",
        "  - in 1 plan: cannot connect: no connection within 5 s",
    ]


def test_ranks_that_have_just_begun_to_wait_are_no_cycle() -> None:
    scenario = running(2)
    in_a_receive(scenario, 0, 1, ms=300)
    in_a_receive(scenario, 1, 0)
    assert kinds(scenario) == [("exchanging", True)]


def test_a_silent_link_whose_epoch_is_held_back() -> None:
    """Links alone may take one epoch in each `detect_within`; the second one waits its turn."""
    scenario = running(2)
    for process in (1, 2):
        scenario.now += 1.0
        for rank in (0, 1):
            beat = Heartbeat(1, process, at(0, 4), Blocked(SUM, "train.py:12", (1 - rank,), 6000))
            scenario.said(rank + 1, beat)
        for conn in (1, 2):
            scenario.said(conn, report(2, at(0, 4)))
    assert kinds(scenario) == [("lost_link", True)]


def test_a_stopped_process_is_suspected() -> None:
    scenario = running(2)
    scenario.now = 3.0
    scenario.said(1, Heartbeat(1, 1, at(0, 1)))
    assert kinds(scenario) == [("late", True)]
    assert "a frozen container" in sentences(scenario)[1]
    assert "late   -1.0" in table(document(scenario))


def test_nobody_waits() -> None:
    scenario = running(2)
    scenario.said(1, Heartbeat(1, 1, at(2, 1)))
    scenario.said(2, Heartbeat(1, 1, at(1, 7)))
    assert sentences(scenario) == [
        "no rank waits: all ranks compute, or have been in a collective for less than 0.25 s.",
        "  - the furthest stands at 2.1",
        "  - worker w1 (rank 1, h) stood at 1.7 at its last heartbeat",
    ]
    assert document(scenario)["members"][1]["lag"] == "1v"


def test_a_rank_that_has_closed_waits_for_the_others() -> None:
    scenario = running(2)
    scenario.said(1, Closed(3))
    assert "worker w0 (rank 0, h): closed, and waiting for the others to close" in (
        "\n".join(sentences(scenario))
    )


def test_a_restarted_tracker_waits_for_its_workers() -> None:
    before = running(2).roster.durable
    scenario = ScenarioRun(2, Durable.from_wire(before.to_wire()))
    scenario.joined(1, hello("w0", incarnation=1, plan_epoch=1, revoke_epoch=1))
    assert sentences(scenario)[:3] == [
        "the tracker was restarted and waits for worker w1 (rank 1, h) to come back to it.",
        "  - 1 of 2 are back",
        "  - it waits for 30 s more, then goes on without them",
    ]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            StopAsked("lunch"),
            "the job has ended with JobStoppedError.\n  - the job was stopped: lunch",
        ),
        (GivenUp("w1", "it is ill"), "the job has ended with RankLostError.\n  - it is ill\n"),
        (
            GivenUp("w1", "ValueError (a.py:3)", script_failed=True),
            "the job has ended with ScriptFailedError.\n  - ValueError (a.py:3)\n  To do: repair",
        ),
    ],
)
def test_a_job_that_has_failed(event: Any, words: str) -> None:
    scenario = running(2)
    scenario.tell(event)
    assert "\n".join(sentences(scenario)).startswith(words)
    assert kinds(scenario) == [("failed", False)]


def test_a_job_that_has_finished() -> None:
    scenario = running(2)
    for conn in (1, 2):
        scenario.said(conn, Closed(3))
    assert sentences(scenario) == ["the job has finished at version 3."]


def test_a_recovery_that_was_left_open_shows_in_the_document_until_all_have_resumed() -> None:
    scenario = running(2)
    scenario.tell(ConnectionLost(2, "gone"))
    scenario.joined(3, hello("w1", "b"))
    for conn in (1, 3):
        scenario.said(conn, report(2))
    scenario.tick(1.0)
    assert document(scenario)["recovery"] == {
        "epoch": 2,
        "reason": "lost worker w1: gone (rank 1)",
        "since_s": 1.0,
    }
    for conn in (1, 3):
        scenario.said(conn, Resumed(2, 0, 0, 0, 0))
    assert document(scenario)["recovery"] is None
    assert "epoch 2: lost worker w1: gone (rank 1); 1000.0 ms" in table(document(scenario))


def test_a_document_of_a_large_job_keeps_those_that_matter() -> None:
    scenario = running(1024)
    for rank in range(1024):
        if rank != 700:
            blocked(scenario, rank, (rank + 1) % 1024)
    text = status_document(document(scenario))
    assert len(text) < MAX_CONTROL_FRAME
    cut = json.loads(text)
    assert cut["members_left_out"] + len(cut["members"]) == 1024
    assert cut["members_left_out"] > 0
    assert "wait for worker w700 (rank 700, h)" in explain(cut)[0].what
    assert f"({cut['members_left_out']} members" in table(cut)


def many_routes(n: int) -> list[dict[str, Any]]:
    """Rows of pairs of ranks that are relayed, each with a long reason."""
    return [{"ranks": [0, rank], "via": 1, "why": "w" * 120} for rank in range(n)]


def long_incident(epoch: int, n: int) -> dict[str, Any]:
    """A recovery from the loss of `n` workers, as `Incident.to_dict` writes it."""
    opened = OpenIncident(epoch, f"lost worker {epoch}", 0.0)
    for number in range(n):
        opened.note_victim(str(number), Death(str(number), 4711, "node-17", "x" * 300))
    return opened.close(1.0, completed=True).to_dict()


def test_a_document_with_long_lists_keeps_the_newest_incident_and_says_what_is_left_out() -> None:
    whole = document(running(2))
    whole["incidents"] = [long_incident(epoch, 300) for epoch in (2, 3, 4)]
    text = status_document(whole)
    assert len(text) <= MAX_DOCUMENT
    cut = json.loads(text)
    kept = [len(incident["causes"]) for incident in cut["incidents"]]
    assert (len(cut["members"]), kept, cut["incidents"][2]) == (
        2,
        [64, 300, 300],
        whole["incidents"][2],
    )
    assert cut["left_out"] == {"incidents": 2 * (300 - 64)}  # victims and causes
    assert "(too long to show: 472 rows of incidents)" in table(cut)
    assert kinds_of(cut) == kinds_of(whole)


def test_a_document_of_a_job_that_has_lost_its_network_fits_with_its_members() -> None:
    scenario = running(1024)
    for rank in range(1023):
        blocked(scenario, rank, rank + 1)
    whole = document(scenario) | {"routes": many_routes(1024), "waiting_for": ["w" * 300] * 1024}
    whole["lost_hosts"] = [{"host": "h", "workers": ["w7", "w8"]}]
    cut = json.loads(status_document(whole))
    assert len(json.dumps(cut)) <= MAX_DOCUMENT
    assert cut["left_out"] == {"routes": 960, "waiting_for": 960}
    assert cut["members_left_out"] + len(cut["members"]) == 1024
    assert len(cut["members"]) > 256
    assert cut["lost_hosts"] == whole["lost_hosts"]


def test_a_document_fits_whatever_the_texts_in_it_are() -> None:
    """Each character takes six in ASCII, and no text is bounded."""
    whole = document(running(2))
    whole["incidents"] = [long_incident(epoch, 100) for epoch in range(2, 12)]
    whole["lost_hosts"] = [{"host": "h" * 64, "workers": ["\0" * 64] * 2048}]
    for incident in whole["incidents"]:
        incident["reason"] = "\0" * 100_000
        for cause in incident["causes"]:
            cause["how"] = "\0" * 1024
    text = status_document(whole)
    assert len(text) <= MAX_DOCUMENT
    cut = json.loads(text)
    assert (len(cut["incidents"]), len(cut["members"]), cut["lost_hosts"]) == (10, 2, [])


def test_the_documents_fields_and_the_kinds_of_findings_are_in_the_operators_tables() -> None:
    docs = Path(__file__).parents[3] / "docs"
    pages = ("watching.md", "reference.md")
    text = "".join((docs / page).read_text(encoding="utf-8") for page in pages)
    scenario = running(2)
    blocked(scenario, 0, 1)
    member = document(scenario)["members"][0]
    fields = {*document(scenario), *member, *member["blocked"]}
    assert [name for name in sorted(fields | set(RULES)) if f"`{name}`" not in text] == []
