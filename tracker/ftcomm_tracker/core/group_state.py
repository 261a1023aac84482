"""The group's state: objects that each keep one matter, and `GroupState`, which has them all.

`roster.Roster` owns a `GroupState`, and the functions of these modules change it.  Each module
calls only those below it::

    roster           events in, deadlines
    worker_messages  what members say, and what their silence says
    admission        who joins, who takes a place, who is fenced
    epochs           announcing, collecting, deciding
    ending           how the job ends, and who has heard of it
    relay_routing    links that fail: relays, and who is given up
    group_state      data: members, epochs, links, what is durable; effects out

`part.Part` is an optional matter: the core asks the parts of the group at fixed moments, and names
none.  Each object has one owner.  A copy of a roster by its
parts is therefore a whole copy: no part is shared by two objects.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ftcomm.config.job_settings import JobSettings
from ftcomm.durable.records import EpochRecord
from ftcomm.errors import RolledBackError
from ftcomm.protocol.messages import (
    FatalDecision,
    Heartbeat,
    Hello,
    Report,
    Route,
)
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.control_paths import ControlPaths
from ftcomm_tracker.core.durable.store_facts import NO_STORE, StoreFacts
from ftcomm_tracker.core.durable.versions import DurableVersions
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    Death,
    Died,
    Disconnect,
    Effect,
    GivenUp,
    IncidentClosed,
    Note,
    Persist,
    PutFinished,
    PutSeries,
    Send,
    StepDown,
    StopAsked,
)
from ftcomm_tracker.core.group_formation import Forming, Launches
from ftcomm_tracker.core.job_states import JOB_STATES, JobState
from ftcomm_tracker.core.link_failures import Pairs
from ftcomm_tracker.core.mismatch_inquiry import Inquiry
from ftcomm_tracker.core.part import Part
from ftcomm_tracker.core.patience_clock import DriverTime, PatienceTime
from ftcomm_tracker.core.rebuild.decision import Rebuild
from ftcomm_tracker.core.recovery_record import OpenIncident
from ftcomm_tracker.core.reporting.lost_hosts import lost_hosts

SMALL_GROUP = 64  # workers up to whom all are looked at on every event: that costs microseconds
# Between two looks at all who are blocked: 0.2 s with 2,000, of which looking takes a hundredth.
LOOK_S_PER_MEMBER = 1e-4
MAX_FORMER = 256  # processes remembered; a launcher asks about one as soon as it has ended
RECORD_S = 3.0  # a store that takes a record takes it by then; else people hear what is awaited


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


@dataclass(slots=True)
class StartCounts:
    """By worker id, where the job stood when its last process joined, and how many have there.

    This tracker's own count, so that no journal keeps a job from the processes that it needs.
    """

    _by_worker: dict[str, tuple[Position, int]] = field(default_factory=dict)

    def at(self, progress: Position, worker_id: str) -> int:
        """Processes of that worker that have joined since the job came to `progress`."""
        where, count = self._by_worker.get(worker_id, (progress, 0))
        return count if where == progress else 0

    def note(self, progress: Position, worker_id: str) -> None:
        """Another process of it joins."""
        self._by_worker[worker_id] = (progress, self.at(progress, worker_id) + 1)


class WorkerExits:
    """The newest death of each worker that has no newer process, as its launcher reports it.

    The tracker only sees that a connection ended.  The two come in either order.
    """

    def __init__(self) -> None:
        self._of: dict[str, Death] = {}

    def note(self, died: Died, host: str, connected: Hello | None) -> Death:
        """A process has ended; kept, unless a newer one is connected and this was told late."""
        death = Death(died.worker_id, died.pid, host, died.how)
        if connected is None or connected.group == died.pid:
            self._of[died.worker_id] = death
        return death

    def forget(self, worker_id: str) -> None:
        """A newer process has its worker's place."""
        self._of.pop(worker_id, None)

    def of(self, worker_id: str) -> Death | None:
        """Return the end of the worker's last process; None if one runs, or no end was reported."""
        return self._of.get(worker_id)


class FormerPeer(NamedTuple):
    """A process whose connection has ended: whether it had a rank, and where it ran."""

    had_rank: bool
    host: str


