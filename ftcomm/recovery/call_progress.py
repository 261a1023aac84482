"""CallProgress: the calls that one worker has made, and what its user's thread may do next.

The user's thread asks `begin` (or `begin_load`) what to do at its position.  When that is done it
calls `complete` or `replay`, or the variant of its kind of call.  The driver's lock is held around
every call, so that the section which completes a position (log, position, proof) cannot be cut by
the section which takes a report.
"""

from typing import Any

from ftcomm.protocol.messages import CallMade, Calls, Plan, Report
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.recovery.archive.archive import Archive
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.epoch_view import EpochView
from ftcomm.recovery.recent_calls import NO_CALL, Called, RecentCalls
from ftcomm.recovery.states import Checkpoint, Completion, NextStep, WorkerState
from ftcomm.recovery.tracker_contact import TrackerContact
from ftcomm.recovery.unasked_calls import EPOCH, LATEST_S, SEQNO, STEP, UNTIL_NS

_CLOSE = bytes([Kind.CLOSE])  # what a signature of close() begins with
_CHECKPOINT = bytes([Kind.CHECKPOINT])  # what a signature of checkpoint() begins with
_LOAD_SIGNATURE = Signature(Kind.LOAD).encode()


class CallProgress:
    """Position and call of one worker. All methods are for the holder of the machine's lock.

    It reads the epoch and the tracker contact, and never changes them.
    """

    def __init__(
        self,
        view: EpochView,
        contact: TrackerContact,
        archive: Archive,
    ) -> None:
        self._view = view
        self._contact = contact
        self._log = archive.results
        self._archive = archive
        self.prelude_length = -1  # calls before `load_checkpoint`, -1 while that is not known
        self.closed = False  # the close collective is complete here
        self.recent = RecentCalls()  # the calls completed last
        self.loaded = PRELUDE  # the version that `load_checkpoint` returned, `PRELUDE` before that
        self.replayed = 0  # results replayed in the present epoch

    @property
    def position(self) -> Position:
        """The collective that this worker completes next."""
        return self._log.unasked.position

    @position.setter
    def position(self, position: Position) -> None:
        self._log.unasked.position = position

    @property
    def call(self) -> Called:
        """The call in flight, `NO_CALL` outside of one."""
        return self._log.unasked.call

    @call.setter
    def call(self, call: Called) -> None:
        self._log.unasked.asking = call

    @property
    def is_quiescent(self) -> bool:
        """Nothing was received or done since a call was completed that the next one may heed.

        That one may be executed without asking, and be completed by the core or `complete_next`.
        """
        return self._log.unasked.words[UNTIL_NS] > 0

    @is_quiescent.setter
    def is_quiescent(self, value: bool) -> None:
        until = min(max(self._contact.confirm_after, 0.0), LATEST_S) if value else 0
        self._log.unasked.words[UNTIL_NS] = int(until * 1e9)

    def absorb(self) -> None:
        """Take in the calls that were completed without asking; none is completed meanwhile."""
        for called in self._log.unasked.absorb():
            self.recent.note(called)

    # --- asking -------------------------------------------------------------------------------

    def begin(self, signature: bytes, site: str) -> NextStep | LogEntry:
        """Decide what to do with a call of `signature` at the present position.

        Returns:
            the log's entry to serve (then call `replay`), or a `NextStep`.

        Raises:
            FtcommError: the error that ended this communicator.
        """
        self.call = Called(signature, site)
        view = self._view
        if view.error is not None:
            raise view.error
        if view.is_frozen:
            return NextStep.WAIT
        entry = self._log.get(self.position)
        if entry is not None:
            return entry
        if self.position < view.frontier:
            if self._is_past_prelude_end:
                return LogEntry(_LOAD_SIGNATURE, None)  # it ran load_checkpoint here, as all know
            return NextStep.WAIT
        if signature[:1] == _CLOSE and not all(member.present for member in view.members):
            # An absent member has closed and then died. It executed the close, so everyone has
            # entered it; to execute it without that member is impossible, and not needed.
            entry = LogEntry(signature, None)
            self._log.add(self.position, entry)
            return entry
        if view.pending_fetches and signature[:1] == _CHECKPOINT:
            # A commit drops what others may be fetching still: none fetches when all are here.
            return NextStep.WAIT
        return NextStep.EXECUTE

    @property
    def _is_past_prelude_end(self) -> bool:
        """True if a restarted worker's prelude has more calls than the job's: another program."""
        return (
            self.position.version == PRELUDE
            and self._view.frontier.past_load
            and self.position.seqno >= self.prelude_length >= 0
        )

    def begin_load(self, signature: bytes, site: str) -> NextStep | Checkpoint | LogEntry:
        """Do as `begin`, for load_checkpoint: served below the frontier, whoever asks.

        A `LogEntry` is of another collective: the others have not called load_checkpoint here.

        A restarted worker may skip the rest of its prelude: the checkpoint is served early.
        """
        self.call = Called(signature, site)
        view = self._view
        if view.error is not None:
            raise view.error
        if view.is_frozen:
            return NextStep.WAIT
        if view.frontier.past_load:
            ready = self._archive.loadable(view.frontier.version, view.rank)
            return ready or NextStep.WAIT
        if self.position < view.frontier:  # the others called something else here
            return self._log.get(self.position) or NextStep.WAIT
        return NextStep.EXECUTE

    # --- replaying ----------------------------------------------------------------------------

    def replay(self, *, now: float) -> Completion:
        """Return the entry that `begin` gave to the user; proves nothing (rule R3)."""
        refusal = self._may_not_replay(now)
        if refusal is not None:
            return refusal
        entry = self._log.get(self.position)
        if not self.call.signature and entry is not None:  # its input was not needed
            self.call = Called(entry.signature, self.call.site)
        self.replayed += 1
        self._log.passed(self.position)
        self._advance(self.position.next())
        return Completion.DONE

    def replay_load(self, checkpoint: Checkpoint, *, now: float) -> Completion:
        """Return the checkpoint that `begin_load` gave to the user."""
        refusal = self._may_not_replay(now)
        if refusal is not None:
            return refusal
        if checkpoint.version != self._view.frontier.version:  # a newer plan names a newer one
            return Completion.REVOKED
        self.replayed += 1
        self._log.skipped(self.position)
        self._note_load(checkpoint.version)
        return Completion.DONE

    def replay_close(self, *, now: float) -> Completion:
        """Return from a close collective that others have completed."""
        outcome = self.replay(now=now)
        if outcome is Completion.DONE:
            self.closed = True
        return outcome

    def _may_not_replay(self, now: float) -> Completion | None:
        """The reason why nothing may be returned from the log, None if it may."""
        view = self._view
        if view.state in (WorkerState.DETACHED, WorkerState.STOPPED, WorkerState.FAILED):
            return Completion.REVOKED
        return Completion.CONFIRM_FIRST if now > self._contact.confirm_after else None

    # --- completing ---------------------------------------------------------------------------

    def complete(
        self, epoch: int, entry: LogEntry, *, synchronising: bool, now: float
    ) -> tuple[Completion, list[Any]]:
        """Log the result of a collective executed in `epoch` and move on, or discard it.

        Returns:
            the outcome, and values that the log released (their buffers may be used again).
        """
        if epoch == self._view.epoch:
            at_once = self.complete_next(entry, now, synchronising=synchronising)
            if at_once is not None:
                return Completion.DONE, at_once
        refusal = self._may_not_complete(epoch, now)
        if refusal is not None:
            return refusal, []
        position = self.position
        self._log.add(position, entry)
        self._log.passed(position)
        dropped = self._log.prove_stable(position) if synchronising else []
        self._advance(position.next())
        self.is_quiescent = self._nothing_to_heed
        return Completion.DONE, dropped

    def complete_next(
        self, entry: LogEntry, now: float, *, synchronising: bool = True
    ) -> list[Any] | None:
        """Complete the next call if all is quiescent, in few steps.

        Returns:
            values that the log released; None: it is not quiescent, and nothing was done.
        """
        unasked = self._log.unasked
        if not unasked.words[UNTIL_NS] or now > self._contact.confirm_after:
            return None
        if unasked.calls:
            self.absorb()
        position, dropped = unasked.position, []
        if synchronising:
            dropped = self._log.succeed(position, entry)
        else:
            self._log.follow(position, entry)
        unasked.words[SEQNO] += 1
        self.recent.note(unasked.asking)
        unasked.asking = NO_CALL
        return dropped

    @property
    def _nothing_to_heed(self) -> bool:
        return (
            self._view.state is WorkerState.RUNNING
            and self.position >= self._view.frontier
            and self._log.get(self.position) is None
        )

    def complete_load(self, epoch: int, state: Any, digest: bytes, *, now: float) -> Completion:
        """Complete a load_checkpoint that all ranks executed: version 0 is rank 0's default."""
        refusal = self._may_not_complete(epoch, now)
        if refusal is not None:
            return refusal
        self.prelude_length = self.position.seqno
        self._log.prove_stable(self.position)
        self._archive.committed = Checkpoint(0, state, digest)
        self._note_load(0)
        return Completion.DONE

    def complete_checkpoint(self, epoch: int, *, now: float) -> tuple[Completion, list[Any]]:
        """Commit the tentative version: every rank was seen to hold it with one digest."""
        refusal = self._may_not_complete(epoch, now)
        if refusal is not None:
            return refusal, []
        stable = self._log.prove_stable(self.position)
        dropped = [*stable, *self._commit_tentative()]
        self._log.begin_version(self.position.version)
        self.is_quiescent = self._nothing_to_heed
        return Completion.DONE, dropped

    def complete_close(self, epoch: int, entry: LogEntry, *, now: float) -> Completion:
        """Complete the close collective; this rank goes on serving until all have closed."""
        position = self.position
        outcome, _ = self.complete(epoch, entry, synchronising=True, now=now)
        if outcome is Completion.DONE:
            self.closed = True
            self._log.add(
                position, entry
            )  # whatever else is kept: whoever lags is served (rule R8)
        return outcome

    def _may_not_complete(self, epoch: int, now: float) -> Completion | None:
        """The reason why nothing executed in `epoch` may be completed, None if it may."""
        if not self._view.allows_completion(epoch):
            return Completion.REVOKED
        return Completion.CONFIRM_FIRST if now > self._contact.confirm_after else None

    # --- checkpoints --------------------------------------------------------------------------

    def offer_checkpoint(self, value: Any, digest: bytes, local: Any | None = None) -> int:
        """Hold the next version as tentative: the local part of phase one; return the version.

        `local` is None if the checkpoint has no local states.
        """
        version = self.position.version + 1
        self._archive.offer(Checkpoint(version, value, digest), self._view.rank, local)
        return version

    def keep_local(self, epoch: int, version: int, rank: int, value: Any) -> bool:
        """Hold a copy of what `rank` has sent in phase one; False if `epoch` is over."""
        if epoch != self._view.epoch or self._view.is_frozen:
            return False
        archive = self._archive
        return archive.tentative_version == version and archive.keep_local(version, rank, value)

    def take_plan(self, plan: Plan) -> None:
        """Go on as `plan` says: the tentative version is committed, or made again."""
        self.prelude_length = plan.prelude_length
        words = self._log.unasked.words
        words[EPOCH], words[STEP] = plan.epoch, 0
        self.replayed = 0
        archive, frontier = self._archive, plan.frontier.version
        if archive.tentative is not None and archive.tentative.version == plan.commit:
            self._commit_tentative()
        elif archive.tentative is not None:
            archive.abandon(plan.rank)
        archive.drop_locals(frontier)
        if plan.locals is not None:
            archive.locals.know(frontier)

    def _commit_tentative(self) -> list[Any]:
        """Move on to the tentative version, which is known to be committed (rule R6)."""
        version, released = self._archive.commit_tentative()
        self._advance(self.position.at_version(version))
        return released

    def _note_load(self, version: int) -> None:
        """Move on to `version`, which `load_checkpoint` returns."""
        if self.position.seqno != self.prelude_length:  # it has left out calls that others made
            self.recent.forget()
            self.position = self.position._replace(seqno=self.prelude_length)
        self.loaded = version
        self._advance(self.position.at_version(version))

    def _advance(self, position: Position) -> None:
        assert position > self.position, (position, self.position)
        self.is_quiescent = False
        self.recent.note(self.call)
        if position.version != self.position.version:
            self.recent.end_version(self.position)
        self.position = position
        self.call = NO_CALL

    # --- reporting ----------------------------------------------------------------------------

    def calls_made(self) -> Calls:
        """The calls that this process has made last, the call in flight included."""
        calls = self.recent.before(self.position)
        if self.call.signature:
            calls.append(CallMade(self.position, self.call.signature, self.call.site))
        return Calls(self.position, tuple(calls), self.loaded, self._archive.digest)

    def report(self) -> Report:
        """Position and results of this process, for the epoch last revoked."""
        view, archive = self._view, self._archive
        return Report(
            epoch=view.revoke_epoch,
            position=self.position,
            committed=archive.committed_version,
            tentative=archive.tentative_version,
            digest=archive.digest,
            runs=self._log.runs(),
            prelude_length=self.prelude_length,
            caught_up=view.caught_up,
            suspects=view.suspects,
            signature=self.call.signature,
            site=self.call.site,
            closed=self.closed,
            locals=archive.report_locals(),
        )
