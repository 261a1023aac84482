"""Forming: who is missing while the group is not complete, and for how long that may go on. Pure.

A worker is known by name before it joins where a launcher says which process it has started for it.
A worker that nobody has launched is known once it has joined; one that has joined and gone too.
Others are counted, and named where all ids that are known look like those of a scheduler: 0 to n-1.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ftcomm.protocol.field_types import MAX_WORLD_SIZE
from ftcomm.protocol.messages import Hello
from ftcomm_tracker.core.reporting.lost_hosts import MAX_NAMED

REMIND_EVERY_S = 30.0  # long enough for imports and a slow file system, short for who looks on
MAX_ROWS = 256  # missing workers in a status document, which must fit one control frame
MAX_LAUNCHED = 2 * MAX_WORLD_SIZE  # worker ids with a launcher; more are not remembered


@dataclass(frozen=True, slots=True)
class Launched:
    """A process that a launcher runs as a worker.

    Attributes:
        host: name of the launcher's machine.
        pid: its number there; 0 if the launcher runs none at present.
        since: when it was started, on the tracker's clock.
        joined: pid and start of the process that has called ``init()`` and said hello, which a
            start script may have started; pid 0 if it is of another host, None before.
        has_left: it has said since that it leaves the job.
    """

    host: str
    pid: int
    since: float
    joined: tuple[int, int] | None = None
    has_left: bool = False

    def with_joined(self, hello: Hello) -> "Launched":
        """This one, after that hello."""
        joined = (hello.pid, hello.start) if hello.host == self.host else (0, 0)
        return replace(self, joined=joined, has_left=False)


@dataclass(slots=True)
class Launches:
    """The processes that launchers run, by worker id."""

    _by_worker: dict[str, Launched] = field(default_factory=dict)

    def knows(self, worker_id: str, host: str, pid: int) -> bool:
        """True if that is the process that was noted last: launchers repeat what they say."""
        old = self._by_worker.get(worker_id)
        return old is not None and (old.host, old.pid) == (host, pid)

    def note(self, worker_id: str, new: Launched) -> None:
        """A launcher runs another process than before."""
        if worker_id in self._by_worker or len(self._by_worker) < MAX_LAUNCHED:
            self._by_worker[worker_id] = new

    def note_joined(self, hello: Hello) -> None:
        """The worker's process has called ``init()``."""
        launched = self._by_worker.get(hello.worker_id)
        if launched is not None:
            self._by_worker[hello.worker_id] = launched.with_joined(hello)

    def note_left(self, worker_id: str, pid: int) -> None:
        """The process group `pid` has left; one that its launcher has not named is not noted."""
        launched = self._by_worker.get(worker_id)
        if launched is not None and launched.pid == pid:
            self._by_worker[worker_id] = replace(launched, has_left=True)

    def standing(self, worker_id: str) -> str:
        """The process that a launcher runs as this worker, as in `WorkerStatusReply.process`."""
        launched = self._by_worker.get(worker_id)
        if launched is None or not launched.pid:
            return ""
        if launched.has_left:
            return "left"
        return "starting" if launched.joined is None else "joined"

    def joined(self, worker_id: str) -> tuple[int, int]:
        """Pid and start of the process that has said hello; pid 0 where none is known."""
        launched = self._by_worker.get(worker_id)
        return (launched and launched.joined) or (0, 0)

    @property
    def workers(self) -> Collection[str]:
        """Worker ids that have a launcher."""
        return self._by_worker.keys()

    def row(self, worker_id: str, now: float) -> dict[str, Any] | None:
        """The process that has not called ``init()`` yet, for `status`; None if there is none."""
        launched = self._by_worker.get(worker_id)
        if launched is None or launched.joined is not None or not launched.pid:
            return None
        age_s = round(now - launched.since, 3)
        return {"pid": launched.pid, "host": launched.host, "age_s": age_s}


@dataclass(slots=True)
class Forming:
    """The bound on forming, counted from the first worker's arrival.

    Attributes:
        form_within: seconds from there until the job fails.
    """

    form_within: float
    _since: float | None = None
    _remind_at: float = float("inf")

    def begin(self, now: float) -> None:
        """A worker has come, now or before this tracker was started: the time begins to run."""
        if self._since is None:
            self._since = now
        self.watch(now)

    def watch(self, now: float) -> None:
        """Somebody waits: a worker has come, or a launcher has started one."""
        self._remind_at = min(self._remind_at, now + REMIND_EVERY_S)

    @property
    def ends_at(self) -> float:
        """Time at which an incomplete group fails the job; infinity before the first worker."""
        return float("inf") if self._since is None else self._since + self.form_within

    @property
    def due(self) -> float:
        """Time of the next message or decision."""
        return min(self._remind_at, self.ends_at)

    def is_reminder_due(self, now: float) -> bool:
        """True once in each `REMIND_EVERY_S`."""
        if now < self._remind_at:
            return False
        self._remind_at = now + REMIND_EVERY_S
        return True


def missing_workers(
    world_size: int,
    here: Collection[str],
    launched: Iterable[str],
    seen: Iterable[str],
    spares: Collection[str] = (),
) -> tuple[list[str], int]:
    """Names of workers that are not here, and how many more are missing that nobody has named.

    Args:
        world_size: workers that the group needs.
        here: worker ids that are connected and count.
        launched: worker ids that have a launcher.
        seen: worker ids that have ever joined.
        spares: worker ids that are connected and do not count.
    """
    known = {*here, *launched, *seen}.difference(spares)
    indices = {str(index) for index in range(world_size)}
    if len(known) < world_size and known <= indices:
        known = indices.difference(spares)
    named = sorted(known - set(here), key=lambda name: (len(name), name))[:MAX_ROWS]
    return named, max(world_size - len(here) - len(named), 0)


def missing_text(row: dict[str, Any]) -> str:
    """One missing worker in words, from its row in the status document."""
    name, process = f"worker {row['worker_id']}", row["starting"]
    if process is not None:
        return (
            f"{name} (pid {process['pid']} on {process['host']}, started"
            f" {process['age_s']:.0f} s ago, has not called init())"
        )
    if row["was_here"]:
        return f"{name} (it joined and has gone)"
    return name  # it never came


def missing_list(rows: list[dict[str, Any]], unnamed: int) -> list[str]:
    """The missing workers in words, at most `MAX_NAMED` by name."""
    words = [missing_text(row) for row in rows[:MAX_NAMED]]
    more = max(len(rows) - MAX_NAMED, 0) + unnamed
    if more:
        other = "more " if words else ""
        words.append(f"{more} {other}worker{'' if more == 1 else 's'}")
    return words
