"""MarkedVersions: marked checkpoints that this member holds until the store has a record of them.

A version is marked when it is committed.  It is packed, reported to the tracker as `Marked`, and
held with its local states until `VersionDurable` or `VersionGivenUp` comes, whatever is committed
meanwhile.  The tracker orders objects of one version at a time.

What the tracker must know is state here: every welcome is answered with all of it, so a restarted
tracker loses nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftcomm.protocol.durable.store_messages import (
    Marked,
    NextDigest,
    ObjectOrder,
    ObjectWritten,
    VersionDurable,
    WriteFailed,
    WriteObjects,
)
from ftcomm.protocol.messages import WorkerMessage
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.recovery.archive.archive import Archive
from ftcomm.recovery.epoch_view import EpochView
from ftcomm.recovery.events import (
    Effect,
    FatalFound,
    ObjectWrite,
    PackVersion,
    SendControl,
    Wake,
    WriteVersion,
)
from ftcomm.recovery.recent_calls import NO_CALL, Called
from ftcomm.recovery.states import Checkpoint

# One is written and one waits. Rank 0 marks by its clock only while none is held, so a third one
# comes from `durable=True` or from a plan while the store is away.
MAX_HELD = 2


@dataclass(slots=True)
class MarkedVersion:
    """One marked checkpoint."""

    checkpoint: Checkpoint  # the state; packed once `nbytes` is known
    locals: Mapping[int, Any] | None  # local states held here by rank, None if the version has none
    nbytes: int = -1  # of the packed state, -1 until it is packed
    is_ordered: bool = False  # the tracker has ordered objects of it
    # Objects of it that are in the store.
    written: list[ObjectWritten] = field(default_factory=list)


class MarkedVersions:
    """Marked versions of one worker. All methods are for the holder of the machine's lock.

    Attributes:
        held: marked versions that have no record yet, oldest first.
        durable: the newest version that has a record, `PRELUDE` while none is known.
        prelude_length: calls of the prelude, -1 while that is not known.
        restoring: what this process reads from the store before its first plan.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        # The version for whose record the user's thread waits, or waited last.
        self.awaited = PRELUDE
        self.awaited_by = NO_CALL  # its call while it waits, else `NO_CALL`
        self._awaited_since = 0.0
        self.forget()

    def forget(self) -> None:
        """Another attempt has begun, and this process had no plan of the one before.

        The other one may go on from an older version: later ones are not durable in it.
        """
        self._unpacked: list[int] = []
        self.held: dict[int, MarkedVersion] = {}
        self.durable = PRELUDE
        self._next: dict[int, bytes] = {}  # digests that were told, by version
        self._given_up = PRELUDE, ""  # the newest, and why
        self._unpackable = PRELUDE, ""  # likewise
        self.prelude_length = -1
        self.restoring = Restoring()

    @property
    def is_idle(self) -> bool:
        """True if no version is held: rank 0 may mark one by its clock."""
        return not self.held

    def awaits(self, version: int) -> bool:
        """Tell whether `version` has neither a record nor was given up."""
        return version in self.held

    @property
    def awaits_record(self) -> bool:
        """True while the user's thread waits until a version is durable: the tracker says when."""
        return self.awaited > self.durable

    def await_record(self, version: int, call: Called, now: float) -> FatalFound | None:
        """Note that the user's thread waits in `call` until `version` is durable.

        Returns:
            the end of the job if it was given up already; see `on_given_up`.
        """
        self._awaited_since = now  # first: the control thread looks without the lock
        self.awaited_by, self.awaited = call, version
        return self._end_of_the_wait()

    def waited_s(self, now: float) -> float:
        """Seconds for which the user's thread has waited for a record; 0 if it does not wait."""
        waits = self.awaits_record and self.awaited_by is not NO_CALL
        return max(now - self._awaited_since, 0.0) if waits else 0.0

    def must_pack(self, version: int) -> bool:
        """Tell whether `version` or an older one is marked and not packed yet."""
        return any(v <= version and each.nbytes < 0 for v, each in self.held.items())

    def mark(self, prelude_length: int) -> None:
        """Hold the committed checkpoint until it is durable. It must be packed first."""
        checkpoint = self._archive.committed
        assert checkpoint is not None
        version = checkpoint.version
        if version in self.held or version <= max(self.durable, 0):
            return
        self.prelude_length = prelude_length
        if len(self.held) >= MAX_HELD:
            waiting = [v for v, each in self.held.items() if not each.is_ordered]
            del self.held[min(waiting, default=min(self.held))]
        self.held[version] = MarkedVersion(checkpoint, self._archive.locals.of(version))
        self._unpacked.append(version)

    def mark_planned(self, view: EpochView, prelude_length: int) -> None:
        """Mark the version of the frontier where the plan says so: all that it needs is here."""
        self.prelude_length = prelude_length  # a spare may have marked one without knowing it
        if view.marks and self._archive.committed_version == view.frontier.version:
            self.mark(prelude_length)

    def mark_last(self, version: int, prelude_length: int) -> list[Effect]:
        """Mark the last version of the job, as the tracker orders; or say that it is not here."""
        if self._archive.committed_version == version:
            self.mark(prelude_length)
        if version in self.held:
            return []
        failed = WriteFailed(version, False, f"checkpoint {version} is not committed here")
        return [SendControl(failed)]

    @property
    def must_tell_next(self) -> bool:
        """True if the committed checkpoint follows one for the store, and nobody has said so."""
        checkpoint = self._archive.committed
        # Not compared: one that was fetched or is lazy, or that another run may compute otherwise.
        if checkpoint is None or not any(checkpoint.digest) or self._archive.made_from_copies:
            return False
        before = checkpoint.version - 1
        is_for_the_store = before > 0 and (before in self.held or before == self.durable)
        return is_for_the_store and checkpoint.version not in self._next

    def take_effects(self) -> list[Effect]:
        """Effects of what was marked or committed since the last event."""
        marked = [self.held[v].checkpoint for v in self._unpacked if v in self.held]
        self._unpacked = []
        effects: list[Effect] = [PackVersion(v.version, v.value, v.digest) for v in marked]
        if self.must_tell_next:
            committed = self._archive.committed
            assert committed is not None
            self._next = {v: d for v, d in self._next.items() if v > self.durable}
            self._next[committed.version] = committed.digest
            effects.append(SendControl(NextDigest(committed.version, committed.digest)))
        return effects

    def on_packed(self, version: int, value: Any, nbytes: int, digest: bytes) -> list[Effect]:
        """Tell the tracker that `version` can be written: it is packed."""
        marked = self.held.get(version)
        if marked is None:
            return []
        marked.checkpoint = Checkpoint(version, value, digest)
        marked.nbytes = nbytes
        return [SendControl(self._said_of(version))]

    def on_failed(self, version: int, reason: str, *, unusable: bool) -> list[Effect]:
        """Tell the tracker that an object could not be written, or `version` not be packed.

        What could not be packed is held no more: the next checkpoint would wait for it for ever.
        """
        marked = self.held.get(version)
        if marked is None or marked.nbytes >= 0:
            return [SendControl(WriteFailed(version, True, reason, unusable))]
        del self.held[version]
        self._unpackable = max(self._unpackable, (version, reason))
        return [SendControl(WriteFailed(version, False, reason)), Wake()]

    def on_welcome(self) -> list[WorkerMessage]:
        """All that the tracker must know: what can be written, and what is."""
        said: list[WorkerMessage] = []
        for version, marked in self.held.items():
            if marked.nbytes >= 0:
                said += [self._said_of(version), *marked.written]
        version, reason = self._unpackable
        if version not in self.held and version > max(self.durable, self._given_up[0]):
            said.append(WriteFailed(version, False, reason))
        return [*said, *(NextDigest(v, digest) for v, digest in self._next.items())]

    def on_ordered(self, ordered: WriteObjects) -> list[Effect]:
        """Write what the tracker orders, as far as it is held here."""
        version = ordered.version
        marked = self.held.get(version)
        if marked is None or marked.nbytes < 0:
            failed = WriteFailed(version, False, f"checkpoint {version} is not held here")
            return [SendControl(failed)]
        positions = [
            Position(0, PRELUDE, seqno) for run in ordered.prelude for seqno in run.seqnos()
        ]
        entries = tuple((position, self._archive.results.get(position)) for position in positions)
        gone = [position for position, entry in entries if entry is None]
        if gone:  # dropped since it was told what is held: others keep it, and now are asked
            failed = WriteFailed(version, True, f"result {gone[0]} is not held here any more")
            return [SendControl(self._said_of(version)), SendControl(failed)]
        marked.is_ordered = True
        writes = [ObjectWrite(order, self._content(marked, order)) for order in ordered.orders]
        if entries:
            writes.append(ObjectWrite(ObjectOrder("prelude"), entries, ordered.prelude))
        digest = marked.checkpoint.digest
        return [
            WriteVersion(
                ordered.attempt, version, ordered.epoch, marked.nbytes, digest, tuple(writes)
            )
        ]

    def on_written(self, written: ObjectWritten) -> list[Effect]:
        """Tell the tracker that an object is in the store."""
        marked = self.held.get(written.version)
        if marked is None:
            return []
        marked.written.append(written)
        return [SendControl(written)]

    def on_durable(self, message: VersionDurable) -> None:
        """A record names that version: it and older ones need not be held."""
        self.durable = max(self.durable, message.version)
        self.held = {v: each for v, each in self.held.items() if v > self.durable}

    def on_given_up(self, version: int, reason: str) -> FatalFound | None:
        """Hold `version` no more: it will not be written.

        Returns:
            the end of the job if this rank waits for the record. What the record lacks is needed by
            any rank that restarts, too; the next attempt goes on from an older record.
        """
        self.held.pop(version, None)
        self._given_up = max(self._given_up, (version, reason))
        return self._end_of_the_wait()

    def _end_of_the_wait(self) -> FatalFound | None:
        version, reason = self._given_up
        if not self.awaits_record or version < self.awaited:
            return None
        return FatalFound("JobLostError", f"checkpoint {version} cannot be made durable: {reason}")

    def _content(self, marked: MarkedVersion, order: ObjectOrder) -> Any:
        if order.kind == "local":
            return None if marked.locals is None else marked.locals.get(order.rank)
        return marked.checkpoint.value

    def _said_of(self, version: int) -> Marked:
        marked = self.held[version]
        held = self._archive.results.runs_of(PRELUDE)
        return Marked(
            version=version,
            digest=marked.checkpoint.digest,
            nbytes=marked.nbytes,
            locals=None if marked.locals is None else tuple(marked.locals),
            prelude=held,
            prelude_length=self.prelude_length,
        )


class Restoring:
    """A version that a process reads from the store before its first report."""

    def __init__(self) -> None:
        self.record = 0  # number of the store's record, 0 for none
        self._is_done = False

    @property
    def is_under_way(self) -> bool:
        """True from the order until everything is here."""
        return self.record > 0 and not self._is_done

    def awaits(self, record: int) -> bool:
        """True of the record that is ordered, until everything is here."""
        return self.is_under_way and record == self.record

    def begin(self, record: int) -> bool:
        """Note the order; False if it is known."""
        if record == self.record:
            return False
        self.record, self._is_done = record, False
        return True

    def end(self, record: int) -> bool:
        """Note that everything is here; False if it was not ordered, or is here already."""
        if not self.awaits(record):
            return False
        self._is_done = True
        return True
