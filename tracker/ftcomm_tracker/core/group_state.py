"""Rank slots: the roster's data, and the small things that everything else does with it.

The roster is one machine, written in layers of which each calls only those below it::

    roster     events in, deadlines, the view for people
    hearing    what members say, and what their silence says
    admission  who joins, who takes a place, who is fenced
    epochs     announcing, collecting, deciding, ending
    routing    links that fail: relays, and who is given up
    slots      data: peers, places, what is durable; effects out
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ftcomm.config.job_settings import JobSettings
from ftcomm.protocol.messages import (
    Heartbeat,
    Hello,
    Report,
    Route,
)
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    Disconnect,
    Effect,
    Note,
    Persist,
    Send,
)
from ftcomm_tracker.core.group_formation import Forming, Launches
from ftcomm_tracker.core.link_failures import Pairs
from ftcomm_tracker.core.mismatch_inquiry import Inquiry
from ftcomm_tracker.core.recovery_record import OpenIncident
from ftcomm_tracker.core.reporting.lost_hosts import lost_hosts
from ftcomm_tracker.core.silent_links import Pair
from ftcomm_tracker.core.worker_exits import WorkerExits

SMALL_GROUP = 64  # workers up to whom all are looked at on every event: that costs microseconds


class JobState(enum.Enum):
    """Where the job stands; see the module's text."""

    FORMING = "FORMING"
    REATTACHING = "REATTACHING"
    COLLECTING = "COLLECTING"
    RUNNING = "RUNNING"
    OVER = "OVER"


@dataclass(slots=True)
class Peer:
    """One live connection of a worker."""

    conn: int
    hello: Hello
    incarnation: int
    last_heard: float
    rank: int | None = None  # where it sits, None for a spare
    position: Position = START
    stands_since: float = 0.0  # when its heartbeats first named the position that they name now
    late: bool = False
    heartbeat: Heartbeat | None = None
    fetched: int = 0  # epoch whose plan it said to have fetched everything for


