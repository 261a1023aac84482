"""Epochs: announce the next one, collect reports, decide, and end the job (rules R1, R8, R13)."""

from dataclasses import replace

from ftcomm.errors import CollectiveMismatchError, JobLostError
from ftcomm.protocol.messages import (
    AllClosed,
    AskCalls,
    Calls,
    FatalDecision,
    Leaves,
    Refused,
    Revoke,
    Settled,
)
from ftcomm.protocol.position import Position
from ftcomm_tracker.core.events import (
    IncidentClosed,
    JobEnded,
)
from ftcomm_tracker.core.group_state import JobState
from ftcomm_tracker.core.mismatch_inquiry import Evidence, Inquiry, ranks_to_ask
from ftcomm_tracker.core.plan import Decided, Facts, plan
from ftcomm_tracker.core.recovery_record import Loss, OpenIncident
from ftcomm_tracker.core.relay_routing import REPAIRED_AFTER, Routing
from ftcomm_tracker.core.reporting.mismatch import explain

# After the end: for workers to hang up before the tracker leaves. Who was cut off just then needs
# `detect_within` to notice and a redial to come back and hear how the job ended.
FAREWELL_S = 5.0


class Epochs(Routing):
    """The course of one epoch, and the two ways in which a job ends."""

    def _begin_epoch(
        self,
        reason: str,
        *,
        victim: str | None = None,
        suspects: tuple[int, ...] = (),
        silent_s: float = 0.0,
        loss: Loss = Loss.DIED,
    ) -> None:
        """Announce the next epoch: above all that anyone knows, journalled before it is sent."""
        if self._inquiry is not None:  # the job ends anyway: those who are there shall hear why
            self._conclude(self._inquiry)
            return
        known = [self.durable.epoch]
        known += [max(p.hello.revoke_epoch, p.hello.plan_epoch) for p in self.peers.values()]
        epoch = 1 + max(known)
        self._persist(epoch=epoch)
        self._close_incident(completed=False)
        self.state = JobState.COLLECTING
        self.reports = {}
        self.awaiting_fetch = set()
        self._link_suspicion = None
        self._grace_until, self._had_grace = float("inf"), False
        self._repaired_at = float("inf")
        if self.durable.first_nonces:  # before the first plan the group forms: nothing was broken
            self.incident = OpenIncident(
                epoch, reason, self._now, silent_s=silent_s, loss=loss, suspects=set(suspects)
            )
            if victim is not None:
                self.incident.note_victim(victim, self.deaths.of(victim))
        self._note("info", f"epoch {epoch}: {reason}")
        for conn in self.slots.values():
            self._send(conn, Revoke(epoch, reason[:500]))

    def _try_plan(self) -> None:
        """Decide once every place has reported; a closed one that has left is not awaited."""
        if self.empty_since or self.awaits_reports or self._inquiry is not None:
            return
        incident = self.incident
        if incident is not None:
            incident.decided_at = self._now
        facts = Facts(
            epoch=self.durable.epoch,
            all_replaced=self._all_replaced(),
            grouping=self.durable.grouping,
            replicas=self.settings.replicas,
            local_replicas=self.settings.local_replicas,
            highest_version=self.highest_version,
            keeps_results=self.settings.keeps_results,
        )
        lost = self._decide_routes(facts)
        if self.empty_since:  # somebody had to go
            return
        facts = replace(facts, routes=self.routes)
        decision = lost or plan(self._members(), facts, self.reports)
        if not isinstance(decision, Decided):
            if decision.error == JobLostError.__name__ and self._is_in_grace():
                return
            if decision.evidence is not None:
                self._inquire(decision.evidence)
                return
            cause = decision.cause
            if decision.error == JobLostError.__name__ and incident is not None:
                cause = incident.explain_loss(cause)
            self._fatal_decision(decision.error, cause, decision.position, decision.rank)
            return
        if not self.durable.first_nonces:
            self._persist(first_nonces=tuple(p.nonce for p in self.durable.places))
        self._heard_version(decision.frontier.version)
        if self.highest_version > self.durable.version:
            self._persist(version=self.highest_version)
        self.state = JobState.RUNNING
        self._grace_until = float("inf")
        self.epoch = self.durable.epoch
        self._repaired_at = self._now + REPAIRED_AFTER * self.settings.detect_within
        self.awaiting_fetch = {
            rank
            for rank, order in decision.plans.items()
            if order.fetches or order.load_from or order.locals
        }
        for rank, order in decision.plans.items():
            self._send(self.slots[rank], order)
        if incident is not None:
            incident.planned_at = self._now
            incident.frontier = decision.frontier
            incident.routes = self.routes
        self._note("info", f"epoch {self.epoch} runs: {decision.reason}")
        self._try_settle()

    def _is_in_grace(self) -> bool:
        """What is missing may be with a member that has closed and has only lost its connection.

        Nobody waits for such a one, except as the last resort, and as long as a restarted tracker
        waits for its workers.
        """
        names = [self.durable.places[rank].worker_id for rank in self._closed_and_away()]
        if not names or self._had_grace:
            return False
        if self._grace_until == float("inf"):
            self._grace_until = self._now + self.settings.reattach_within
            self._note(
                "warning",
                f"what is missing may be with worker {', '.join(names)}, which has closed and lost"
                f" its connection: awaited for {self.settings.reattach_within:g} s",
            )
        return True

    def _closed_and_away(self) -> list[int]:
        return sorted(set(self.durable.closed_ranks) - set(self.slots))

    def _end_grace(self) -> None:
        """It did not come back."""
        self._grace_until, self._had_grace = float("inf"), True
        self._try_plan()

    def plan_sent(self, now: float) -> None:
        """The driver has sent the plan: the record says what deciding and sending took."""
        if self.incident is not None:
            self.incident.planned_at = now

    def _all_replaced(self) -> bool:
        """A plan was journalled as sent, and nobody of those incarnations is left."""
        firsts = self.durable.first_nonces
        places = self.durable.places
        # Who has closed and gone keeps its place for ever, and nothing that it held.
        return bool(firsts) and all(firsts[r] != places[r].nonce for r in self.slots)

    def _try_settle(self) -> None:
        if not self.awaiting_fetch:
            for conn in self.slots.values():
                self._send(conn, Settled(self.epoch))

    def _close_incident(self, *, completed: bool) -> None:
        """Write the record of the recovery under way, if there is one."""
        if self.incident is None:
            return
        record = self.incident.close(self._now, completed=completed)
        self.incident = None
        self.incidents = [*self.incidents[-99:], record.to_dict()]
        self._effects.append(IncidentClosed(record))

    def _on_closed(self, rank: int, version: int) -> None:
        """A rank has closed; when all have, that is journalled before anyone is told (R8)."""
        if rank in self.durable.closed_ranks or self.state is JobState.OVER:
            return
        closed_ranks = tuple(sorted({*self.durable.closed_ranks, rank}))
        closed = f"worker {self.durable.places[rank].worker_id} has closed"
        if len(closed_ranks) < self.durable.world_size:
            self._persist(closed_ranks=closed_ranks)
            self._note("info", closed)
            return
        final = max(version, self.highest_version, 0)
        # in one: half of it would never end
        self._persist(closed_ranks=closed_ranks, final_version=final)
        self._close_incident(completed=True)
        for conn, peer in sorted(self.peers.items()):
            in_slots = self._rank_of_conn(conn) is not None
            finished = Refused("JobFinishedError", f"the job finished at version {final}", final)
            self._send(conn, AllClosed(final) if in_slots else finished)
            self._told(peer.hello.worker_id)
        self._note("info", closed)
        self._note("info", f"all ranks have closed at version {final}")
        self._over(self._now + FAREWELL_S + self.settings.detect_within)

    def _fatal_decision(self, error: str, cause: str, position: Position, rank: int = -1) -> None:
        """Terminal: journalled, then said to all; the first fatal decision sticks."""
        if self.state is JobState.OVER:
            return
        fatal_decision = FatalDecision(error, cause[:4000], self.durable.epoch, position, rank)
        self._persist(fatal_decision=fatal_decision)
        self._close_incident(completed=False)
        for conn, peer in sorted(self.peers.items()):
            self._send(conn, fatal_decision)
            self._told(peer.hello.worker_id)
        self._note("error", f"{error}: {cause}")
        self._over(self._now + FAREWELL_S + self.settings.detect_within)

    # --- mismatches -----------------------------------------------------------------------------

    def _inquire(self, evidence: Evidence) -> None:
        """The job is going to end by a mismatch: ask what the ranks have called, to name it."""
        if self._inquiry is not None or self.state is JobState.OVER:
            return
        asked = ranks_to_ask(evidence, sorted(self.slots))
        self._inquiry = Inquiry(evidence, frozenset(asked), self._now)
        for rank in asked:
            self._send(self.slots[rank], AskCalls(evidence.version))

    def on_answer(self, rank: int, answer: Calls | Leaves) -> None:
        """A rank has said what it has called, or what is in its state."""
        inquiry = self._inquiry
        if inquiry is None or self.state is JobState.OVER or rank not in inquiry.asked:
            return
        if isinstance(answer, Calls):
            inquiry.calls.setdefault(rank, answer)
        elif answer.version == inquiry.evidence.version:
            inquiry.leaves.setdefault(rank, answer)

    def _conclude(self, inquiry: Inquiry) -> None:
        """The fatal decision, with the answers that are there."""
        found = explain(inquiry.evidence, inquiry.calls, inquiry.leaves, self._restarted())
        self._fatal_decision(
            CollectiveMismatchError.__name__, found.cause, found.position, found.rank
        )

    def _restarted(self) -> dict[int, str]:
        """Ranks whose process is not the one of the first plan, with their workers' names."""
        firsts = self.durable.first_nonces
        return {
            rank: place.worker_id
            for rank, place in enumerate(self.durable.places)
            if firsts and firsts[rank] != place.nonce
        }

    def _end(self) -> None:
        self._ended = True
        fatal_decision = self.durable.fatal_decision
        if fatal_decision is None:
            self._effects.append(JobEnded(True))
        else:
            self._effects.append(JobEnded(False, fatal_decision.error, fatal_decision.cause))
