"""Communicators that are open in this process, and who may open another one.

A script has one, and a second one is nearly always a mistake: it would take the first one's place
in the job.  Who names the job with ``init(job=...)`` has one communicator for each thread instead:
ranks as threads, for tests and for workers of a framework that are threads.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from ftcomm.errors import ConfigError, ThreadError

if TYPE_CHECKING:  # it imports numpy, which a launcher does without
    from ftcomm.config.deadline import Duration

Routes = Sequence[tuple[str, int]]


class OpenCommunicator(Protocol):
    """Parts of a communicator that those who look at all of them need."""

    @property
    def rank(self) -> int:
        """Its place in the group."""

    @property
    def is_usable(self) -> bool:
        """True while calls may be made here."""

    def abort(self, reason: str | BaseException) -> None:
        """Leave the job without closing it."""

    def close(self, *, deadline: "Duration | None" = None) -> None:
        """Close the job together with all ranks."""


C = TypeVar("C", bound=OpenCommunicator)
Owner = tuple[str | None, threading.Thread | None]


@dataclass(slots=True, eq=False)
class Place:
    """Place of one communicator among those of this process."""

    communicator: OpenCommunicator | None = None  # None until it has joined
    worker_id: str = ""  # of a communicator that joins a job, else empty
    # Addresses of that job's tracker.
    routes: frozenset[tuple[str, int]] = field(default_factory=frozenset)

    def fill(self, communicator: C) -> C:
        """Put a communicator that has joined here."""
        self.communicator = communicator
        return communicator

    @property
    def is_free(self) -> bool:
        """True of a communicator that is over; one that joins has its place already."""
        return self.communicator is not None and not self.communicator.is_usable


class OpenCommunicators:
    """The places of one process."""

    def __init__(self) -> None:
        # The communicator that was opened last, open or not, of the job that `follow` has named;
        # None before the first.
        self.newest: OpenCommunicator | None = None
        self._followed: frozenset[tuple[str, int]] = frozenset()
        self._finished: set[tuple[str, int]] = set()
        self._places: dict[Owner, Place] = {}
        self._lock = threading.Lock()

    @contextmanager
    def opening(self, job: str | None) -> Iterator[Place]:
        """Hold a place while a communicator joins; it is given back if none is put there.

        Raises:
            ConfigError: the name is none.
            ThreadError: the place is taken.
        """
        if job is not None and not _is_name(job):
            raise ConfigError(f"job must be a non-empty string, got {job!r}")
        owner = (job, None if job is None else threading.current_thread())
        place = self._take(owner)
        try:
            yield place
        finally:
            if place.communicator is None:
                self._give_back(owner)
            elif place.routes & self._followed:
                self.newest = place.communicator

    def claim(self, place: Place, worker_id: str, routes: Routes) -> None:
        """Take a worker id for the communicator that joins at `place`.

        Raises:
            ConfigError: another communicator of this process has it; it would lose its rank.
        """
        wanted = frozenset(routes)
        with self._lock:
            for other in self._places.values():
                if other.worker_id == worker_id and other.routes & wanted and not other.is_free:
                    raise ConfigError(
                        f"worker {worker_id} of this job is open in this process already",
                        remedy="give each thread its own: init(job=..., worker_id=...)",
                    )
            place.worker_id, place.routes = worker_id, wanted

    def follow(self, routes: Routes) -> None:
        """Have `newest` tell of the job at `routes`; a script may open others beside it."""
        self.newest, self._followed = None, frozenset(routes)

    def note_finished(self, routes: Routes) -> None:
        """The job at `routes` has ended well; its tracker ends too."""
        self._finished.update(routes)

    def has_finished(self, routes: Routes) -> bool:
        """True if this process has closed a job at one of `routes`."""
        return not self._finished.isdisjoint(routes)

    def usable(self) -> list[OpenCommunicator]:
        """Those on which calls may be made."""
        return _usable(self._places.copy().values())

    def of_thread(self) -> list[OpenCommunicator]:
        """Those of `usable` that the calling thread has opened by name, or else all."""
        me, places = threading.current_thread(), self._places.copy()
        own = _usable(place for (_, at), place in places.items() if at is me)
        return own or _usable(places.values())

    def usable_by_script(self) -> list[OpenCommunicator]:
        """The same without those that other threads than the main one have opened by name."""
        mine = (None, threading.main_thread())
        return _usable(place for (_, at), place in self._places.copy().items() if at in mine)

    def of_jobs(self) -> list[OpenCommunicator]:
        """Those of `usable_by_script` that have joined a job: a group of one may have none."""
        joined = [place.communicator for place in self._places.copy().values() if place.routes]
        return [each for each in self.usable_by_script() if each in joined]

    def forget(self) -> None:
        """In a forked child: what its parent has opened is not open here."""
        self.newest, self._places, self._lock = None, {}, threading.Lock()

    def _take(self, owner: Owner) -> Place:
        with self._lock:
            before = self._places.get(owner)
            if before is not None and not before.is_free:
                raise _taken(owner[0])
            self._forget_what_is_over()
            return self._places.setdefault(owner, Place())

    def _forget_what_is_over(self) -> None:
        for owner in [owner for owner, place in self._places.items() if place.is_free]:
            del self._places[owner]

    def _give_back(self, owner: Owner) -> None:
        with self._lock:
            self._places.pop(owner, None)


def _usable(places: Iterable[Place]) -> list[OpenCommunicator]:
    found = [place.communicator for place in places]
    return [each for each in found if each is not None and each.is_usable]


def _is_name(job: object) -> bool:
    return isinstance(job, str) and job != ""


def _taken(job: str | None) -> ThreadError:
    if job is None:
        return ThreadError(
            "a communicator is open in this process already",
            remedy="close it, or use it: one open communicator per process, or with"
            " init(job=...) one per thread",
        )
    return ThreadError(
        f"a communicator of job {job!r} is open in this thread already",
        remedy="close it, or use it: one open communicator per job and thread",
    )


COMMUNICATORS: Final = OpenCommunicators()
if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=COMMUNICATORS.forget)
