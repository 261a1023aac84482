"""Processes below this one: who they are, what they take, and which are left behind."""

import os
import select
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ftcomm_chaos.faults.processes import open_process
from tests.soak.figures import growth, peaks
from tests.soak.reporting import usage

LASTING_SAMPLES = 40  # of a process that has been warm for long enough to tell that it grows
LAST_GASP_S = 10.0  # for processes whose parent was killed; the kernel needs milliseconds


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """One process, as the kernel tells of it."""

    pid: int
    parent: int
    start: int
    has_ended: bool
    command: tuple[str, ...] = ()


def role_of(command: Sequence[str]) -> str:
    """The part that a process has in a session, by its command; empty if it is not watched."""
    match list(command[1:4]):
        case ["-m", "ftcomm_tracker", "serve" | "run"]:
            return "tracker"
        case ["-m", "tests.soak.training", *_]:
            return "worker"
    return ""


def descendants(pid: int, processes: Sequence[ProcessSeen]) -> list[ProcessSeen]:
    """The processes below `pid`: children, their children and so on."""
    children: dict[int, list[ProcessSeen]] = defaultdict(list)
    for process in processes:
        children[process.parent].append(process)
    found, rest = [], [pid]
    while rest:
        below = children.pop(rest.pop(), [])
        found += below
        rest += [process.pid for process in below]
    return found


def parse_stat(pid: int, text: str, command: bytes) -> ProcessSeen:
    """Parse what ``/proc/PID/stat`` and ``/proc/PID/cmdline`` say of a process."""
    # The second field is the command in parentheses and may hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    words = command.decode(errors="replace").rstrip("\0").split("\0")
    return ProcessSeen(pid, int(fields[1]), int(fields[19]), fields[0] in "ZX", tuple(words))


def all_processes() -> list[ProcessSeen]:
    """Every process of the machine; one that ends meanwhile is left out."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                text = (folder / "stat").read_text(errors="replace")
                command = (folder / "cmdline").read_bytes()
                found.append(parse_stat(int(folder.name), text, command))
            except (OSError, IndexError):
                continue
    return found


@dataclass(slots=True)
class Watch:
    """All that has been seen of the processes below this one."""

    _seen: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    _of: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def sample(self, now: float) -> None:
        """Look at every process."""
        for process in descendants(os.getpid(), all_processes()):
            role = role_of(process.command)
            if role and not process.has_ended:
                self.take(role, process.start << 32 | process.pid, usage(process.pid) or {}, now)

    def take(self, role: str, incarnation: int, used: Mapping[str, float], now: float) -> None:
        """Take in what a process of that role uses."""
        for kind, value in used.items():
            self._seen[f"{role} {kind}"].append((now, value))
            self._of[f"{role} {kind}"].append(incarnation)

    def peaks(self) -> dict[str, float]:
        """For each role and kind the peak of a process, the median over all of them."""
        return {
            name: statistics.median(value for _, value in peaks(series, self._of[name]))
            for name, series in self._seen.items()
        }

    def growths(self) -> dict[str, float]:
        """By how much a process grows that lives for long, the one of each role that does most."""
        found: dict[str, float] = {}
        for name, series in self._seen.items():
            for incarnation in set(self._of[name]):
                own = [
                    sample
                    for sample, its in zip(series, self._of[name], strict=True)
                    if its == incarnation
                ]
                grown = growth(own) if len(own) >= LASTING_SAMPLES else None
                if grown is not None:
                    found[name] = max(grown, found.get(name, grown))
        return found


def left_behind(last_gasp_s: float = LAST_GASP_S) -> list[ProcessSeen]:
    """Processes below this one that do not end, after what was started here has ended.

    To see those that have no parent any more, this process must adopt them (`adopt_orphans`).
    """
    with select.epoll() as ends:
        running = _open_running()
        for pidfd in running:
            ends.register(pidfd, select.EPOLLIN)
        waiting = len(running)
        while waiting and (ended := ends.poll(last_gasp_s)):
            for pidfd, _ in ended:
                ends.unregister(pidfd)
            waiting -= len(ended)
        for pidfd in running:
            os.close(pidfd)
    return _running()


def _running() -> list[ProcessSeen]:
    below = descendants(os.getpid(), all_processes())
    return [process for process in below if not process.has_ended]


def _open_running() -> list[int]:
    opened = [open_process(process.pid, process.start) for process in _running()]
    return [pidfd for pidfd in opened if pidfd >= 0]
