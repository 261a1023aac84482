"""The tracker's machine: who holds which place, when the epoch changes, what is durable.

A pure core.  The server feeds `handle` with what happens on its connections and carries out the
effects in order; a `Persist` is durable before any later effect (rule R13).  In steady state
the roster only answers heartbeats.

States::

    FORMING      fewer workers than places have ever come
    REATTACHING  a restarted tracker waits for its workers before it decides anything
    COLLECTING   an epoch is announced; reports and replacements are awaited
    RUNNING      a plan is out
    OVER         a fatal decision, or all have closed
"""

from typing import Any, assert_never

from ftcomm.protocol.messages import HeartbeatAck
from ftcomm.protocol.operator_messages import WorkerStatusReply
from ftcomm.protocol.position import Position
from ftcomm_tracker.core.events import (
    ConnectionLost,
    Died,
    Effect,
    Event,
    GivenUp,
    Joined,
    LivenessAsserted,
    Said,
    Send,
    Stalled,
    StopAsked,
    Supervised,
    Tick,
)
from ftcomm_tracker.core.group_formation import Launched, missing_list, missing_workers
from ftcomm_tracker.core.group_state import SMALL_GROUP, JobState, Peer
from ftcomm_tracker.core.reporting.lost_hosts import host_text
from ftcomm_tracker.core.reporting.status_rows import peer_row
from ftcomm_tracker.core.worker_messages import WorkerMessages


