"""Decoders under any bytes: a value or a typed error, in bounded memory."""

import contextlib
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ftcomm.errors import FtcommError, ProtocolError, TrackerLostError
from ftcomm.memory.pool import dtype_from_wire, stored_from_wire
from ftcomm.protocol.codec import decode_body, encode
from ftcomm.protocol.field_types import MAX_CONTROL_FRAME
from ftcomm.protocol.handshake import (
    ClientHandshake,
)
from ftcomm.protocol.messages import FatalReport, Heartbeat, Mismatch, Report, Welcome
from ftcomm.protocol.position import MAX_VERSION, START, Position, PositionRange
from ftcomm.recovery.events import CloseLinks, Hangup, Wake
from ftcomm.state.layout import with_bodies
from ftcomm.state.serializer import pack_state, unpack_state
from ftcomm_tracker.core.events import ConnectionLost
from tests.fuzz.wire import feed_client, feed_server
from tests.security.strategies import worker_messages
from tests.unit.recovery.worker_scenario import a_member, hear
from tests.unit.tracker.roster_scenario import hello, names, running

MIB = 1 << 20
LAST = Position(0, MAX_VERSION, 0)
STATES_OF_THE_LAST_VERSION = Mismatch(1, LAST, b"", "", 0, LAST, b"", "", states=True)


def peak_of(function: Callable[..., object], *arguments: object) -> float:
    """The most memory that a call took, in MiB; a typed error is an answer."""
    tracemalloc.start()
    try:
        with contextlib.suppress(FtcommError):
            function(*arguments)
        return tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()


# --- msgpack bombs ------------------------------------------------------------------------------


def filled(head: bytes, size: int = MAX_CONTROL_FRAME) -> bytes:
    return head.ljust(size, b"\xc0")


HUGE_ARRAY = b"\xdd" + struct.pack(">I", MAX_CONTROL_FRAME - 5000)
BOMBS = {
    "nested 2000 deep": filled(b"\x91" * 2000),
    "nested to the end": b"\x91" * MAX_CONTROL_FRAME,
    "nested huge arrays": filled(HUGE_ARRAY * 900),
    "an array of 2**32-1": filled(b"\xdd\xff\xff\xff\xff"),
    "a map of 2**32-1": filled(b"\xdf\xff\xff\xff\xff"),
    "nested huge maps": filled((b"\xdf" + struct.pack(">I", 100_000)) * 900),
    "text of 2**32-1": filled(b"\xdb\xff\xff\xff\xff"),
    "bytes of 2**32-1": filled(b"\xc6\xff\xff\xff\xff"),
    "an extension of 2**32-1": filled(b"\xc9\xff\xff\xff\xff\x01"),
    "a timestamp": filled(b"\xd6\xff\x00\x00\x00\x00"),
    "the code that is never used": filled(b"\xc1"),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("head", [b"", b"\x92\x01", b"\x9d\x01\xa10"], ids=["", "code", "field"])
def test_a_bomb_in_a_control_frame_costs_no_more_than_its_size(name: str, head: bytes) -> None:
    raw = head + BOMBS[name]
    with pytest.raises(ProtocolError):
        decode_body(raw)
    assert peak_of(decode_body, raw) < 1.5


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("within", ["itself", "a tuple", "the head of an array"])
def test_a_bomb_for_a_state_costs_no_more_than_its_size(name: str, within: str) -> None:
    raw = BOMBS[name]
    if within == "a tuple":
        raw = msgpack.packb(msgpack.ExtType(2, raw))
    elif within == "the head of an array":
        raw = msgpack.packb(msgpack.ExtType(1, raw))
    raw = with_bodies(raw, [])
    with pytest.raises(ProtocolError):
        unpack_state(raw)
    assert peak_of(unpack_state, raw) < 4


def test_a_result_that_no_array_can_hold_is_refused() -> None:
    shape = (0, *[1 << 40] * 3)
    with pytest.raises(ProtocolError, match="no room"):
        stored_from_wire(dtype_from_wire(8, shape, 0, 1 << 40), shape, np.empty(0, np.uint8))
    with pytest.raises(ProtocolError, match="announced"):
        dtype_from_wire(8, (1 << 40,), 1 << 42, 1 << 40)


def test_the_largest_report_stays_small() -> None:
    runs = tuple(PositionRange(0, 2 * n, 2 * n + 1) for n in range(4096))
    report = Report(1, START, 0, -1, b"", runs, -1, 0, tuple(range(1024)), b"", "x" * 1024, False)
    assert peak_of(decode_body, encode(report)[4:]) < 2


# --- bytes without sense ------------------------------------------------------------------------


@settings(max_examples=60)
@given(tail=st.binary(max_size=120), role=st.integers(0, 255), length=st.integers(0, 255))
def test_a_handshake_that_begins_well_and_goes_on_badly(
    tail: bytes, role: int, length: int
) -> None:
    head = ClientHandshake(b"k", role="worker", context=b"", nonce=b"n" * 32).hello()[:6]
    with contextlib.suppress(FtcommError):
        feed_server(head + bytes([role, length]) + tail * 4)
    with contextlib.suppress(FtcommError):
        feed_client(head + bytes([role, length]) + tail * 4)


@settings(max_examples=60)
@given(
    state=st.recursive(
        st.none() | st.integers() | st.text() | st.binary(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text(), inner) | inner.map(lambda x: (x,))
        ),
        max_leaves=6,
    ),
    data=st.data(),
)
def test_a_damaged_state_gives_a_state_or_a_typed_error(state: Any, data: st.DataObject) -> None:
    raw = bytearray(pack_state(state))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FtcommError):
        unpack_state(bytes(raw[: data.draw(st.integers(at, len(raw)))]))


