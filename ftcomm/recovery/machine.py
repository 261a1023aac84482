"""The worker's recovery machine: what one rank may do, and what it tells the tracker.

A pure core.  The control thread feeds `handle` with what happens and carries out the effects; the
user's thread uses the half of it in `standing`.  Both hold the driver's one lock while they are in
here.  A collective in a healthy epoch never passes through `handle`.  States and edges are in
`states`.
"""

from typing import Any, assert_never

from ftcomm import errors
from ftcomm.protocol.messages import (
    AllClosed,
    AskCalls,
    Blocked,
    Closed,
    FatalDecision,
    FatalReport,
    Fenced,
    Fetched,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Leave,
    Mismatch,
    Plan,
    Refused,
    Revoke,
    Settled,
    Suspect,
    Welcome,
)
from ftcomm.recovery.events import (
    Attached,
    Beat,
    CheckpointFetched,
    CloseLinks,
    DescribeState,
    Detached,
    Discard,
    Effect,
    Event,
    FatalFound,
    FetchEnded,
    Hangup,
    Leaving,
    LinkDown,
    LocalFetched,
    MismatchSeen,
    OwnCloseDone,
    Received,
    ResultFetched,
    SendControl,
    Wake,
)
from ftcomm.recovery.fetch_orders import fetch_orders, flaw_in
from ftcomm.recovery.replica_placement import keep_order, keep_stride
from ftcomm.recovery.result_log import LogEntry
from ftcomm.recovery.states import (
    TRANSITIONS,
    Checkpoint,
    Completion,
    Identity,
    MachineLimits,
    NextStep,
    WorkerState,
)
from ftcomm.recovery.verdicts import error_class, verdict_error
from ftcomm.recovery.worker_state import CallProgress


