"""Admission: a worker says hello; is it new, back, displaced, spare, or refused? (R1, R13)."""

import re
from dataclasses import replace

from ftcomm import __version__
from ftcomm.config.plurals import counted
from ftcomm.protocol.host_groups import grouping_of
from ftcomm.protocol.messages import (
    AllClosed,
    Fenced,
    Hello,
    Refused,
    Revoke,
    Welcome,
)
from ftcomm_tracker.core.durable_state import RankOwner
from ftcomm_tracker.core.epochs import Epochs
from ftcomm_tracker.core.events import (
    Disconnect,
    Send,
)
from ftcomm_tracker.core.group_state import JobState, Peer

MAX_SPARES = 64  # connected workers without a place; more are refused
# Worker ids that a job may ever see. Each is journalled for good, so that its processes stay
# numbered; with all of them the document is a megabyte. More means ids that are made anew at every
# start.
MAX_WORKER_IDS = 10_000
# Epochs by which a worker may be ahead of the journal: a disk that lost writes loses seconds of
# them. A number far above is a broken worker's, and would use up the epochs of the job.
MAX_EPOCHS_AHEAD = 10_000


class Admission(Epochs):
    """Numbers incarnations, gives them rank slots, fences what they replace."""

    def on_joined(self, conn: int, hello: Hello) -> None:
        """Number this incarnation, or recognise it; refuse what cannot be a member."""
        if self.durable.fatal_decision is not None:  # the same words for everyone, however late
            self._told(hello.worker_id)
            self._effects += [
                Send(conn, self.durable.fatal_decision),
                Disconnect(conn, "the job is over"),
            ]
            return
        refusal = self._refusal(hello)
        if refusal is not None:
            self._refuse(conn, refusal)
            return
        if not self.durable.tables:
            self.durable = replace(self.durable, tables=hello.tables)
        self._launches.note_joined(hello.worker_id)
        rank = self._rank_of(hello.worker_id)
        if self._owns_a_place(hello):
            assert rank is not None
            self._come_back(conn, hello, rank)
        elif self._is_displaced(hello):
            self._fence(conn, hello)
        elif hello.incarnation and rank is None:
            self._come_back_as_spare(conn, hello)
        else:
            self._new_incarnation(conn, hello, rank)

    def _owns_a_place(self, hello: Hello) -> bool:
        rank = self._rank_of(hello.worker_id)
        # An empty nonce marks a place whose owner was given up: it is nobody's.
        nonce = b"" if rank is None else self.durable.places[rank].nonce
        return bool(nonce) and nonce == hello.nonce

    def _is_displaced(self, hello: Hello) -> bool:
        """A numbered process that has been a member, or that a later one of its id has followed."""
        if not hello.incarnation or self._owns_a_place(hello):
            return False
        newest = self.durable.incarnation_of(hello.worker_id)
        # the journal has lost its last write: a later incarnation wins
        if hello.incarnation > newest:
            return False
        was_member = bool(hello.plan_epoch or hello.revoke_epoch)
        return was_member or hello.incarnation < newest or self.state is JobState.OVER

    def _refusal(self, hello: Hello) -> Refused | None:
        durable = self.durable
        if durable.final_version >= 0:
            if hello.closed:
                return None
            return Refused(
                "JobFinishedError",
                f"job {durable.job_id} has finished at version {durable.final_version}",
                durable.final_version,
            )
        if hello.release != __version__:
            return Refused(
                "ProtocolVersionError",
                f"worker {hello.worker_id} is ftcomm {hello.release}, its tracker ftcomm"
                f" {__version__}",
            )
        difference = self.settings.differences(hello.asked)
        if difference:
            return Refused("ConfigError", difference)
        if durable.tables and durable.tables != hello.tables:
            return Refused(
                "ConfigError",
                "this worker chooses algorithms by another table than the job's other workers",
            )
        if max(hello.plan_epoch, hello.revoke_epoch) > durable.epoch + MAX_EPOCHS_AHEAD:
            return Refused("ProtocolError", f"worker {hello.worker_id} is in an impossible epoch")
        if hello.incarnation > self.settings.max_incarnations:
            # Taken at its word it would have used up all processes of its id, in the journal too.
            return Refused(
                "ProtocolError",
                f"worker {hello.worker_id} says that it is incarnation {hello.incarnation}, of at "
                f"most {self.settings.max_incarnations}",
            )
        numbered = durable.incarnation_of(hello.worker_id)
        if not numbered and len(durable.incarnations) >= MAX_WORKER_IDS:
            return Refused(
                "ConfigError", f"the job has seen {MAX_WORKER_IDS} worker ids, its limit"
            )
        new = not hello.incarnation and not self._owns_a_place(hello)
        if new and self._rank_of(hello.worker_id) is None and self._is_full():
            return Refused("ConfigError", "the job has all the spares it can take")
        if new and numbered >= self.settings.max_incarnations:
            return Refused(
                "RankLostError",
                f"worker {hello.worker_id} has been started {counted(numbered, 'time')},"
                " the job's limit",
            )
        return None

    def _refuse(self, conn: int, refusal: Refused) -> None:
        self._effects += [Send(conn, refusal), Disconnect(conn, refusal.reason)]
        self._note("warning", f"refused a worker: {refusal.reason}")

    def _come_back(self, conn: int, hello: Hello, rank: int) -> None:
        """The incarnation that owns the place has a new connection."""
        old = self.slots.get(rank)
        if old is not None:
            self._drop(old, "replaced by a newer connection of the same process")
        place = self.durable.places[rank]
        self._fill_slot(conn, hello, place.incarnation, rank)
        if self.durable.final_version >= 0:  # a `Closed` that is not journalled follows the welcome
            self._send(conn, AllClosed(self.durable.final_version))
            self._told(hello.worker_id)
            return
        self._after_filling_slot(conn, rank)

    def _come_back_as_spare(self, conn: int, hello: Hello) -> None:
        """A numbered incarnation that has never been a member has a new connection."""
        for old in [p.conn for p in self.peers.values() if p.hello.nonce == hello.nonce]:
            self._drop(old, "replaced by a newer connection of the same process")
        self._add_spare(conn, hello, hello.incarnation)

    def _fence(self, conn: int, hello: Hello) -> None:
        """Its place belongs to a later process or to a spare: it may not act any more (rule R1)."""
        rank = self._rank_of(hello.worker_id)
        place = None if rank is None else self.durable.places[rank]
        if place and not place.nonce and place.incarnation == hello.incarnation:
            reason = f"worker {hello.worker_id} was given up: others could not reach it"
            self._refuse(conn, Refused("EvictedError", reason))
            return
        reason = f"the place of worker {hello.worker_id}'s incarnation {hello.incarnation} is taken"
        self._effects += [Send(conn, Fenced(reason)), Disconnect(conn, "fenced")]

    def _new_incarnation(self, conn: int, hello: Hello, rank: int | None) -> None:
        if rank in self.durable.closed_ranks:
            self._refuse(
                conn,
                Refused("JobFinishedError", f"worker {hello.worker_id} has already closed"),
            )
            return
        newest = self.durable.incarnation_of(hello.worker_id)
        incarnation = hello.incarnation or newest + 1
        incarnations = self.durable.with_incarnation(hello.worker_id, incarnation)
        places = list(self.durable.places)
        if rank is not None:  # journalled before the predecessor hears that it is fenced
            places[rank] = RankOwner(hello.worker_id, incarnation, hello.nonce, hello.host)
        self._persist(incarnations=incarnations, places=tuple(places))
        again = f" as its incarnation {incarnation}" if incarnation > 1 else ""
        self._note("info", f"worker {hello.worker_id} has joined from {hello.host}{again}")
        if newest:  # else no other can be here
            self._fence_older(hello.worker_id)
        if rank is not None:
            self._take_place(conn, hello, incarnation, rank)
        else:
            self._add_spare(conn, hello, incarnation)

    def _fence_older(self, worker_id: str) -> None:
        """A later incarnation always wins over an earlier one."""
        for peer in [p for p in self.peers.values() if p.hello.worker_id == worker_id]:
            self._send(peer.conn, Fenced(f"a newer process has joined as worker {worker_id}"))
            self._drop(peer.conn, "fenced by a newer incarnation")

    def _take_place(self, conn: int, hello: Hello, incarnation: int, rank: int) -> None:
        """A new incarnation fills `rank`: its predecessor is fenced for good."""
        previous = self.durable.places[rank].worker_id
        place = RankOwner(hello.worker_id, incarnation, hello.nonce, hello.host)
        if self.durable.places[rank] != place:
            places = list(self.durable.places)
            places[rank] = place
            self._persist(places=tuple(places))
        self._untold = self._untold - {previous} | {hello.worker_id}
        self._fill_slot(conn, hello, incarnation, rank)
        self._links_failed = None  # those of another incarnation: this one's may work
        self.reports.pop(rank, None)
        if self.state is JobState.RUNNING:
            self._begin_epoch(f"worker {previous} was replaced", victim=previous)
        elif self.incident is not None:
            self.incident.note_victim(hello.worker_id)
        self._after_filling_slot(conn, rank)

    def _add_spare(self, conn: int, hello: Hello, incarnation: int) -> None:
        """No place of its own: take an empty one, help to form the group, or wait."""
        if not self.durable.places:
            self.peers[conn] = Peer(conn, hello, incarnation, self._now)
            self._welcome(conn)
            self._forming.begin(self._now)
            self._form()
            return
        empty = min(self._vacant(), default=None)
        if empty is not None and self.state in (JobState.COLLECTING, JobState.RUNNING):
            self._note("info", f"worker {hello.worker_id} takes the place of rank {empty}")
            self._take_place(conn, hello, incarnation, empty)
        else:
            self.peers[conn] = Peer(conn, hello, incarnation, self._now)
            self._welcome(conn)

    def _is_full(self) -> bool:
        return len(self.peers) >= self.durable.world_size + MAX_SPARES

    def _assign_spare(self, rank: int) -> None:
        if self.state is not JobState.COLLECTING or len(self.peers) == len(self.slots):
            return
        spare = min(p.conn for p in self.peers.values() if p.rank is None)
        peer = self.peers[spare]
        self._note("info", f"spare {peer.hello.worker_id} takes the place of rank {rank}")
        self._take_place(spare, peer.hello, peer.incarnation, rank)

    def _form(self) -> None:
        """Enough workers: ranks follow sorted worker ids, for good (rule R5)."""
        if len(self.peers) < self.durable.world_size:
            return
        chosen = sorted(
            self.peers.values(), key=lambda p: (_natural(p.hello.worker_id), p.hello.worker_id)
        )
        chosen = chosen[: self.durable.world_size]
        places = tuple(
            RankOwner(p.hello.worker_id, p.incarnation, p.hello.nonce, p.hello.host) for p in chosen
        )
        self._untold = {place.worker_id for place in places}
        self._persist(places=places, grouping=grouping_of([place.host for place in places]))
        for rank, peer in enumerate(chosen):
            self._sit(peer.conn, rank)
        self._begin_epoch("the group is complete")

    def _fill_slot(self, conn: int, hello: Hello, incarnation: int, rank: int) -> None:
        self.peers[conn] = Peer(conn, hello, incarnation, self._now)
        self._sit(conn, rank)
        self.empty_since.pop(rank, None)
        self._welcome(conn)

    def _after_filling_slot(self, conn: int, rank: int) -> None:
        self.deaths.forget(self.peers[conn].hello.worker_id)
        if self.state is JobState.COLLECTING:
            hello = self.peers[conn].hello
            if max(hello.plan_epoch, hello.revoke_epoch - 1) >= self.durable.epoch:
                # The journal has lost its last write: only a newer epoch counts for this member.
                self._begin_epoch(f"rank {rank} knows a later epoch")
            else:
                self._send(conn, Revoke(self.durable.epoch, self._reason()))
        elif self.state is JobState.REATTACHING:
            self._try_reattach()
        elif self.state is JobState.RUNNING:
            self._begin_epoch(f"rank {rank} reconnected")

    def _try_reattach(self) -> None:
        """All are back: go on as if nothing had happened, unless somebody disagrees (R13)."""
        if self.empty_since or set(self.durable.closed_ranks) - set(self.slots):
            return  # who has closed may alone hold what a new incarnation needs: it is awaited too
        hellos = [self.peers[conn].hello for conn in self.slots.values()]
        epochs = {hello.plan_epoch for hello in hellos}
        stopped = any(hello.revoke_epoch != hello.plan_epoch for hello in hellos)
        suspects = any(hello.suspects for hello in hellos)
        if len(epochs) == 1 and not stopped and not suspects and epochs != {0}:
            self._go_on_in(epochs.pop())
            return
        self._begin_epoch("workers came back to the tracker in different epochs or with suspicions")

    def _go_on_in(self, epoch: int) -> None:
        if epoch > self.durable.epoch:  # the journal has lost its last write
            self._persist(epoch=epoch)
        self.epoch = epoch
        self.state = JobState.RUNNING
        # Whether the last tracker had settled the plan is not journalled: members repeat
        # `Fetched` after the welcome, and pins go only when all have said so.
        self.awaiting_fetch = {
            rank for rank, conn in self.slots.items() if self.peers[conn].fetched != epoch
        }
        self._note("info", f"all workers are back in epoch {epoch}; nothing was lost")
        self._try_settle()

    def _welcome(self, conn: int) -> None:
        peer = self.peers[conn]
        self._send(
            conn,
            Welcome(
                job_id=self.durable.job_id,
                generation=self.generation,
                incarnation=peer.incarnation,
                world_size=self.durable.world_size,
                epoch=self.durable.epoch,
                settings=self.settings.to_wire(),
            ),
        )


def _natural(worker_id: str) -> list[tuple[int, int, str]]:
    """Sort key under which "10" follows "9"."""
    parts = re.split(r"(\d+)", worker_id)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts if p]
