"""The worker's recovery machine: what one rank may do, and what it tells the tracker.

A pure core that owns its parts.  The control thread feeds `handle` with what happens and carries
out the effects; the user's thread asks the part `progress`.  Both hold the driver's one lock while
they are in here.  A collective in a healthy epoch never passes through `handle`.  States and edges
are in `states`.
"""

from dataclasses import replace
from typing import Any, assert_never

from ftcomm import errors
from ftcomm.protocol.durable.store_messages import (
    MarkVersion,
    Restore,
    RestoreFailed,
    VersionDurable,
    VersionGivenUp,
    WriteObjects,
)
from ftcomm.protocol.messages import (
    AllClosed,
    AskCalls,
    AskRoster,
    Blocked,
    Closed,
    FatalDecision,
    FatalReport,
    Fenced,
    Fetched,
    Heartbeat,
    HeartbeatAck,
    Leave,
    Mismatch,
    Plan,
    Refused,
    Revoke,
    Settled,
    Suspect,
    Welcome,
)
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.protocol.spares.prefetch_messages import Prefetch
from ftcomm.recovery.archive.archive import Archive
from ftcomm.recovery.archive.placement import keep_stride
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.call_progress import CallProgress
from ftcomm.recovery.contributions.contributed_calls import ContributedCalls
from ftcomm.recovery.copies.copied_calls import CopiedCalls
from ftcomm.recovery.epoch_view import COPIES, NOBODY, OF_COPIES, EpochView
from ftcomm.recovery.events import (
    Attached,
    Beat,
    CheckpointCommitted,
    CheckpointFetched,
    CloseLinks,
    CopyFetched,
    CopyLost,
    DescribeState,
    Detached,
    Discard,
    Effect,
    Event,
    FatalFound,
    FetchEnded,
    FetchEvent,
    Hangup,
    Leaving,
    LinkDown,
    LocalFetched,
    MessagesClaimed,
    MessagesLost,
    MessagesWanted,
    MismatchSeen,
    ObjectFailed,
    ObjectStored,
    OwnCloseDone,
    PartFetched,
    PartLost,
    PartsWanted,
    PrefetchEnded,
    Received,
    Redial,
    RestoreEnded,
    ResultFetched,
    SendControl,
    StartRestore,
    VersionPacked,
    VersionRestored,
    Wake,
)
from ftcomm.recovery.fetch_orders import fetch_orders, flaw_in
from ftcomm.recovery.known_roster import known_roster
from ftcomm.recovery.marked_versions import MarkedVersions
from ftcomm.recovery.messages.message_exchange import MessageExchange
from ftcomm.recovery.spares.prefetching import Prefetching
from ftcomm.recovery.states import (
    Checkpoint,
    Completion,
    Identity,
    MachineLimits,
    NextStep,
    WorkerState,
)
from ftcomm.recovery.tracker_contact import TrackerContact


