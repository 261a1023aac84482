"""DurableVersions: which marked version is written next, when its record is put, what follows.

One version is written at a time, the newest marked next.  A version waits a moment for all members
to say that they hold it; then each is ordered its share.  What a lost member was to write another
holder writes.  Nothing here waits for the group: epochs come and go meanwhile.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from ftcomm.protocol.durable.store_messages import (
    Marked,
    NextDigest,
    ObjectWritten,
    VersionDurable,
    VersionGivenUp,
    WriteFailed,
    WriteObjects,
)
from ftcomm.protocol.position import PRELUDE
from ftcomm.protocol.signature import USUAL_CAUSE
from ftcomm_tracker.core.durable.pending_version import (
    PRELUDE_KIND,
    RETRY_S,
    UNKNOWN,
    PendingVersion,
    seqnos_of,
)
from ftcomm_tracker.core.durable.store_facts import StoreFacts
from ftcomm_tracker.core.events import PutNextDigest, PutVersion

# Members commit a version within milliseconds of each other, and pack it at the same speed. Who is
# later than this has no part of the state to write.
GATHER_S = 0.25
NOT_HELD = "no member holds it any more"
MAX_GIVEN_UP = 64  # versions remembered, for members that name them late

Note = tuple[str, str]  # level, text
Message = WriteObjects | VersionDurable | VersionGivenUp
ALL = -1  # in place of a rank: every member


@dataclass(slots=True)
class Outbox:
    """Consequences of an event: messages for ranks, records to put, lines for people."""

    messages: list[tuple[int, Message]] = field(default_factory=list)
    put: PutVersion | None = None
    put_next: PutNextDigest | None = None
    mismatch: str = ""  # the cause of the job's end, if an attempt has committed another state
    notes: list[Note] = field(default_factory=list)


@dataclass(slots=True)
class WriteTrouble:
    """Trouble of the members with the store: logged when it begins, and when it is over.

    A full store fails each retry of each version, and small objects still find room there.  So
    neither a failure nor an object tells a beginning or an end: the record of a version does, if
    nobody's last try has failed.

    Attributes:
        reason: why a member could not write last; empty if there is no trouble.
    """

    reason: str = ""
    _failing: set[int] = field(default_factory=set)  # ranks whose last try has failed

    def on_failed(self, rank: int, version: int, reason: str) -> list[Note]:
        """A member could not write an object; return what to log."""
        is_new, self.reason = not self.reason, f"rank {rank}: {reason}"
        self._failing.add(rank)
        if not is_new:
            return []
        return [("warning", f"checkpoint {version} waits, the job goes on: {self.reason}")]

    def forget(self, rank: int) -> None:
        """A member has written an object, or is gone."""
        self._failing.discard(rank)

    def on_put(self) -> list[Note]:
        """A version has its record; return what to log."""
        if self._failing or not self.reason:  # others may have written for them
            return []
        self.reason = ""
        return [("info", "all ranks can write checkpoints again")]

    def at_the_end(self, newest: int) -> list[Note]:
        """Return what to log at the job's end, of which `newest` is durable; -1 for none."""
        if not self.reason:
            return []
        durable = "no checkpoint is durable" if newest < 0 else f"checkpoint {newest} is durable"
        return [
            ("warning", f"the job ends, and not all could be written: {self.reason}; {durable}")
        ]