class FormerPeers:
    """The newest processes whose connections have ended, for launchers, which ask soon."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], FormerPeer] = {}  # by worker and process group

    def note(self, peer: Peer) -> None:
        """Its connection has ended."""
        hello = peer.hello
        self._of[hello.worker_id, hello.group] = FormerPeer(peer.rank is not None, hello.host)
        while len(self._of) > MAX_FORMER:
            del self._of[next(iter(self._of))]

    def forget(self, hello: Hello) -> None:
        """This process is a member from now on."""
        self._of.pop((hello.worker_id, hello.group), None)

    def of(self, worker_id: str, pid: int) -> FormerPeer | None:
        """Return what is known of a process; None if it has not joined, or not ended."""
        return self._of.get((worker_id, pid))


@dataclass(slots=True)
class Members:
    """Connected workers, and the rank of each.

    Attributes:
        peers: every worker's connection, by its number.
        slots: by rank, the connection of its worker.
        empty_since: by rank that nobody has and that is awaited, since when.
        deaths: how the workers' processes ended.
        starts: how often workers have been started while the job stood still.
        furthest: the highest position that any worker with a rank has said, gone or not.
        zones: by rank, the zone of the worker that had it last.
        former: processes whose connections have ended.
        look_again_at: before then no peer can have been silent for too long.
    """

    peers: dict[int, Peer] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    empty_since: dict[int, float] = field(default_factory=dict)
    deaths: WorkerExits = field(default_factory=WorkerExits)
    starts: StartCounts = field(default_factory=StartCounts)
    furthest: Position = START
    zones: dict[int, str] = field(default_factory=dict)
    former: FormerPeers = field(default_factory=FormerPeers)
    look_again_at: float = float("-inf")

    def in_slots(self) -> list[Peer]:
        """The peers that have a rank."""
        return [self.peers[conn] for conn in self.slots.values()]

    def hear_position(self, peer: Peer, position: Position) -> None:
        """Note where a worker says that it is."""
        peer.position = max(peer.position, position)
        if peer.rank is not None:
            self.furthest = max(self.furthest, position)

    def progress(self) -> Position:
        """The highest position that any connected member was heard to be at."""
        return max((peer.position for peer in self.in_slots()), default=START)

    def is_connected(self, worker_id: str) -> bool:
        """True if an incarnation of that worker is connected, as a member or a spare."""
        return any(peer.hello.worker_id == worker_id for peer in self.peers.values())

    def vacant(self) -> list[int]:
        """Ranks that are awaited and that nobody has."""
        return [rank for rank in self.empty_since if rank not in self.slots]

    def rank_of_conn(self, conn: int) -> int | None:
        """The rank of a connection; None for a spare's, and for one that is gone."""
        peer = self.peers.get(conn)
        return None if peer is None else peer.rank

    def fill_slot(self, conn: int, rank: int) -> None:
        """Give `rank` to the worker of this connection."""
        self.slots[rank] = conn
        self.peers[conn].rank = rank
        self.zones[rank] = self.peers[conn].hello.zone

    def forget(self, conn: int) -> int | None:
        """Remove a connection; return the rank that it had."""
        rank = self.rank_of_conn(conn)
        self.peers.pop(conn, None)
        if rank is not None:
            del self.slots[rank]
        return rank

    def check(self) -> None:
        """Assert that ranks and connections agree."""
        seated = {(p.rank, conn) for conn, p in self.peers.items() if p.rank is not None}
        assert seated == set(self.slots.items())
        assert not self.empty_since.keys() & self.slots.keys()


@dataclass(slots=True)
class EpochState:
    """The plan in force, and the recovery under way.

    Attributes:
        highest_version: the highest checkpoint version that anybody has named.
        in_force: epoch of the plan in force, 0 before the first.
        reports: by rank, what members have reported for the coming epoch.
        awaiting_fetch: ranks that have yet to get what the plan gives them.
        incident: the recovery under way.
        incidents: the records of the newest recoveries.
        reattach_by: when a restarted tracker stops waiting for its workers.
        grace_until: while all seems lost, until when a closed member that is away may come back.
        had_grace: that time has passed once in this epoch.
    """

    highest_version: int
    in_force: int = 0
    reports: dict[int, Report] = field(default_factory=dict)
    awaiting_fetch: set[int] = field(default_factory=set)
    incident: OpenIncident | None = None
    incidents: list[dict[str, Any]] = field(default_factory=list)
    reattach_by: float = float("inf")
    grace_until: float = float("inf")
    had_grace: bool = False

    def heard_version(self, version: int) -> None:
        """Note a checkpoint version that somebody has named."""
        self.highest_version = max(self.highest_version, version)

    def reason(self) -> str:
        """Explain in a message why the epoch changes."""
        return self.incident.reason[:500] if self.incident is not None else "recovery"

    def begin_collecting(self) -> None:
        """Await the reports of all members anew."""
        self.reports = {}
        self.awaiting_fetch = set()
        self.grace_until, self.had_grace = float("inf"), False