class WorkerMachine:
    """One incarnation of one worker. Not thread-safe: the driver's lock is held around every call.

    `handle` is the one entry for events; the user's thread asks `progress`.
    """

    def __init__(self, identity: Identity, limits: MachineLimits, *, now: float) -> None:
        self.view = EpochView()  # the epoch as the tracker last described it
        # Who this process is to the tracker, and whether the tracker counts it.
        self.contact = TrackerContact(identity, limits, now=now)
        self.archive = Archive()  # all that is kept for replay, but messages
        self.log = self.archive.results
        # Marked checkpoints, until the store has them.
        self.durables = MarkedVersions(self.archive)
        self.prefetching = Prefetching(self.view, self.archive)  # what it fetches as a spare
        # The position, and the calls of the user's thread.
        self.progress = CallProgress(self.view, self.contact, self.archive)
        # Calls of which each rank keeps its own input.
        self.contributed = ContributedCalls(self.view, self.contact, self.progress, self.archive)
        # Calls of which each rank's result is kept at other ranks.
        self.copied = CopiedCalls(self.view, self.contact, self.progress, self.archive)
        # What was sent from one rank to another.
        self.messages = MessageExchange(self.view, self.contact, self.progress)

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Take one event; return what the driver must do, in order."""
        self.freeze()
        if self.view.is_over and not isinstance(event, Attached):
            return []
        match event:
            case Attached():
                hello = self.contact.attach(self.view, closed=self.progress.closed)
                effects: list[Effect] = [SendControl(hello)]
            case Detached(reason):
                self.contact.detach(reason)
                effects = []
            case Received(message):
                effects = self.on_message(message, now)
            case LinkDown(epoch, rank, cause):
                effects = self.on_link_down(epoch, rank, cause)
            case MismatchSeen():
                effects = self.on_mismatch_seen(event)
            case FatalFound():
                effects = self.on_found(event)
            case (
                ResultFetched()
                | CheckpointFetched()
                | LocalFetched()
                | FetchEnded()
                | PartsWanted()
                | PartFetched()
                | PartLost()
                | CopyFetched()
                | CopyLost()
                | MessagesWanted()
                | MessagesClaimed()
                | MessagesLost()
            ):
                effects = self.on_fetch(event, now)
            case Beat():
                effects = self.on_beat(event, now)
            case OwnCloseDone():
                effects = [_closed_at(self.progress.position)]
            case Leaving(reason, site):
                effects = [SendControl(Leave(reason[:1000], self.progress.position, site))]
            case _:
                effects = self.on_store(event)
        effects += self.durables.take_effects()
        self.view.check_invariants()
        self.archive.check_invariants(self.progress.position, self.view.rank)
        return effects

    def freeze(self) -> None:
        """Have calls ask from now on, and take in those that were completed without asking."""
        self.progress.is_quiescent = False
        self.progress.absorb()

    def on_message(self, message: Any, now: float) -> list[Effect]:
        """Dispatch a message of the tracker."""
        match message:
            case Welcome():
                return self.on_welcome(message)
            case AskRoster(generation, tracker):
                return self.on_ask_roster(generation, tracker)
            case Revoke(epoch, _reason):
                return self.on_revoke(epoch)
            case Plan():
                return self.on_plan(message, now)
            case Settled(epoch):
                return self.on_settled(epoch)
            case HeartbeatAck(number):
                return [Wake()] if self.contact.acknowledge(number) else []
            case AskCalls(version):
                return self.on_ask_calls(version)
            case FatalDecision():
                return self._fail("fatal decision", fatal_error(message))
            case Fenced(reason):
                return self._fail("Fenced", self._error(errors.FencedError, reason))
            case Refused(error, reason, _version):
                kind = error_class(error)
                return self._fail("Refused", self._error(kind, reason))
            case AllClosed():
                self.view.enter("AllClosed", WorkerState.FINISHED)
                heard = SendControl(Leave("the job has finished", self.progress.position))
                return [heard, CloseLinks(), Wake(), Hangup()]
            case _:
                return self.on_store_message(message)

    def on_store_message(self, message: Any) -> list[Effect]:
        """Do what the tracker says of marked versions, or of the version to begin from."""
        match message:
            case WriteObjects():
                return self.durables.on_ordered(message)
            case VersionDurable():
                self.durables.on_durable(message)
                return [Wake()]
            case VersionGivenUp(version, reason):
                found = self.durables.on_given_up(version, reason)
                return [Wake()] if found is None else [Wake(), *self.on_found(found)]
            case MarkVersion(version):
                return self.durables.mark_last(version, self.progress.prelude_length)
            case Restore(record):
                return [StartRestore(record)] if self.durables.restoring.begin(record) else []
            case Prefetch():
                return self.prefetching.on_order(message)
            case _:
                cause = f"unexpected {type(message).__name__} from the tracker"
                return self._fail("local failure", self._error(errors.ProtocolError, cause))

    def on_welcome(self, message: Welcome) -> list[Effect]:
        """Join as a member or a spare: the tracker counts this process (rule R1)."""
        contact, view = self.contact, self.view
        is_other = contact.job_id not in ("", message.job_id)
        if not view.epoch and (is_other or contact.refuses(message.generation, message.tracker)):
            # It has taken no part in that job, or in what that tracker began of it: as if new.
            contact.generation, contact.tracker = 0, b""
            self.prefetching.forget()
            self.durables.forget()
            self.log.forget()
            self.progress.prelude_length = -1
            if view.revoke_epoch:  # it was announced there: here this process has had no rank
                view.enter("Welcome as new", WorkerState.DETACHED)
                view.revoke_epoch = 0
        elif is_other:
            cause = (
                f"the tracker of job {contact.job_id} is gone: its address serves {message.job_id}"
            )
            return self._fail("local failure", self._error(errors.TrackerLostError, cause))
        return self._join(message)

    def _join(self, message: Welcome) -> list[Effect]:
        contact, view = self.contact, self.view
        if not contact.follow(message.generation, message.tracker):
            return [Redial()]
        contact.welcome(message)
        effects: list[Effect] = [Wake()]
        if view.caught_up and view.caught_up == view.epoch:
            # the last tracker may not have read it
            effects.append(SendControl(Fetched(view.epoch)))
        if view.suspects:
            effects.append(SendControl(Suspect(view.epoch, view.suspects, "link lost earlier")))
        if view.accusation is not None:
            effects.append(SendControl(view.accusation))
        if self.progress.closed:
            effects.append(_closed_at(self.progress.position))
        effects += [SendControl(said) for said in self.durables.on_welcome()]
        return [*effects, *self.prefetching.on_welcome()]

    def on_ask_roster(self, generation: int, tracker: bytes) -> list[Effect]:
        """Say what this process knows of its job, and follow no older tracker (rule R19)."""
        if not self.contact.follow(generation, tracker):
            return [Redial()]
        return [SendControl(part) for part in known_roster(self.contact, self.view, self.progress)]

    def on_revoke(self, epoch: int) -> list[Effect]:
        """Stop: freeze the position, pin the log, report (docs/recovery.md, The steps)."""
        if epoch < self.view.revoke_epoch or epoch <= self.view.epoch:
            return []
        self.view.revoke(epoch)
        return [CloseLinks(), *self._report(), Wake()]

    def _report(self) -> list[Effect]:
        """Say what this process holds, once it has read what it was told to read."""
        self.log.pin()
        if self.durables.restoring.is_under_way:
            return []
        report, hold = self.progress.report(), self.messages.hold
        if hold.may_change:
            report = replace(report, tentative=PRELUDE)
        elif self.archive.tentative is not None:
            hold.report()
        return [SendControl(replace(report, messages=self.messages.balance))]

    def on_plan(self, plan: Plan, now: float) -> list[Effect]:
        """Take the plan of the epoch we reported for; any other is stale and dropped (rule R1)."""
        view, limits = self.view, self.contact.limits
        if view.state is not WorkerState.STOPPED or plan.epoch != view.revoke_epoch:
            return []
        if flaw := flaw_in(plan):
            return self._fail("local failure", self._error(errors.ProtocolError, flaw))
        view.take_plan(plan, now=now)
        order = view.keep_order
        stride = keep_stride(len(order), limits.replicas)
        self.log.set_keeping(order.index(plan.rank), stride, limits.keep_by_all)
        self.progress.take_plan(plan)
        self.messages.hold.take_plan()
        orders: list[Effect] = [*fetch_orders(plan)]
        sources = frozenset(order.source for order in fetch_orders(plan))
        if not sources:
            orders = self.copied.orders()
            sources = OF_COPIES if self.copied.is_lacking else NOBODY
        view.start_fetches(sources)
        if not sources:
            self.durables.mark_planned(self.view, self.progress.prelude_length)
        return [*orders, *self.messages.ask_again(), Wake()]

    def on_fetch(self, event: FetchEvent, now: float) -> list[Effect]:
        """Something came over a link of this epoch; what is of an older plan is dropped (R1)."""
        match event:
            case ResultFetched() | CheckpointFetched() | LocalFetched() if (
                not self.view.is_catching_up(event.epoch)
            ):
                return []
            case ResultFetched():
                return self.on_result_fetched(event)
            case CheckpointFetched(_, version, value):
                self.archive.commit(version)  # an older one that was fetched for an older plan goes
                self.archive.put_fetched(version, value)
                return [Wake()]
            case LocalFetched(_, version, rank, value):
                self.archive.keep_local(version, rank, value)
                return [Wake()] if rank == self.view.rank else []
            case FetchEnded(epoch, source, failure):
                return self.on_fetch_ended(epoch, source, failure)
            case PartsWanted() | PartFetched() | PartLost():
                follows = self.contributed.handle(event, now)
            case CopyFetched() | CopyLost():
                follows = self.copied.handle(event, now)
                if isinstance(follows, list) and not self.copied.is_lacking:
                    follows += self.on_fetch_ended(event.epoch, COPIES, "")
            case MessagesWanted() | MessagesClaimed() | MessagesLost():
                follows = self.messages.handle(event, now)
            case _:
                assert_never(event)
        return follows if isinstance(follows, list) else self.handle(follows, now=now)

    def on_result_fetched(self, fetched: ResultFetched) -> list[Effect]:
        """Log a fetched result, under the same rule as an executed one (rule R3)."""
        entry = LogEntry(fetched.signature, fetched.value, fetched.nbytes, fetched.site)
        self.log.add(fetched.position, entry)
        self.copied.expect(fetched.position, entry)
        self.view.fetched += 1
        return [Wake()] if fetched.position == self.progress.position else []

    def on_fetch_ended(self, epoch: int, source: int, failure: str) -> list[Effect]:
        """End a fetch: all is here, or the holder is suspected and a new plan will come."""
        if epoch != self.view.epoch or source not in self.view.pending_fetches:
            return []
        if failure:
            return self.on_link_down(epoch, source, f"while fetching results: {failure}")
        more = OF_COPIES if self.copied.is_lacking else NOBODY
        if not self.view.end_fetch(source, more):
            return self.copied.orders() if self.view.pending_fetches == OF_COPIES else []
        self.durables.mark_planned(self.view, self.progress.prelude_length)
        return [SendControl(Fetched(epoch)), Wake()]

    def on_store(
        self,
        event: CheckpointCommitted
        | VersionPacked
        | ObjectStored
        | ObjectFailed
        | VersionRestored
        | RestoreEnded
        | PrefetchEnded,
    ) -> list[Effect]:
        """Something was packed, written to a store, or read from it or by a spare."""
        match event:
            case PrefetchEnded():
                return self.prefetching.on_ended(event)
            case CheckpointCommitted(is_marked):
                if is_marked:
                    self.durables.mark(self.progress.prelude_length)
                return []
            case VersionPacked(version, value, nbytes, digest):
                return [*self.durables.on_packed(version, value, nbytes, digest), Wake()]
            case ObjectStored(written):
                return self.durables.on_written(written)
            case ObjectFailed(version, reason, unusable):
                return self.durables.on_failed(version, reason, unusable=unusable)
            case VersionRestored():
                return self.on_restored(event)
            case RestoreEnded(record, reason):
                is_awaited = self.durables.restoring.awaits(record)  # else it was of another job
                return [SendControl(RestoreFailed(record, reason))] if is_awaited else []
            case _:
                assert_never(event)

    def on_restored(self, restored: VersionRestored) -> list[Effect]:
        """Hold what the store had, and report as its holder."""
        if not self.durables.restoring.end(restored.record):
            return []
        version = restored.version
        self.archive.put_fetched(version, restored.value)
        if restored.locals is not None:
            self.archive.locals.know(version)
            for rank, value in restored.locals.items():
                self.archive.keep_local(version, rank, value)
        for position, entry in restored.prelude:
            self.log.add(position, entry)
        self.progress.prelude_length = restored.prelude_length
        return self._report() if self.view.state is WorkerState.STOPPED else []

    def on_settled(self, epoch: int) -> list[Effect]:
        """Unpin what the report listed: every member has what the plan gave it."""
        if epoch != self.view.epoch or not self.view.is_live:
            return []
        dropped = self.log.unpin()
        return [Discard(tuple(dropped))] if dropped else []

    def on_link_down(self, epoch: int, rank: int, cause: str) -> list[Effect]:
        """Suspect the peer; nothing is executed until the next epoch's plan."""
        if not self.view.suspect(epoch, rank):
            return []
        return [SendControl(Suspect(epoch, self.view.suspects, cause[:500])), Wake()]

    def on_mismatch_seen(self, event: MismatchSeen) -> list[Effect]:
        """Report it and wait for the fatal decision; an epoch change makes us look again."""
        if event.epoch != self.view.epoch or not self.view.is_live:
            return []
        position, call = self.progress.position, self.progress.call
        mismatch = Mismatch(
            epoch=event.epoch,
            position=position,
            signature=call.signature,
            site=call.site,
            peer=event.rank,
            peer_position=event.position or position,
            peer_signature=event.signature,
            peer_site=event.site,
            states=event.states,
        )
        self.view.accusation = mismatch
        return [SendControl(mismatch)]

    def on_ask_calls(self, version: int) -> list[Effect]:
        """Say what this process has called: somebody has seen a mismatch (rule R7)."""
        effects: list[Effect] = [SendControl(self.progress.calls_made())]
        tentative = self.archive.tentative
        if tentative is not None and tentative.version == version:
            effects.append(DescribeState(version, tentative.value))
        return effects

    def on_found(self, found: FatalFound) -> list[Effect]:
        """Report what ends the job; it is about a position, which no epoch changes."""
        view, position = self.view, self.progress.position
        if view.accusation is not None or found.position not in (None, position):
            return []
        view.accusation = FatalReport(view.revoke_epoch, position, found.error, found.cause)
        return [SendControl(view.accusation), Wake()]

    def on_beat(self, beat: Beat, now: float) -> list[Effect]:
        """Send a heartbeat; give up if the tracker is needed and lost for too long."""
        contact, progress = self.contact, self.progress
        number = contact.beat(now, beat.blocked_ms)
        lost = contact.reason_lost(now, needed=self.needs_tracker)
        if lost:
            return self._fail("tracker lost", self._error(errors.TrackerLostError, lost))
        blocked = None
        waiting = self.durables.awaited_by
        call = beat.receive if beat.receive.signature else progress.call
        if beat.blocked_peers and call.signature:
            signature, site = call
            blocked = Blocked(
                signature, site, beat.blocked_peers, beat.blocked_ms, beat.blocked_step
            )
        elif beat.record_ms and waiting.signature:
            blocked = Blocked(waiting.signature, waiting.site, (), beat.record_ms)
        found = self.contributed.lost_input(now) or self.copied.lost_result(now)
        found = found or self.messages.lost_source(now)
        effects = [] if found is None else self.on_found(found)
        heartbeat = Heartbeat(number, self.view.epoch, progress.position, blocked, beat.log_bytes)
        if contact.attached and contact.job_id:
            effects.append(SendControl(heartbeat))
        return effects

    @property
    def needs_tracker(self) -> bool:
        """True while nothing can go on before the tracker is heard, or perhaps nothing can.

        Whom this rank has long waited for may be dead, or the job over: only the tracker knows.
        """
        contact, view = self.contact, self.view
        waits = contact.starves or self.durables.awaits_record or self.progress.closed
        return view.is_frozen or bool(contact.needs_confirmation) or waits

    def fail(self, error: errors.FtcommError) -> list[Effect]:
        """End in `error`: the driver cannot go on (for example: authentication refused).

        The first error sticks.
        """
        return [] if self.view.is_over else self._fail("local failure", error)

    def _fail(self, cause: str, error: errors.FtcommError) -> list[Effect]:
        self.view.fail(cause, error)
        return [CloseLinks(), Wake(), Hangup()]

    def _error(self, kind: type[errors.FtcommError], cause: str) -> errors.FtcommError:
        view = self.view
        rank = view.rank if view.rank >= 0 else None
        return kind(
            cause, rank=rank, epoch=view.revoke_epoch or None, position=self.progress.position
        )


def _closed_at(position: Position) -> SendControl:
    return SendControl(Closed(max(position.version, 0)))


__all__ = [
    "Checkpoint",
    "Completion",
    "Identity",
    "MachineLimits",
    "NextStep",
    "WorkerMachine",
    "WorkerState",
]


def error_class(name: str) -> type[errors.FtcommError]:
    """The exception class of a fatal decision or refusal; an unknown name is a protocol error."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.FtcommError):
        return kind
    return errors.ProtocolError


def fatal_error(fatal_decision: FatalDecision) -> errors.FtcommError:
    """The exception that every rank raises for a job-wide fatal decision: same type, same words."""
    rank = fatal_decision.rank if fatal_decision.rank >= 0 else None
    return error_class(fatal_decision.error)(
        fatal_decision.cause,
        rank=rank,
        epoch=fatal_decision.epoch,
        position=fatal_decision.position,
    )
