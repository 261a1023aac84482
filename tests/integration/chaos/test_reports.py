"""Reports: what a person reads, and a page that needs nothing but itself."""

import contextlib
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ftcomm_chaos.checkers import RuleViolation
from ftcomm_chaos.commands.report_html import report_page
from ftcomm_chaos.commands.report_text import MOST_SHOWN, document, report_text
from ftcomm_chaos.commands.run import _report
from ftcomm_chaos.report.run_record import AttemptRow
from ftcomm_chaos.report.timeline_svg import LEGEND, tick_step
from ftcomm_chaos.runner.history_checks import violation_lines
from ftcomm_chaos.runner.session import RunSession
from tests.integration.chaos.scenarios import incident, kill, killed_once, process, run, session

NASTY = '<script>alert("x")</script>&\x01'


def test_the_page_is_well_formed_and_needs_nothing_else() -> None:
    page = report_page(session(killed_once(), run(status=1, tail=["end"])))
    ET.fromstring(page.removeprefix("<!DOCTYPE html>"))
    assert re.findall(r"https?:|src=|href=|url\(|@import|<script|<link|<iframe", page) == []
    assert page.count('role="img"') == 3


def test_all_timelines_have_one_scale() -> None:
    page = report_page(session(run(wall_s=40.0), run(wall_s=20.0)))
    axes = [re.findall(r'">([\d.]+) s</text>', picture) for picture in page.split("<h2>")[1:]]
    assert [axis[-1] for axis in axes] == ["40"] * 3


def test_attempts_are_in_the_legend_only_where_there_are_some() -> None:
    again = run(attempts=[AttemptRow(2, "checkpoint 7", 3.0)])
    pages = [report_page(session(each)) for each in (run(), again)]
    assert [LEGEND[-1][1] in page for page in pages] == [False, True]


def test_processes_are_counted_from_one_as_by_the_tracker() -> None:
    titles = re.findall(r"<title>(incarnation .*?)</title>", report_page(session(killed_once())))
    assert titles == [
        "incarnation 1, process 10 ended well",
        "incarnation 1, process 11 was killed by SIGKILL",
        "incarnation 2, process 12 ended well",
    ]


