"""The note in the environment that says which process has joined as which worker of which job.

A forked or spawned child inherits the variables that name its parent's worker.  If it joined by
them, it would take the parent's place.  `init` leaves the note, and a child that reads it is
refused for as long as the parent runs; `close` removes the note.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ftcomm.config.environment import JOINED, joined_note, write_joined_note
from ftcomm.config.process_identity import ProcessName, this_process
from ftcomm.errors import ConfigError

Routes = Sequence[tuple[str, int]]
_REMEDY = (
    "put what starts the script behind `if __name__ == '__main__':` where child processes import"
    " it again, and call ftcomm in the parent process alone; a child that computes alone calls"
    ' init(tracker="none"), one that is a worker of its own init(worker_id=...)'
)


@dataclass(frozen=True, slots=True)
class _Note:
    """Identity of a joined process: its worker id, and the addresses of the job's tracker."""

    process: ProcessName
    routes: frozenset[str]
    worker_id: str

    def __str__(self) -> str:
        routes = ",".join(sorted(self.routes))
        return f"{self.process.pid} {self.process.start} {routes} {self.worker_id}"


def note_joined(worker_id: str, routes: Routes) -> None:
    """This process joins the job at `routes` under that id: tell its children.

    Raises:
        ConfigError: a process that runs has joined under that id, and this one is its child.
    """
    wanted = _Note(this_process(), _names(routes), worker_id)
    found = _read()
    if (
        found is not None
        and found.worker_id == worker_id
        and found.routes & wanted.routes
        and found.process != wanted.process
        and found.process.is_running()
    ):
        raise ConfigError(
            f"worker {worker_id} of this job is process {found.process.pid}, which runs; process"
            f" {os.getpid()} has only inherited that worker id and would take its place",
            remedy=_REMEDY,
        )
    write_joined_note(str(wanted))


def forget_joined() -> None:
    """This process has left its job: a child may join under its worker id."""
    me = this_process()
    if (joined_note() or "").startswith(f"{me.pid} {me.start} "):
        write_joined_note(None)


def _names(routes: Routes) -> frozenset[str]:
    return frozenset(f"{host}:{port}" for host, port in routes)


def _read() -> _Note | None:
    text = joined_note()
    if text is None:
        return None
    try:
        pid, start, routes, worker_id = text.split(" ", 3)
        return _Note(ProcessName(int(pid), int(start)), frozenset(routes.split(",")), worker_id)
    except ValueError:
        raise ConfigError(
            f"{JOINED} is {text[:200]!r}, which init() never writes", remedy=f"unset {JOINED}"
        ) from None