# --- members and trackers that hold the token and make no sense ---------------------------------


@settings(max_examples=60)
@given(said=st.lists(st.tuples(st.integers(1, 4), worker_messages), max_size=8))
@example(said=[(1, STATES_OF_THE_LAST_VERSION)])
def test_whatever_members_and_spares_say_the_tracker_goes_on_and_can_answer(
    said: list[tuple[int, Any]],
) -> None:
    """Every answer fits the wire; the invariants are checked inside `handle`."""
    scenario = running(2)
    answers = scenario.joined(3, hello("spare"))
    for conn, message in said:
        if type(message).__name__ == "Hello":
            answers += scenario.joined(10 + len(answers), message)
        else:
            answers += scenario.said(conn, message)
        scenario.now += 0.1
    scenario.tell(ConnectionLost(1, "its connection ended"))
    answers += scenario.joined(9999, hello("w0", "again"))
    for _, answer in answers:
        encode(answer)
    scenario.roster.snapshot(scenario.now)


def test_a_member_that_compares_states_of_no_version_is_dropped() -> None:
    scenario = running(2)
    answers = scenario.said(1, STATES_OF_THE_LAST_VERSION)
    assert [type(answer).__name__ for _, answer in answers] == ["Revoke"]
    assert scenario.roster.durable.fatal_decision is None


def test_a_spare_cannot_end_the_job_by_a_limit_that_it_cannot_have_reached() -> None:
    scenario = running(2)
    scenario.joined(3, hello("spare"))
    assert scenario.said(3, FatalReport(1, START, "LogLimitError", "I say so")) == []
    assert scenario.roster.durable.fatal_decision is None


def test_a_spare_whose_machine_vanished_makes_room() -> None:
    scenario = running(2)
    scenario.joined(3, hello("spare"))
    for second in range(1, 7):
        scenario.now = float(second)
        for conn in (1, 2):
            scenario.said(conn, Heartbeat(second, 1, START))
    assert scenario.roster.snapshot(scenario.now)["spares"] == []
    assert scenario.roster.durable.epoch == 1


def test_worker_ids_without_end_are_refused_and_known_ones_still_join(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ftcomm_tracker.core.admission.MAX_WORKER_IDS", 5)
    scenario = running(2)
    for number in range(3, 20):
        sent = scenario.joined(number, hello(f"spare{number}"))
        if number < 6:
            assert isinstance(sent[0][1], Welcome)
        scenario.tell(ConnectionLost(number, "its connection ended"))
    assert len(scenario.roster.durable.incarnations) == 5
    assert (99, "Welcome") in names(scenario.joined(99, hello("w0", "again")))
    assert names(scenario.joined(100, hello("spare4", "again"))) == [(100, "Welcome")]


def test_a_member_does_not_become_one_of_another_job_that_has_its_trackers_address() -> None:
    core = a_member()
    assert hear(core, Welcome("other", 1, 1, 2, 0, ())) == [CloseLinks(), Wake(), Hangup()]
    assert isinstance(core.view.error, TrackerLostError)
    assert "job is gone: its address serves other" in core.view.error.cause
