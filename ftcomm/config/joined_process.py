"""The note in the environment that says which process has joined as which worker of which job.

A forked or spawned child inherits the variables that name its parent's worker.  If it joined by
them, it would take the parent's place.  `init` leaves the note, and a child that reads it is
refused for as long as the parent runs; `close` removes the note.  A process that has joined
several times leaves a line for each.
"""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from ftcomm.config.environment import JOINED, joined_note, write_joined_note
from ftcomm.config.process_identity import ProcessName, this_process
from ftcomm.errors import ConfigError

Routes = Sequence[tuple[str, int]]
_REMEDY = (
    "put what starts the script behind `if __name__ == '__main__':` where child processes import"
    " it again, and call ftcomm in the parent process alone; a child that computes alone calls"
    ' init(tracker="none"), one that is a worker of its own init(worker_id=...)'
)
_writing = threading.Lock()  # threads of one process may join at once


@dataclass(frozen=True, slots=True)
class _Note:
    """Identity of a joined process: its worker id, and the addresses of the job's tracker."""

    process: ProcessName
    routes: frozenset[str]
    worker_id: str

    def __str__(self) -> str:
        routes = ",".join(sorted(self.routes))
        return f"{self.process.pid} {self.process.start} {routes} {self.worker_id}"


def note_joined(worker_id: str, routes: Routes) -> Callable[[], None]:
    """This process joins the job at `routes` under that id: tell its children.

    Returns:
        a function that takes the note away: this process has left the job, and a child may join
        under its worker id.

    Raises:
        ConfigError: a process that runs has joined under that id, and this one is its child.
    """
    wanted = _Note(this_process(), _names(routes), worker_id)
    with _writing:
        notes = _read()
        for found in notes:
            _refuse_child(found, wanted)
        own = [note for note in notes if note.process == wanted.process and note != wanted]
        _write(map(str, [*own, wanted]))
    return partial(_forget, wanted)


def _refuse_child(found: _Note, wanted: _Note) -> None:
    if (
        found.worker_id == wanted.worker_id
        and found.routes & wanted.routes
        and found.process != wanted.process
        and found.process.is_running()
    ):
        raise ConfigError(
            f"worker {wanted.worker_id} of this job is process {found.process.pid}, which runs;"
            f" process {os.getpid()} has only inherited that worker id and would take its place",
            remedy=_REMEDY,
        )


def _forget(note: _Note) -> None:
    with _writing:
        if note.process == this_process():  # a forked child leaves its parent's note
            _write(line for line in _lines() if line != str(note))


def _names(routes: Routes) -> frozenset[str]:
    return frozenset(f"{host}:{port}" for host, port in routes)


def _lines() -> list[str]:
    text = joined_note()
    return [] if text is None else text.split("\n")


def _write(lines: Iterable[str]) -> None:
    write_joined_note("\n".join(lines) or None)


def _read() -> list[_Note]:
    try:
        return [_parsed(line) for line in _lines()]
    except ValueError:
        raise ConfigError(
            f"{JOINED} is {str(joined_note())[:200]!r}, which init() never writes",
            remedy=f"unset {JOINED}",
        ) from None


def _parsed(line: str) -> _Note:
    pid, start, routes, worker_id = line.split(" ", 3)
    return _Note(ProcessName(int(pid), int(start)), frozenset(routes.split(",")), worker_id)
