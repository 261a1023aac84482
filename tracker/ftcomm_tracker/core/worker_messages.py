"""Hearing: what members say, what they see of each other, and what their silence says."""

from dataclasses import replace

from ftcomm.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    LogLimitError,
    StateChangedError,
)
from ftcomm.protocol.messages import (
    Blocked,
    Calls,
    Closed,
    FatalReport,
    Fetched,
    Heartbeat,
    HeartbeatAck,
    Leave,
    Leaves,
    Mismatch,
    Report,
    Resumed,
    Suspect,
    WorkerMessage,
)
from ftcomm.protocol.position import MAX_SEQNO, PRELUDE, Position
from ftcomm.protocol.signature import agree, is_open
from ftcomm_tracker.core.admission import Admission
from ftcomm_tracker.core.group_state import SMALL_GROUP, JobState, Peer
from ftcomm_tracker.core.mismatch_inquiry import Evidence, Side
from ftcomm_tracker.core.recovery_record import Loss
from ftcomm_tracker.core.reporting.lost_hosts import host_text
from ftcomm_tracker.core.silent_links import CLOSED, RankProgress, starving_pairs

# What one rank may find that ends the job for all. All ranks reach the log's limit at one position;
# but one that is still before it could not get there without the one that has left.
FATAL_REPORTS = frozenset(
    kind.__name__
    for kind in (CollectiveMismatchError, CollectiveTimeoutError, LogLimitError, StateChangedError)
)

# Between two looks at all who are blocked: 0.2 s with 2,000, of which looking takes a hundredth.
LOOK_S_PER_MEMBER = 1e-4


