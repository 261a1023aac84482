"""The tracker's machine: who holds which place, when the epoch changes, what is durable.

A pure core.  The server feeds `handle` with what happens on its connections and carries out the
effects in order; a `Persist` is durable before any later effect (rule R13).  In steady state
the roster only answers heartbeats.  Its states are those of `job_states`.
"""

from collections.abc import Callable
from typing import Any, assert_never

from ftcomm.config.job_settings import JobSettings
from ftcomm.protocol.messages import HeartbeatAck, WorkerMessage
from ftcomm.protocol.operator_messages import WorkerStatusReply
from ftcomm.protocol.position import Position
from ftcomm_tracker.core.admission import assign_spare, form_with_spares, on_joined
from ftcomm_tracker.core.all_parts import all_parts
from ftcomm_tracker.core.durable.group_versions import advance_versions, on_store_event
from ftcomm_tracker.core.durable.store_facts import NO_STORE, StoreFacts
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.ending import (
    end_with_error,
    look_whether_everyone_knows,
    tell_finished_at_last,
)
from ftcomm_tracker.core.epochs import begin_epoch, conclude, end_grace
from ftcomm_tracker.core.events import (
    ChainRead,
    Claimed,
    ConnectionLost,
    Died,
    Effect,
    EndedPut,
    EpochPut,
    Event,
    FinishedPut,
    GivenUp,
    Joined,
    LivenessAsserted,
    ObjectsMissing,
    Overtaken,
    PutDelayed,
    Said,
    Send,
    SeriesPut,
    Stalled,
    StopAsked,
    StoreSeen,
    Superseded,
    Supervised,
    Tick,
    VersionPut,
)
from ftcomm_tracker.core.group_formation import Launched
from ftcomm_tracker.core.group_state import (
    SMALL_GROUP,
    EpochState,
    GroupState,
    Members,
    Peer,
)
from ftcomm_tracker.core.job_states import JobState
from ftcomm_tracker.core.part import Part
from ftcomm_tracker.core.patience_clock import DriverTime, PatienceClock
from ftcomm_tracker.core.rebuild.decision import Rebuild
from ftcomm_tracker.core.rebuild.journal_loss import (
    begin_rebuilding,
    end_rebuilding,
    hear,
    must_rebuild,
    must_step_down,
    remind,
    step_down,
    tell_waiting,
)
from ftcomm_tracker.core.rebuild.stored_job import advance_rebuilding, hear_in_time
from ftcomm_tracker.core.relay_routing import plan_has_lasted
from ftcomm_tracker.core.reporting.status import missing_text_of, snapshot, standing_of
from ftcomm_tracker.core.standby.group_permits import end_without_store, is_cut_off
from ftcomm_tracker.core.standby.waiting import advance
from ftcomm_tracker.core.standby.watch import Standby
from ftcomm_tracker.core.worker_messages import (
    compare_blocked,
    evict_silent,
    link_epoch,
    look_at_blocked,
    on_died_replaced,
    on_given_up,
    on_lost,
    on_said,
    replace_deadline,
)