def test_a_spare_has_a_lane_where_its_faults_are_marked() -> None:
    """Also one whose process the run has not seen, since it died at once."""
    processes = [process("0", 10), process("1", 11), process("spare-10", 12), process("tracker", 9)]
    deliveries = [kill(1, 2.0, "spare-10", 12), kill(2, 3.0, "spare-2", 13)]
    page = report_page(session(run(processes=processes, deliveries=deliveries)))
    lanes = re.findall(r'<text x="6" y="(\d+)">(.*?)</text>', page)[2:]  # after the reference's
    assert [name for _, name in lanes] == [
        "worker 0", "worker 1", "worker spare-2", "worker spare-10", "tracker",
    ]  # fmt: skip
    marks = re.findall(r'y="(\d+)"[^>]*><title>\d.\d\d s: SIGKILL for (.*?)</title>', page)
    lane_of = {name: int(y) - 14 for y, name in lanes}
    assert {who: int(y) - lane_of[f"worker {who}"] for y, who in marks} == {
        "spare-10": 0,
        "spare-2": 0,
    }


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("a defect")])
def test_a_page_that_cannot_be_written_does_not_cost_the_text(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(played: RunSession) -> str:
        raise error

    monkeypatch.setattr("ftcomm_chaos.commands.run.report_page", fails)
    played = session(killed_once())
    with contextlib.suppress(ValueError):
        _report(played, tmp_path, kept=True, html=tmp_path / "page.html")
    assert capsys.readouterr().out == report_text(played) + "\n"


def test_whatever_a_script_says_is_escaped() -> None:
    nasty = killed_once(name=NASTY, result=NASTY, status=1, tail=[NASTY])
    nasty.deliveries[0].what = NASTY
    nasty.incidents[0]["reason"] = NASTY
    page = report_page(session(nasty, command=(NASTY,)))
    assert "<script" not in page
    ET.fromstring(page.removeprefix("<!DOCTYPE html>"))


def test_the_text_shows_faults_what_they_cost_and_the_verdict() -> None:
    killed = killed_once()
    killed.deliveries[0].detect_ms, killed.deliveries[0].recover_ms = 10.0, 510.0
    assert (
        report_text(session(killed))
        == """
run 1 with faults: 10.0 s
      2.00 s  SIGKILL for 1; seen after 10, recovered after 510 ms

ms       p50  p90  p99  p100  count
detect    10   10   10    10      1  from the fault to the tracker's first evidence
stop       1    1    1     1      1  from there until the last survivor has reported
replace    2    2    2     2      1  from there until the last replacement has reported
decide     3    3    3     3      1  the decision and its sending
fetch      4    4    4     4      1  longest catch-up of a member
link       5    5    5     5      1  longest way from its plan to its next collective
total    500  500  500   500      1  from the first evidence to the last member's next collective
recover  510  510  510   510      1  from the fault to the last member's next collective
goodput 100.0 % of the run without faults

PASSED: 1 run with 1 fault, 1 process killed
  the last result is equal to the last bit: 5af3"""
    )


def test_a_terminal_obeys_nothing_that_a_script_or_a_trace_says() -> None:
    nasty = killed_once(violations=["rule: \x1b[2J"])
    nasty.deliveries[0].what = "\x1b]0;node\x07 goes"
    text = report_text(session(nasty))
    assert "\x1b" not in text
    assert "\ufffd]0;node\ufffd goes" in text


def test_a_long_list_of_faults_is_cut_on_a_terminal_and_whole_elsewhere() -> None:
    many = killed_once(deliveries=[kill(1, n, "1", 11) for n in range(MOST_SHOWN + 7)])
    assert "  and 7 more" in report_text(session(many))
    assert report_page(session(many)).count(" s  SIGKILL for 1") == MOST_SHOWN + 7
    assert len(document(session(many))["runs"][0]["deliveries"]) == MOST_SHOWN + 7


def test_the_document_is_json_without_extensions() -> None:
    found = json.dumps(document(session(killed_once())), allow_nan=False)
    assert json.loads(found)["status"] == 0


@pytest.mark.parametrize(("wall_s", "goodput"), [(10.0, 1.0), (19.0, 0.5)])
def test_goodput_is_the_share_of_time_that_the_work_takes_without_faults(
    wall_s: float, goodput: float
) -> None:
    assert session(killed_once(wall_s=wall_s)).goodput() == goodput


def test_there_is_no_goodput_of_a_job_that_failed() -> None:
    assert session(run(status=1)).goodput() is None
    assert incident(2, 1.0)["completed"]


@pytest.mark.parametrize(
    ("length_s", "step"),
    [(0.0, 0.0001), (0.9, 0.1), (1.2, 0.1), (1.3, 0.2), (12.0, 1.0), (12.1, 2.0), (59.0, 5.0),
     (61.0, 10.0), (492.0, 50.0), (3600.0, 500.0)],
)  # fmt: skip
def test_the_timeline_has_round_ticks(length_s: float, step: float) -> None:
    assert tick_step(length_s) == step


def test_the_page_says_what_its_colours_mean() -> None:
    page = report_page(session(killed_once(attempts=[AttemptRow(2, "checkpoint 7", 3.0)])))
    for color, meaning in LEGEND:
        assert re.search(rf'<li><svg [^>]*>.*fill="{color}".*</svg>{re.escape(meaning)}</li>', page)
        assert page.count(f'fill="{color}"') > 1, f"the timeline has nothing of {meaning}"


@pytest.mark.parametrize(("checkpoints", "hinted"), [(None, False), (0, True), (3, False)])
def test_a_script_without_checkpoints_is_told_how_to_lose_less(
    checkpoints: int | None, hinted: bool
) -> None:
    played = session(killed_once())
    played.reference.checkpoints = checkpoints
    text, page = report_text(played), report_page(played)
    assert [("makes no checkpoint" in report) for report in (text, page)] == [hinted, hinted]
    assert "makes no checkpoint" not in report_text(session(run()))  # nothing was killed


def test_five_violations_of_a_rule_are_shown_and_all_are_counted() -> None:
    found = [RuleViolation("1-1", f"0.{n}", "was given a", (), "as-reference") for n in range(37)]
    found.insert(1, RuleViolation("0-1", "0.0", "changed", (), "input-intact"))
    lines = violation_lines(found)
    assert [line.split(":")[0] for line in lines] == ["as-reference"] * 6 + ["input-intact"]
    assert lines[5] == "as-reference: 32 more violations like these, 37 in all"