class WorkerMachine(CallProgress):
    """One process of a worker id. Not thread-safe: the driver's lock is held around every call."""

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Take one event; return what the driver must do, in order."""
        self.is_quiescent = False
        if self.state in (WorkerState.FAILED, WorkerState.FINISHED) and not isinstance(
            event, Attached
        ):
            return []
        match event:
            case Attached():
                effects = self.on_attached()
            case Detached(reason):
                self.attached = False
                self.detached_because = reason
                effects = []
            case Received(message):
                effects = self.on_message(message)
            case LinkDown(epoch, rank, cause):
                effects = self.on_link_down(epoch, rank, cause)
            case MismatchSeen():
                effects = self.on_mismatch_seen(event)
            case FatalFound():
                effects = self.on_found(event)
            case ResultFetched() | CheckpointFetched() | LocalFetched() | FetchEnded():
                effects = self.on_fetch(event)
            case Beat():
                effects = self.on_beat(event, now)
            case OwnCloseDone():
                effects = [self._send_closed()]
            case Leaving(reason):
                effects = [SendControl(Leave(reason[:1000]))]
            case _:
                assert_never(event)
        self.check_invariants()
        return effects

    def on_attached(self) -> list[Effect]:
        """Say who we are; a suspicion is state and is repeated (rule R13)."""
        self.attached = True
        self._hello_beats = self._beats
        hello = Hello(
            worker_id=self.identity.worker_id,
            nonce=self.identity.nonce,
            incarnation=self.incarnation,
            host=self.identity.host,
            address=self.identity.address,
            port=self.identity.port,
            plan_epoch=self.epoch,
            revoke_epoch=self.revoke_epoch,
            suspects=self.suspects,
            closed=self.closed,
            tables=self.identity.tables,
            asked=self.identity.asked,
            pid=self.identity.pid,
            start=self.identity.start,
            group=self.identity.group,
            python=self.identity.python,
        )
        return [SendControl(hello)]

    def on_message(self, message: Any) -> list[Effect]:
        """Dispatch a message of the tracker."""
        match message:
            case Welcome():
                return self.on_welcome(message)
            case Revoke(epoch, _reason):
                return self.on_revoke(epoch)
            case Plan():
                return self.on_plan(message)
            case Settled(epoch):
                return self.on_settled(epoch)
            case HeartbeatAck(number):
                return self.on_heartbeat_ack(number)
            case AskCalls(version):
                return self.on_ask_calls(version)
            case FatalDecision():
                return self._fail("Verdict", verdict_error(message))
            case Fenced(reason):
                return self._fail("Fenced", self._error(errors.FencedError, reason))
            case Refused(error, reason, _version):
                kind = error_class(error)
                return self._fail("Refused", self._error(kind, reason))
            case AllClosed():
                self._enter("AllClosed", WorkerState.FINISHED)
                return [CloseLinks(), Wake(), Hangup()]
            case _:
                return self._fail(
                    "local failure",
                    self._error(
                        errors.ProtocolError,
                        f"unexpected {type(message).__name__} from the tracker",
                    ),
                )

    def on_welcome(self, message: Welcome) -> list[Effect]:
        """The tracker counts this process as a member (or a spare): it has been heard (rule R1)."""
        if self.job_id not in ("", message.job_id):
            cause = f"the tracker of job {self.job_id} is gone: its address serves {message.job_id}"
            return self._fail("local failure", self._error(errors.TrackerLostError, cause))
        self.job_id = message.job_id
        self.incarnation = message.incarnation
        self.world_size = message.world_size
        self.settings = message.settings
        # else it answers a hello from before the stop
        if self._hello_beats >= self._needs_confirmation:
            self._needs_confirmation = 0
        effects: list[Effect] = [Wake()]
        if self.caught_up and self.caught_up == self.epoch:
            effects.append(
                SendControl(Fetched(self.epoch))
            )  # the last tracker may not have read it
        if self.suspects:
            effects.append(SendControl(Suspect(self.epoch, self.suspects, "link lost earlier")))
        if self.accusation is not None:
            effects.append(SendControl(self.accusation))
        if self.closed:
            effects.append(self._send_closed())
        return effects

    def on_revoke(self, epoch: int) -> list[Effect]:
        """Stop: freeze the position, pin the log, report (design, Stop)."""
        if epoch < self.revoke_epoch or epoch <= self.epoch:
            return []
        self.revoke_epoch = epoch
        self._enter("Revoke", WorkerState.STOPPED)
        self.pending_fetches = frozenset()
        if isinstance(self.accusation, Mismatch):
            self.accusation = None
        self.log.pin()
        return [CloseLinks(), SendControl(self.report()), Wake()]

    def on_plan(self, plan: Plan) -> list[Effect]:
        """Take the plan of the epoch we reported for; any other is stale and dropped (rule R1)."""
        if self.state is not WorkerState.STOPPED or plan.epoch != self.revoke_epoch:
            return []
        if flaw := flaw_in(plan):
            return self._fail("local failure", self._error(errors.ProtocolError, flaw))
        self.epoch = plan.epoch
        self.rank = plan.rank
        self.members = plan.members
        self.routes = plan.routes
        self.frontier = plan.frontier
        self.prelude_length = plan.prelude_length
        self.suspects = ()
        self.replayed = self.fetched = 0
        self.grouping = plan.grouping
        self.keep_order = order = keep_order(plan.grouping)
        stride = keep_stride(len(order), self.limits.replicas)
        self.log.set_keeping(order.index(plan.rank), stride, self.limits.keep_by_all)
        if self.tentative is not None and self.tentative.version == plan.commit:
            self._commit_tentative()
        elif self.tentative is not None:
            self.locals.abandon(self.tentative.version, self.rank)
        self.locals.commit(plan.frontier.version)
        if plan.locals is not None:
            self.locals.expect(plan.frontier.version)
        return self._start_fetches(plan)

    def _start_fetches(self, plan: Plan) -> list[Effect]:
        orders = fetch_orders(plan)
        if not orders:
            self._enter("Plan", WorkerState.RUNNING)
            self.caught_up = plan.epoch
            return [Wake()]
        self._enter("Plan with fetches", WorkerState.CATCHING_UP)
        self.pending_fetches = frozenset(order.source for order in orders)
        return [*orders, Wake()]

    def on_fetch(
        self, event: ResultFetched | CheckpointFetched | LocalFetched | FetchEnded
    ) -> list[Effect]:
        """Something came over a fetch link of a plan; of an older plan it is dropped (rule R1)."""
        match event:
            case ResultFetched():
                return self.on_result_fetched(event)
            case CheckpointFetched(epoch, version, value):
                return self.on_checkpoint_fetched(epoch, version, value)
            case LocalFetched(epoch, version, rank, value):
                return self.on_local_fetched(epoch, version, rank, value)
            case FetchEnded(epoch, source, failure):
                return self.on_fetch_ended(epoch, source, failure)
            case _:
                assert_never(event)

    def on_result_fetched(self, fetched: ResultFetched) -> list[Effect]:
        """A fetched result enters the log under the same rule as an executed one (rule R3)."""
        if fetched.epoch != self.epoch or self.state is not WorkerState.CATCHING_UP:
            return []
        self.log.add(fetched.position, LogEntry(fetched.signature, fetched.value, fetched.nbytes))
        self.fetched += 1
        return [Wake()] if fetched.position == self.position else []

    def on_checkpoint_fetched(self, epoch: int, version: int, value: Any) -> list[Effect]:
        """The version to load has arrived; an older one fetched for an older plan goes."""
        if epoch != self.epoch or self.state is not WorkerState.CATCHING_UP:
            return []
        self.checkpoint = Checkpoint(version, value)
        self.log.commit(version)
        self.locals.commit(version)
        return [Wake()]

    def on_local_fetched(self, epoch: int, version: int, rank: int, value: Any) -> list[Effect]:
        """One's own local state to load, or a copy of another's to hold."""
        if epoch != self.epoch or self.state is not WorkerState.CATCHING_UP:
            return []
        self.locals.put(version, rank, value)
        return [Wake()] if rank == self.rank else []

    def on_fetch_ended(self, epoch: int, source: int, failure: str) -> list[Effect]:
        """A holder has sent all, or broke: then it is suspected and a new plan will come."""
        if epoch != self.epoch or source not in self.pending_fetches:
            return []
        if failure:
            return self.on_link_down(epoch, source, f"while fetching results: {failure}")
        self.pending_fetches -= {source}
        if self.pending_fetches:
            return []
        self._enter("last fetch ended", WorkerState.RUNNING)
        self.caught_up = epoch
        return [SendControl(Fetched(epoch)), Wake()]

    def on_settled(self, epoch: int) -> list[Effect]:
        """Every member has what the plan gave it: what our report pinned may go."""
        if epoch != self.epoch or self.state not in (WorkerState.RUNNING, WorkerState.CATCHING_UP):
            return []
        dropped = self.log.unpin()
        return [Discard(tuple(dropped))] if dropped else []

    def on_link_down(self, epoch: int, rank: int, cause: str) -> list[Effect]:
        """Suspect the peer; nothing is executed until the next epoch's plan."""
        live = self.state in (WorkerState.RUNNING, WorkerState.CATCHING_UP)
        if epoch != self.epoch or not live or rank in self.suspects:
            return []
        self.suspects = tuple(sorted({*self.suspects, rank}))
        return [SendControl(Suspect(epoch, self.suspects, cause[:500])), Wake()]

    def on_mismatch_seen(self, event: MismatchSeen) -> list[Effect]:
        """Report it and wait for the fatal decision; look again after an epoch change."""
        if event.epoch != self.epoch or self.state not in (
            WorkerState.RUNNING,
            WorkerState.CATCHING_UP,
        ):
            return []
        self.accusation = Mismatch(
            epoch=event.epoch,
            position=self.position,
            signature=self.signature,
            site=self.site,
            peer=event.rank,
            peer_position=event.position or self.position,
            peer_signature=event.signature,
            peer_site=event.site,
            states=event.states,
        )
        return [SendControl(self.accusation)]

    def on_ask_calls(self, version: int) -> list[Effect]:
        """Somebody has seen a mismatch: say what this process has called (rule R7)."""
        effects: list[Effect] = [SendControl(self.calls_made())]
        tentative = self.tentative
        if tentative is not None and tentative.version == version:
            effects.append(DescribeState(version, tentative.value))
        return effects

    def on_found(self, found: FatalFound) -> list[Effect]:
        """Report what ends the job; it is about a position, which no epoch changes."""
        if self.accusation is not None or found.position not in (None, self.position):
            return []
        self.accusation = FatalReport(self.revoke_epoch, self.position, found.error, found.cause)
        return [SendControl(self.accusation), Wake()]

    def on_beat(self, beat: Beat, now: float) -> list[Effect]:
        """Send a heartbeat; notice that this process did not run for a while (rule R1)."""
        gap = now - self._last_beat
        self._last_beat = now
        self._beats += 1
        if gap > self.limits.detect_within / 2:
            self._needs_confirmation = self._beats
        self._starves = beat.blocked_ms >= self.limits.detect_within * 1000
        lost = self._tracker_lost(now)
        if lost is not None:
            return self._fail("tracker lost", lost)
        blocked = None
        if beat.blocked_peers and self.signature:
            blocked = Blocked(
                self.signature, self.site, beat.blocked_peers, beat.blocked_ms, beat.blocked_step
            )
        heartbeat = Heartbeat(self._beats, self.epoch, self.position, blocked, beat.log_bytes)
        return [SendControl(heartbeat)] if self.attached and self.job_id else []

    def on_heartbeat_ack(self, number: int) -> list[Effect]:
        """The tracker answered a heartbeat sent after our stall: it still counts us."""
        if self._needs_confirmation and number >= self._needs_confirmation:
            self._needs_confirmation = 0
            return [Wake()]
        return []

    @property
    def needs_tracker(self) -> bool:
        """True while nothing can go on before the tracker is heard, or perhaps nothing can.

        Whom this rank has long waited for may be dead, or the job over: only the tracker knows.
        """
        return self.is_frozen or bool(self._needs_confirmation) or self.closed or self._starves

    def _tracker_lost(self, now: float) -> errors.FtcommError | None:
        if self.attached or not self.needs_tracker:
            self._needed_since = None
            return None
        if self._needed_since is None:
            self._needed_since = now
        if now - self._needed_since < self.limits.tracker_timeout:
            return None
        cause = (
            f"the tracker could not be reached for {self.limits.tracker_timeout:.0f} s"
            f" ({self.detached_because})"
        )
        return self._error(errors.TrackerLostError, cause)

    def _send_closed(self) -> SendControl:
        return SendControl(Closed(max(self.position.version, 0)))

    def fail(self, error: errors.FtcommError) -> list[Effect]:
        """The driver cannot go on (for example: authentication refused). The first error sticks."""
        if self.state in (WorkerState.FAILED, WorkerState.FINISHED):
            return []
        return self._fail("local failure", error)

    def _fail(self, cause: str, error: errors.FtcommError) -> list[Effect]:
        self._enter(cause, WorkerState.FAILED)
        self.error = error
        return [CloseLinks(), Wake(), Hangup()]

    def _error(self, kind: type[errors.FtcommError], cause: str) -> errors.FtcommError:
        rank = self.rank if self.rank >= 0 else None
        return kind(cause, rank=rank, epoch=self.revoke_epoch or None, position=self.position)


__all__ = [
    "TRANSITIONS",
    "Checkpoint",
    "Completion",
    "Identity",
    "MachineLimits",
    "NextStep",
    "WorkerMachine",
    "WorkerState",
]
