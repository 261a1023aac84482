"""Traces with losses of all machines, and jobs that last as long."""

import itertools

from ftcomm_chaos.runner.spot_trace import Lose, NodeAssignments, losses, parse_trace, read_trace
from tests.soak.__main__ import TRACE
from tests.soak.ways import (
    TRACE_SPEED,
    WAYS,
    piece_of,
    trace_text,
    versions_for,
    way_of_trace,
    with_losses_of_all,
)

TEXT = "0,add,a\n0,add,b\n450000,remove,a\n500000,add,c\n900000,remove,b\n"
DARK = """\
0,add,a
0,add,b
450000,remove,a
450000,remove,b
675000,add,b
675000,add,c
900000,remove,b
"""


def test_all_machines_go_at_once_and_come_back_as_the_trace_has_them() -> None:
    """A machine that goes while all are away does not come back; one that comes is late."""
    assert trace_text(with_losses_of_all(parse_trace(TEXT))) == DARK


def test_the_recorded_trace_loses_all_machines_each_two_minutes() -> None:
    events = parse_trace(trace_text(with_losses_of_all(read_trace(TRACE))))
    here: set[str] = set()
    dark = []
    for event in events:
        here ^= {event.node}
        if not here:
            dark.append(event.at_s / TRACE_SPEED)
    assert dark == [120.0, 240.0, 360.0, 480.0, 600.0]
    assert losses(events, 5) > losses(read_trace(TRACE), 5)


def test_a_short_piece_of_the_trace_loses_all_machines_once() -> None:
    piece = piece_of(read_trace(TRACE), 20.0)
    places = NodeAssignments("01234")
    moves = itertools.chain.from_iterable(map(places.handle, with_losses_of_all(piece)))
    at_once = [move.worker for move in moves if isinstance(move, Lose)]
    assert at_once[:5] == list("01234")
    assert piece[-1].at_s <= 20.0 * TRACE_SPEED


def test_a_job_with_a_trace_is_ended_long_after_the_trace() -> None:
    way = way_of_trace("spot.csv", versions_for(70.0))
    assert (way.versions, way.limit_s) == (98, 1940.0)
    assert way.options()[-4:] == ["--trace", "spot.csv", "--trace-speed", "60"]


def test_every_kind_of_loss_has_a_way() -> None:
    given = {option for way in WAYS.values() for option in way.faults if option.startswith("--")}
    losing = {"--lose-all", "--lose-tracker-disk"}
    assert given == losing | {"--kill-every", "--tracker-kill-every", "--checkpoint-every"}
    assert not any(losing <= set(way.faults) for way in WAYS.values())
