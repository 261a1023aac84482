"""The logger is silent until asked, then says where the worker stands."""

import io
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ftcomm.diagnostics import logs
from ftcomm.diagnostics.logs import JobLogger, LogContext, Reminder
from ftcomm.errors import JobLostError
from ftcomm.protocol.position import Position
from ftcomm.recovery.states import WorkerState, state_in_words
from tests.conformance.plans import worker_environment


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    target = io.StringIO()
    logs.turn_on("info", stream=target)
    yield target
    logs.turn_off()


def said(stream: io.StringIO) -> list[str]:
    """The lines without their time of day."""
    return [line.split(" ftcomm ", 1)[1] for line in stream.getvalue().splitlines()]


def test_what_must_be_seen_is_written_where_nobody_listens() -> None:
    """In a process of its own: here pytest listens."""
    script = """
import logging
from ftcomm.diagnostics.logs import JobLogger, LogContext
log = JobLogger(LogContext())
log.warning("nobody hears this")
log.warn_aloud("no tracker answers %s", "here")
heard = logging.StreamHandler()
logging.getLogger().addHandler(heard)
log.warn_aloud("said once")
logging.getLogger().removeHandler(heard)
logging.getLogger("ftcomm").setLevel("ERROR")
log.warn_aloud("silenced")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=worker_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "ftcomm: no tracker answers here\nsaid once\n")


def test_a_change_of_state_is_said_in_words() -> None:
    said = [state_in_words(state, "lost worker 1", JobLostError("why")) for state in WorkerState]
    assert said[1] == "stopped here until the group is complete again: lost worker 1"
    assert said[5].startswith("can go on no more: why")
    assert [words for words in said if any(state.value in words for state in WorkerState)] == []


def test_a_reminder_is_due_soon_and_then_each_minute() -> None:
    reminder = Reminder(100.0)
    assert [now for now in range(100, 300) if reminder.is_due(now)] == [103, 163, 223, 283]


def test_each_line_reads_the_context_when_it_is_emitted(stream: io.StringIO) -> None:
    context = LogContext()
    log = JobLogger(context)
    log.info("looking for the tracker")
    context.job, context.rank, context.epoch = "j1", 2, 5
    context.position = Position(0, 4, 1)
    log.warning("link to rank %d broke", 3)
    log.debug("not asked for")
    assert said(stream) == [
        "INFO job=- rank=- epoch=- position=- looking for the tracker",
        "WARNING job=j1 rank=2 epoch=5 position=4.1 link to rank 3 broke",
    ]


def test_a_plain_logger_below_ftcomm_has_no_context_but_a_line(stream: io.StringIO) -> None:
    logging.getLogger("ftcomm.tracker").info("serving")
    assert said(stream) == ["INFO job=- rank=- epoch=- position=- serving"]


def test_turning_on_twice_prints_once(stream: io.StringIO) -> None:
    logs.turn_on("warning", stream=stream)
    JobLogger(LogContext()).warning("once")
    JobLogger(LogContext()).info("too low now")
    assert len(said(stream)) == 1


def test_an_application_finds_the_values_on_the_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="ftcomm"):
        JobLogger(LogContext(job="j", rank=1)).info("hello", extra={"peer": 4})
    (record,) = caplog.records
    assert (record.job, record.rank, record.epoch, record.peer) == ("j", 1, "-", 4)


def test_unasked_not_a_byte_is_written() -> None:
    script = "import ftcomm.diagnostics.logs as l; l.JobLogger(l.LogContext()).error('hush')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
