"""The roster of a job whose tracker has lost its journal, from what its workers know (rule R19).

A tracker without a journal takes a job up only if all members of the newest plan have come that
were not absent in it.  Then no plan can exist that this one does not know and that somebody
executes: each of those members has promised to follow no older tracker.  With a member missing it
ends in the end, and decides nothing: another tracker may lead the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ftcomm.config.job_settings import JobSettings
from ftcomm.errors import ConfigError
from ftcomm.protocol.host_groups import is_grouping
from ftcomm.protocol.messages import AskRoster, Hello, KnownRoster, RosterEntry
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.durable_state import Durable, RankOwner
from ftcomm_tracker.core.events import ChainRead, Event

if TYPE_CHECKING:
    from ftcomm_tracker.core.standby.watch import Standby

EPOCH_GAP = 1000  # above the highest epoch seen: the old tracker may have announced some more
MAX_GENERATION = 1_000_000  # trackers of one job; a worker that says more is broken
MAX_EPOCH = 1_000_000_000  # of a worker that can be believed; the codec's own limit is above
REMIND_EVERY_S = 30.0
MAX_NAMED = 8  # workers in one sentence
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The decision: what the journal would say, and who goes on with it.

    Attributes:
        generation: of this tracker, above all that its workers have seen.
        durable: the job, with an epoch above all that may have been announced.
        settings: of the job.
        old_trackers: addresses of the trackers that the workers have lost.
        frontier: of the newest plan.
    """

    generation: int
    durable: Durable
    settings: JobSettings
    old_trackers: tuple[str, ...]
    frontier: Position


@dataclass(slots=True)
class KnownStore:
    """A store (rule R16), and what was read of it.

    Attributes:
        job_id: the newest attempt of a store that was given to this tracker, whose members may
            live; empty if none was.
        until: when the next attempt begins if no such member has come.
        is_asked: the chain is being read.
        read: what was read since all members have come.
    """

    job_id: str = ""
    until: float = NEVER
    is_asked: bool = False
    read: ChainRead | None = None

    def note_read(self, read: ChainRead) -> None:
        """Take what was read, if it is still wanted."""
        if self.is_asked:
            self.read = read

    def forget_read(self) -> None:
        """Drop what was read: a member is away again, and what it knows may be old by then."""
        self.is_asked, self.read = False, None