class WorkerMessages(Admission):
    """Reports, suspicions, mismatches, losses; any message is a sign of activity."""

    def on_said(self, peer: Peer, message: WorkerMessage) -> None:
        """Dispatch a worker's message; any message is a sign of activity."""
        self._refresh([peer])
        rank = self._rank_of_conn(peer.conn)
        match message:
            case Heartbeat():
                self.on_heartbeat(peer, rank, message)
            case Report() if rank is not None:
                self.on_report(peer, rank, message)
            case Suspect() if rank is not None:
                self.on_suspect(rank, message)
            case Mismatch() if rank is not None:
                self.on_mismatch(rank, message)
            case Fetched(epoch) if rank is not None:
                peer.fetched = epoch
                self.on_fetched(rank, epoch)
            case Resumed() if rank is not None:
                self.on_resumed(rank, message)
            case Closed(version) if rank is not None:
                self._on_closed(rank, version)
            case Calls() | Leaves() if rank is not None:
                self.on_answer(rank, message)
            case FatalReport() if rank is not None:
                self.on_fatal_report(peer, rank, message)
            case Leave(reason):
                self._drop(peer.conn, reason)
                words = f"worker {peer.hello.worker_id} left: {reason}"
                self._after_loss(rank, words, loss=Loss.LEFT)
            case _:
                pass  # a spare has nothing to say, and a second Hello says nothing new

    def on_heartbeat(self, peer: Peer, rank: int | None, beat: Heartbeat) -> None:
        """Answer; look whether those who are blocked disagree, or all wait on a silent link."""
        if peer.heartbeat is None or beat.position != peer.heartbeat.position:
            peer.stands_since = self._now
        peer.heartbeat = beat
        peer.position = max(peer.position, beat.position)
        self._send(peer.conn, HeartbeatAck(beat.number))
        if rank is not None:
            self._heard_version(beat.position.version)
        if beat.blocked is not None:
            self._long_blocked |= self._is_long_blocked(beat, self.settings.detect_within)
            self._look_at_blocked()

    def _look_at_blocked(self) -> None:
        """At once in a small group, at most so often in a large one: to look costs all members.

        When many wait for one, all their heartbeats say so.
        """
        if len(self.slots) > SMALL_GROUP:
            due = self._blocked_at + len(self.slots) * LOOK_S_PER_MEMBER
            if self._now < due:
                self._blocked_due = due
                return
            self._blocked_at = self._now
        self._blocked_due = float("inf")  # also if the group has become small since it was set
        self._compare_blocked()
        if self.state is JobState.RUNNING and self._long_blocked:
            self._look_for_silent_links()
        self._long_blocked = False

    def _compare_blocked(self) -> None:
        if self.state is not JobState.RUNNING:
            return
        blocked = self._blocked_ranks()
        sides = [
            (rank, beat.position, beat.blocked)
            for rank, beat in blocked.items()
            if beat.blocked is not None
        ]
        firsts: dict[Position, tuple[int, Blocked]] = {}
        for rank, position, theirs in sides:
            other, first = firsts.setdefault(position, (rank, theirs))
            if is_open(first.signature):  # which tells less of what the others must have called
                firsts[position] = rank, theirs
            if not agree(theirs.signature, first.signature):
                calls = (
                    Side(other, position, first.signature, first.site),
                    Side(rank, position, theirs.signature, theirs.site),
                )
                self._inquire(Evidence(position, calls))
                return

    def _look_for_silent_links(self) -> None:
        """Somebody has waited long without a byte: find the links, if links it is (rule R12)."""
        if not starving_pairs(self._stands(self.settings.detect_within)):
            return
        # One failure is seldom alone: what has lasted for half as long by now is of the same cut,
        # or of another one that came with it. Each that is left for later costs an epoch more.
        pairs = starving_pairs(self._stands(self.settings.detect_within / 2))
        named = ", ".join(f"{one} and {other}" for one, other in pairs)
        reason = f"silent link: ranks {named} wait, and nothing comes between them"
        for one, other in pairs:
            self._note_failed_pair(one, other, "no byte comes, though one has sent")
        self._suspicion(reason, tuple(sorted({rank for pair in pairs for rank in pair})))

    def _stands(self, limit_s: float) -> dict[int, RankProgress]:
        """Where those stand that have stood there for `limit_s` seconds, by rank."""
        stands = {}
        for rank, conn in self.slots.items():
            stand = self._stand(self.peers[conn], limit_s)
            if stand is not None:
                stands[rank] = stand
        # Who has closed and is gone has sent all that it owed; what was on the way may be lost.
        stands.update(
            {rank: CLOSED for rank in self.durable.closed_ranks if rank not in self.slots}
        )
        return stands

    def _is_long_blocked(self, beat: Heartbeat, limit_s: float) -> bool:
        return beat.blocked is not None and beat.blocked.blocked_ms >= limit_s * 1000

    def _stand(self, peer: Peer, limit_s: float) -> RankProgress | None:
        """Where a member has stood for `limit_s`; None if it moves, or is not in the plan."""
        beat = peer.heartbeat
        if beat is None or beat.epoch != self.epoch:
            return None
        if beat.blocked is not None and self._is_long_blocked(beat, limit_s):
            return RankProgress(beat.position, beat.blocked.step, beat.blocked.peers)
        if self._now >= peer.stands_since + limit_s:
            return RankProgress(beat.position)
        return None

    def _blocked_ranks(self) -> dict[int, Heartbeat]:
        beats = {}
        for rank, conn in sorted(self.slots.items()):
            beat = self.peers[conn].heartbeat
            if beat is not None and beat.blocked is not None and beat.epoch == self.epoch:
                beats[rank] = beat
        return beats

    def on_report(self, peer: Peer, rank: int, report: Report) -> None:
        """Only a report of the epoch being collected counts; an older one is dropped (R1)."""
        if self.state is not JobState.COLLECTING or report.epoch != self.durable.epoch:
            return
        if not _is_possible(report):
            self._drop(peer.conn, "it reported what cannot be")
            self._after_loss(rank, f"worker {peer.hello.worker_id} sent an impossible report")
            return
        peer.position = max(peer.position, report.position)
        self._heard_version(max(report.position.version, report.committed))
        self.reports[rank] = report
        if self.incident is not None:
            self.incident.note_report(peer.hello.worker_id, self._now)
        self._try_plan()

    def on_suspect(self, rank: int, message: Suspect) -> None:
        """A data link broke: the next epoch at once, unless this one is already stopping."""
        if self.state is JobState.REATTACHING:
            peer = self.peers[self.slots[rank]]
            peer.hello = replace(peer.hello, suspects=message.ranks)
        if self.state is not JobState.RUNNING or message.epoch != self.epoch:
            return
        for other in message.ranks:
            self._note_failed_pair(rank, other, message.reason)
        names = ", ".join(str(other) for other in message.ranks if other != rank)
        lost = f"lost its link to rank {names}" if names else "needs new links"
        self._suspicion(f"rank {rank} {lost}: {message.reason}", message.ranks)

    def _suspicion(self, reason: str, ranks: tuple[int, ...]) -> None:
        """At most one epoch per `detect_within` for links alone; a later one is held back."""
        if self._now >= self._link_epoch_at + self.settings.detect_within:
            self._link_epoch(reason, ranks)
        else:
            self._link_suspicion = (reason, ranks)

    def _link_epoch(self, reason: str, ranks: tuple[int, ...]) -> None:
        if self.state is not JobState.RUNNING:
            return
        progress = self.progress()
        if self._links_fail_without_end(progress):
            self._fatal_decision("RankLostError", f"links keep failing: {reason}", progress)
            return
        self._link_epoch_at = self._now
        self._begin_epoch(reason, suspects=ranks)

    def _links_fail_without_end(self, progress: Position) -> bool:
        """True if one failure has followed the other for `replace_within`, and nothing else."""
        patience = 3 * self.settings.detect_within  # a recovery in between, and a wait for its turn
        start = self._now
        if self._links_failed is not None:
            where, since, last = self._links_failed
            if progress == where and self._now - last <= patience:
                start = since
        self._links_failed = (progress, start, self._now)
        return self._now - start >= self.settings.replace_within

    def on_mismatch(self, rank: int, seen: Mismatch) -> None:
        """The job ends: nobody's report is awaited (rule R7), only answers, for a short while."""
        if seen.epoch != self.epoch and self.state is not JobState.REATTACHING:
            return  # of an older epoch: who still sees it says so again (rule R1)
        own = Side(rank, seen.position, seen.signature, seen.site)
        peer = Side(
            seen.peer, seen.peer_position, seen.peer_signature, seen.peer_site, seen.peer == rank
        )
        version = seen.position.version + 1 if seen.states else PRELUDE
        self._inquire(Evidence(seen.position, (own, peer), version))

    def on_fatal_report(self, peer: Peer, rank: int, found: FatalReport) -> None:
        """Decide at once: the report is about a position, so it holds in any epoch."""
        if found.error not in FATAL_REPORTS:
            self._drop(peer.conn, f"it found {found.error!r:.80}, which is not a worker's to say")
            self._after_loss(rank, f"worker {peer.hello.worker_id} sent an impossible fatal report")
            return
        cause = found.cause
        if found.error == CollectiveTimeoutError.__name__:
            cause += self._who_does_not_wait(rank)
        self._fatal_decision(found.error, cause, found.position, rank)

    def _who_does_not_wait(self, finder: int) -> str:
        """For the error of a timeout: who is absent, and who computes while others wait."""
        waiting = {finder, *self._blocked_ranks(), *self.durable.closed_ranks}
        absent = [rank for rank in range(self.durable.world_size) if rank not in self.slots]
        busy = [rank for rank in sorted(self.slots) if rank not in waiting]
        text = ""
        for ranks, what in ((absent, "absent"), (busy, "there and waiting for nobody")):
            if ranks:
                text += f"; {what}: rank {', '.join(map(str, ranks))}"
        return text

    def on_fetched(self, rank: int, epoch: int) -> None:
        """When the last member has what the plan gave it, what was reported may be unpinned."""
        if self.state is JobState.RUNNING and epoch == self.epoch and rank in self.awaiting_fetch:
            self.awaiting_fetch.discard(rank)
            self._try_settle()

    def on_resumed(self, rank: int, message: Resumed) -> None:
        """A member has completed its first collective of the epoch."""
        incident = self.incident
        if incident is None or message.epoch != self.epoch or self.state is not JobState.RUNNING:
            return
        incident.resumed[rank] = message
        if len(incident.resumed) + len(self.durable.closed_ranks) < len(self.slots):
            return  # said before all are compared, which each of so many would do
        if set(self.slots) - set(self.durable.closed_ranks) <= set(incident.resumed):
            self._close_incident(completed=True)

    def on_lost(self, conn: int, reason: str) -> None:
        """A control connection ended: its place is empty, and the epoch changes at once."""
        peer = self.peers.get(conn)
        if peer is None:
            return
        rank = self._rank_of_conn(conn)
        self._forget(conn)
        self._after_loss(rank, f"lost worker {peer.hello.worker_id}: {reason}")

    def _after_loss(
        self, rank: int | None, reason: str, *, silent_s: float = 0.0, loss: Loss = Loss.DIED
    ) -> None:
        if rank is None or self.state is JobState.OVER:
            return
        self.reports.pop(rank, None)
        # its work is done: nobody waits for it or replaces it
        if rank in self.durable.closed_ranks:
            self.awaiting_fetch.discard(rank)
            if self.state is JobState.COLLECTING:
                self._try_plan()
            elif self.state is JobState.RUNNING:
                self._try_settle()
            return
        self.empty_since.setdefault(rank, self._now)
        victim = self.durable.places[rank].worker_id
        if self.state is JobState.RUNNING:
            reason = f"{reason} (rank {rank})"
            self._begin_epoch(reason, victim=victim, silent_s=silent_s, loss=loss)
        elif self.state is JobState.COLLECTING:
            if self.incident is not None:
                self.incident.note_victim(victim, self.deaths.of(victim))
            self._note(
                "info", f"epoch {self.durable.epoch}, not yet planned: {reason} (rank {rank})"
            )
            self._note_lost_host(victim)
        self._assign_spare(rank)

    def _note_lost_host(self, victim: str) -> None:
        """The last worker of a host is away too: the recovery is that of a host."""
        for host, names in self._lost_hosts()[0]:
            if victim in names:
                self._note("warning", f"{host_text(host, names)} is lost")
                if self.incident is not None:
                    self.incident.note_host(host_text(host, names))

    def on_given_up(self, worker_id: str, reason: str) -> None:
        """Nobody will start this worker again: the same error for everyone."""
        self._told(worker_id)  # none of its incarnations is left to wait for
        rank = self._rank_of(worker_id)
        if rank is None and not self.durable.places:
            rank = -1
        if rank is None or rank in self.durable.closed_ranks or self.state is JobState.OVER:
            return
        self._fatal_decision("RankLostError", reason, self.progress(), rank)

    def _evict_silent(self) -> None:
        if self._now < self._look_again_at:
            return
        detect_within = self.settings.detect_within
        for peer in list(self.peers.values()):  # a spare whose machine vanished says nothing too
            silent = self._now - peer.last_heard
            name = peer.hello.worker_id
            # Compared as `next_deadline` computes it: a difference may round the other way, and
            # then a tick at the deadline finds nothing due, again and again.
            if self._now >= peer.last_heard + detect_within:
                rank = self._rank_of_conn(peer.conn)
                self._drop(peer.conn, f"no heartbeat for {silent:.1f} s")
                words = f"no heartbeat of worker {name} for {silent:.1f} s"
                self._after_loss(rank, words, silent_s=silent)
            elif self._now >= peer.last_heard + detect_within / 2 and not peer.late:
                peer.late = True
                self._note("warning", f"worker {name} is late: no heartbeat for {silent:.1f} s")
        # Until then nobody who is heard of, or who joins, from now on can be due: with many
        # workers, to look at all of them at every heartbeat of one is most of the tracker's work.
        due = [p.last_heard + detect_within / (1 if p.late else 2) for p in self.peers.values()]
        self._look_again_at = min([self._now + detect_within / 2, *due])

    def _replace_deadline(self) -> None:
        if self.state in (JobState.OVER, JobState.REATTACHING) or not self.durable.places:
            return
        for rank, since in sorted(self.empty_since.items()):
            if self._now >= since + self.settings.replace_within:
                name = self.durable.places[rank].worker_id
                self._fatal_decision(
                    "RankLostError",
                    f"worker {name} (rank {rank}) is gone and was not replaced within "
                    f"{self.settings.replace_within:.0f} s",
                    self.progress(),
                    rank,
                )
                return


def _is_possible(report: Report) -> bool:
    """What no honest worker sends must not reach the decision, which trusts its arithmetic."""
    position = report.position
    held = sum(len(run.seqnos()) for run in report.runs)
    ends = [run.hi for run in report.runs]
    return (
        position.branch == 0
        and max([position.seqno, held, report.prelude_length, *ends]) <= MAX_SEQNO
        and all(run.lo < run.hi and run.step > 0 for run in report.runs)
        and (not position.past_load or report.committed == position.version)
    )