class Roster:
    """All of the tracker's decisions. Not thread-safe; one task owns it."""

    def __init__(
        self,
        settings: JobSettings,
        durable: Durable,
        *,
        generation: int,
        now: float,
        tracker: bytes = b"",
        rebuild: Rebuild | None = None,
        store: StoreFacts = NO_STORE,
        parts: Callable[[], tuple[Part, ...]] = all_parts,
    ) -> None:
        """Begin with what the journal says.

        Args:
            settings: of the job.
            durable: what was journalled last.
            generation: of this tracker, one higher at each start.
            now: seconds, on the driver's clock, as in all methods.
            tracker: tells this tracker from another one that has taken the same generation.
            rebuild: the operator wants the job taken up from what its workers know.
            store: what the store's chain says.
            parts: makes the optional matters of a group.
        """
        self._clock = PatienceClock(now)
        self._group = GroupState(
            settings,
            durable,
            generation=generation,
            tracker=tracker,
            now=now,
            parts=parts,
            store=store,
        )
        if rebuild is not None:
            begin_rebuilding(self._group, rebuild)

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Take one event; return what the server must do, in order."""
        group = self._group
        group.driver_now = DriverTime(now)
        if isinstance(event, Stalled):
            self._clock.skip(now, event.for_s, grace_s=group.settings.detect_within)
        group.now = self._clock.advance(now)
        if must_step_down(group, event):
            step_down(group, event)
        else:
            if must_rebuild(group, event):
                begin_rebuilding(group, Rebuild(group.tracker, group.durable.world_size))
            self._take(event)
            self._on_time()
        group = self._group  # it may be another one, made from what workers know
        effects, group.effects = group.effects, []
        self._check_after(event, effects)
        return effects

    def _take(self, event: Event) -> None:
        group = self._group
        _note_path(group, event)
        if group.rebuild is not None and hear(group, group.rebuild, event):
            self._try_to_take_up()
            return
        match event:
            case Joined(conn, hello):
                on_joined(group, conn, hello)
                note_earlier_question(group, hello.worker_id)
                compare_blocked(group)  # what was said before the last one came back
            case Said(conn, message):
                if conn in group.members.peers:
                    self._on_said(group.members.peers[conn], message)
            case ConnectionLost(conn, reason):
                on_lost(group, conn, reason)
            case LivenessAsserted() | Died() | GivenUp():
                self._on_told(event)
            case Supervised():
                self._on_supervised(event)
            case StopAsked():
                _on_stop_asked(group, event)
            case (
                SeriesPut()
                | VersionPut()
                | ObjectsMissing()
                | FinishedPut()
                | EpochPut()
                | EndedPut()
                | PutDelayed()
                | Overtaken()
            ):
                on_store_event(group, event)
            case Superseded() | Tick() | Stalled() | StoreSeen() | Claimed() | ChainRead():
                pass
            case _:
                assert_never(event)

    def _on_said(self, peer: Peer, message: WorkerMessage) -> None:
        """The core takes a message first; then those parts that hear it, in their order."""
        group = self._group
        on_said(group, peer, message)
        for part in group.parts:
            if isinstance(message, part.hears):
                part.on_message(group, peer, message)

    def _try_to_take_up(self) -> None:
        """Go on with the job once its workers have said enough; without a plan, form a group."""
        rebuild = self._group.rebuild
        if rebuild is None:
            return
        if rebuild.standby is not None:
            self._wait_or_lead(rebuild, rebuild.standby)
            return
        new = advance_rebuilding(self._group, rebuild)
        if new is not None:
            self._group = new
            compare_blocked(self._group)
        elif not rebuild.is_asked and not rebuild.store.job_id and not rebuild.knows_a_plan:
            end_rebuilding(self._group, rebuild)
        else:
            return
        for event in rebuild.later:
            self._take(event)

    def _wait_or_lead(self, rebuild: Rebuild, standby: Standby) -> None:
        """Go on with the job once the store says that this tracker leads (rule R19)."""
        new = advance(self._group, rebuild, standby)
        if new is not None:
            self._group = new
            compare_blocked(new)
            for event in rebuild.later:
                self._take(event)

    def _on_supervised(self, event: Supervised) -> None:
        """Remember the process; who waits for it can be told its number."""
        group = self._group
        group.end.unheard.discard(event.worker_id)
        note_supervisor(group, event.worker_id)
        if not group.launches.knows(event.worker_id, event.host, event.pid):
            launched = Launched(event.host, event.pid, group.now - event.age_s)
            for peer in group.members.peers.values():
                if peer.hello.worker_id == event.worker_id:
                    launched = launched.with_joined(peer.hello)
            group.launches.note(event.worker_id, launched)
            group.forming.watch(group.now)

    def _check_after(self, event: Event, effects: list[Effect]) -> None:
        """Check the invariants; in a large group not where nobody can have moved."""
        group = self._group
        if len(group.members.peers) <= SMALL_GROUP or not _moves_nobody(event, effects):
            group.check_invariants()

    def next_deadline(self) -> float | None:
        """Return the time at which `handle(Tick())` is due; None if never."""
        due = self._due()
        return None if due == float("inf") else self._clock.real(due)

    def _due(self) -> float:
        """Time of the next `_on_time` that does something."""
        group = self._group
        if group.state is JobState.OVER:
            return group.end.due
        if group.permits.end is not None:
            return group.permits.since + group.settings.replace_within
        times = [group.blocked.due]
        if group.members.peers:  # until then nobody can be late; to ask each costs all of them
            times.append(group.members.look_again_at)
        if group.state is JobState.FORMING:
            times.append(group.forming.due)
        elif group.rebuild is not None:
            times.append(group.rebuild.remind_at)
            times.append(float("inf") if group.rebuild.is_over else group.rebuild.ends_at)
        elif group.state is JobState.REATTACHING:  # who is away then is awaited by another rule
            times.append(group.epochs.reattach_by)
        elif group.durable.places and not group.has_end:
            times += [
                since + group.settings.replace_within
                for since in group.members.empty_since.values()
            ]
        if group.state is JobState.RUNNING:
            times.append(group.links.repaired_at)
        times.append(group.versions.next_deadline(len(group.members.slots)))
        times.append(group.epochs.grace_until)
        if group.end.inquiry is not None:
            times.append(group.end.inquiry.due)
        times += [part.due(group) for part in group.parts]
        times.append(group.permits.since + group.settings.replace_within)
        if group.links.suspicion is not None:
            times.append(group.links.epoch_at + group.settings.detect_within)
        return min(times)

    def _on_told(self, event: LivenessAsserted | Died | GivenUp) -> None:
        """Take what a launcher says of a worker's process."""
        group = self._group
        match event:
            case LivenessAsserted(worker_id):
                for peer in group.members.peers.values():
                    if peer.hello.worker_id == worker_id:
                        group.refresh(peer)
            case Died():
                self._on_died(event)
            case GivenUp():
                on_given_up(group, event)

    def _on_died(self, died: Died) -> None:
        """Record how a worker's process ended, as its launcher says."""
        group = self._group
        rank = group.durable.rank_of(died.worker_id)
        if group.has_closed(died.worker_id):  # no other process follows
            group.end.told(died.worker_id)
        if rank is None:
            on_died_replaced(group, died)
            return
        if rank in group.durable.closed_ranks:
            return
        conn = group.members.slots.get(rank)
        connected = None if conn is None else group.members.peers[conn].hello
        death = group.members.deaths.note(died, group.durable.places[rank].host, connected)
        if group.epochs.incident is not None:
            group.epochs.incident.note_death(death)

    def _on_time(self) -> None:
        """Do whatever is due by now."""
        group = self._group
        if group.end.awaits_record:
            tell_finished_at_last(group)
            return
        if group.state is JobState.OVER:
            look_whether_everyone_knows(group)
            return
        if group.permits.end is not None:  # nothing counts any more but its record
            end_without_store(group)
            return
        inquiry = group.end.inquiry
        if inquiry is not None and inquiry.is_over(group.now, group.members.slots.keys()):
            conclude(group, inquiry)
            return
        evict_silent(group)
        if group.now >= group.blocked.due:
            look_at_blocked(group)
        if group.state is JobState.FORMING and group.now >= group.forming.due:
            self._look_at_who_is_missing()
        elif group.state is JobState.REBUILDING and group.rebuild is not None:
            remind(group, group.rebuild)
            hear_in_time(group, group.rebuild)
        for rank in group.members.vacant():  # one that was given up while the plan was made
            assign_spare(group, rank)
        replace_deadline(group)
        if group.state is JobState.REATTACHING and group.now >= group.epochs.reattach_by:
            self._stop_waiting()
        if group.now >= group.epochs.grace_until:
            end_grace(group)
        if group.state is JobState.RUNNING and group.now >= group.links.repaired_at:
            plan_has_lasted(group)
        self._look_at_suspicion()
        end_without_store(group)
        advance_versions(group)
        self._look_at_parts()

    def _look_at_parts(self) -> None:
        """Ask every part what is due, also behind one that has ended the job."""
        for part in self._group.parts:
            part.on_time(self._group)

    def _look_at_suspicion(self) -> None:
        """Begin the epoch for links that was held back, when its time has come."""
        group = self._group
        held = group.links.suspicion
        if held is not None and group.now >= group.links.epoch_at + group.settings.detect_within:
            group.links.suspicion = None
            link_epoch(group, *held)

    def _stop_waiting(self) -> None:
        """Go on without the workers that did not come back to a restarted tracker."""
        group, members, durable = self._group, self._group.members, self._group.durable
        away = sorted({*members.empty_since, *group.closed_and_away()})
        missing = [durable.places[rank].worker_id for rank in away]
        members.empty_since = dict.fromkeys(members.empty_since, group.now)
        begin_epoch(group, f"workers {', '.join(missing)} did not come back to the tracker")
        for rank in sorted(members.empty_since):
            assign_spare(group, rank)

    def _look_at_who_is_missing(self) -> None:
        """Say who keeps the group from forming; end the job when that has lasted too long."""
        group = self._group
        size = group.durable.world_size
        missing = missing_text_of(group)
        count = sum(not peer.hello.spare for peer in group.members.peers.values())
        here = f"{count} of {size} workers are here; missing: {missing}"
        left_s = group.forming.ends_at - group.now
        if left_s <= 0:
            within_s = group.settings.form_within
            text = f"the group was not complete {within_s:g} s after its first worker came: {here}"
            if not form_with_spares(group, text):
                end_with_error(group, "RankLostError", text, group.members.progress())
        elif group.forming.is_reminder_due(group.now):
            what = "spares take the places" if len(group.members.peers) >= size else "the job fails"
            end = f"; {what} in {left_s:.0f} s" if left_s < float("inf") else ""
            group.note("warning", f"the group is not complete: {here}{end}")

    @property
    def settings(self) -> JobSettings:
        """The job's settings; defaults while its workers have yet to say them."""
        return self._group.settings

    @property
    def tracker(self) -> bytes:
        """Nonce that tells this tracker from another one of its generation."""
        return self._group.tracker

    @property
    def durable(self) -> Durable:
        """Content of the journal once the effects so far are carried out."""
        return self._group.durable

    @property
    def awaits_end_record(self) -> bool:
        """True while all have closed, and the store has yet to take the record of that."""
        return self._group.end.awaits_record

    @property
    def handed_on(self) -> StopAsked | GivenUp | None:
        """Event that the roster of the next attempt hears first; None for none."""
        return self._group.end.handed_on

    @property
    def state(self) -> JobState:
        """Present state of the job."""
        return self._group.state

    @property
    def members(self) -> Members:
        """Connected members, read-only."""
        return self._group.members

    @property
    def epochs(self) -> EpochState:
        """The plan in force and the recovery under way, to look at."""
        return self._group.epochs

    @property
    def awaits_reports(self) -> bool:
        """True while a connected member has yet to say for the coming epoch how far it is."""
        return self._group.awaits_reports

    @property
    def rebuild(self) -> Rebuild | None:
        """Workers that are heard while the job is not known, to look at."""
        return self._group.rebuild

    def progress(self) -> Position:
        """The highest position that any member was heard to be at, whether it lives or not."""
        return self._group.members.furthest

    def has_closed(self, worker_id: str) -> bool:
        """True if that worker's rank has completed its close(), and nothing can call it back."""
        return self._group.has_closed(worker_id)

    def is_cut_off(self, now: float) -> bool:
        """True if all its members have been away for long, and no worker comes (rule R19)."""
        return is_cut_off(self._group, self._clock.now(now))

    def is_connected(self, worker_id: str) -> bool:
        """True if an incarnation of that worker is connected, as a member or a spare."""
        return self._group.is_connected(worker_id)

    def misses(self, worker_id: str) -> bool:
        """True while that worker has a place, and none of its incarnations is connected."""
        return self._group.misses(worker_id)

    def had_rank(self, worker_id: str, pid: int) -> bool | None:
        """Tell whether its process `pid` had a rank when it ended; None if that is not known."""
        former = self._group.members.former.of(worker_id, pid)
        return None if former is None else former.had_rank

    def has_rank(self, worker_id: str) -> bool:
        """True if that worker has a place in the group, whether it is connected or not."""
        return self._group.durable.rank_of(worker_id) is not None

    def plan_sent(self, now: float) -> None:
        """Note that the plan is sent: the record says what deciding and sending took."""
        if self._group.epochs.incident is not None:
            self._group.epochs.incident.planned_at = DriverTime(now)

    def standing_of(self, worker_id: str, number: int) -> WorkerStatusReply:
        """Answer question `number` of the supervisor of `worker_id`."""
        return standing_of(self._group, worker_id, number)

    def snapshot(self, now: float) -> dict[str, Any]:
        """The job for `status`, as JSON-able values."""
        return snapshot(self._group, self._clock.now(now))