@dataclass(slots=True)
class Rebuild:
    """Workers that have come to a tracker without a journal, and what they know.

    Attributes:
        tracker: tells this tracker from others that take the same generation.
        world_size: number of workers that the operator has given; None for none.
        is_asked: the operator has asked for it; else a worker that knows a plan has come.
        generation: the one that this tracker asks in.
        waiting: by connection, the hello of a worker that is not admitted yet.
        answers: by connection, the parts of what it knows.
        jobs: ids that workers have named, also those that have left.
        later: events that count once the group is there.
        remind_at: when the operator is told again who is missing.
        standby: the tracker waits beside another one, and the store says when it leads.
        store: what is known of the job's store.
        since: since when workers are here that others have to join; `NEVER` while none are.
        away_since: since when all of them are away; `NEVER` while one is here.
        ends_at: when the wait for members ends.
        is_over: the next attempt begins, or this tracker ends.
    """

    tracker: bytes
    world_size: int | None = None
    is_asked: bool = False
    generation: int = 1
    waiting: dict[int, Hello] = field(default_factory=dict)
    answers: dict[int, tuple[KnownRoster, ...]] = field(default_factory=dict)
    jobs: set[str] = field(default_factory=set)
    later: list[Event] = field(default_factory=list)
    remind_at: float = NEVER
    standby: "Standby | None" = None
    store: KnownStore = field(default_factory=KnownStore)
    since: float = NEVER
    away_since: float = NEVER
    ends_at: float = NEVER
    is_over: bool = False
    _shared: dict[tuple[RosterEntry, ...], tuple[RosterEntry, ...]] = field(default_factory=dict)

    def join(self, conn: int, hello: Hello) -> list[tuple[int, AskRoster]]:
        """Take a worker; return whom to ask what, by connection.

        A worker that has answered a tracker of this generation, or of a higher one, makes this
        tracker ask all again in one above it.
        """
        self.waiting[conn] = hello
        answered = (hello.generation, hello.tracker) == (self.generation, self.tracker)
        if hello.generation >= self.generation and not answered:
            self.generation = hello.generation + 1
            self.answers = {}
            return [(each, self.question) for each in self.waiting]
        return [(conn, self.question)]

    @property
    def question(self) -> AskRoster:
        """The question to a worker."""
        return AskRoster(self.generation, self.tracker)

    def answer(self, conn: int, part: KnownRoster) -> str:
        """Take an answer; return why it cannot be true, empty if it can.

        An answer to a question of an older generation is dropped.
        """
        if conn not in self.waiting or part.generation != self.generation:
            return ""
        flaw = _flaw_in(self.waiting[conn], part)
        if not flaw and part.epoch and self.world_size not in (None, part.world_size):
            flaw = f"its job has {part.world_size} workers, not {self.world_size}"
        if flaw:
            return flaw
        # Nearly all answers are alike: held once, those of 2,048 workers take megabytes.
        part = replace(part, entries=self._shared.setdefault(part.entries, part.entries))
        before = self.answers.get(conn, ()) if part.first else ()
        parts = self.answers[conn] = (*before, part)
        self.jobs.add(part.job_id)
        return _flaw_in_parts(parts) or _flaw_in_place(self.waiting[conn], parts)

    def forget(self, conn: int) -> None:
        """Drop a worker whose connection is gone: its promise counts while it is here."""
        self.waiting.pop(conn, None)
        self.answers.pop(conn, None)

    def is_here(self, worker_id: str) -> bool:
        """True if a process of that worker waits here."""
        return any(hello.worker_id == worker_id for hello in self.waiting.values())

    @property
    def knows_a_plan(self) -> bool:
        """True if a worker is here that has taken a plan."""
        return any(hello.plan_epoch for hello in self.waiting.values())

    @property
    def job_id(self) -> str:
        """The job that the newest answer names; empty before one that knows a plan."""
        newest = self.newest_answer()
        return newest[0].job_id if newest else ""

    def newest_answer(self) -> tuple[KnownRoster, ...]:
        """All parts of the answer with the newest plan; empty while no whole one is there.

        Of a job with a store that is a plan of its newest attempt: epochs of another state
        directory begin anew.
        """
        whole = [parts for parts in self.answers.values() if parts[0].epoch and _is_whole(parts)]
        return max(whole, key=_age_of_plan, default=())

    def missing(self) -> list[str]:
        """Worker ids of the newest plan's members of which the process has not answered."""
        newest = self.newest_answer()
        here = {(hello.worker_id, hello.nonce) for hello in self._answered()}
        return [
            entry.worker_id
            for entry in _entries(newest)
            if entry.present and (entry.worker_id, entry.nonce) not in here
        ]

    def _answered(self) -> Iterable[Hello]:
        return [self.waiting[conn] for conn, parts in self.answers.items() if _is_whole(parts)]

    def contradiction(self) -> str:
        """Name two workers whose answers cannot both be true; empty if there are none."""
        newest = self.newest_answer()
        told = {conn: parts for conn, parts in self.answers.items() if _is_whole(parts)}
        first = next((conn for conn, parts in told.items() if parts is newest), None)
        if first is None:
            return ""
        for conn, parts in sorted(told.items()):
            if _is_of_earlier_attempt(parts[0].job_id, newest[0].job_id):
                continue  # it has been overtaken, and is fenced
            differs = _difference(newest, parts)
            tables = self.waiting[conn].tables, self.waiting[first].tables
            if not differs and parts[0].epoch and tables[0] != tables[1]:
                differs = "the tables of algorithms"
            if differs:
                names = self.waiting[first].worker_id, self.waiting[conn].worker_id
                return f"workers {names[0]} and {names[1]} contradict each other about {differs}"
        return ""

    def decide(self) -> Rebuilt | None:
        """The job as its workers know it; None while somebody is missing."""
        newest = self.newest_answer()
        if not newest or self.missing() or self.contradiction():
            return None
        job, entries = newest[0], _entries(newest)
        hellos = self.waiting.values()
        epoch = EPOCH_GAP + max(max(hello.plan_epoch, hello.revoke_epoch) for hello in hellos)
        # Before anything was completed, members without results have lost nothing.
        nonces = tuple(e.nonce if job.frontier == START else b"" for e in entries)
        durable = Durable(
            job_id=job.job_id,
            world_size=job.world_size,
            settings=job.settings,
            epoch=epoch,
            first_nonces=nonces,
            incarnations=self._incarnations(entries),
            places=tuple(RankOwner(e.worker_id, e.incarnation, e.nonce, e.host) for e in entries),
            grouping=job.grouping,
            tables=self._tables(job),
            version=max(
                part.version
                for parts in self.answers.values()
                for part in parts
                if not _is_of_earlier_attempt(part.job_id, job.job_id)
            ),
            closed_ranks=tuple(rank for rank, entry in enumerate(entries) if not entry.present),
        )
        old = {address for parts in self.answers.values() for address in parts[0].lost}
        settings = JobSettings.from_wire(job.settings)
        return Rebuilt(self.generation, durable, settings, tuple(sorted(old)), job.frontier)

    def _incarnations(self, entries: list[RosterEntry]) -> tuple[tuple[str, int], ...]:
        """The newest incarnations: those of the roster, and of workers here that it leaves out."""
        numbers: dict[str, int] = {}
        for hello in self.waiting.values():
            if hello.incarnation:
                newest = max(hello.incarnation, numbers.get(hello.worker_id, 0))
                numbers[hello.worker_id] = newest
        # A process with a later number than the roster's was to replace that one, and will.
        numbers |= {entry.worker_id: entry.incarnation for entry in entries}
        return tuple(sorted(numbers.items()))

    def _tables(self, job: KnownRoster) -> bytes:
        """The digest of the algorithm tables, as the members of the newest plan have it."""
        return next(
            self.waiting[conn].tables for conn, parts in self.answers.items() if parts[0] is job
        )

    def note_time(self, now: float, settings: JobSettings) -> None:
        """Note how long members are heard: once one is here, as long as for a replacement.

        Args:
            now: the time.
            settings: of the tracker; those that a worker names count instead.
        """
        if self.knows_a_plan or (self.is_asked and self.waiting):
            self.since, self.away_since = min(self.since, now), NEVER
            newest = self.newest_answer()
            said = JobSettings.from_wire(newest[0].settings) if newest else settings
            # No less than a tracker with its journal grants: members come one after the other.
            self.ends_at = self.since + max(said.replace_within, said.reattach_within)
            return
        if self.since < NEVER:
            # They may have lost their connections alone, or ask another tracker for a while: who
            # comes back in time finds the same wait, which so has an end.
            if self.away_since == NEVER and self.store.job_id:
                self.store.until = max(self.store.until, now + settings.reattach_within)
            self.away_since = min(self.away_since, now)
            self.ends_at = self.away_since + settings.reattach_within
            if now < self.ends_at:
                return
        self.since, self.away_since, self.ends_at = NEVER, NEVER, self.store.until

    def lacks(self) -> str:
        """Say in words why the job does not go on yet."""
        names = [
            f"{name} (its earlier process)" if self.is_here(name) else name
            for name in self.missing()
        ]
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        missing = f"worker {', '.join(names[:MAX_NAMED])}{more} of job {self.job_id} has not come"
        unknown = "no worker has come that knows the job's plan"
        return self.contradiction() or (missing if names else unknown)

    def needs(self) -> str:
        """Say in words why the job does not go on yet, and what follows."""
        if self.store.job_id and not self.knows_a_plan:
            return (
                f"members of {self.store.job_id} may live; if none comes, or all workers are new,"
                " the next attempt begins from the store"
            )
        lacks = self.lacks()
        if self.contradiction():
            lacks += "; end the process of the worker that is wrong"
        if self.since == NEVER:  # no worker is here that could be told
            return lacks
        if self.store.job_id:
            return f"{lacks}; in the end the next attempt begins from the store"
        what = f"{lacks}; in the end this tracker gives the job up, and tells those that wait"
        return what if self.is_asked else f"{what}; {self._how_to_begin_anew()}"

    def _how_to_begin_anew(self) -> str:
        """Say which processes keep a tracker that was started for a new job."""
        old = [hello for hello in self.waiting.values() if hello.plan_epoch][:MAX_NAMED]
        names = ", ".join(f"worker {h.worker_id} (pid {h.pid} on {h.host})" for h in old)
        return f"if a new job is meant, end the processes of the old one: {names}"


