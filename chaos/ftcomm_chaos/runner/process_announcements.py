"""Announcements of a run's processes to the runner, without a change of the script.

A shell of a few lines is put before the user's command.  It notes its process id and start in a
pipe, sets what this worker's environment needs, and becomes the command.  The library and the
tracker write into the same pipe when they deliver a fault at a position.
"""

import contextlib
import os
import shlex
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from ftcomm.config.environment import RECORDED_IN
from ftcomm.config.process_identity import stat_in
from ftcomm.diagnostics.fault_record import FaultRecord
from ftcomm_chaos.faults.fault import Preparation
from ftcomm_tracker.server.fault_injection import TRACKER

_SHIM = """\
IFS= read -r stat < "/proc/$$/stat"
printf 'started %s %s\\n' "$FTCOMM_WORKER_ID" "$stat" > {events}
. {folder}/"worker-$FTCOMM_WORKER_ID.sh"
"""
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """A worker's process has begun."""

    worker: str
    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class Fired:
    """The library, or the tracker, was at an address of the plan and did what was asked."""

    record: FaultRecord

    @property
    def address(self) -> str:
        """The fault's, as plans write it."""
        return self.record.fault.partition("=")[0]


Note = ProcessStarted | Fired


class Announcements:
    """The pipe and the shell of one run; `close` when the run is over."""

    def __init__(self, folder: Path) -> None:
        """Make both in `folder`."""
        self.path = folder / "events"
        self._shim = folder / "shim.sh"
        self._folder = folder
        os.mkfifo(self.path, 0o600)
        # Opened for writing too: else it would end whenever no process has it open.
        self._file = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""

    def wrap(
        self,
        command: Sequence[str],
        run: Preparation,
        work_in: Path | None = None,
        later_faults: str = "",
    ) -> list[str]:
        """The command that notes its start and becomes `command`.

        Args:
            command: the user's.
            run: its workers.
            work_in: folder to change to first.
            later_faults: those of all processes of a worker but its first.  Spares have
                none: one with the rank of a plan's worker would do the same there again.
        """
        quoted = {"events": shlex.quote(str(self.path)), "folder": shlex.quote(str(self._folder))}
        self._shim.write_text(_SHIM.format(**quoted), encoding="utf-8")
        for worker in run.workers:
            lines = []
            began = shlex.quote(str(self._folder / f"worker-{worker}.began"))
            faults = shlex.quote("" if worker in run.spares else self.recorded(later_faults))
            condition = "true" if worker in run.spares else f"[ -e {began} ]"
            lines.append(f"if {condition}; then export FTCOMM_FAULTS={faults}; fi; : > {began}")
            if work_in is not None:
                lines.append(f"cd {shlex.quote(str(work_in))} || exit 1")
            lines.append('exec "$@"')
            path = self._folder / f"worker-{worker}.sh"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return ["/bin/sh", str(self._shim), *command]

    def recorded(self, faults: str) -> str:
        """The faults with the order to note in the pipe each one that fires."""
        return f"{faults}{RECORDED_IN}{self.path}" if faults else ""

    async def read(self) -> AsyncIterator[Note]:
        """Yield the notes in order of arrival; does not end."""
        while True:
            await trio.lowlevel.wait_readable(self._file)
            for note in self.take():
                yield note

    def take(self) -> list[Note]:
        """Return the notes that have not been read, without waiting."""
        notes: list[Note] = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._file, _READ_BYTES):
                *lines, self._rest = (self._rest + data).split(b"\n")
                notes += [parse_note(line.decode(errors="replace")) for line in lines]
        return notes

    def close(self) -> None:
        """Close the pipe and remove it: who reads what a run has left would wait in it for ever."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)


def parse_note(line: str) -> Note:
    """One line of the pipe."""
    word, _, rest = line.partition(" ")
    if word == "started":
        worker, _, stat = rest.partition(" ")
        named = stat_in(stat)
        return ProcessStarted(worker, named.pid, named.start)
    return Fired(FaultRecord.parse(rest if line.startswith(TRACKER) else line))