@dataclass(slots=True)
class LinkFailures:
    """Failed links, their treatment, and the limit on epochs that they begin.

    Attributes:
        pairs: the pairs of ranks and of hosts that have failed.
        routes: relays of the plan in force.
        planned_at: since when the plan in force has been so.
        repaired_at: when it shows which links work.
        epoch_at: when links last began an epoch.
        suspicion: reason and ranks that the limit on such epochs holds back.
        streak: where the job stood, and since when, while links alone kept it from going on.
    """

    pairs: Pairs = field(default_factory=Pairs)
    routes: tuple[Route, ...] = ()
    planned_at: float = float("-inf")
    repaired_at: float = float("inf")
    epoch_at: float = float("-inf")
    suspicion: tuple[str, tuple[int, ...]] | None = None
    streak: tuple[Position, float] | None = None

    def begin_collecting(self) -> None:
        """Release what was held back, since an epoch begins and no plan runs."""
        self.suspicion = None
        self.repaired_at = float("inf")

    def begin_plan(self, now: float, shows_after_s: float) -> None:
        """A plan is in force, and shows after some seconds which links work."""
        self.planned_at = now
        self.repaired_at = now + shows_after_s

    def failing_for(self, progress: Position, now: float) -> float:
        """Note that links failed again; return for how long nothing else has happened.

        Something else has if the job has come farther, or if a plan has shown that links work.
        """
        if self.streak is None or self.streak[0] != progress:
            self.streak = (progress, now)
        return now - self.streak[1]


@dataclass(slots=True)
class BlockedScan:
    """Schedule of the comparison of blocked ranks: in a large group, not at each heartbeat.

    Attributes:
        scanned_at: when they were last.
        due: when they are to be.
        is_long: one of them has been blocked for `detect_within`.
    """

    scanned_at: float = float("-inf")
    due: float = float("inf")
    is_long: bool = False

    def begin(self, now: float, size: int) -> bool:
        """True if the scan may begin; else it is due later, since it costs all `size` members.

        When many wait for one, all their heartbeats say so.
        """
        if size > SMALL_GROUP:
            due = self.scanned_at + size * LOOK_S_PER_MEMBER
            if now < due:
                self.due = due
                return False
            self.scanned_at = now
        self.due = float("inf")  # also if the group has become small since it was set
        return True


@dataclass(slots=True)
class Permits:
    """Records of a tracker beside which another may run, before it tells anything (rule R19).

    Of two trackers that believe that they lead one job, the store's chain knows one.  A plan goes
    out only after the record of its epoch and roster, and a fatal decision only after its own
    record: a tracker that was replaced meanwhile gets no record any more.

    Attributes:
        is_on: another tracker may take over; without one nothing is recorded.
        asked: the epoch whose record is on its way.
        granted: the newest epoch whose record is there.
        end: the fatal decision that is told once its record is there.
        since: since when a record is awaited.
    """

    is_on: bool = False
    asked: EpochRecord | None = None
    granted: EpochRecord | None = None
    end: FatalDecision | None = None
    since: float = float("inf")

    def ask(self, wanted: EpochRecord, now: float) -> bool:
        """True if the record of `wanted` has to be put now; one is on its way at a time."""
        if self.asked is not None:
            return False
        self.asked = wanted
        self.since = min(self.since, now)
        return True

    def grant(self, record: EpochRecord) -> None:
        """Note that this record is in the chain."""
        self.asked, self.granted = None, record
        if self.end is None:
            self.since = float("inf")


