"""Count of processes that the kernel killed for lack of memory, compared by a launcher.

The kernel counts in the cgroup of those whom it kills (``memory.events``; with cgroups of version 1
``memory.oom_control``), and for the whole machine.  Nobody says which process it was; but a
worker that dies of SIGKILL while a count grows has most likely been that process.
"""

import re
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
RECENT_S = 3.0  # from a kill until its process is reaped and its last output read
MAX_KEPT = 100  # of kills that nobody asks about, as of other jobs' processes
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class MemoryKills:
    """Counts of this process's cgroup and machine; its children are in the same."""

    def __init__(self, cgroups: Path = CGROUPS, proc: Path = Path("/proc")) -> None:
        """Find the files; where there are none, nothing is ever counted."""
        self._files = dict(_files(cgroups, proc))
        self._seen = self._counts()
        self._kills: list[tuple[float, str]] = []  # when seen, by whom counted

    def look(self, now: float) -> None:
        """Take in the counts; to be called again and again."""
        before, self._seen = self._seen, self._counts()
        for where, count in self._seen.items():
            more = count - before.get(where, count)
            if more > 0:  # the next one counts the same kills, and those of others
                self._kills += [(now, where)] * min(more, MAX_KEPT)
                break
        self._kills = [kill for kill in self._kills if kill[0] > now - RECENT_S][-MAX_KEPT:]

    def take(self, now: float) -> str:
        """Name the counter with a recent unexplained kill; empty if there is none."""
        self.look(now)
        return self._kills.pop(0)[1] if self._kills else ""

    def _counts(self) -> dict[str, int]:
        found = {}
        for where, path in self._files.items():
            try:
                count = _COUNT.search(path.read_text(encoding="ascii", errors="replace"))
            except OSError:
                continue
            if count is not None:
                found[where] = int(count[1])
        return found


def _files(cgroups: Path, proc: Path) -> Iterator[tuple[str, Path]]:
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in lines.splitlines():
        _, controllers, path = line.split(":", 2)
        below = path.lstrip("/")
        if not controllers:
            yield f"memory.events of cgroup {path}", cgroups / below / "memory.events"
        elif "memory" in controllers.split(","):
            name = "memory.oom_control"
            yield f"{name} of cgroup {path}", cgroups / "memory" / below / name
    yield "oom_kill of /proc/vmstat", proc / "vmstat"
