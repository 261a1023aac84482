"""CopiedCalls: calls of which each rank's result is kept at other ranks (rule R20).

Each rank's result is sent to its holders, which lie behind it in the keep order as those of a local
state do.  A barrier follows, which a rank enters once it holds what it should: so it acknowledges.
Who passes the barrier knows that each result of this execution is held.

The call's entry in the result log is the digests of all results, which are alike on all ranks.
Reports, plans, fetches and retention treat it as any result.  A rank that lacks the entry fetches
it, and then what it should hold itself.  It asks one of its holders after the other for its own
result, which must have the digest.  It asks each rank of which it is a holder for that rank's
result, so that it is a holder again.  Only then has it caught up.  Inputs are not needed: a script
may compute something else after a restart.
"""

from typing import Any, assert_never

from ftcomm.protocol.link_messages import CopyName
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import is_copied, signature_text
from ftcomm.recovery.archive.archive import Archive, ResultCopy
from ftcomm.recovery.archive.placement import local_owners, local_replica_holders
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.call_progress import CallProgress
from ftcomm.recovery.contributions.contributed_calls import DIGEST_BYTES, Offer
from ftcomm.recovery.copies.asked_copies import AskedCopies
from ftcomm.recovery.epoch_view import EpochView
from ftcomm.recovery.events import (
    CopyFetched,
    CopyLost,
    Effect,
    FatalFound,
    FetchCopies,
    LinkDown,
    Wake,
)
from ftcomm.recovery.states import Completion
from ftcomm.recovery.tracker_contact import TrackerContact


class CopiedCalls:
    """Results of single ranks. All methods are for the holder of the machine's lock.

    The user's thread executes a call and says `keep`, or takes `own`.  The machine asks for what is
    missing when a plan is in force.  The control thread asks `offer` for others.
    """

    def __init__(
        self, view: EpochView, contact: TrackerContact, progress: CallProgress, archive: Archive
    ) -> None:
        self._view = view
        self._contact = contact
        self._progress = progress
        self._log, self._archive = archive.results, archive
        self._asked = AskedCopies()
        self._missed_since: tuple[CopyName, float] | None = None  # no member here has it

    # --- the user's thread ----------------------------------------------------------------------

    def keep(self, epoch: int, owner: int, digest: bytes, value: object) -> bool:
        """Hold the result of `owner` of the call at this rank's position, executed in `epoch`.

        Returns:
            False if that epoch is over; nothing is held then.
        """
        view = self._view
        if epoch != view.epoch or view.is_frozen:
            return False
        name = CopyName(self._progress.position, owner)
        self._archive.put_copy(name, ResultCopy(epoch, digest, value))
        return True

    def own(self) -> Any | None:
        """This rank's result of the call at its position, which others have completed; if here."""
        name = CopyName(self._progress.position, self._view.rank)
        copy = self._archive.copies.get(name.position, name.owner)
        return None if copy is None or name in self._archive.wanted else copy.value

    def replay(self, *, now: float) -> Completion:
        """Complete the call with `own`. Like `CallProgress.replay`, it proves nothing."""
        return Completion.REVOKED if self.own() is None else self._progress.replay(now=now)

    # --- what this rank lacks -------------------------------------------------------------------

    def expect(self, position: Position, entry: LogEntry) -> None:
        """This rank has fetched an entry: it should hold its own result, and some of others."""
        if not is_copied(entry.signature):
            return
        view = self._view
        others = local_owners(view.keep_order, view.rank, self._contact.limits.replicas)
        for owner in (view.rank, *others):
            at = DIGEST_BYTES * owner
            digest = entry.value.digests[at : at + DIGEST_BYTES]
            self._archive.expect_copy(CopyName(position, owner), digest)

    @property
    def is_lacking(self) -> bool:
        """True while this rank has not caught up: something is missing that others may have."""
        return any(self._is_awaited(name) for name in self._archive.wanted)

    def _is_awaited(self, name: CopyName) -> bool:
        """Tell whether that result keeps this rank back: its own always does."""
        return name.owner == self._view.rank or not self._is_without(name)

    def orders(self) -> list[Effect]:
        """Ask each rank that is idle for what is missing."""
        epoch = self._view.epoch
        self._asked.turn_to(epoch)
        wanted = ((name, self._sources(name)) for name in self._archive.wanted)
        orders = self._asked.ask(wanted)
        return [FetchCopies(epoch, rank, tuple(names)) for (rank, _), names in orders.items()]

    def _sources(self, name: CopyName) -> list[int]:
        """Ranks that may have a result: of this rank's own its holders, else the owner."""
        view = self._view
        ranks: tuple[int, ...] = (name.owner,)
        if name.owner == view.rank:
            replicas = self._contact.limits.replicas
            ranks = local_replica_holders(view.keep_order, view.rank, replicas)
        return [rank for rank in ranks if view.members[rank].present]

    def _is_without(self, name: CopyName) -> bool:
        """Tell whether no member here has that result, as far as they were asked."""
        return self._asked.none_left(name, self._sources(name))

    def handle(
        self, event: CopyFetched | CopyLost, now: float
    ) -> list[Effect] | FatalFound | LinkDown:
        """Take a result, or go on to the next rank that may have it.

        Returns:
            what the driver must do, or what this rank has found.
        """
        is_current = event.epoch == self._view.epoch and self._view.is_live  # rule R1
        if not is_current or not self._asked.awaits(event.epoch, event.name, event.rank):
            return []
        match event:
            case CopyFetched(_, name, rank, copy):
                fits = self._archive.fits(name, copy)  # else it is of another execution
                if fits:
                    self._archive.put_copy(name, copy)
                is_due = self._asked.answered(name, rank, has_it=fits)
            case CopyLost(epoch, name, rank, cause, is_gone):
                if not is_gone:
                    return LinkDown(epoch, rank, cause)
                is_due = self._asked.answered(name, rank, has_it=False)
            case _:
                assert_never(event)
        if not is_due:  # what is missing is looked through for each request, not for each name
            return [Wake()]
        return self.lost_result(now) or [*self.orders(), Wake()]

    def lost_result(self, now: float) -> FatalFound | None:
        """The error for a result of this rank that no member here has.

        One that has closed and only lost its connection comes back with a new plan.
        """
        rank, wanted = self._view.rank, self._archive.wanted
        missed = next((n for n in wanted if n.owner == rank and self._is_without(n)), None)
        if missed is None or not self._view.is_live:
            return None
        if self._missed_since is None or self._missed_since[0] != missed:
            self._missed_since = (missed, now)
        waited = now - self._missed_since[1]
        is_complete = all(member.present for member in self._view.members)
        if not is_complete and waited < self._contact.limits.reattach_within:
            return None
        entry = self._log.get(missed.position)
        what = "a call" if entry is None else signature_text(entry.signature)
        cause = (
            f"the result of rank {rank} of {what} at position {missed.position} is lost with all"
            f" ranks that held it: raise --replicas, which is {self._contact.limits.replicas}"
        )
        return FatalFound("JobLostError", cause)

    # --- for others -----------------------------------------------------------------------------

    def offer(self, name: CopyName, asker: int) -> ResultCopy | Offer:
        """Offer a result to the rank `asker`.

        A result is given to its owner alone, and by its owner to the ranks that hold it.
        """
        if name.owner not in (asker, self._view.rank):
            return Offer.GONE
        copy = self._archive.copies.get(name.position, name.owner)
        if copy is not None and name not in self._archive.wanted:
            return copy
        is_behind = self._view.rank == name.owner and self._progress.position <= name.position
        return Offer.NOT_YET if is_behind else Offer.GONE