def how_to_start_again(world_size: int, store: str) -> str:
    """Say what the operator can do once this tracker has ended without its journal."""
    if not store:
        return "start the tracker without --rebuild, and all workers anew"
    return (
        f"start the tracker with -n {world_size} --checkpoint {store}, without --rebuild, and all"
        " workers anew: the next attempt begins from the newest checkpoint"
    )


def attempt_of(job_id: str) -> tuple[str, int]:
    """The series and the number of an attempt; 0 for a job without a store."""
    series, _, number = job_id.rpartition(".")
    return series, int(number) if number.isdecimal() and number.isascii() else 0


def _is_of_earlier_attempt(job_id: str, newest: str) -> bool:
    (series, attempt), (its_series, its_attempt) = attempt_of(newest), attempt_of(job_id)
    return series == its_series and 0 < its_attempt < attempt


def _age_of_plan(parts: tuple[KnownRoster, ...]) -> tuple[int, int]:
    return attempt_of(parts[0].job_id)[1], parts[0].epoch


def _entries(parts: tuple[KnownRoster, ...]) -> list[RosterEntry]:
    return [entry for part in parts for entry in part.entries]


def _is_whole(parts: tuple[KnownRoster, ...]) -> bool:
    return not parts[0].epoch or sum(len(p.entries) for p in parts) == parts[0].world_size