class DurableVersions:
    """The marked versions of one attempt.

    Attributes:
        attempt: number of the attempt, 0 for a job without a store.
        newest: the newest version that has a record.
        newest_at: when its record was put, None if there is none.
        trouble: why the store or a member could not write last, empty if nothing is wrong.
        write_trouble: what the log says of it.
        pending: versions without a record, by number.
    """

    def __init__(self, facts: StoreFacts, world_size: int, now: float = 0.0) -> None:
        self.attempt = facts.attempt
        self.newest = facts.durable_version
        self.newest_at = None if facts.age_s is None else now - facts.age_s
        self.trouble = ""
        self.write_trouble = WriteTrouble()
        self.pending: dict[int, PendingVersion] = {}
        self._world_size = world_size
        self._prelude = facts.prelude
        # A fact of the job: the highest that anyone says.  Recorded objects hold every result.
        self._prelude_length = UNKNOWN
        if facts.prelude is not None:
            self._prelude_length = 1 + max(seqnos_of(facts.prelude), default=-1)
        self._writing: int | None = None
        self._is_recording = False
        self._given_up: dict[int, str] = {}
        self._unheld: dict[int, dict[int, str]] = {}  # by version and rank, why it cannot be packed
        self._expected = facts.expected
        self._next: dict[int, bytes] = {}  # digests of versions behind marked ones
        self._put_next = PRELUDE  # the newest version whose digest was given to the store

    @property
    def is_on(self) -> bool:
        """True if the job has a store."""
        return self.attempt > 0

    def must_mark(self, committed_now: bool, version: int) -> bool:
        """Tell whether a plan marks the version of its frontier.

        Members that commit by the plan do not know rank 0's word, and those that have committed
        do: so a plan that commits marks.  Who loads a marked version shall write it too.
        """
        if not self.is_on or version <= max(self.newest, 0):
            return False
        return committed_now or version in self.pending or version in self._unheld

    def on_plan(self, committed_now: bool, version: int) -> bool:
        """Tell the same, of a plan that is sent now.

        By a mark, who could not pack the version tries again, and says what comes of it.
        """
        marks = self.must_mark(committed_now, version)
        if marks and version in self._unheld:
            self._unheld[version] = {}
        return marks

    def holders(self, version: int) -> set[int]:
        """Connected members that have said that they hold `version`."""
        pending = self.pending.get(version)
        return set() if pending is None else set(pending.marks)

    def lack(self, version: int) -> str:
        """Name what keeps the connected members from writing `version`; empty for nothing."""
        pending = self.pending.get(version)
        return NOT_HELD if pending is None else self._lack(pending)

    def reason_given_up(self, version: int) -> str:
        """Return why `version` will not be durable; empty if it may be."""
        return self._given_up.get(version, "")

    # --- what members say ---------------------------------------------------------------------

    def on_marked(self, rank: int, marked: Marked, now: float, out: Outbox) -> None:
        """A member holds a marked version; it may be durable, or given up."""
        version = marked.version
        if version <= self.newest:
            out.messages.append((rank, VersionDurable(self.attempt, self.newest)))
            return
        if version in self._given_up:
            out.messages.append((rank, VersionGivenUp(version, self._given_up[version])))
            return
        self._prelude_length = max(self._prelude_length, marked.prelude_length)
        self._unheld.get(version, {}).pop(rank, None)
        pending = self.pending.setdefault(version, PendingVersion(version, since=now))
        pending.on_marked(rank, marked)

    def on_next_digest(self, said: NextDigest, out: Outbox) -> None:
        """A member has committed the version behind one that is marked or durable.

        It counts once that one is durable.  All members say the same.
        """
        if said.version > max(self.newest, self._put_next):
            self._next[said.version] = said.digest
            while len(self._next) > MAX_GIVEN_UP:
                del self._next[min(self._next)]
            self._settle_next(out)

    def _settle_next(self, out: Outbox) -> None:
        """Record the digest behind the newest durable version, and compare it."""
        self._next = {v: digest for v, digest in self._next.items() if v > self.newest}
        version = self.newest + 1
        digest = self._next.pop(version, b"")
        if not digest or self.newest == PRELUDE:
            return
        self._put_next = version
        out.put_next = PutNextDigest(self.attempt, version, digest)
        expected = self._expected
        if expected is None or expected.version != version or expected.digest == digest:
            return
        words = (
            f"checkpoint {version} has other values than in attempt {expected.attempt}, which went"
            f" on from checkpoint {self.newest} too; {USUAL_CAUSE}"
        )
        if expected.is_binding:
            out.mismatch = words
        else:
            out.notes.append(("warning", words))

    def on_written(self, rank: int, written: ObjectWritten) -> None:
        """An object of a version is in the store."""
        pending = self.pending.get(written.version)
        if pending is not None:
            self.trouble = ""
            self.write_trouble.forget(rank)
            pending.on_written(rank, written)

    def on_failed(self, rank: int, failed: WriteFailed, now: float, out: Outbox) -> None:
        """A member could not write, or does not hold the version; once no rank does, it ends."""
        if not failed.holds:
            self._note_unheld(rank, failed, out)
        pending = self.pending.get(failed.version)
        if pending is None:
            return
        if failed.holds:
            self.trouble = f"rank {rank}: {failed.reason}"
            out.notes += self.write_trouble.on_failed(rank, failed.version, failed.reason)
        pending.on_failed(rank, holds=failed.holds, until=now + RETRY_S)

    def _note_unheld(self, rank: int, failed: WriteFailed, out: Outbox) -> None:
        """Give the version up once all ranks, none of which is away, have said so of it.

        One that is away may hold it, or its next process.  The plan with that one marks it again.
        """
        version = failed.version
        is_settled = version <= max(self.newest, 0) or version in self._given_up
        if is_settled or (self._is_recording and version == self._writing):
            return
        reasons = self._unheld.setdefault(version, {})
        reasons[rank] = failed.reason
        if len(reasons) == self._world_size:
            first = min(reasons)
            self._give_up(version, f"no rank can write it; rank {first}: {reasons[first]}", out)
        while len(self._unheld) > MAX_GIVEN_UP:
            del self._unheld[min(self._unheld)]

    def lose(self, rank: int) -> None:
        """A member's connection is gone."""
        self.write_trouble.forget(rank)  # its next process may be where it can
        for reasons in self._unheld.values():
            reasons.pop(rank, None)
        for pending in self.pending.values():
            pending.lose(rank)

    # --- what the store says ------------------------------------------------------------------

    def on_put(self, version: int, now: float, out: Outbox) -> None:
        """The record of `version` is in the chain: only now is it durable."""
        pending = self.pending.get(version)
        self._is_recording, self._writing = False, None
        self.trouble = ""
        self.newest, self.newest_at = max(self.newest, version), now
        if self._prelude is None and pending is not None:
            objects = pending.objects()
            self._prelude = tuple(w for w in objects if w.order.kind == PRELUDE_KIND)
        self.pending = {v: each for v, each in self.pending.items() if v > self.newest}
        self._unheld = {v: each for v, each in self._unheld.items() if v > self.newest}
        out.messages.append((ALL, VersionDurable(self.attempt, version)))
        out.notes.append(("info", f"checkpoint {version} is durable"))
        out.notes += self.write_trouble.on_put()
        self._settle_next(out)

    def on_missing(self, version: int, names: Collection[str], reason: str, out: Outbox) -> None:
        """Objects of `version` are gone, so it has no record: members that hold it write them anew.

        So they do with the prelude's, which an earlier record names.
        """
        self._is_recording = False
        self.trouble = reason
        if any(written.name in names for written in self._prelude or ()):
            self._prelude = None
        self.pending[version].on_missing(names)
        text = f"checkpoint {version} waits, what it lacks is written anew: {reason}"
        out.notes.append(("warning", text))

    def on_put_delayed(self, reason: str) -> None:
        """The store does not take the record; the driver goes on trying."""
        self.trouble = reason

    # --- what follows -------------------------------------------------------------------------

    def next_deadline(self, members: int) -> float:
        """Time at which `advance` has something to do again though nothing is heard."""
        if self._is_recording:
            return float("inf")
        if self._writing is not None and self._writing in self.pending:
            return self.pending[self._writing].retry_at
        gathering = [p for p in self.pending.values() if p.marks and len(p.marks) < members]
        return min((p.since + GATHER_S for p in gathering), default=float("inf"))

    def advance(self, members: int, epoch: int, now: float, out: Outbox) -> None:
        """Order, record or give up, as far as that is possible now.

        Args:
            members: how many are connected.
            epoch: the newest, for the objects' names.
            now: the time.
            out: takes what follows.
        """
        if not self.is_on or self._is_recording:
            return
        self._choose(members, now, out)
        if self._writing is None:
            return
        pending = self.pending[self._writing]
        if not pending.is_agreed:
            self._give_up(pending.version, "the ranks have packed different states", out)
            return
        orders = pending.orders(self._world_size, now, prelude=self._prelude_to_write)
        for rank, (objects, prelude) in orders.items():
            order = WriteObjects(self.attempt, pending.version, epoch, tuple(objects), prelude)
            out.messages.append((rank, order))
        if pending.is_complete(self._world_size, prelude=self._prelude_to_write):
            self._is_recording = True
            out.put = self._record(pending, epoch)

    def _choose(self, members: int, now: float, out: Outbox) -> None:
        """Begin with the newest version that the members have had time to name."""
        self.pending = {v: p for v, p in self.pending.items() if p.marks or v == self._writing}
        ready = [
            version
            for version, pending in self.pending.items()
            if pending.marks and (len(pending.marks) >= members or now >= pending.since + GATHER_S)
        ]
        newest = max(ready, default=None)
        if newest is None:
            return
        if self._writing is not None:
            lacks = self._lack(self.pending[self._writing])
            # What it lacks may be with a member that comes back to a restarted tracker just now,
            # and names older versions first: it gives way to a newer one alone.
            if newest <= self._writing or not lacks:
                return
            self._give_up(self._writing, lacks, out)
        self._writing = newest
        for version in sorted(v for v in self.pending if v < newest):
            self._give_up(version, f"checkpoint {newest} is newer", out)
        self._writing = newest

    def _lack(self, pending: PendingVersion) -> str:
        if not pending.marks:
            return NOT_HELD
        return pending.missing(self._world_size, prelude=self._prelude_to_write)

    @property
    def _prelude_to_write(self) -> int:
        """Number of results of the prelude to write: none if an earlier record has them."""
        return self._prelude_length if self._prelude is None else 0

    def _give_up(self, version: int, reason: str, out: Outbox) -> None:
        self.pending.pop(version, None)
        self._unheld.pop(version, None)
        if self._writing == version:
            self._writing = None
        self._given_up[version] = reason
        while len(self._given_up) > MAX_GIVEN_UP:
            del self._given_up[min(self._given_up)]
        out.messages.append((ALL, VersionGivenUp(version, reason)))
        out.notes.append(("warning", f"checkpoint {version} is not made durable: {reason}"))

    def _record(self, pending: PendingVersion, epoch: int) -> PutVersion:
        facts = pending.facts
        assert facts is not None
        return PutVersion(
            attempt=self.attempt,
            version=pending.version,
            epoch=epoch,
            objects=(*pending.objects(), *(self._prelude or ())),
            nbytes=facts.nbytes,
            digest=facts.digest,
            prelude_length=self._prelude_length,
            local_ranks=tuple(range(self._world_size)) if pending.has_locals else None,
        )
