"""Splitting: a message with many runs comes out whole at the other end, and no other does."""

import pytest

from ftcomm.errors import ProtocolError
from ftcomm.protocol.codec import Decoder, encode
from ftcomm.protocol.field_types import MAX_CONTROL_FRAME, RUNS_OF_A_FRAME
from ftcomm.protocol.link_messages import FetchRequest
from ftcomm.protocol.message_splitting import MAX_FRAMES, MAX_RUNS, split
from ftcomm.protocol.messages import (
    Fetch,
    Frame,
    More,
    Plan,
    Report,
    Settled,
)
from ftcomm.protocol.position import MAX_SEQNO, START, PositionRange

WIDE = PositionRange(2**31 - 1, MAX_SEQNO, 2**32 - 1, 2**31 - 1)


def runs(count: int) -> tuple[PositionRange, ...]:
    return tuple(PositionRange(0, 3 * number, 3 * number + 2) for number in range(count))


def report(count: int) -> Report:
    return Report(5, START, -1, -1, b"", runs(count), -1, 0, (), b"", "", False)


def request(count: int) -> FetchRequest:
    return FetchRequest(5, -1, runs(count))


def plan(count: int) -> Plan:
    fetches = tuple(Fetch(7, run) for run in runs(count))
    return Plan(5, 0, START, 0, -1, -1, (), fetches)


@pytest.mark.parametrize("make", [report, request, plan])
@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 8192, 8193, MAX_RUNS])
def test_a_list_of_any_length_comes_back_in_frames_of_bounded_length(
    make: type[Frame], count: int
) -> None:
    message = make(count)
    parts = split(message)
    assert len(parts) == max(-(-count // RUNS_OF_A_FRAME), 1)
    assert max(len(encode(part)) for part in parts) < MAX_CONTROL_FRAME
    assert Decoder().feed(encode(message) + encode(Settled(1))) == [message, Settled(1)]


def test_the_widest_runs_fit_a_frame() -> None:
    widest = More(fetches=(Fetch(2047, WIDE),) * RUNS_OF_A_FRAME)
    assert len(encode(widest)) < MAX_CONTROL_FRAME // 2


@pytest.mark.parametrize("make", [report, request, plan])
def test_too_long_a_list_is_our_own_mutant(make: type[Frame]) -> None:
    with pytest.raises(ValueError, match="32769 runs in one message, at most 32768"):
        encode(make(MAX_RUNS + 1))


@pytest.mark.parametrize(
    "frames",
    [
        (More(runs=runs(1)), Settled(1)),
        (More(fetches=(Fetch(0, PositionRange(0, 0, 1)),)), report(1)),
        (More(runs=runs(1)), plan(1)),
        (More(),) * MAX_FRAMES,
    ],
    ids=["another message", "fetches of a report", "runs of a plan", "too many frames"],
)
def test_what_does_not_belong_together_is_refused(frames: tuple[Frame, ...]) -> None:
    decoder = Decoder()
    with pytest.raises(ProtocolError):
        decoder.feed(b"".join(map(encode, frames)))
