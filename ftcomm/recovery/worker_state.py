"""Standing: what one incarnation has done and holds, and what the user's thread may do next.

The user's thread asks `begin` (or `begin_load`) what to do at its position and says `complete`
(or one of its variants) when it is done.  The driver's lock is held around every call, so that the
section which completes a position (log, position, proof) cannot be cut by the section which takes
a report.
"""

from typing import Any

from ftcomm import errors
from ftcomm.protocol.host_groups import Grouping
from ftcomm.protocol.messages import (
    CallMade,
    Calls,
    FatalReport,
    Member,
    Mismatch,
    Report,
    Route,
)
from ftcomm.protocol.position import PRELUDE, START, Position
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.recovery.local_state_store import LocalStore
from ftcomm.recovery.recent_calls import NO_CALL, Called, RecentCalls
from ftcomm.recovery.result_log import LogEntry, ResultLog
from ftcomm.recovery.states import (
    EDGES,
    Checkpoint,
    Completion,
    Identity,
    MachineLimits,
    NextStep,
    WorkerState,
)

_CLOSE = bytes([Kind.CLOSE])  # what a signature of close() begins with
_CHECKPOINT = bytes([Kind.CHECKPOINT])  # what a signature of checkpoint() begins with
_LOAD_SIGNATURE = Signature(Kind.LOAD).encode()