def _note_path(group: GroupState, event: Event) -> None:
    """Remember from which machine a worker calls, while it is connected."""
    match event:
        case Joined(conn, hello, path):
            group.paths.note(conn, hello, path)
        case ConnectionLost(conn):
            group.paths.forget(conn)


def _on_stop_asked(group: GroupState, asked: StopAsked) -> None:
    """End the job; who asked is answered, also where only its attempt is going to end."""
    if group.hands_on:
        group.end.hand_on(asked)
        return
    words = f"the job was stopped: {asked.reason}"
    end_with_error(group, "JobStoppedError", words, group.members.progress())
    tell_waiting(group)


def note_earlier_question(group: GroupState, worker_id: str) -> None:
    """Journal the supervisor of a worker that joins, if it has asked before."""
    if worker_id in group.launches.workers:
        note_supervisor(group, worker_id)


def note_supervisor(group: GroupState, worker_id: str) -> None:
    """Journal, once, that a worker of the job has a supervisor."""
    durable = group.durable
    if worker_id not in durable.supervised and durable.incarnation_of(worker_id):
        group.persist(supervised=tuple(sorted((*durable.supervised, worker_id))))


def _moves_nobody(event: Event, effects: list[Effect]) -> bool:
    """Return whether the event has led to an answer at most."""
    if isinstance(event, Supervised):
        return not effects
    return isinstance(event, Said) and all(
        isinstance(effect, Send) and isinstance(effect.message, HeartbeatAck) for effect in effects
    )


__all__ = ["JobState", "Peer", "Roster"]