class Roster(WorkerMessages):
    """All of the tracker's decisions. Not thread-safe; one task owns it."""

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Take one event; return what the server must do, in order."""
        self._now = now
        match event:
            case Joined(conn, hello):
                self.on_joined(conn, hello)
                self._compare_blocked()  # what was said before the last one came back
            case Said(conn, message):
                if conn in self.peers:
                    self.on_said(self.peers[conn], message)
            case ConnectionLost(conn, reason):
                self.on_lost(conn, reason)
            case LivenessAsserted() | Died() | GivenUp():
                self.on_told(event)
            case Supervised():
                self.on_supervised(event)
            case Stalled():
                self.on_stalled()
            case StopAsked(reason):
                self._fatal_decision(
                    "JobStoppedError", f"the job was stopped: {reason}", self.progress()
                )
            case Tick():
                pass
            case _:
                assert_never(event)
        self.on_time()
        effects, self._effects = self._effects, []
        self._check_after(event, effects)
        return effects

    def on_stalled(self) -> None:
        """Whoever could not be heard meanwhile has its whole time again."""
        self._refresh(self.peers.values())
        self.empty_since = dict.fromkeys(self.empty_since, self._now)
        self._links_failed = None
        self._forming.stalled(self._now)
        if self._inquiry is not None:
            self._inquiry.began = self._now
        if self._grace_until < float("inf"):
            self._grace_until = self._now + self.settings.reattach_within
        if self.state is JobState.REATTACHING:
            self._reattach_by = self._now + self.settings.reattach_within

    def on_supervised(self, event: Supervised) -> None:
        """Remember the process; who waits for it can be told its number."""
        if not self._launches.knows(event.worker_id, event.host, event.pid):
            joined = self.is_connected(event.worker_id)
            since = self._now - event.age_s
            self._launches.note(
                event.worker_id, Launched(event.host, event.pid, since, has_joined=joined)
            )
            self._forming.watch(self._now)

    def _check_after(self, event: Event, effects: list[Effect]) -> None:
        """Check the invariants; in a large group not where nobody can have moved."""
        if len(self.peers) <= SMALL_GROUP or not _moves_nobody(event, effects):
            self.check_invariants()

    def next_deadline(self) -> float | None:
        """When `handle(Tick())` is due, on the clock that `now` comes from."""
        if self.state is JobState.OVER:
            return None if self._ended else self._over_at
        times = [self._blocked_due]
        if self.peers:  # until then nobody can be late; to ask each costs all of them every time
            times.append(self._look_again_at)
        if self.state is JobState.FORMING:
            times.append(self._forming.due)
        elif self.state is JobState.REATTACHING:  # who is away then is awaited by another rule
            times.append(self._reattach_by)
        elif self.durable.places:
            times += [since + self.settings.replace_within for since in self.empty_since.values()]
        if self.state is JobState.RUNNING:
            times.append(self._repaired_at)
        times.append(self._grace_until)
        if self._inquiry is not None:
            times.append(self._inquiry.due)
        if self._link_suspicion is not None:
            times.append(self._link_epoch_at + self.settings.detect_within)
        soonest = min(times, default=None)
        return None if soonest == float("inf") else soonest

    def on_told(self, event: LivenessAsserted | Died | GivenUp) -> None:
        """Whoever starts a worker says what it sees of the worker's process."""
        match event:
            case LivenessAsserted(worker_id):
                self._refresh(p for p in self.peers.values() if p.hello.worker_id == worker_id)
            case Died():
                self.on_died(event)
            case GivenUp(worker_id, reason):
                self.on_given_up(worker_id, reason)

    def on_died(self, died: Died) -> None:
        """Whoever started a worker's process says how it ended."""
        rank = self._rank_of(died.worker_id)
        if rank is None or rank in self.durable.closed_ranks:
            return
        conn = self.slots.get(rank)
        connected = None if conn is None else self.peers[conn].hello
        death = self.deaths.note(died, self.durable.places[rank].host, connected)
        if self.incident is not None:
            self.incident.note_death(death)

    def on_time(self) -> None:
        """Whatever is due by now."""
        if self.state is JobState.OVER:
            # Before the group has formed nobody can be missed by name: who is on its way has until
            # the farewell's end to hear why there is no job.
            formed = bool(self.durable.places)
            everyone_knows = formed and not self.peers and not self._untold
            if not self._ended and (self._now >= self._over_at or everyone_knows):
                self._end()
            return
        inquiry = self._inquiry
        if inquiry is not None and inquiry.is_over(self._now, self.slots.keys()):
            self._conclude(inquiry)
            return
        self._evict_silent()
        if self._now >= self._blocked_due:
            self._look_at_blocked()
        if self.state is JobState.FORMING and self._now >= self._forming.due:
            self._look_at_who_is_missing()
        self._replace_deadline()
        if self.state is JobState.REATTACHING and self._now >= self._reattach_by:
            away = set(self.empty_since) | (set(self.durable.closed_ranks) - set(self.slots))
            missing = [self.durable.places[rank].worker_id for rank in sorted(away)]
            self.empty_since = dict.fromkeys(self.empty_since, self._now)
            self._begin_epoch(f"workers {', '.join(missing)} did not come back to the tracker")
            for rank in sorted(self.empty_since):
                self._assign_spare(rank)
        if self._now >= self._grace_until:
            self._end_grace()
        for rank in self._vacant():  # one that was given up while the plan was made
            self._assign_spare(rank)
        if self.state is JobState.RUNNING and self._now >= self._repaired_at:
            self._plan_has_lasted()
        held = self._link_suspicion
        if held is not None and self._now >= self._link_epoch_at + self.settings.detect_within:
            self._link_suspicion = None
            self._link_epoch(*held)

    def _look_at_who_is_missing(self) -> None:
        """Say who keeps the group from forming; end the job when that has lasted too long."""
        size = self.durable.world_size
        here = f"{len(self.peers)} of {size} workers are here; missing: {self._missing_words()}"
        left_s = self._forming.ends_at - self._now
        if left_s <= 0:
            within_s = self.settings.form_within
            self._fatal_decision(
                "RankLostError",
                f"the group was not complete {within_s:g} s after its first worker came: {here}",
                self.progress(),
            )
        elif self._forming.is_reminder_due(self._now):
            end = f"; the job fails in {left_s:.0f} s" if left_s < float("inf") else ""
            self._note("warning", f"the group is not complete: {here}{end}")

    def _missing_words(self) -> str:
        missing = self._missing(self._now)
        return ", ".join(missing_list(missing["workers"], missing["unnamed"]))

    def _missing(self, now: float) -> dict[str, Any]:
        """Who has yet to come before the group can form, as JSON-able values."""
        durable = self.durable
        names, unnamed = missing_workers(
            durable.world_size,
            {peer.hello.worker_id for peer in self.peers.values()},
            self._launches.workers,
            [name for name, _ in durable.incarnations],
        )
        ends_s = self._forming.ends_at - now
        return {
            "ends_s": None if ends_s == float("inf") else round(ends_s, 3),
            "workers": [
                {
                    "worker_id": name,
                    "was_here": durable.incarnation_of(name) > 0,
                    "starting": self._launches.row(name, now),
                }
                for name in names
            ],
            "unnamed": unnamed,
        }

    def standing_of(self, worker_id: str, number: int) -> WorkerStatusReply:
        """What a supervisor of `worker_id` must know, in answer to its question `number`."""
        fatal_decision = self.durable.fatal_decision
        return WorkerStatusReply(
            number=number,
            connected=self.is_connected(worker_id),
            missed=self.misses(worker_id),
            closed=self.has_closed(worker_id),
            progress=self.progress(),
            state=self.state.value,
            epoch=self.epoch,
            detect_within_ms=round(self.settings.detect_within * 1000),
            over=fatal_decision is not None or self.durable.final_version >= 0,
            error=fatal_decision.error if fatal_decision else "",
            cause=fatal_decision.cause if fatal_decision else "",
        )

    def snapshot(self, now: float) -> dict[str, Any]:
        """The job for `status`, as JSON-able values."""
        fatal_decision = self.durable.fatal_decision
        progress = self.progress()
        return {
            "job_id": self.durable.job_id,
            "state": self.state.value,
            "epoch": self.epoch,
            "announced_epoch": self.durable.epoch,
            "generation": self.generation,
            "world_size": self.durable.world_size,
            "progress": str(progress),
            "detect_within_s": self.settings.detect_within,
            "replace_within_s": self.settings.replace_within,
            "streams": self.settings.streams,
            "reattach_s": round(self._reattach_by - now, 3)
            if self.state is JobState.REATTACHING
            else None,
            "missing": self._missing(now) if self.state is JobState.FORMING else None,
            "hope_s": round(self._grace_until - now, 3) if self._awaited_in_grace() else None,
            "recovery": self._recovery(now),
            "members": [
                self._member_row(rank, now, progress) for rank in range(len(self.durable.places))
            ],
            "spares": [p.hello.worker_id for _, p in sorted(self.peers.items()) if p.rank is None],
            "waiting_for": self._waiting_for(now),
            "lost_hosts": [
                {"host": host, "workers": names} for host, names in self._lost_hosts()[0]
            ],
            "routes": self._route_rows(),
            "incidents": self.incidents[-10:],
            "verdict": None
            if fatal_decision is None
            else {"error": fatal_decision.error, "cause": fatal_decision.cause},
            "final_version": self.durable.final_version,
        }

    def _recovery(self, now: float) -> dict[str, Any] | None:
        incident = self.incident
        if incident is None:
            return None
        return {
            "epoch": incident.epoch,
            "reason": incident.reason,
            "since_s": round(now - incident.started_at, 3),
        }

    def _member_row(self, rank: int, now: float, furthest: Position) -> dict[str, Any]:
        place = self.durable.places[rank]
        conn = self.slots.get(rank)
        empty_since = self.empty_since.get(rank)
        death = self.deaths.of(place.worker_id) if conn is None else None
        return {
            "rank": rank,
            "worker_id": place.worker_id,
            "incarnation": place.incarnation,
            "host": place.host,
            "connected": conn is not None,
            "closed": rank in self.durable.closed_ranks,
            "gone_s": None if empty_since is None else round(now - empty_since, 3),
            "death": None if death is None else death.to_dict(),
            "starting": self._launches.row(place.worker_id, now) if conn is None else None,
            "reported": rank in self.reports,
            "fetching": self.state is JobState.RUNNING and rank in self.awaiting_fetch,
            **peer_row(
                None if conn is None else self.peers[conn],
                epoch=self.epoch,
                furthest=furthest,
                now=now,
            ),
        }

    def _waiting_for(self, now: float) -> list[str]:
        if self.state is JobState.FORMING:
            missing = self._missing(now)
            return [
                f"{who} to join" for who in missing_list(missing["workers"], missing["unnamed"])
            ]
        names = [place.worker_id for place in self.durable.places]
        hosts, others = self._lost_hosts()
        absent = [f"{host_text(*lost)} to come back" for lost in hosts]
        absent += [f"worker {name} to come back" for name in others]
        if self.state is JobState.COLLECTING:
            silent = sorted(set(self.slots) - set(self.reports))
            absent += [f"the report of worker {names[rank]}" for rank in silent]
            absent += [
                f"worker {names[rank]} to come back, though it has closed"
                for rank in self._awaited_in_grace()
            ]
        return absent

    def _awaited_in_grace(self) -> list[int]:
        """Closed members that are awaited, since they may hold what nobody else does."""
        return self._closed_and_away() if self._grace_until < float("inf") else []


def _moves_nobody(event: Event, effects: list[Effect]) -> bool:
    """What a member or a launcher said has led to an answer at most."""
    if isinstance(event, Supervised):
        return not effects
    return isinstance(event, Said) and all(
        isinstance(effect, Send) and isinstance(effect.message, HeartbeatAck) for effect in effects
    )


__all__ = ["JobState", "Peer", "Roster"]