class CallProgress:
    """Position, log and checkpoints of one process; the half of the machine that serves calls."""

    def __init__(self, identity: Identity, limits: MachineLimits, *, now: float) -> None:
        self.identity = identity
        self.limits = limits
        self.state = WorkerState.DETACHED
        self.error: errors.FtcommError | None = None
        self.job_id = ""
        self.detached_because = "no route to it"
        self.incarnation = 0
        self.world_size = 0
        self.settings: tuple[tuple[str, str], ...] = ()
        # --- the epoch
        self.epoch = 0  # of the plan in force
        self.revoke_epoch = 0
        self.caught_up = 0
        self.rank = -1
        self.members: tuple[Member, ...] = ()
        self.grouping: Grouping = ()
        self.keep_order: tuple[int, ...] = ()  # follows from the grouping
        self.routes: tuple[Route, ...] = ()
        self.suspects: tuple[int, ...] = ()
        self.accusation: Mismatch | FatalReport | None = None
        self.pending_fetches: frozenset[int] = frozenset()
        # --- what has been done
        self.position = START
        self.frontier = START
        self.log = ResultLog()
        self.checkpoint: Checkpoint | None = None
        self.tentative: Checkpoint | None = None
        self.locals = LocalStore()
        self.prelude_length = -1
        self.closed = False
        self.call = NO_CALL  # in flight
        self.recent = RecentCalls()
        self._note_call = self.recent.note  # bound once: every small call pays for it
        self.loaded = PRELUDE  # the version that load_checkpoint returned
        self.replayed = 0
        self.fetched = 0
        # Nothing has been heard or done since a call was completed that the next one might have to
        # heed: it may be executed without asking, and completed by `complete_next`.
        self.is_quiescent = False
        # --- being heard
        self.attached = False
        self._beats = 0
        self._last_beat = now
        self._hello_beats = 0  # heartbeats made before the newest hello
        self._needs_confirmation = 0  # number of the heartbeat whose answer is awaited, 0: none
        self._starves = False  # blocked for long without a byte
        self._needed_since: float | None = None

    @property
    def signature(self) -> bytes:
        """Of the call in flight, empty outside of one, and while it depends on an input."""
        return self.call.signature

    @property
    def site(self) -> str:
        """Where the user made the call in flight."""
        return self.call.site

    def begin(self, signature: bytes, site: str) -> NextStep | LogEntry:
        """What to do with a call of `signature` at the present position.

        Args:
            signature: its 40 bytes; empty while they depend on an input that is not there yet.
            site: where the user called it.

        Returns:
            the log's entry to serve (then call `replay`), or a `NextStep`.

        Raises:
            FtcommError: the error that ended this communicator.
        """
        self.call = Called(signature, site)
        if self.error is not None:
            raise self.error
        if self.is_frozen:
            return NextStep.WAIT
        entry = self.log.get(self.position)
        if entry is not None:
            return entry
        if self.position < self.frontier:
            if self._is_past_prelude_end:
                # it ran load_checkpoint here, all others know
                return LogEntry(_LOAD_SIGNATURE, None)
            return NextStep.WAIT
        if signature[:1] == _CLOSE and not all(member.present for member in self.members):
            # An absent member has closed and then died. It executed the close, so everyone has
            # entered it; to execute it without that member is impossible, and not needed.
            entry = LogEntry(signature, None)
            self.log.add(self.position, entry)
            return entry
        if self.pending_fetches and signature[:1] == _CHECKPOINT:
            # To commit is to drop what others may be fetching still: none does when all are here.
            return NextStep.WAIT
        return NextStep.EXECUTE

    @property
    def _is_past_prelude_end(self) -> bool:
        """A new process's prelude has more calls than the job's: it is not the same program."""
        return (
            self.position.version == PRELUDE
            and self.frontier.past_load
            and self.position.seqno >= self.prelude_length >= 0
        )

    def begin_load(self, signature: bytes, site: str) -> NextStep | Checkpoint | LogEntry:
        """As `begin`, for load_checkpoint: served below the frontier, whoever asks.

        An `LogEntry` is of another collective: the others have not called load_checkpoint here.

        A restarted worker may skip the rest of its prelude: the checkpoint is served early.
        """
        self.call = Called(signature, site)
        if self.error is not None:
            raise self.error
        if self.is_frozen:
            return NextStep.WAIT
        if self.frontier.past_load:
            version = self.frontier.version
            ready = self.checkpoint is not None and self.checkpoint.version == version
            ready = ready and not self.locals.lacks(version, self.rank)
            return self.checkpoint if ready and self.checkpoint else NextStep.WAIT
        if self.position < self.frontier:  # the others called something else here
            return self.log.get(self.position) or NextStep.WAIT
        return NextStep.EXECUTE

    def relay_to(self, rank: int) -> int | None:
        """The rank that passes bytes on between this one and `rank`; None for a direct link."""
        return self._relay_between(self.rank, rank)

    def relays_between(self, one: int, other: int) -> bool:
        """True if the plan has this rank pass bytes on between the two."""
        return self._relay_between(one, other) == self.rank

    def _relay_between(self, one: int, other: int) -> int | None:
        pair = (min(one, other), max(one, other))
        return next((route.via for route in self.routes if (route.a, route.b) == pair), None)

    @property
    def is_frozen(self) -> bool:
        """True while the position may not move and nothing may be executed."""
        return (
            self.state in (WorkerState.DETACHED, WorkerState.STOPPED)
            or bool(self.suspects)
            or self.accusation is not None
        )

    def replay(self, *, now: float) -> Completion:
        """The entry that `begin` gave is being returned to the user; proves nothing (rule R3)."""
        refusal = self._may_not_replay(now)
        if refusal is not None:
            return refusal
        entry = self.log.get(self.position)
        if not self.call.signature and entry is not None:  # its input was not needed
            self.call = Called(entry.signature, self.call.site)
        self.replayed += 1
        self.log.passed(self.position)
        self._advance(self.position.next())
        return Completion.DONE

    def complete(
        self, epoch: int, entry: LogEntry, *, synchronising: bool, now: float
    ) -> tuple[Completion, list[Any]]:
        """A collective executed in `epoch` has its result: log it and move on, or discard it.

        Returns:
            the outcome, and values that the log released (their buffers may be used again).
        """
        if synchronising and epoch == self.epoch:
            at_once = self.complete_next(entry, now)
            if at_once is not None:
                return Completion.DONE, at_once
        refusal = self._may_not_complete(epoch, now)
        if refusal is not None:
            return refusal, []
        position, dropped = self.position, []
        if self.limits.keeps_results:
            self.log.add(position, entry)
            self.log.passed(position)
            dropped = self.log.prove_stable(position) if synchronising else []
        self._advance(position.next())
        self.is_quiescent = self._nothing_to_heed
        return Completion.DONE, dropped

    def complete_next(self, entry: LogEntry, now: float) -> list[Any] | None:
        """`complete` for the next synchronising call where all is quiescent, in few steps.

        Returns:
            values that the log released; None: it is not quiescent, and nothing was done.
        """
        if not self.is_quiescent or now - self._last_beat > self.limits.detect_within / 2:
            return None
        position = self.position
        dropped = self.log.succeed(position, entry) if self.limits.keeps_results else []
        self.position = position.next()
        self._note_call(self.call)
        self.call = NO_CALL
        return dropped

    @property
    def _nothing_to_heed(self) -> bool:
        return (
            self.state is WorkerState.RUNNING
            and (self.log.is_level or not self.limits.keeps_results)
            and self.position >= self.frontier
            and self.log.get(self.position) is None
        )

    def replay_load(self, checkpoint: Checkpoint, *, now: float) -> Completion:
        """The checkpoint that `begin_load` gave is being returned to the user."""
        refusal = self._may_not_replay(now)
        if refusal is not None:
            return refusal
        if checkpoint.version != self.frontier.version:  # a newer plan has named a newer one
            return Completion.REVOKED
        self.replayed += 1
        self.log.skipped(self.position)
        self._note_load(checkpoint.version)
        return Completion.DONE

    def complete_load(self, epoch: int, state: Any, digest: bytes, *, now: float) -> Completion:
        """All ranks executed load_checkpoint: version 0 is rank 0's default."""
        refusal = self._may_not_complete(epoch, now)
        if refusal is not None:
            return refusal
        self.prelude_length = self.position.seqno
        self.log.prove_stable(self.position)
        self.checkpoint = Checkpoint(0, state, digest)
        self._note_load(0)
        return Completion.DONE

    def _note_load(self, version: int) -> None:
        """`load_checkpoint` returns `version`."""
        if self.position.seqno != self.prelude_length:  # it has left out calls that others made
            self.recent.forget()
            self.position = self.position._replace(seqno=self.prelude_length)
        self.loaded = version
        self._advance(self.position.at_version(version))

    def offer_checkpoint(self, value: Any, digest: bytes, local: Any | None = None) -> int:
        """Phase one, local part: hold an uncommitted copy of the next version, and one's own local.

        `local` is None if the checkpoint has no local states.
        """
        version = self.position.version + 1
        self.tentative = Checkpoint(version, value, digest)
        if local is not None:
            self.locals.offer(version, self.rank, local)
        return version

    def keep_local(self, epoch: int, version: int, rank: int, value: Any) -> bool:
        """Phase one: hold a copy of what `rank` has sent in `epoch`; False if that is over."""
        if epoch != self.epoch or self.is_frozen or self.tentative is None:
            return False
        return self.tentative.version == version and self.locals.put(version, rank, value)

    @property
    def known_version(self) -> int | None:
        """The version that `load_checkpoint` would give now, None if that is not known yet."""
        return self.frontier.version if self.frontier.past_load else None

    def complete_checkpoint(self, epoch: int, *, now: float) -> tuple[Completion, list[Any]]:
        """Every rank was seen to hold the tentative version with one digest: it is committed."""
        refusal = self._may_not_complete(epoch, now)
        if refusal is not None:
            return refusal, []
        stable = self.log.prove_stable(self.position)
        return Completion.DONE, [*stable, *self._commit_tentative()]

    def complete_close(self, epoch: int, entry: LogEntry, *, now: float) -> Completion:
        """The close collective was executed; this rank goes on serving until all have closed."""
        position = self.position
        outcome, _ = self.complete(epoch, entry, synchronising=True, now=now)
        if outcome is Completion.DONE:
            self.closed = True
            self.log.add(position, entry)  # whatever else is kept: whoever lags is served (rule R8)
        return outcome

    def replay_close(self, *, now: float) -> Completion:
        """The close collective is served: others had completed it."""
        outcome = self.replay(now=now)
        if outcome is Completion.DONE:
            self.closed = True
        return outcome

    def _may_not_complete(self, epoch: int, now: float) -> Completion | None:
        if epoch != self.epoch or self.state not in (WorkerState.RUNNING, WorkerState.CATCHING_UP):
            return Completion.REVOKED
        if self.suspects or self.accusation is not None:
            return Completion.REVOKED
        return self._must_confirm_first(now)

    def _may_not_replay(self, now: float) -> Completion | None:
        if self.state in (WorkerState.DETACHED, WorkerState.STOPPED, WorkerState.FAILED):
            return Completion.REVOKED
        return self._must_confirm_first(now)

    def _must_confirm_first(self, now: float) -> Completion | None:
        """This process did not run for a while: its place may be another's by now (rule R1)."""
        if self._needs_confirmation or now - self._last_beat > self.limits.detect_within / 2:
            return Completion.CONFIRM_FIRST
        return None

    def _advance(self, position: Position) -> None:
        assert position > self.position, (position, self.position)
        self.is_quiescent = False
        self.recent.note(self.call)
        if position.version != self.position.version:
            self.recent.end_version(self.position)
        self.position = position
        self.call = NO_CALL

    def _commit_tentative(self) -> list[Any]:
        """The old version and its log go only now that the commit is known (rule R6)."""
        tentative = self.tentative
        assert tentative is not None
        self.checkpoint = tentative
        self.tentative = None
        self.locals.commit(tentative.version)
        self._advance(self.position.at_version(tentative.version))
        return self.log.commit(tentative.version)

    def calls_made(self) -> Calls:
        """What this process has called last, the call in flight included."""
        calls = self.recent.before(self.position)
        if self.call.signature:
            calls.append(CallMade(self.position, self.call.signature, self.call.site))
        digest = b"" if self.tentative is None else self.tentative.digest
        return Calls(self.position, tuple(calls), self.loaded, digest)

    def report(self) -> Report:
        """What this incarnation has and where it stands, for the epoch last revoked."""
        return Report(
            epoch=self.revoke_epoch,
            position=self.position,
            committed=PRELUDE if self.checkpoint is None else self.checkpoint.version,
            tentative=PRELUDE if self.tentative is None else self.tentative.version,
            digest=b"" if self.tentative is None else self.tentative.digest,
            runs=self.log.runs(),
            prelude_length=self.prelude_length,
            caught_up=self.caught_up,
            suspects=self.suspects,
            signature=self.signature,
            site=self.site,
            closed=self.closed,
            locals=self.locals.report(),
        )

    def _enter(self, cause: str, state: WorkerState) -> None:
        assert (self.state, cause, state) in EDGES, (self.state, cause, state)
        self.state = state

    def check_invariants(self) -> None:
        """What may never be, whatever the tracker or peers send."""
        assert self.epoch <= self.revoke_epoch, "a plan without its Revoke"
        assert self.caught_up <= self.epoch
        assert (self.state is WorkerState.FAILED) == (self.error is not None)
        assert self.state is not WorkerState.RUNNING or not self.pending_fetches
        assert not self.position.past_load or self.checkpoint is not None
        if self.checkpoint is not None and self.position.past_load:
            assert self.checkpoint.version == self.position.version
            assert not self.locals.lacks(self.checkpoint.version, self.rank)
