"""Parser of a job's output lines for the job's state; pure."""

import re
from dataclasses import dataclass, field

from ftcomm_chaos.report.escaping import printable

_EPOCH = re.compile(r"ftcomm: epoch (\d+)(?:: | (runs): )")
_GONE = re.compile(r"ftcomm: epoch [^:]*: (?:lost )?workers? ([^:]*)")  # the words name them
_RECOVERED = re.compile(r"ftcomm: recovered, epoch (\d+): ")
_ENDED = re.compile(
    r"ftcomm: worker (\S+) (was killed by \w+|exited with status \d+(?: \(\w+\))?"
    r"|ended with status 0)"
)
_CLOSED = re.compile(r"ftcomm: worker (\S+) has closed$")
_SEATED = re.compile(r"ftcomm: (?:spare|worker) (\S+) takes the place of rank (\d+)$")
_ATTEMPT = re.compile(r"ftcomm: .*: attempt (\d+) begins from (checkpoint \d+|the beginning)")
_REBUILT = re.compile(r"ftcomm: job \S+ goes on in generation \d+ from what its workers know")
_OTHER_VALUES = re.compile(r"ftcomm: (checkpoint \d+ has other values than in attempt .*)")
_ALL_CLOSED = "ftcomm: all ranks have closed"
TAIL_LINES = 40
# what a launcher puts before its own words; a worker's line begins with its id
_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (?P<level>[A-Z]+) (?=ftcomm: )")


@dataclass(slots=True)
class ParsedOutput:
    """The state of a job, as its launcher, supervisors and tracker tell it.

    Attributes:
        formed: all workers have joined for the first time.
        epoch: the newest epoch that has begun.
        recovering: that epoch's recovery is not over.
        recoveries: how many were completed.
        expecting: by worker, the incarnation (the first is 1) that a delivered fault ends and whose
            recovery has not begun.
        ended: how workers' processes ended, by worker, in order.
        closed: workers of whom the tracker has said that they closed.
        all_closed: the job has ended well.
        seated: by rank, the spare that has taken it; else it is the worker's of that number.
        rebuilds: how many trackers have taken the job up from what its workers know.
        later_attempts: those that have begun after the first one, and from where.
        error: the last that was logged as an error, without time and level; empty without one.
        other_values: warnings that an attempt has committed another checkpoint than the last one.
        tail: the last lines.
    """

    formed: bool = False
    epoch: int = 0
    recovering: bool = False
    recoveries: int = 0
    expecting: dict[str, int] = field(default_factory=dict)
    ended: dict[str, list[str]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    all_closed: bool = False
    seated: dict[str, str] = field(default_factory=dict)
    rebuilds: int = 0
    later_attempts: list[tuple[int, str]] = field(default_factory=list)
    error: str = ""
    other_values: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)

    @property
    def is_quiescent(self) -> bool:
        """All have joined, and no fault is being recovered from."""
        return self.formed and not self.recovering and not self.expecting

    def has_closed(self, worker: str) -> bool:
        """The worker has done its work: what becomes of it counts no more."""
        return self.all_closed or worker in self.closed

    def has_rank(self, worker: str) -> bool:
        """Tell whether a worker is a member, and no spare."""
        return worker in self.seated.values() or (worker.isdigit() and worker not in self.seated)

    def expect(self, worker: str, process: int) -> None:
        """A fault was delivered that ends that incarnation: a recovery must come."""
        self.expecting[worker] = process

    def begin_again(self) -> None:
        """Everything is lost: what was said of the group is true no more."""
        self.formed = self.recovering = False
        self.epoch = 0
        self.expecting.clear()
        self.closed.clear()
        self.seated.clear()

    def hear(self, line: str) -> None:
        """Take in one line of the job's output."""
        self.tail = [*self.tail[-TAIL_LINES + 1 :], printable(line)]
        if stamp := _STAMP.match(line):
            line = line[stamp.end() :]
        if stamp and stamp["level"] == "ERROR":
            self.error = printable(line.removeprefix("ftcomm: ").removeprefix("FAILED: "))
        self._hear_words(line)

    def _hear_words(self, line: str) -> None:
        if found := _GONE.match(line):
            for worker in self.expecting.keys() & set(re.split("[ ,]+", found[1])):
                del self.expecting[worker]
        if found := _EPOCH.match(line):
            self._hear_of_epoch(int(found[1]), runs=found[2] is not None)
        elif found := _RECOVERED.match(line):
            self.recoveries += 1
            if int(found[1]) >= self.epoch:
                self._recover()
        elif found := _ENDED.match(line):
            self.ended.setdefault(found[1], []).append(found[2])
        elif found := _SEATED.match(line):
            self.seated[found[2]] = found[1]
        elif found := _CLOSED.match(line):
            self.closed.add(found[1])
        elif found := _ATTEMPT.match(line):
            self.begin_again()
            self.later_attempts.append((int(found[1]), found[2]))
        elif found := _OTHER_VALUES.match(line):
            self.other_values.append(printable(found[1]))
        elif _REBUILT.match(line):
            self.rebuilds += 1
            self.recovering = False
        self.all_closed |= line.startswith(_ALL_CLOSED)

    def _hear_of_epoch(self, epoch: int, *, runs: bool) -> None:
        if runs and not self.formed:
            self.formed = True
            self._recover()
        elif not runs and epoch > self.epoch:
            self.recovering = True
        self.epoch = max(self.epoch, epoch)

    def _recover(self) -> None:
        """The group is whole, with others in the places of all whose ends were told before.

        Of whom that was not told, the fault came when the line was on its way.
        """
        self.recovering = False
        for worker, process in list(self.expecting.items()):
            if len(self.ended.get(worker, [])) >= process:
                del self.expecting[worker]
