"""Record of an injected fault, written before it acts: its name, process and time.

A reader may come late: the process may have died of the fault, and another one may have its place.
So a record says all that a reader needs, and a reader looks at nothing that holds only now.
"""

import os
import time
from dataclasses import dataclass
from typing import Self

from ftcomm.config.process_identity import this_process

_WORDS = ("pid", "start", "group", "incarnation", "epoch", "at")


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """One fault that is about to act."""

    fault: str  # as the plan says it
    pid: int  # of the process that it hits
    start: int  # of that process, see `ftcomm.config.process_identity.ProcessName`
    group: int  # its process group, which a launcher gives to each process that it starts
    # How the tracker counts the process (the first is 1); of a tracker its generation; 0 before the
    # process knows.
    incarnation: int
    epoch: int  # the newest that the process knows, 0 before the first
    at: float  # seconds of the machine's monotonic clock

    @classmethod
    def of_this_process(cls, fault: object, *, incarnation: int, epoch: int) -> Self:
        """A fault that acts in the process that calls, now."""
        me, at = this_process(), round(time.monotonic(), 6)
        return cls(str(fault), me.pid, me.start, os.getpgrp(), incarnation, epoch, at)

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read what `str` gives; raises ValueError."""
        fault, *words = line.split(" ")
        fields = dict(word.split("=", 1) for word in words)
        if tuple(fields) != _WORDS:
            raise ValueError(f"{line[:200]!r} is no record of a fault")
        pid, start, group, incarnation, epoch = (int(fields[word]) for word in _WORDS[:-1])
        return cls(fault, pid, start, group, incarnation, epoch, float(fields["at"]))

    def __str__(self) -> str:
        numbers = (getattr(self, word) for word in _WORDS)
        return " ".join([self.fault, *(f"{w}={n}" for w, n in zip(_WORDS, numbers, strict=True))])


def write_record(path: str | os.PathLike[str], record: FaultRecord, prefix: str = "") -> None:
    """Append one line in one write: lines of several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{prefix}{record}\n".encode())
    finally:
        os.close(descriptor)