def _job_of(parts: tuple[KnownRoster, ...]) -> tuple[object, ...]:
    """All of an answer that is the same for every member of a job."""
    first = parts[0]
    return first.job_id, first.world_size, first.settings, first.grouping


def _difference(one: tuple[KnownRoster, ...], other: tuple[KnownRoster, ...]) -> str:
    """Name what two answers cannot differ in, and do."""
    if not other[0].epoch:
        return ""
    if _job_of(one) != _job_of(other):
        return "the job, its size, its settings or its grouping"
    lengths = {one[0].prelude_length, other[0].prelude_length} - {-1}
    if len(lengths) > 1:
        return "the length of the prelude"
    if one[0].epoch == other[0].epoch and _entries(one) != _entries(other):
        return f"the roster of epoch {one[0].epoch}"
    return ""


def _flaw_in(hello: Hello, part: KnownRoster) -> str:
    """Return why the worker that said `hello` cannot know this; empty if it can."""
    if hello.generation > MAX_GENERATION or hello.revoke_epoch > MAX_EPOCH:
        return "it names an impossible generation or epoch"
    if part.epoch != hello.plan_epoch:
        return f"it is in epoch {hello.plan_epoch}, and knows the plan of epoch {part.epoch}"
    if not part.epoch:
        return "it has no plan, and knows a roster" if part.entries else ""
    if len(part.grouping) != part.world_size or not is_grouping(part.grouping):
        return "its grouping is none of a job of that size"
    if part.first + len(part.entries) > part.world_size or not part.entries:
        return "its roster has not the size of its job"
    try:
        JobSettings.from_wire(part.settings)
    except ConfigError as error:
        return f"the settings of its job are impossible: {error.cause}"
    return ""


def _flaw_in_place(hello: Hello, parts: tuple[KnownRoster, ...]) -> str:
    """Return a flaw if a whole roster leaves out the process that has taken its plan."""
    if not parts[0].epoch or not _is_whole(parts):
        return ""
    own = any((e.worker_id, e.nonce) == (hello.worker_id, hello.nonce) for e in _entries(parts))
    return "" if own else "its roster does not name it"


def _flaw_in_parts(parts: tuple[KnownRoster, ...]) -> str:
    """Return why parts of one answer do not fit each other; empty if they do."""
    if any(_job_of((one,)) != _job_of((next_one,)) for one, next_one in pairwise(parts)):
        return "the parts of its answer differ"
    if any(next_one.first != one.first + len(one.entries) for one, next_one in pairwise(parts)):
        return "parts of its answer are missing"
    names = [entry.worker_id for entry in _entries(parts)]
    if len(set(names)) < len(names):
        return "its roster names a worker twice"
    return ""
