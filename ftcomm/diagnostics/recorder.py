"""Recorder: writes an incarnation's history, where ``FTCOMM_HISTORY`` asks for it.

Each event is one write to a file opened for appending, so that lines of the two threads never mix
and a killed process leaves whole lines, the last one perhaps torn.  A disk that is full ends the
history, never the job.
"""

import contextlib
import os
import time
from pathlib import Path

from ftcomm.diagnostics.history import (
    FORMAT,
    Ended,
    Over,
    Planned,
    Resources,
    Started,
    WorkerEvent,
    attempt_in,
    encode,
    file_name,
)
from ftcomm.diagnostics.logs import JobLogger
from ftcomm.errors import ConfigError
from ftcomm.recovery.machine import WorkerMachine

RESOURCES_EVERY_CALLS = 256  # beside every checkpoint: two files of /proc cost 30 us
_STATM = Path("/proc/self/statm")
_DESCRIPTORS = Path("/proc/self/fd")


class Recorder:
    """One process's file; made at `init`, opened when the tracker has numbered the incarnation."""

    def __init__(self, folder: Path, log: JobLogger) -> None:
        """Make `folder`; raises ConfigError."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"FTCOMM_HISTORY: {folder}: {error.strerror}",
                remedy="name a folder that can be written, or unset FTCOMM_HISTORY",
            ) from None
        self._folder = folder
        self._log = log
        self._file = -1
        self._has_failed = False
        self._epoch = 0
        self._is_over = False
        self._calls = 0

    def note(self, core: WorkerMachine) -> None:
        """Write down a plan or an end that `core` has just taken; called under its lock."""
        if core.view.epoch != self._epoch and core.view.epoch:
            if not self._epoch:
                self._open(core)
            self._epoch = core.view.epoch
            members = tuple((m.worker_id, m.incarnation) for m in core.view.members)
            self.write(
                Planned(
                    core.view.epoch,
                    core.view.rank,
                    core.progress.position,
                    core.view.frontier,
                    members,
                )
            )
        if core.view.error is not None and not self._is_over:
            self._is_over = True
            error = core.view.error
            self.write(
                Over(type(error).__name__, error.cause, core.view.epoch, core.progress.position)
            )

    def write(self, event: WorkerEvent) -> None:
        """Append one event; nothing before the first plan, or after the disk has failed."""
        if self._file < 0 or self._has_failed:
            return
        line = encode(event, time.monotonic())
        try:
            whole = os.write(self._file, line) == len(line)
        except OSError as error:
            self._give_up(error.strerror or "cannot be written")
        else:
            if not whole:  # the next line would be glued to the torn one
                self._give_up("the disk is full")

    def count_call(self, *, is_checkpoint: bool) -> None:
        """A call has returned: now and then, say what this process takes."""
        self._calls += 1
        if is_checkpoint or self._calls % RESOURCES_EVERY_CALLS == 0:
            with contextlib.suppress(OSError):  # a system without /proc tells nothing
                self.write(taken_resources())

    def end(self, how: str, cause: str) -> None:
        """Write the last line; the control thread has ended."""
        self.write(Ended(how, cause))
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)

    def _open(self, core: WorkerMachine) -> None:
        contact = core.contact
        _, attempt = attempt_in(contact.job_id)
        name = file_name(contact.identity.worker_id, contact.incarnation, attempt)
        path = self._folder / name
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._give_up(error.strerror or "cannot be opened")
            return
        self.write(
            Started(
                format=FORMAT,
                job=contact.job_id,
                worker=contact.identity.worker_id,
                incarnation=contact.incarnation,
                rank=core.view.rank,
                size=contact.world_size,
                pid=os.getpid(),
                host=contact.identity.host,
                detect_within=contact.limits.detect_within,
                replicas=contact.limits.replicas,
            )
        )

    def _give_up(self, why: str) -> None:
        # The file stays open until `end`: the other thread may be about to write to its number,
        # which would be that of a link by then.
        self._has_failed = True
        self._log.warning("FTCOMM_HISTORY: the history ends here: %s: %s", self._folder, why)


def taken_resources() -> Resources:
    """Measure the resources that this process uses now; raises OSError."""
    pages = int(_STATM.read_text(encoding="ascii").split()[1])
    # the listing's own descriptor is not the process's
    return Resources(pages * os.sysconf("SC_PAGE_SIZE"), sum(1 for _ in _DESCRIPTORS.iterdir()) - 1)
