"""AttemptStart: from a store's chain to the next attempt, one step at a time (rule R16).

An attempt begins when no member of the last one lives.  It resumes from the newest version of the
chain that verifies.  Its record is put before any worker is welcomed: it fences every writer of an
earlier attempt.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ftcomm.errors import (
    ConfigError,
    JobFinishedError,
    JobLostError,
    RankLostError,
    RolledBackError,
)
from ftcomm.protocol.position import PRELUDE
from ftcomm_tracker.core.durable.chain_facts import ChainFacts, RecordedVersion
from ftcomm_tracker.core.durable.store_facts import StoreFacts
from ftcomm_tracker.core.durable_state import Durable

# Attempts from one parent that a tracker begins by itself: more would only repeat what ended them.
MAX_FROM_ONE_PARENT = 3
MAX_FORMER = 16  # names in a journal: each is an attempt that never reached its store
# Behind the cause of an attempt's end, in its ranks' error: not in the error of the job's end.
GOES_ON = "; the job goes on from"
MAX_NAMED = 5  # damaged checkpoints in one error: the log has them all
OVERTAKEN = "OvertakenError"  # the driver's error: a refusal that is no fault of the job
# Ends after which a tracker that is started again goes on from the store: nobody asked for them.
FOLLOWED = (RolledBackError.__name__, RankLostError.__name__)
# Remedies, for the operator.
ANOTHER_STORE = "for a new job, give another store and state directory"
MOUNT = "mount it, or put it back; for a new job, give another state directory"
OF_THE_PAST = "give the state directory of that attempt, or a new one: it goes on from the store"
RESTORE = f"put what is damaged back from a copy; {ANOTHER_STORE}"
LOST_RECORDS = (
    "put them back from a copy; to begin from what the store has, see that no process of the job is"
    " left, and give another state directory"
)
NEXT_ATTEMPT = "leave the option out; it can be changed when the attempt has ended"
NOT_NEVER = f"leave it out to go on; {ANOTHER_STORE}"
BOTH_OF_ONE_JOB = f"give the store and the state directory of one job; {ANOTHER_STORE}"
SAME_OR_ANOTHER = f"give the options of the first attempt; {ANOTHER_STORE}"


# --- steps --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadChain:
    """Read the chain to its end; then `on_chain`."""


@dataclass(frozen=True, slots=True)
class VerifyVersion:
    """Read every object of that version record; then `on_verified`."""

    record: int


@dataclass(frozen=True, slots=True)
class PutAttempt:
    """Put the record of an attempt behind what was read; then `on_put`.

    Attributes:
        attempt: its number.
        parent: number of the version record that it begins from, 0 for none.
        nonce: by which its tracker knows its own record.
    """

    attempt: int
    parent: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class BeginAttempt:
    """The attempt is recorded: journal `durable`, welcome workers."""

    durable: Durable
    store: StoreFacts


@dataclass(frozen=True, slots=True)
class RefuseAttempt:
    """There is no attempt to begin: `error` names the exception, `remedy` is for the operator."""

    error: str
    cause: str
    remedy: str = ""


AttemptStep = ReadChain | VerifyVersion | PutAttempt | BeginAttempt | RefuseAttempt


@dataclass(slots=True)
class AttemptStart:
    """The beginning of one attempt. The driver carries out a step and says what came of it.

    Attributes:
        before: the journal's last state; of a new job, or of an attempt that has ended.
        series: name of the series, if the chain has none yet.
        nonce: drawn for this start.
        resume: the operator's choice, ``auto``, ``never`` (only a new job) or ``require``.
        survivors: members of the journal's attempt may live.
        settings: of the next attempt, where the journal's are not to stay; empty where they are.
        max_attempts: more than these the job may not have.
        now_us: the time in microseconds, for the age of a checkpoint.
        tried: attempts that this tracker has begun, by their parents.
        yields: another tracker may begin the attempt too; whoever is second has lost (rule R19).
        has_led: this tracker has led the attempt of `before` until now: a later one is another's.
        notes: lines for people.
    """

    before: Durable
    series: str
    nonce: bytes
    resume: str = "auto"
    survivors: bool = True
    settings: tuple[tuple[str, str], ...] = ()
    max_attempts: int = 100
    now_us: int = 0
    tried: Counter[int] = field(default_factory=Counter)
    yields: bool = False
    has_led: bool = False
    notes: list[tuple[str, str]] = field(default_factory=list)
    _chain: ChainFacts = field(default_factory=ChainFacts)
    _damaged: dict[int, str] = field(default_factory=dict)
    _deleted: set[int] = field(default_factory=set)
    _attempt: int = 0
    _parent: RecordedVersion | None = None
    _renews_prelude: bool = False

    def begin(self) -> AttemptStep:
        """Return the first step."""
        return ReadChain()

    def on_chain(self, chain: ChainFacts) -> AttemptStep:
        """The chain was read: go on with the attempt of the journal, or look for a parent."""
        self._chain = chain
        lost = refusal_of_another_series(self.before, chain.series) or self._refusal_to_overtake()
        if lost is not None:
            return lost
        has_nothing = is_of_another_series(self.before, chain.series)
        if has_nothing or (self.yields and chain.newest_attempt > self.before.attempt):
            # R19: the other tracker has begun that one; what the journal has is of the past
            self.before = self._fresh(chain)
        if chain.newest_attempt == self.before.attempt and self.before.fatal_decision is None:
            # R19: recorded, then journalled; the tracker may have died in between
            self.before = replace(self.before, fatal_decision=chain.fatal_decision)
        lacking = self._refusal_of_an_empty_store() or self._refusal_of_a_shorter_chain()
        if lacking is not None:
            return lacking
        if self._is_under_way:
            return self._take_up()
        if chain.finished > PRELUDE:
            cause = f"the job of this store has finished at version {chain.finished}"
            return RefuseAttempt(JobFinishedError.__name__, cause, ANOTHER_STORE)
        refusal = self._refusal_of_other_settings() or self._refusal_to_resume()
        if refusal is not None:
            return refusal
        if not chain.length:  # its records come when the group has formed: they say its grouping
            self._attempt = 1
            if self.before.first_nonces:
                text = f"the store has no record of {self.before.job_id}, which begins anew"
                self.notes.append(("warning", text))
            return self._begun()
        return self._next_parent()

    def on_verified(
        self, record: int, problem: str, *, is_deleted: bool = False, spared: Sequence[str] = ()
    ) -> AttemptStep:
        """All objects of a version record were read; `problem` says what is wrong with them.

        A version that `is_deleted` need not have been kept: that is no damage.  Objects of the
        prelude that are `spared` are damaged too, and others have their results.
        """
        if is_deleted:
            self._deleted.add(record)
            return self._next_parent()
        if problem:
            self._damaged[record] = problem
            version = next(each for each in self._chain.versions if each.record == record)
            text = f"checkpoint {version.version} of the store is damaged: {problem}"
            self.notes.append(("warning", f"{text}; an older one is used"))
            return self._next_parent()
        self._renews_prelude = bool(spared)
        for text in spared:
            text += "; there is another copy, and the next checkpoint writes the results anew"
            self.notes.append(("warning", text))
        self._note_damaged_records(record)
        self._note_deleted()
        return self._put()

    def on_put(self, *, taken: bool) -> AttemptStep:
        """The record is in the chain; or its number is `taken`, and the chain is read again."""
        if taken and self.yields:
            cause = "another tracker has written to the store just now, and leads the job"
            return RefuseAttempt(OVERTAKEN, cause)
        if taken:
            return ReadChain()
        self.tried[0 if self._parent is None else self._parent.record] += 1
        return self._begun()

    # --- decisions ----------------------------------------------------------------------------

    @property
    def _is_under_way(self) -> bool:
        """True if the journal has an attempt that has not ended, or whose end is to be told."""
        decision = self.before.fatal_decision
        if decision is not None and (not self.survivors or decision.error in FOLLOWED):
            return False
        is_over = self.before.final_version > PRELUDE
        if self._chain.finished > PRELUDE and not is_over:
            return False  # R19: under the other tracker, since one's own end is journalled first
        return self.before.attempt > 0 and (self.survivors or is_over)

    def _take_up(self) -> AttemptStep:
        """The tracker was started again: its attempt goes on, if no other has overtaken it."""
        attempt = self.before.attempt
        if self._chain.newest_attempt > attempt:
            cause = (
                f"attempt {self._chain.newest_attempt} of this job has begun from its store;"
                f" the state directory has attempt {attempt}"
            )
            return RefuseAttempt(ConfigError.__name__, cause, OF_THE_PAST)
        text = differences(dict(self.before.settings), dict(self.settings), f"attempt {attempt}")
        if text:
            cause = f"{text}; members of the attempt may live, and keep what it has"
            return RefuseAttempt(ConfigError.__name__, cause, NEXT_ATTEMPT)
        facts = self._chain.facts_of(attempt, self.now_us)
        if self.before.in_store and not self._chain.length:  # nothing is put into that store
            facts = replace(facts, is_begun=True, is_finished=True)
        return BeginAttempt(self.before, facts)

    def _refusal_to_overtake(self) -> RefuseAttempt | None:
        """Refuse to begin over the attempt of another tracker: its members live."""
        chain, attempt = self._chain, self.before.attempt
        is_later = self.has_led and chain.newest_attempt > attempt > 0
        if not is_later or chain.finished > PRELUDE:
            return None
        later = f"attempt {chain.newest_attempt} of the job has begun"
        return RefuseAttempt(OVERTAKEN, f"{later}; this tracker led attempt {attempt}")

    def _refusal_of_other_settings(self) -> RefuseAttempt | None:
        """Refuse what would give other bytes than the attempts before."""
        chain, before = self._chain, self.before
        text = differences(dict(chain.settings), dict(before.settings))
        if chain.world_size and chain.world_size != before.world_size:
            text = f"the job in the store has {chain.world_size} workers, not {before.world_size}"
        return RefuseAttempt(ConfigError.__name__, text, SAME_OR_ANOTHER) if text else None

    def _refusal_of_an_empty_store(self) -> RefuseAttempt | None:
        """Refuse to begin anew, or to go on, where the journal knows of records in the store.

        Without them nothing tells an empty store from one that is not mounted: the group had not
        formed, the store was away, or the tracker died between the first record and its journal.
        Nothing was durable then.  An end that is to be told needs no store.
        """
        before = self.before
        is_told = self._is_under_way and bool(before.end)
        if self._chain.length or not before.in_store or is_told:
            return None
        cause = f"the store is empty, and {before.job_id} of the state directory has records in it"
        return RefuseAttempt(ConfigError.__name__, cause, MOUNT)

    def _refusal_of_a_shorter_chain(self) -> RefuseAttempt | None:
        """Refuse to go on where the record of the journal's attempt is no more in the store.

        Its number would be used again, and whoever has read the lost record would miss the new one.
        The first attempt may have died between the records that begin a chain.
        """
        newest, attempt = self._chain.newest_attempt, self.before.attempt
        if not (self._chain.length and self.before.in_store and max(newest, 1) < attempt):
            return None
        cause = (
            f"the store has attempt {newest} of {self._chain.series}, and the state directory has"
            f" attempt {attempt}, whose record the store had: its last records are lost"
        )
        return RefuseAttempt(ConfigError.__name__, cause, LOST_RECORDS)

    def _refusal_to_resume(self) -> RefuseAttempt | None:
        versions = self._chain.versions
        may_live = self.survivors and self.before.attempt > 0  # started again, as by a supervisor
        has_any = bool(versions or self._chain.damaged)
        if self.resume == "never" and has_any and not may_live:
            newest = f" up to checkpoint {versions[-1].version}" if versions else ""
            cause = f"the store has a job{newest}, and --resume never was given"
            return RefuseAttempt(ConfigError.__name__, cause, NOT_NEVER)
        if self.resume == "require" and not has_any:
            cause = "the store has no checkpoint, and --resume require was given"
            remedy = "look whether it is the store that was meant; --resume auto begins a new job"
            return RefuseAttempt(ConfigError.__name__, cause, remedy)
        return None

    def _next_parent(self) -> AttemptStep:
        """Verify the newest version that was not found damaged; without any, begin anew."""
        versions = self._chain.versions
        left = [each for each in versions if each.record not in {*self._damaged, *self._deleted}]
        if left:
            self._parent = left[-1]
            return VerifyVersion(self._parent.record)
        if versions or self._chain.damaged:  # never a silent fresh start
            self._note_deleted()
            cause = f"no checkpoint of the store can be used: {self._unusable}"
            return RefuseAttempt(JobLostError.__name__, cause, RESTORE)
        self._parent = None
        return self._put()

    def _fresh(self, chain: ChainFacts) -> Durable:
        """The job as if nothing had happened; a journal that goes on counts its epochs on."""
        before = self.before
        fresh = Durable.fresh(self.series, before.world_size, before.settings)
        return replace(fresh, epoch=before.epoch) if chain.series in before.former else fresh

    def _put(self) -> PutAttempt | RefuseAttempt:
        self._attempt = self._chain.newest_attempt + 1
        parent = 0 if self._parent is None else self._parent.record
        if self._attempt > self.max_attempts:
            cause = f"attempt {self._attempt} would be above max_attempts {self.max_attempts}"
            remedy = "raise --max-attempts"
            return RefuseAttempt(JobLostError.__name__, cause + self._last_loss, remedy)
        if self.tried[parent] >= MAX_FROM_ONE_PARENT:
            cause = f"{MAX_FROM_ONE_PARENT} attempts from {self._beginning} were lost in a row"
            return RefuseAttempt(JobLostError.__name__, cause + self._last_loss)
        return PutAttempt(self._attempt, parent, self.nonce)

    def _begun(self) -> BeginAttempt:
        parent, chain = self._parent, self._chain
        version = PRELUDE if parent is None else parent.version
        before, name = self.before, chain.series or self.series
        settings = self.settings or before.settings
        durable = replace(
            Durable.fresh(f"{name}.{self._attempt}", before.world_size, settings),
            grouping=chain.grouping or before.grouping,
            tables=chain.tables or before.tables,
            version=version,
            epoch=before.epoch,  # a journal's epochs only grow
            attempt=self._attempt,
            in_store=chain.length > 0,
            former=() if chain.length else self._former,
            attempt_nonce=self.nonce,
            restore=0 if parent is None else parent.record,
        )
        prelude = None if parent is None or self._renews_prelude else parent.prelude
        if self._attempt > 1:
            self._note_beginning()
        age_s = None if parent is None else parent.age_s(self.now_us)
        facts = StoreFacts(
            self._attempt,
            version,
            prelude,
            age_s,
            is_begun=chain.length > 0,
            parent_version=version,
        )
        return BeginAttempt(durable, facts)

    @property
    def _former(self) -> tuple[str, ...]:
        """Names of which a series record may still land in the empty chain."""
        before = self.before
        own = (before.job_id.rpartition(".")[0],) if before.attempt else ()
        return (*before.former, *own)[-MAX_FORMER:]

    @property
    def _beginning(self) -> str:
        return "the beginning" if self._parent is None else f"checkpoint {self._parent.version}"

    @property
    def _last_loss(self) -> str:
        """The end of the last attempt in a clause: many read the last line alone."""
        decision = self.before.fatal_decision
        return "" if decision is None else f"; the last: {decision.cause.partition(GOES_ON)[0]}"

    @property
    def _unusable(self) -> str:
        """The versions that would be used if they were whole, the newest first."""
        numbers = {each.record: each.version for each in self._chain.versions}
        found = {**self._damaged, **dict(self._chain.damaged)}
        named = [
            f"{numbers[record]}: {why}" if record in numbers else why
            for record, why in sorted(found.items(), reverse=True)
        ]
        if len(named) > MAX_NAMED:
            named[MAX_NAMED:] = [f"{len(named) - MAX_NAMED} more are damaged"]
        return "; ".join([*named, *([self._gone] if self._deleted else [])])

    @property
    def _gone(self) -> str:
        count = len(self._deleted)
        return f"{count} older {'one was' if count == 1 else 'ones were'} deleted by --keep"

    def _note_damaged_records(self, parent: int) -> None:
        """Say which versions are passed over since their records cannot be read."""
        for record, why in reversed(self._chain.damaged):
            if record > parent:
                text = f"a checkpoint of the store is damaged: {why}; an older one is used"
                self.notes.append(("warning", text))

    def _note_deleted(self) -> None:
        if self._deleted:
            self.notes.append(("info", f"of the checkpoints {self._gone}"))

    def _note_beginning(self) -> None:
        before, parent = self.before, self._parent
        if before.fatal_decision is not None and before.attempt:
            self.notes.append(("info", f"attempt {before.attempt} {before.end}"))
        age = "" if parent is None else f", written {_age(parent.age_s(self.now_us))} ago"
        text = f"attempt {self._attempt} begins from {self._beginning}{age}"
        self.notes.append(("warning", text))


def is_of_another_series(before: Durable, series: str) -> bool:
    """Tell whether the store's series, empty for none, is not that of the journal's attempt."""
    return before.attempt > 0 and series not in ("", before.job_id.rpartition(".")[0])


def refusal_of_another_series(before: Durable, series: str) -> RefuseAttempt | None:
    """Refuse the store of another job than that which the journal has begun.

    An attempt without a plan was nothing yet: the tracker goes on as one without a journal.  So it
    does where the record of an earlier attempt of this journal has landed late.
    """
    is_late = series in before.former
    if not is_of_another_series(before, series) or not before.first_nonces or is_late:
        return None
    own = before.job_id.rpartition(".")[0]
    cause = f"the store has job {series}, and the state directory has job {own}"
    return RefuseAttempt(ConfigError.__name__, cause, BOTH_OF_ONE_JOB)


def _age(seconds: float) -> str:
    """Write the age of a checkpoint in the unit that people would use."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def differences(
    has: Mapping[str, str], asked: Mapping[str, str], whose: str = "the job in the store"
) -> str:
    """Name the settings of a series record, or of an attempt, that `asked` has otherwise."""
    odd = [name for name, text in has.items() if asked.get(name, text) != text]
    return "; ".join(f"{whose} has {name} {has[name]}, not {asked[name]}" for name in odd)