@dataclass(slots=True)
class JobEnd:
    """The end of the job: what is asked before it, and who has heard of it.

    Attributes:
        untold: worker ids of members that have not been told how the job ended; they may be
            dialling just now.
        unheard: worker ids whose supervisors an earlier tracker knew, and this one does not yet:
            they may be dialling just now too.
        gone: worker ids of closed members whose connections have ended before anyone was told: who
            lives dials again, and is not awaited for long (R8).
        inquiry: into a mismatch that was reported.
        over_at: when the tracker leaves, whoever has heard.
        patience_s: for how much longer it stays for a member that has not answered `AllClosed`.
        remind_at: when people hear next that the record of the end is awaited.
        is_reported: the driver knows of the end.
        awaits_record: all have closed; members hear of it when the store has the record.
        was_overtaken: a later attempt runs, and what this one has come to does not count.
        handed_on: what ends the job, and came when its attempt alone was going to end.
    """

    untold: set[str]
    unheard: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    inquiry: Inquiry | None = None
    over_at: float = float("inf")
    patience_s: float = 0.0
    remind_at: float = float("inf")
    is_reported: bool = False
    awaits_record: bool = False
    was_overtaken: bool = False
    handed_on: StopAsked | GivenUp | None = None

    @property
    def due(self) -> float:
        """Time at which something follows though nothing is heard, once the job is over."""
        if self.awaits_record:
            return min(self.over_at, self.remind_at)
        return float("inf") if self.is_reported else self.over_at

    def hand_on(self, event: StopAsked | GivenUp) -> None:
        """Let the next attempt hear of it: the first such event ends the job."""
        if self.handed_on is None:
            self.handed_on = event

    def told(self, worker_id: str) -> None:
        """Note that this worker has heard how the job ended."""
        self.untold.discard(worker_id)


