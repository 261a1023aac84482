"""Findings of the fuzzer, each once and by name; the inputs are in the corpora as `found-*`."""

import sys
from typing import Any

import msgpack
import numpy as np
import pytest

from ftcomm.config.environment import parse_address
from ftcomm.diagnostics.fault_injection import parse_faults
from ftcomm.errors import ConfigError, ProtocolError
from ftcomm.protocol.frame_header import pack_header, unpack_header
from ftcomm.protocol.messages import Revoke
from ftcomm.recovery.events import CloseLinks, Hangup, Wake
from ftcomm.requests.object_payload import array_blobs, array_of
from ftcomm.state.layout import with_bodies
from ftcomm.state.serializer import unpack_state
from ftcomm_chaos.history.reader import HistoryError, parse_lines
from ftcomm_chaos.runner.fault_plan import parse_plan
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.server.fault_injection import parse_tracker_faults
from tests.fuzz.seeds import a_durable
from tests.fuzz.wire import HEADER
from tests.unit.recovery.worker_scenario import a_member, hear, plan


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"\xd6\xff\0\0\0\1", "it holds a Timestamp"),
        (msgpack.packb([{2.5: 1}]), "a key of type float"),
        (nested(66), "nested more than"),
    ],
    ids=["a timestamp", "a number with a fraction for a key", "too deep"],
)
def test_a_state_that_could_not_have_been_saved_is_refused(raw: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        unpack_state(with_bodies(raw, []))


@pytest.mark.parametrize(
    ("word", "value"),
    [(0, 5), (1, -1), (1, 2), (2, 1), (2, 3), (2, -2)],
    ids=["dtype", "dimensions", "more dimensions", "shape", "more", "negative shape"],
)
def test_a_scatter_whose_head_does_not_account_for_all_its_bytes_is_refused(
    word: int, value: int
) -> None:
    whole = array_blobs(np.arange(6, dtype=np.int16).reshape(3, 2), 3, "scatter")[2]
    assert array_of(whole).tolist() == [4, 5]
    blob = whole.copy()
    blob[8 * word : 8 * word + 8] = np.frombuffer(np.int64(value).tobytes(), np.uint8)
    with pytest.raises(ProtocolError, match="damaged scatter"):
        array_of(blob)


def test_a_call_site_in_foreign_letters_reads_the_same_on_both_sides() -> None:
    raw = bytearray(pack_header(HEADER))
    raw[-24:-20] = "tür".encode()
    header = unpack_header(raw)
    assert header.site.startswith("t??r")
    assert unpack_header(pack_header(header)) == header


@pytest.mark.parametrize("text", ["1]:65535", "[::1:80", "a b:1", "a\x1bb:1", "[[::1]]:1"])
def test_an_address_whose_host_cannot_be_one_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not host:port|write IPv6"):
        parse_address(text)


def test_a_plan_of_faults_that_can_just_be_read_is_refused_in_words() -> None:
    for depth in range(sys.getrecursionlimit() - 150, sys.getrecursionlimit()):
        with pytest.raises(ConfigError, match=r"the plan|nested"):
            parse_plan(f'[{{"at": {"[" * depth}{"]" * depth}, "kind": "sigkill"}}]', 2)


def test_a_history_with_a_time_beyond_all_floats_is_refused_by_line() -> None:
    line = b'{"event": "harness", "format": 1, "t": 1' + b"0" * 400 + b"}\n"
    with pytest.raises(HistoryError, match=r"file:1: 't' is 1000"):
        parse_lines(iter([line]), "file")


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"rank": -1}, "is for rank -1, which has no place in it"),
        ({"grouping": ()}, "is for rank 0, which has no place in it"),
        ({"load": 3}, "loads version 3 from nobody"),
    ],
)
def test_a_plan_that_nobody_can_carry_out_ends_the_worker_with_a_typed_error(
    change: dict[str, Any], cause: str
) -> None:
    core = a_member()
    hear(core, Revoke(2, "rank 1 died"))
    assert hear(core, plan(2, **change)) == [CloseLinks(), Wake(), Hangup()]
    assert isinstance(core.view.error, ProtocolError)
    assert cause in core.view.error.cause


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 2**32 - 1},
        {"version": 2**40},
        {"final_version": 2**40},
        {"job_id": "\ud800"},
        {"verdict": ["e" * 100, "c", 3, [0, 0, 0], 0]},
        {"verdict": ["JobLostError", "c", -3, [0, 0, 0], 0]},
        {"incarnations": [["w" * 65, 1]]},
        {"places": [["w0", 1, b"a", "h"], ["w1", 2**32, b"b", "h"]]},
    ],
    ids=str,
)
def test_a_journalled_state_that_no_message_can_carry_is_refused(change: dict[str, Any]) -> None:
    whole = a_durable().to_wire()
    assert Durable.from_wire(whole) == a_durable()
    with pytest.raises(ConfigError, match="the journal is damaged"):
        Durable.from_wire({**whole, **change})


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_faults, "0.0.0.{}@enter"),
        (parse_faults, "0-{}@link=drop"),
        (parse_tracker_faults, "1.{}@accepted"),
        (parse_tracker_faults, "1.1@accepted#{}"),
    ],
)
def test_an_endless_number_in_a_planned_fault_is_refused_by_name(parse: Any, text: str) -> None:
    assert parse(text.format(2))
    with pytest.raises(ConfigError, match="is not"):
        parse(text.format("9" * 5000))