class RankSlots:
    """Who is connected, who sits where, what is journalled. Not thread-safe; one task owns it."""

    def __init__(
        self, settings: JobSettings, durable: Durable, *, generation: int, now: float
    ) -> None:
        self.settings = settings
        self.durable = durable
        self.generation = generation
        self.state = JobState.FORMING
        self.epoch = 0  # of the plan in force
        self.highest_version = durable.version
        self.peers: dict[int, Peer] = {}
        self.slots: dict[int, int] = {}  # rank -> connection
        self.empty_since: dict[int, float] = {}
        self.reports: dict[int, Report] = {}
        self.awaiting_fetch: set[int] = set()
        self.incident: OpenIncident | None = None
        self.deaths = WorkerExits()
        self.incidents: list[dict[str, Any]] = []
        self._link_epoch_at = float("-inf")
        self._link_suspicion: tuple[str, tuple[int, ...]] | None = (
            None  # held back by the limit on link epochs
        )
        # Where the job stood, since when, and when last, while links alone kept it from going on.
        self._links_failed: tuple[Position, float, float] | None = None
        self.routes: tuple[Route, ...] = ()  # of the plan in force
        self._pairs = Pairs()
        self._repaired_at = float("inf")  # when the plan in force shows which links work
        # By a pair for which one end was replaced: the end that was not, and its incarnation.
        self._parted: dict[Pair, tuple[int, bytes]] = {}
        self._look_again_at = float("-inf")  # before then nobody can have been silent for too long
        # In a large group those who are blocked are not looked at for each of their heartbeats:
        # when they were last, when they are due, and whether one has been blocked for long.
        self._blocked_at, self._blocked_due = float("-inf"), float("inf")
        self._long_blocked = False
        self._reattach_by = float("inf")
        # While all seems lost: until when a closed member that is away may come back and save it.
        self._grace_until = float("inf")
        self._had_grace = False
        self._inquiry: Inquiry | None = None  # into a mismatch that was reported
        self._over_at = float("inf")
        self._ended = False
        self._effects: list[Effect] = []
        self._now = now
        # Members that have not been told how the job ended; they may be dialling just now.
        self._untold = {place.worker_id for place in durable.places}
        self._launches = Launches()
        self._forming = Forming(settings.form_within)
        if durable.fatal_decision is not None or durable.final_version >= 0:
            self._over(now + settings.reattach_within)
        elif durable.places:
            self.state = JobState.REATTACHING
            self._reattach_by = now + settings.reattach_within
            self.empty_since = {
                rank: now for rank in range(durable.world_size) if rank not in durable.closed_ranks
            }
        elif durable.incarnations:  # somebody came before this tracker was started
            self._forming.begin(now)

    def progress(self) -> Position:
        """The highest position that any member was heard to be at."""
        return max((peer.position for peer in self._in_slots()), default=START)

    @property
    def awaits_reports(self) -> bool:
        """True while a connected member has yet to say for the coming epoch how far it is."""
        return self.state is JobState.COLLECTING and len(self.reports) < len(self.slots)

    def has_closed(self, worker_id: str) -> bool:
        """True if that worker's rank has completed its close()."""
        return any(
            self.durable.places[rank].worker_id == worker_id for rank in self.durable.closed_ranks
        )

    def is_connected(self, worker_id: str) -> bool:
        """True if an incarnation of that worker is connected, as a member or a spare."""
        return any(peer.hello.worker_id == worker_id for peer in self.peers.values())

    def misses(self, worker_id: str) -> bool:
        """True while there is a place for that worker, and none of its processes is connected."""
        formed = bool(self.durable.places)
        has_place = not formed or self._rank_of(worker_id) is not None
        return has_place and not self.is_connected(worker_id)

    def incarnation_of(self, worker_id: str) -> int:
        """How many incarnations of `worker_id` have been numbered."""
        return self.durable.incarnation_of(worker_id)

    def _in_slots(self) -> Iterable[Peer]:
        return [self.peers[conn] for conn in self.slots.values()]

    def _vacant(self) -> list[int]:
        return [rank for rank in self.empty_since if rank not in self.slots]

    def _lost_hosts(self) -> tuple[list[tuple[str, list[str]]], list[str]]:
        """Hosts of which everybody is away, with their workers; and the others who are away."""
        if not self.empty_since:
            return [], []
        places = self.durable.places
        away = {places[rank].worker_id for rank in self.empty_since}
        return lost_hosts({place.worker_id: place.host for place in places}, away)

    def _rank_of(self, worker_id: str) -> int | None:
        for rank, place in enumerate(self.durable.places):
            if place.worker_id == worker_id:
                return rank
        return None

    def _rank_of_conn(self, conn: int) -> int | None:
        peer = self.peers.get(conn)
        return None if peer is None else peer.rank

    def _sit(self, conn: int, rank: int) -> None:
        self.slots[rank] = conn
        self.peers[conn].rank = rank

    def _heard_version(self, version: int) -> None:
        self.highest_version = max(self.highest_version, version)

    def _refresh(self, peers: Iterable[Peer]) -> None:
        for peer in peers:
            peer.last_heard = self._now
            peer.late = False

    def _drop(self, conn: int, reason: str) -> None:
        self._forget(conn)
        self._effects.append(Disconnect(conn, reason))

    def _forget(self, conn: int) -> None:
        rank = self._rank_of_conn(conn)
        self.peers.pop(conn, None)
        if rank is not None:
            del self.slots[rank]
            self.reports.pop(rank, None)

    def _persist(self, **changes: Any) -> None:
        self.durable = replace(self.durable, **changes)
        self._effects.append(Persist(self.durable))

    def _send(self, conn: int, message: Any) -> None:
        self._effects.append(Send(conn, message))

    def _note(self, level: str, text: str) -> None:
        self._effects.append(Note(level, text))

    def _reason(self) -> str:
        return self.incident.reason[:500] if self.incident is not None else "recovery"

    def _over(self, until: float) -> None:
        self.state = JobState.OVER
        self._over_at = until

    def _told(self, worker_id: str) -> None:
        self._untold.discard(worker_id)

    def check_invariants(self) -> None:
        """What may never be, whatever workers send."""
        assert self.epoch <= self.durable.epoch
        assert all(self.peers[conn].rank == rank for rank, conn in self.slots.items())
        assert not self.empty_since.keys() & self.slots.keys()
        assert self.state is not JobState.RUNNING or not self.empty_since
        assert self.reports.keys() <= self.slots.keys()
