"""Journals of results at the end of a job: what one rank removes while another one writes."""

import errno
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import trio
import trio.testing

from ftcomm.control import result_journal
from ftcomm.control.result_journal import ResultJournal
from ftcomm.durable.journal.journal_files import JournalFile, journals_of
from ftcomm.durable.journal.journal_format import JournalHeader
from ftcomm.protocol.durable.journal_messages import ReadJournal
from ftcomm.recovery.events import Event, JournalRead, JournalWritten
from ftcomm.recovery.journal.journalling import Batch
from ftcomm.recovery.states import WorkerState

BATCH = Batch(1, 3, 0, 7, 7, begins_epoch=True, results=(), is_last=True, proves=False)


NEXT = Batch(2, 4, 0, 7, 7, begins_epoch=True, results=(), is_last=True, proves=False)


class JobThatEnds:
    """The driver of a rank that has some batches to write when its job ends."""

    def __init__(
        self,
        nursery: trio.Nursery,
        folder: Path,
        *,
        closed: bool,
        batches: Iterable[Batch] = (BATCH,),
    ) -> None:
        waiting = list(batches)
        self.nursery, self.hung_up = nursery, trio.Event()
        self.warned: list[str] = []
        self.logged: list[str] = []
        self.applied: list[Event] = []
        self.hub = SimpleNamespace(
            lock=threading.Lock(),
            settings=SimpleNamespace(journal=str(folder)),
            log=SimpleNamespace(warn_aloud=self._warn, warning=self._log),
            core=SimpleNamespace(
                contact=SimpleNamespace(job_id="run.1"),
                progress=SimpleNamespace(closed=closed),
                view=SimpleNamespace(state=WorkerState.RUNNING),
                durables=SimpleNamespace(durable=-1),
                journalling=SimpleNamespace(
                    take=lambda: waiting.pop(0) if waiting else None,
                    still_held=lambda batch: [],
                    obsolete_before=0,
                ),
            ),
        )

    def _warn(self, words: str, *arguments: object) -> None:
        self.warned.append(words % arguments)

    def _log(self, words: str, *arguments: object) -> None:
        self.logged.append(words % arguments)

    def apply(self, event: Event) -> None:
        """Take it; the job ends after the batches."""
        self.applied.append(event)
        self.hung_up.set()


@pytest.mark.trio
@pytest.mark.parametrize(
    ("closed", "error", "warns"),
    [
        (True, FileNotFoundError(2, "No such file or directory"), False),
        (True, OSError(28, "No space left on device"), True),
        (False, FileNotFoundError(2, "No such file or directory"), True),
        (False, MemoryError("for the copies"), True),
    ],
)
async def test_only_the_end_of_the_job_removes_a_journal_without_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    closed: bool,
    error: Exception,
    warns: bool,
) -> None:
    """A rank removes the journals when it knows that all have closed; others write until then."""

    def removed(*args: object) -> None:
        raise error

    monkeypatch.setattr(result_journal, "JournalFile", removed)
    async with trio.open_nursery() as nursery:
        job: Any = JobThatEnds(nursery, tmp_path, closed=closed)
        ResultJournal(job).begin()
    assert (bool(job.warned), job.applied) == (warns, [JournalWritten(1)])


@pytest.mark.trio
async def test_no_journal_stays_open_behind_its_communicator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    opened: list[JournalFile] = []
    closed: list[JournalFile] = []

    class Noted(JournalFile):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append(self)

        def close(self) -> None:
            super().close()
            closed.append(self)

    monkeypatch.setattr(result_journal, "JournalFile", Noted)
    async with trio.open_nursery() as nursery:
        job: Any = JobThatEnds(nursery, tmp_path, closed=False)
        ResultJournal(job).begin()
    assert len(opened) == 1
    assert closed == opened


@pytest.mark.trio
async def test_a_journal_that_cannot_be_closed_is_closed_once_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """The system has given the descriptor up all the same, and gives it to another file."""
    closed: list[int] = []

    class AtAnEnd(JournalFile):
        def close(self) -> None:
            super().close()
            closed.append(self.header.version)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(result_journal, "JournalFile", AtAnEnd)
    async with trio.open_nursery() as nursery:
        more = replace(BATCH, is_last=False)
        job: Any = JobThatEnds(nursery, tmp_path, closed=False, batches=(more, NEXT))
        ResultJournal(job).begin()
    assert (closed, job.warned) == ([3, 4], [])
    assert journals_of(tmp_path, "run", 1, 0, 4) != []


@pytest.mark.trio
async def test_a_journal_for_which_there_is_no_memory_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(*_: object) -> NoReturn:
        raise MemoryError("for the results")

    monkeypatch.setattr(result_journal, "read_journal", without_memory)
    monkeypatch.setattr(result_journal, "journals_of", lambda *_: [tmp_path])
    order = ReadJournal(1, 0, 3)
    async with trio.open_nursery() as nursery:
        job: Any = JobThatEnds(nursery, tmp_path, closed=False)
        ResultJournal(job).start_read(order)
    assert job.applied == [JournalRead(order, ())]
    assert job.warned == [
        "no journal is used: this process has no memory left for it: for the results"
    ]


def _stale(folder: Path, *_: str) -> NoReturn:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(folder))


@pytest.mark.trio
@pytest.mark.parametrize(
    ("call", "said"), [("iterdir", "no journal is used: "), ("open", "journal .* is not used: ")]
)
async def test_results_that_cannot_be_read_are_said_on_the_console_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, said: str
) -> None:
    JournalFile(tmp_path, JournalHeader("run", 1, 0, 3, 7)).close()
    monkeypatch.setattr(Path, call, _stale)
    order = ReadJournal(1, 3, 0)
    async with trio.open_nursery() as nursery:
        job: Any = JobThatEnds(nursery, tmp_path, closed=False)
        ResultJournal(job).start_read(order)
    assert (job.applied, job.logged) == ([JournalRead(order, ())], [])
    [warning] = job.warned
    assert re.match(said + f".*{os.strerror(errno.ESTALE)}", warning)


@pytest.mark.trio
async def test_a_journal_whose_writer_was_killed_as_it_began_is_noted_in_the_log_alone(
    tmp_path: Path,
) -> None:
    JournalFile(tmp_path, JournalHeader("run", 1, 0, 3, 7)).close()
    [path] = journals_of(tmp_path, "run", 1, 0, 3)
    path.write_bytes(b"")
    async with trio.open_nursery() as nursery:
        job: Any = JobThatEnds(nursery, tmp_path, closed=False)
        ResultJournal(job).start_read(ReadJournal(1, 3, 0))
    assert (job.warned, len(job.logged)) == ([], 1)
