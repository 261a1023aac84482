"""End a whole job, launcher and tracker and workers, inside a chosen call of one of its processes.

A process that is started with `settings` in its environment imports this module by itself, and
counts the calls that its directory store makes of the file system.
"""

import functools
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcomm.durable.file_calls import SystemFiles

ROOT = Path(__file__).parents[2]
CALLS = ("create", "write", "sync", "name_new", "sync_folder")
STEP = "step"  # of the script, which says it by `passed`
VARIABLE = "END_JOB_AT"


@dataclass(frozen=True)
class Moment:
    """A moment of a job.

    Attributes:
        role: ``worker`` or ``tracker``.
        call: one of `CALLS`, or `STEP`.
        count: which call of a process of that role.
        done: the call is made first; a write that is not leaves half of its bytes.
    """

    role: str
    call: str
    count: int
    done: bool = False


def settings(moment: Moment, claim: Path) -> dict[str, str]:
    """The environment of a job that is to end at `moment`; the file `claim` is made then."""
    hook = claim.parent / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text("from tests.integration import ended_job\n")
    words = (claim, moment.role, moment.call, moment.count, int(moment.done))
    path = (hook, ROOT, ROOT / "tracker", ROOT / "chaos")
    return {
        VARIABLE: "\n".join(str(word) for word in words),
        "PYTHONPATH": os.pathsep.join(str(part) for part in path),
    }


class _Counting:
    """The moment that this process was told, and how many calls it has made."""

    def __init__(self, claim: str, role: str, call: str, count: str, done: str) -> None:
        self.done = done == "1"
        self._claim, self._role, self._call, self._count = claim, role, call, int(count)
        self._made: Counter[str] = Counter()

    def is_now(self, call: str) -> bool:
        role = "tracker" if "ftcomm_tracker" in sys.modules else "worker"
        if (role, call) != (self._role, self._call):
            return False
        self._made[call] += 1
        return self._made[call] == self._count

    def end(self) -> None:
        """Kill the launcher, its workers and this process; the first that comes here does it."""
        try:
            os.close(os.open(self._claim, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            signal.pause()
        launcher = os.getpid() if self._role == "tracker" else os.getppid()
        if launcher != os.getpid():
            os.kill(launcher, signal.SIGSTOP)  # it starts nobody while its children are read
        tasks = Path(f"/proc/{launcher}/task").glob("*/children")
        workers = {int(pid) for each in tasks for pid in each.read_text().split()}
        for pid in workers - {os.getpid()}:
            os.kill(pid, signal.SIGKILL)
        if launcher != os.getpid():
            os.kill(launcher, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


_counting: _Counting | None = None


def passed(call: str) -> None:
    """End the job if this is the moment."""
    if _counting is not None and _counting.is_now(call):
        _counting.end()


def _counted(call: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def made(files: SystemFiles, *arguments: Any) -> Any:
        if _counting is None or not _counting.is_now(call):
            return original(files, *arguments)
        if call == "write" and not _counting.done:
            file, data = arguments
            original(files, file, data[: len(data) // 2])
        elif _counting.done:
            original(files, *arguments)
        return _counting.end()

    return made


if VARIABLE in os.environ and "pytest" not in sys.modules:
    _counting = _Counting(*os.environ[VARIABLE].split("\n"))
    for _call in CALLS:
        setattr(SystemFiles, _call, _counted(_call, getattr(SystemFiles, _call)))