class GroupState:
    """All that the tracker knows of its job, and the effects of the event in hand."""

    def __init__(
        self,
        settings: JobSettings,
        durable: Durable,
        *,
        generation: int,
        tracker: bytes,
        now: float,
        parts: Callable[[], tuple[Part, ...]],
        store: StoreFacts = NO_STORE,
    ) -> None:
        self.settings = settings
        self.durable = durable
        self.generation = generation
        self.tracker = tracker
        self.state = JobState.FORMING
        self.now = PatienceTime(now)
        self.driver_now = DriverTime(now)  # for durations that people read; no deadline is of it
        self.effects: list[Effect] = []
        self.members = Members()
        self.epochs = EpochState(durable.version)
        self.links = LinkFailures()
        self.blocked = BlockedScan()
        self.launches = Launches()
        self.paths = ControlPaths()
        self.forming = Forming(settings.form_within)
        self.rebuild: Rebuild | None = None
        self.make_parts = parts  # for the group that follows this one
        self.parts = parts()
        self.versions = DurableVersions(store, durable.world_size, now)
        self.permits = Permits(is_on=store.has_standby)
        self.needs_series = store.attempt > 0 and not store.is_begun
        if durable.places:  # the last tracker may have died before it was put
            self.put_series()
        closed = {durable.places[rank].worker_id for rank in durable.closed_ranks}
        workers = {place.worker_id for place in durable.places}
        self.end = JobEnd(workers, set(durable.supervised), closed - set(durable.supervised))
        if durable.final_version >= 0 and store.attempt and not store.is_finished:
            self.record_end()
        elif durable.fatal_decision is not None or durable.final_version >= 0:
            self.over(now + settings.reattach_within)
        elif durable.places:
            self.enter("ranks in the journal", JobState.REATTACHING)
            self.epochs.reattach_by = now + settings.reattach_within
            self.members.empty_since = {
                rank: now for rank in range(durable.world_size) if rank not in durable.closed_ranks
            }
        elif durable.incarnations:  # somebody came before this tracker was started
            self.forming.begin(now)

    @property
    def awaits_next_attempt(self) -> bool:
        """True if this attempt is over and the job goes on from its store."""
        decision = self.durable.fatal_decision
        return decision is not None and decision.error == RolledBackError.__name__

    @property
    def hands_on(self) -> bool:
        """True if an attempt follows, also while the record of this one's end is awaited."""
        end = self.permits.end
        return self.awaits_next_attempt or (
            end is not None and end.error == RolledBackError.__name__
        )

    @property
    def has_end(self) -> bool:
        """True once the job can only end, and a part holds its end."""
        return any(part.has_end for part in self.parts)

    @property
    def awaits_reports(self) -> bool:
        """True while a connected member has yet to say for the coming epoch how far it is."""
        collecting = self.state is JobState.COLLECTING
        return collecting and len(self.epochs.reports) < len(self.members.slots)

    def misses(self, worker_id: str) -> bool:
        """True while that worker has a place, and none of its incarnations is connected."""
        if self.state is JobState.REBUILDING:  # who has a place is not known yet
            return False
        formed = bool(self.durable.places)
        has_place = not formed or self.durable.rank_of(worker_id) is not None
        return has_place and not self.members.is_connected(worker_id)

    def is_connected(self, worker_id: str) -> bool:
        """True if an incarnation of that worker is connected, admitted or not."""
        waits = self.rebuild is not None and self.rebuild.is_here(worker_id)
        return waits or self.members.is_connected(worker_id)

    def has_closed(self, worker_id: str) -> bool:
        """True if that worker's rank has completed its close(), and nothing can call it back."""
        if self.versions.is_on and self.durable.final_version < 0:
            return False  # R16: if all is lost before all have closed, it is needed again
        return self.durable.has_closed(worker_id)

    def lost_hosts(self) -> tuple[list[tuple[str, list[str]]], list[str]]:
        """Hosts of which everybody is away, with their workers; and the others who are away."""
        if not self.members.empty_since:
            return [], []
        places = self.durable.places
        away = {places[rank].worker_id for rank in self.members.empty_since}
        return lost_hosts({place.worker_id: place.host for place in places}, away)

    def closed_and_away(self) -> list[int]:
        """Ranks that have closed and whose worker is not connected."""
        return sorted(set(self.durable.closed_ranks) - set(self.members.slots))

    def refresh(self, peer: Peer) -> None:
        """Note that this one was heard now."""
        peer.last_heard, peer.late = self.now, False

    def forget(self, conn: int) -> None:
        """Remove a connection that is gone, and what it reported."""
        peer = self.members.peers.get(conn)
        if peer is None:
            return
        for part in self.parts:
            part.on_gone(self, peer)
        rank = self.members.forget(conn)
        if rank is not None:
            self.epochs.reports.pop(rank, None)
            self.versions.lose(rank)

    def drop(self, conn: int, reason: str) -> None:
        """Close a connection, and forget it."""
        self.forget(conn)
        self.effects.append(Disconnect(conn, reason))

    def persist(self, **changes: Any) -> None:
        """Change what is durable; it is written before any later effect (rule R13)."""
        self.durable = replace(self.durable, **changes)
        self.effects.append(Persist(self.durable))

    def put_series(self) -> None:
        """Record what is the same in all attempts, once the group has formed (rule R16)."""
        if self.needs_series:
            self.needs_series = False
            durable = self.durable
            put = PutSeries(durable.grouping, durable.tables, durable.attempt_nonce)
            self.effects.append(put)

    def note_records(self) -> None:
        """Journal that the store has records of the job, before a member is told of one."""
        if not self.durable.in_store:
            self.persist(in_store=True)

    def record_end(self) -> None:
        """Record in the store that all have closed; they are told when it is there (rule R16)."""
        self.end.awaits_record = True
        self.permits.since = self.now
        self.end.remind_at = self.now + RECORD_S
        self.effects.append(PutFinished(self.durable.attempt, self.durable.final_version))
        self.over(self.now + self.settings.replace_within)

    def send(self, conn: int, message: Any) -> None:
        """Send a message to a worker."""
        self.effects.append(Send(conn, message))

    def note(self, level: str, text: str) -> None:
        """Write a line to the tracker's log."""
        self.effects.append(Note(level, text))

    def close_incident(self, *, completed: bool) -> None:
        """Write the record of the recovery under way, if there is one."""
        if self.epochs.incident is None:
            return
        record = self.epochs.incident.close(self.driver_now, completed=completed)
        self.epochs.incident = None
        self.epochs.incidents = [*self.epochs.incidents[-99:], record.to_dict()]
        self.effects.append(IncidentClosed(record))

    def enter(self, cause: str, state: JobState) -> None:
        """Change to `state`, along an edge of `JOB_STATES`."""
        self.state = JOB_STATES.take(self.state, cause, state)

    def step_down(self, reason: str, remedy: str = "") -> None:
        """End this tracker, and tell nobody anything: its workers look for another one."""
        self.effects.append(StepDown(reason, remedy))
        self.leave()

    def leave(self) -> None:
        """End this tracker at once: it tells nobody anything more."""
        self.enter("tracker leaves", JobState.OVER)
        self.end.is_reported = True

    def over(self, until: float) -> None:
        """End the job; the tracker stays until then at most."""
        self.enter("end", JobState.OVER)
        self.end.over_at = until

    def check_invariants(self) -> None:
        """Assert what holds after every event, whatever workers send."""
        self.members.check()
        assert self.epochs.in_force <= self.durable.epoch
        assert self.epochs.reports.keys() <= self.members.slots.keys()
        is_whole = not self.members.empty_since or self.permits.end is not None
        assert self.state is not JobState.RUNNING or is_whole
