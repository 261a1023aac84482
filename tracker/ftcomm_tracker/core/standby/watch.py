"""Standby: a tracker that waits beside the one that leads, until the store lets it lead (R19).

It leads once its claim is the record behind the last one that it has read.  From then on the older
tracker gets no record, so no plan and no fatal decision of it can follow.  What it had recorded
before is known, and the roster of its newest epoch is where the new one begins.
"""

import enum
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ftcomm.config.job_settings import JobSettings
from ftcomm.config.state_table import StateTable
from ftcomm.durable.records import EpochMember, EpochRecord
from ftcomm.errors import RolledBackError
from ftcomm.protocol.messages import Hello, KnownRoster, RosterEntry
from ftcomm.protocol.position import PRELUDE
from ftcomm_tracker.core.durable.chain_facts import ChainFacts, RecordedAttempt
from ftcomm_tracker.core.durable_state import Durable, RankOwner
from ftcomm_tracker.core.rebuild.decision import EPOCH_GAP

# A worker whose tracker beats is sent away at once: it may have lost its connection alone.  That
# all members have lost that tracker is known when each has called again and again for so long.
CALLING_S = 5.0
# Between two calls of one worker: 5 s to dial an address that does not answer, and its back-off.
CALL_EVERY_S = 20.0
# A record counts as a beat for so long: who has just claimed the job has not beaten yet.
RECORD_COUNTS_S = 9.0


class Phase(enum.Enum):
    """State of a tracker that does not lead."""

    WAITING = "WAITING"  # another one leads, or no worker has come
    CLAIMING = "CLAIMING"  # its claim, or the record of the next attempt, is on its way
    ASKING = "ASKING"  # it leads, and asks a worker for the job's settings


PHASES = StateTable(
    (Phase.WAITING, "nobody leads", Phase.CLAIMING),
    (Phase.CLAIMING, "claim is there", Phase.ASKING),
    (Phase.CLAIMING, "another record was first", Phase.WAITING),
    (Phase.ASKING, "another one leads", Phase.WAITING),
)


