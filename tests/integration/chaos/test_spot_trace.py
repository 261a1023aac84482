"""Traces of machines that come and go, and who runs where because of them."""

from pathlib import Path

import pytest

from ftcomm.errors import ConfigError
from ftcomm_chaos.runner.spot_trace import (
    Lose,
    NodeAssignments,
    NodeEvent,
    Start,
    losses,
    parse_trace,
    read_trace,
)

TRACE = """\
480000,add,a
481000,add,b

480500,add,c
483000,remove,a
484000,remove,b
485000,add,d
"""


def test_a_trace_is_read_in_the_order_of_time_from_its_first_event() -> None:
    assert parse_trace(TRACE) == [
        NodeEvent(0.0, True, "a"),
        NodeEvent(0.5, True, "c"),
        NodeEvent(1.0, True, "b"),
        NodeEvent(3.0, False, "a"),
        NodeEvent(4.0, False, "b"),
        NodeEvent(5.0, True, "d"),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the trace is empty - write lines ms,add|remove,node"),
        ("1,add", "line 1 of the trace is '1,add' - write"),
        ("1,add,a\n2,stop,a", "line 2 of the trace is '2,stop,a'"),
        ("-1,add,a", "line 1 of the trace"),
        ("1,add,", "line 1 of the trace"),
        ("9" * 30 + ",add,a", "line 1 of the trace"),
        ("1,add,a\n2,add,a", "a comes though it is there at 0.001 s"),
        ("1,remove,a", "a goes though it is not there at 0 s"),
    ],
)
def test_a_malformed_trace_is_refused_by_its_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_trace(text)
    assert complaint in str(caught.value)


def test_a_trace_may_have_what_a_spreadsheet_writes(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_bytes(b"\xef\xbb\xbf" + TRACE.encode().replace(b"\n", b"\r\n"))
    assert read_trace(trace) == parse_trace(TRACE)


def test_a_trace_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_trace(tmp_path / "none.csv")


def test_nodes_fill_places_in_the_order_of_their_coming_and_idle_ones_step_in() -> None:
    places = NodeAssignments(["0", "1"])
    scenario = [places.handle(event) for event in parse_trace(TRACE)]
    assert scenario == [
        [Start("0", "a")],
        [Start("1", "c")],
        [],
        [Lose("0", "a"), Start("0", "b")],
        [Lose("0", "b")],
        [Start("0", "d")],
    ]
    assert places.handle(NodeEvent(6.0, False, "c")) == [Lose("1", "c")]
    assert places.fill_up() == [Start("1", "late0")]


def test_an_idle_node_that_goes_takes_nobody_with_it() -> None:
    places = NodeAssignments(["0"])
    for node in "ab":
        places.handle(NodeEvent(0.0, True, node))
    assert places.handle(NodeEvent(1.0, False, "b")) == []


def test_the_losses_of_a_trace_depend_on_the_number_of_places() -> None:
    assert [losses(parse_trace(TRACE), size) for size in (1, 2, 3)] == [1, 2, 2]
