"""Planned faults fire at their address, once, and leave a record."""

import os
import signal
import time
from pathlib import Path

import pytest

from ftcomm.config.process_identity import start_of
from ftcomm.diagnostics.fault_injection import (
    FaultInjector,
    InjectedError,
    InjectedFault,
    LinkAction,
    parse_faults,
)
from ftcomm.diagnostics.fault_record import FaultRecord
from ftcomm.errors import ConfigError
from ftcomm.protocol.position import Position


def at(version: int, seqno: int) -> Position:
    return Position(0, version, seqno)


def counted() -> tuple[int, int]:
    """Incarnation and epoch of a process that was played."""
    return 2, 5


def fired(log: Path) -> list[str]:
    return [FaultRecord.parse(line).fault for line in log.read_text().splitlines()]


class Links:
    """Remembers how links were broken."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def break_links(self, how: str) -> None:
        self.broken.append(how)


def test_a_plan_names_rank_version_seqno_process_point_step_and_action() -> None:
    assert parse_faults("1.-1.3.0@half_sent#2=reset, 0.4.0.1@saved") == [
        InjectedFault(1, -1, 3, 0, "half_sent", 2, "reset"),
        InjectedFault(0, 4, 0, 1, "saved", None, "kill"),
    ]


def test_a_fault_reads_as_it_is_written() -> None:
    text = "1.-1.3.0@half_sent#2=reset"
    assert str(parse_faults(text)[0]) == text


@pytest.mark.parametrize(
    "text", ["1.2.3@enter", "1.2.3.0@nowhere", "1.2.3.0@enter=faint", "x", "1.2.3.0@enter#a"]
)
def test_what_is_no_fault_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=f"FTCOMM_FAULTS: '{text}'"):
        parse_faults(f"0.0.0.0@enter,{text}")


def test_a_fault_fires_at_its_address_alone_and_once() -> None:
    links = Links()
    injector = FaultInjector(
        "1.0.2.0@enter=cut,1.0.2.0@half_sent#1=reset", None, links.break_links, counted
    )
    for rank, position, restarts in ((0, at(0, 2), 0), (1, at(0, 1), 0), (1, at(0, 2), 1)):
        injector.at("enter", rank, position, restarts)
        injector.at("half_sent", rank, position, restarts, 1)
    before = list(links.broken)
    for step in (0, 1, 1):
        injector.at("enter", 1, at(0, 2), 0)
        injector.at("half_sent", 1, at(0, 2), 0, step)
    assert (before, links.broken) == ([], ["cut", "reset"])


def test_a_fault_after_completion_belongs_to_the_call_that_was_entered() -> None:
    injector = FaultInjector("0.0.2.0@done=raise", None, Links().break_links, counted)
    injector.at("enter", 0, at(0, 2), 0)
    with pytest.raises(InjectedError, match=r"0\.0\.2\.0@done=raise"):
        injector.at("done", 0, at(0, 3), 0)


def test_a_note_is_written_down_and_nothing_else_happens(tmp_path: Path) -> None:
    log, links = tmp_path / "fired", Links()
    injector = FaultInjector("0.0.0.0@saved=note", str(log), links.break_links, counted)
    injector.at("saved", 0, at(0, 0), 0)
    assert (fired(log), links.broken) == (["0.0.0.0@saved=note"], [])


def test_what_fires_says_so_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, signals = tmp_path / "fired", []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number, fired(log))))
    injector = FaultInjector(
        "0.0.0.0@enter=stop,0.0.1.0@enter", str(log), Links().break_links, counted
    )
    injector.at("enter", 0, at(0, 0), 0)
    injector.at("enter", 0, at(0, 1), 0)
    first, second = "0.0.0.0@enter=stop", "0.0.1.0@enter=kill"
    assert signals == [
        (os.getpid(), signal.SIGSTOP, [first]),
        (os.getpid(), signal.SIGKILL, [first, second]),
    ]


def test_a_link_fault_lasts_and_is_written_down_once_by_the_lower_rank(tmp_path: Path) -> None:
    record = tmp_path / "fired"
    low, high = (
        FaultInjector("0-2@link=drop,0.0.0.0@enter", str(record), lambda _: None, counted)
        for _ in range(2)
    )
    assert [low.of_link(0, 2), low.of_link(0, 2), low.of_link(0, 1)] == [LinkAction.DROP] * 2 + [
        None
    ]
    assert high.of_link(2, 0) is LinkAction.DROP
    assert fired(record) == ["0-2@link=drop"]


@pytest.mark.parametrize("text", ["2-0@link=drop", "1-1@link=drop", "0-1@link=bend", "0-1@enter"])
def test_what_is_no_link_fault_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=f"FTCOMM_FAULTS: '{text}'.*lower-higher@link"):
        parse_faults(text)


def test_a_record_names_the_process_that_the_fault_hits(tmp_path: Path) -> None:
    log = tmp_path / "fired"
    injector = FaultInjector("0.0.0.1@saved=note", str(log), Links().break_links, counted)
    before = time.monotonic()
    injector.at("saved", 0, at(0, 0), 1)
    record = FaultRecord.parse(log.read_text().rstrip("\n"))
    start = start_of(os.getpid()) or 0
    wanted = FaultRecord("0.0.0.1@saved=note", os.getpid(), start, os.getpgrp(), 2, 5, record.at)
    assert (record, before - 1e-6 <= record.at <= time.monotonic()) == (wanted, True)


@pytest.mark.parametrize("line", ["0.0.0.0@enter=kill", "x pid=1", "x pid=a start=1", ""])
def test_what_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"record of a fault|update sequence"):
        FaultRecord.parse(line)
