"""Histories that come from killed processes and from unauthenticated peers."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcomm.diagnostics.history import Ended, Entered, Planned, Returned, Started, encode, file_name
from ftcomm.protocol.position import START
from ftcomm_chaos.history import (
    FaultFired,
    HarnessRecorder,
    HistoryError,
    IncarnationRecord,
    parse_lines,
    read_history,
)
from ftcomm_chaos.history.reader import MAX_LINE_BYTES

STARTED = Started(1, "job", "a/b", 3, 0, 2, 4711, "host", 5.0, 2)
PLANNED = Planned(1, 0, START, START, (("a/b", 3), ("w1", 1)))
ENTERED = Entered(START, "allreduce", "0101", "train.py:3", "ab")
RETURNED = Returned(START, "allreduce", "executed", 1, "cd", "ab")
WHOLE = [encode(event, 1.5) for event in (STARTED, PLANNED, ENTERED, RETURNED, Ended("closed"))]


def parsed(*lines: bytes) -> IncarnationRecord:
    record = parse_lines(iter(lines), "file")
    assert isinstance(record, IncarnationRecord)
    return record


def with_field(line: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(line), **fields}).encode() + b"\n"


def without_field(line: bytes, name: str) -> bytes:
    return json.dumps({k: v for k, v in json.loads(line).items() if k != name}).encode() + b"\n"


def test_what_was_written_is_read_back() -> None:
    incarnation = parsed(*WHOLE)
    assert incarnation.started.event == STARTED
    assert [line.event for line in incarnation.lines] == [
        PLANNED,
        ENTERED,
        RETURNED,
        Ended("closed"),
    ]
    assert [line.at for line in incarnation.lines] == ["file:2", "file:3", "file:4", "file:5"]


def test_a_killed_writer_leaves_a_torn_last_line_which_is_passed_over() -> None:
    incarnation = parsed(*WHOLE[:3], WHOLE[3][:-5])
    assert [line.event for line in incarnation.lines] == [PLANNED, ENTERED]
    assert parse_lines(iter([WHOLE[0][:20]]), "file") is None  # not even its first line was whole


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"\n", "not JSON"),
        (b"[1]\n", "not a JSON object"),
        (b"\xff\xfe\n", "not UTF-8"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (b'{"event": 1' + b"0" * 5000 + b"}\n", "digits"),
        (b'{"event": "stop"}\n', "no event is called 'stop'"),
        (without_field(WHOLE[3], "t"), "'t' is missing"),
        (without_field(WHOLE[3], "how"), "'how' is missing"),
        (with_field(WHOLE[3], t=float("nan")), "NaN is not a number"),
        (with_field(WHOLE[3], t=-1), "'t' is -1, and must be a number of seconds"),
        (with_field(WHOLE[3], t=True), "'t' is True"),
        (with_field(WHOLE[3], epoch=1.5), "'epoch' is 1.5, and must be a whole number from 1 on"),
        (with_field(WHOLE[3], epoch=True), "'epoch' is True"),
        (with_field(WHOLE[3], epoch=1 << 70), "'epoch' is"),
        (with_field(WHOLE[3], kind="explode"), "must be one of allgather, "),
        (with_field(WHOLE[3], how="guessed"), "must be one of executed, served"),
        (with_field(WHOLE[3], result="xyz"), "must be lower-case hex digits"),
        (with_field(WHOLE[3], result=7), "must be a text"),
        (with_field(WHOLE[3], position=[0, -2, 0]), "[branch, version, seqno]"),
        (with_field(WHOLE[3], position=[0, 0]), "[branch, version, seqno]"),
        (with_field(WHOLE[3], position=[0, 0, 1 << 70]), "'position'"),
        (with_field(WHOLE[3], version="1"), "'version' is '1'"),
        (with_field(WHOLE[1], members=[]), "a list of 1 to 2048 members"),
        (with_field(WHOLE[1], members=[["w0", "1"]]), "[worker id, incarnation]"),
        (with_field(WHOLE[2], site="x" * 5000), "a text of at most"),
        (with_field(WHOLE[2], site="\ud800"), "text that UTF-8 can hold"),
        (WHOLE[0], "a second incarnation begins in this file"),
        (encode(FaultFired("kill", "w0", 0.0), 1.0), "a harness's event in an incarnation's file"),
    ],
)  # fmt: skip
def test_a_malformed_line_is_an_error_with_its_place_and_a_remedy(bad: bytes, why: str) -> None:
    with pytest.raises(HistoryError) as caught:
        parsed(WHOLE[0], WHOLE[1], bad, *WHOLE[2:])
    assert (caught.value.at, why in caught.value.cause) == ("file:3", True), caught.value
    assert "record" in caught.value.remedy


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (WHOLE[1], "neither start nor harness"),
        (with_field(WHOLE[0], format=2), "it has format 2, and this reader knows 1"),
        (with_field(WHOLE[0], rank=2), "rank 2 of 2 places"),
        (with_field(WHOLE[0], incarnation=0), "'incarnation' is 0"),
    ],
)
def test_a_file_that_begins_with_something_else_is_refused(first: bytes, why: str) -> None:
    with pytest.raises(HistoryError) as caught:
        parsed(first, *WHOLE[1:])
    assert (caught.value.at, why in caught.value.cause) == ("file:1", True), caught.value


def test_a_line_that_never_ends_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(HistoryError, match="file:2: the line is longer than"):
        parsed(WHOLE[0], b" " * (MAX_LINE_BYTES + 1))


@given(st.lists(st.binary(max_size=60).map(lambda raw: raw + b"\n"), max_size=4))
def test_random_bytes_end_in_a_typed_error_or_in_nothing(lines: list[bytes]) -> None:
    with contextlib.suppress(HistoryError):
        assert parse_lines(iter(lines), "file") is None


@given(st.integers(0, 4), st.integers(0, 10_000), st.integers(0, 255))
def test_one_wrong_byte_anywhere_is_read_or_refused(line: int, place: int, byte: int) -> None:
    lines = [bytearray(whole) for whole in WHOLE]
    lines[line][place % len(lines[line])] = byte
    with contextlib.suppress(HistoryError):
        parse_lines(map(bytes, lines), "file")


def test_a_folder_is_one_job_with_its_processes_and_its_harness(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a history")
    (tmp_path / file_name("a/b", 3)).write_bytes(b"".join(WHOLE))
    recorder = HarnessRecorder(tmp_path)
    recorder.fault("stop", "a/b", 2.5, at=17.5)
    recorder.close()
    history = read_history(tmp_path)
    assert ([incarnation.name for incarnation in history.records], history.size) == (["a/b-3"], 2)
    told = history.harness
    assert told is not None
    assert [line.event for line in told.faults] == [FaultFired("stop", "a/b", 2.5)]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({}, "is of the same incarnation, a/b-3"),
        ({"incarnation": 4, "job": "another"}, "is of another job"),
        ({"incarnation": 4, "size": 3}, "another number of places"),
    ],
)
def test_files_of_two_jobs_in_one_folder_are_refused(
    tmp_path: Path, other: dict[str, Any], why: str
) -> None:
    (tmp_path / "one.jsonl").write_bytes(b"".join(WHOLE))
    (tmp_path / "two.jsonl").write_bytes(with_field(WHOLE[0], **other))
    with pytest.raises(HistoryError) as caught:
        read_history(tmp_path)
    assert (caught.value.at, why in caught.value.cause) == ("two.jsonl:1", True)
    assert caught.value.remedy == "record each job in a folder of its own"


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="no-such-folder"):
        read_history(tmp_path / "no-such-folder")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(HistoryError, match="it is not a file"):
        read_history(tmp_path)