@dataclass(slots=True)
class Standby:
    """A tracker that waits.

    Attributes:
        since: when it began to wait.
        chain: the store's records when they were read last; None before.
        now_us: the time of that, in microseconds.
        leader: the process that beats in the store, in words; empty for none.
        is_silent: no process beats there any more, nor puts records.
        length: the highest number of records that was read.
        grown_at: when there were more than before.
        trouble: why the store could not be read last; empty if it could.
        phase: see `Phase`.
        claim: the record by which it leads.
        claimed_at: when that was there.
        floor: the highest generation that a worker has answered.
        calls: by worker and nonce of a process that came while another tracker beat: when it came
            first, and last.
    """

    since: float
    chain: ChainFacts | None = None
    now_us: int = 0
    leader: str = ""
    is_silent: bool = False
    length: int = 0
    grown_at: float = float("-inf")
    trouble: str = ""
    phase: Phase = Phase.WAITING
    claim: EpochRecord | None = None
    claimed_at: float = float("inf")
    floor: int = 0
    calls: dict[tuple[str, bytes], tuple[float, float]] = field(default_factory=dict)

    @property
    def job_id(self) -> str:
        """The newest attempt of the store's job; empty before there is one."""
        chain = self.chain
        return f"{chain.series}.{chain.newest_attempt}" if chain and chain.series else ""

    @property
    def sends_away(self) -> bool:
        """True while another tracker leads, as far as is known: all who call belong there."""
        return self.phase is Phase.WAITING and not self.is_silent

    @property
    def is_over(self) -> bool:
        """True if the job has ended; after another end an operator may start it again."""
        assert self.chain is not None
        ended = self.chain.ended
        failed = ended is not None and ended.error != RolledBackError.__name__
        return failed or self.chain.finished > PRELUDE

    @property
    def has_nothing_to_take_up(self) -> bool:
        """True if no plan of the newest attempt can be in force."""
        assert self.chain is not None
        return not self.chain.epochs or self.chain.ended is not None

    def note_store(self, chain: ChainFacts, *, is_silent: bool, now: float) -> None:
        """Note the records, and whether no process beats."""
        self.chain = chain
        if chain.length > self.length > 0:
            self.grown_at = now
        self.length = chain.length
        self.is_silent = is_silent and now >= self.grown_at + RECORD_COUNTS_S

    def note_call(self, hello: Hello, now: float) -> None:
        """Note that a worker has come, and is sent away."""
        process = (hello.worker_id, hello.nonce)
        self.calls = {p: c for p, c in self.calls.items() if now < c[1] + CALL_EVERY_S}
        first, _ = self.calls.get(process, (now, now))
        self.calls[process] = (first, now)

    def enter(self, cause: str, phase: Phase) -> None:
        """Change to `phase`, along an edge of `PHASES`."""
        self.phase = PHASES.take(self.phase, cause, phase)

    def next_claim(self, hellos: Collection[Hello], now: float) -> EpochRecord | None:
        """The record by which this tracker would lead; None while another one may.

        It leads if no tracker beats and a worker has come, or if all members of the newest plan
        have come again and again: they have lost their tracker, wherever it still beats.
        """
        assert self.chain is not None
        newest = self.chain.epochs[-1]
        members = {(each.worker_id, each.nonce) for each in newest.roster if each.present}
        calls = {p for p, (first, last) in self.calls.items() if _is_calling(first, last, now)}
        all_came = bool(members) and members <= calls
        if not (all_came or (self.is_silent and hellos)):
            return None
        generation = 1 + max(self.chain.newest_generation, self.floor)
        # Above all epochs that the older tracker may have announced without a record.
        epoch = newest.epoch + EPOCH_GAP
        return EpochRecord(newest.attempt, generation, epoch, newest.roster)

    def roster(self, answer: KnownRoster | None, entries: list[RosterEntry]) -> list[EpochMember]:
        """The roster to begin from: the higher one of the newest record and a worker's answer."""
        assert self.chain is not None
        newest = self.chain.epochs[-1]
        if answer is None or newest.epoch >= answer.epoch:
            return list(newest.roster)
        return [EpochMember(e.worker_id, e.incarnation, e.nonce, e.present) for e in entries]

    def durable(
        self,
        settings: JobSettings,
        hellos: Collection[Hello],
        answer: KnownRoster | None,
        entries: list[RosterEntry],
    ) -> Durable:
        """The job as a journal would have it.

        Args:
            settings: of the job.
            hellos: of the workers that are here.
            answer: of the worker here that knows the newest plan; None if none knows one.
            entries: its whole roster.
        """
        chain = self.chain
        assert chain is not None
        attempt = chain.newest_attempt
        begun = _newest_of(chain)
        roster = self.roster(answer, entries)
        hosts = {entry.nonce: entry.host for entry in entries}
        hosts |= {hello.nonce: hello.host for hello in hellos}
        own = [each.version for each in chain.versions if each.attempt == attempt]
        own += [each.version for each in chain.versions if each.record == begun.parent]
        assert self.claim is not None
        known = [max(hello.plan_epoch, hello.revoke_epoch) + 1 for hello in hellos]
        numbers = Counter({hello.worker_id: hello.incarnation for hello in hellos})
        for each in (*roster, *(member for epoch in chain.epochs for member in epoch.roster)):
            numbers[each.worker_id] = max(numbers[each.worker_id], each.incarnation)
        return Durable(
            job_id=self.job_id,
            world_size=chain.world_size,
            settings=settings.to_wire(),
            epoch=max([self.claim.epoch, *known]),
            # Those for which the first plan was made: with them alone nothing is lost.
            first_nonces=tuple(each.nonce for each in chain.epochs[0].roster),
            incarnations=tuple(sorted((+numbers).items())),  # of those that have one
            places=tuple(
                RankOwner(each.worker_id, each.incarnation, each.nonce, hosts.get(each.nonce, ""))
                for each in roster
            ),
            grouping=chain.grouping,
            tables=chain.tables,
            version=max([PRELUDE, *own, *([answer.version] if answer else [])]),
            closed_ranks=tuple(rank for rank, each in enumerate(roster) if not each.present),
            attempt=attempt,
            attempt_nonce=begun.nonce,
            restore=begun.parent,
            in_store=True,
        )

    def durable_of_the_end(self, settings: JobSettings) -> Durable:
        """The job as a journal would have it that knows its end."""
        chain = self.chain
        assert chain is not None
        roster = chain.epochs[-1].roster if chain.epochs else ()
        everyone = tuple(range(len(roster)))
        return Durable(
            job_id=self.job_id,
            world_size=chain.world_size,
            settings=settings.to_wire(),
            epoch=chain.epochs[-1].epoch if chain.epochs else 0,
            first_nonces=tuple(each.nonce for each in roster),
            places=tuple(RankOwner(e.worker_id, e.incarnation, e.nonce, "") for e in roster),
            grouping=chain.grouping,
            tables=chain.tables,
            closed_ranks=everyone if chain.finished > PRELUDE else (),
            final_version=chain.finished,
            fatal_decision=None if chain.finished > PRELUDE else chain.fatal_decision,
            attempt=chain.newest_attempt,
            # Without it the attempt's record in the store is another tracker's, and ends this one.
            attempt_nonce=_newest_of(chain).nonce,
            in_store=True,
        )


def _newest_of(chain: ChainFacts) -> RecordedAttempt:
    """The newest attempt of a chain that has one."""
    return next(each for each in chain.attempts if each.attempt == chain.newest_attempt)


def journalled_roster(places: Iterable[RankOwner], newest: EpochRecord) -> tuple[EpochMember, ...]:
    """The roster of a tracker that was started again on its journal, for its record.

    Who has closed is there: it waits for the others, and says so again to the next tracker.  Absent
    is who was in the newest record.
    """
    absent = {each.nonce for each in newest.roster if not each.present}
    return tuple(
        EpochMember(each.worker_id, each.incarnation, each.nonce, each.nonce not in absent)
        for each in places
    )


def _is_calling(first: float, last: float, now: float) -> bool:
    return now < last + CALL_EVERY_S and last >= first + CALLING_S
