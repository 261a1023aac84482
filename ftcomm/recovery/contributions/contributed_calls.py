"""ContributedCalls: calls whose ranks have different results, and how they are replayed (rule R20).

Such a call ends with an exchange of one digest for each rank, over its whole input.  The digests
are alike on all ranks.  They are the call's entry in the result log, so reports, plans, fetches and
retention treat them as any result, and every rank that has completed the call is a witness of what
all others gave to it.

A rank below the frontier fetches the digests as a result.  It makes its input again, which must
have the digest that the others know, and logs it.  Then it asks each other rank for the part that
is meant for it, and combines the parts in the schedule's order.  A rank that was restarted itself
answers once it has come as far.
"""

import enum
from typing import Any, assert_never

from ftcomm.protocol.position import Position
from ftcomm.recovery.archive.archive import Archive, Contribution
from ftcomm.recovery.call_progress import CallProgress
from ftcomm.recovery.contributions.peer_parts import PeerParts
from ftcomm.recovery.epoch_view import EpochView
from ftcomm.recovery.events import (
    Effect,
    FatalFound,
    FetchParts,
    LinkDown,
    PartFetched,
    PartLost,
    PartsWanted,
    Wake,
)
from ftcomm.recovery.states import Completion
from ftcomm.recovery.tracker_contact import TrackerContact

DIGEST_BYTES = 16  # of each rank's input, one behind the other in an entry's `digests`


class Offer(enum.Enum):
    """Answers to a rank that asks for a part, where there is none to send."""

    NOT_YET = "this rank has not made that call yet"
    GONE = "this rank has passed that call, and holds nothing of it"


class ContributedCalls:
    """Contributions of one worker. All methods are for the holder of the machine's lock.

    The user's thread asks `contribute`, then executes the call or asks `parts`.  The control thread
    asks `offer` for others.
    """

    def __init__(
        self, view: EpochView, contact: TrackerContact, progress: CallProgress, archive: Archive
    ) -> None:
        self._view = view
        self._contact = contact
        self._progress = progress
        self._log, self._archive = archive.results, archive
        self._parts = PeerParts()
        self._waits_since: tuple[Position, float] | None = None  # for parts of that call

    # --- this rank's input ----------------------------------------------------------------------

    def contribute(self, contribution: Contribution) -> bool:
        """Log this rank's input to the call at its position; say this before anything is sent.

        Returns:
            False if others have completed the call with another input of this rank, which an
            earlier process of it gave. Nothing was logged.
        """
        position = self._progress.position
        entry = self._log.get(position)
        if entry is not None:
            at = DIGEST_BYTES * self._view.rank
            if entry.value.digests[at : at + DIGEST_BYTES] != contribution.digest:
                return False
        self._archive.inputs.put(position, self._view.rank, contribution)
        return True

    def differs(self) -> FatalFound:
        """The error for a call to which this rank gives another input than before its restart."""
        call, position = self._progress.call, self._progress.position
        entry = self._log.get(position)
        elsewhere = f", which others made at {entry.site}" if entry and entry.site else ""
        cause = (
            f"rank {self._view.rank} gave other bytes to the call at {call.site} than before its"
            f" restart (position {position}{elsewhere}): make the script compute the same again,"
            " or use log='copies'"
        )
        return FatalFound("JobLostError", cause, position)

    # --- parts of others ------------------------------------------------------------------------

    def handle(
        self, event: PartsWanted | PartFetched | PartLost, now: float
    ) -> list[Effect] | FatalFound | LinkDown:
        """Ask for parts, take one, or do without one that does not come.

        Returns:
            what the driver must do, or what this rank has found.
        """
        match event:
            case PartsWanted():
                return self._ask(now)
            case PartFetched():
                return [Wake()] if self._take(event) else []
            case PartLost(epoch, _, rank, cause):
                if not self._awaits(event):
                    return []
                return self._gone(event) or LinkDown(epoch, rank, cause)
            case _:
                assert_never(event)

    @property
    def _others(self) -> frozenset[int]:
        return frozenset(member.rank for member in self._view.members) - {self._view.rank}

    def _ask(self, now: float) -> list[Effect]:
        """Ask for the parts of the call at this rank's position that are not on their way yet."""
        view, position = self._view, self._progress.position
        if self._waits_since is None or self._waits_since[0] != position:
            self._waits_since = (position, now)
        if not view.is_live:
            return []
        present = frozenset(member.rank for member in view.members if member.present)
        ranks = self._parts.ask(view.epoch, position, self._others & present)
        return [FetchParts(view.epoch, position, ranks)] if ranks else []

    def lost_input(self, now: float) -> FatalFound | None:
        """The error for a call to which a rank gave a part that has closed and stays away.

        One that has only lost its connection comes back with a new plan, so it is awaited from when
        it is away. Nobody makes the calls of a closed rank again.
        """
        position, since, view = self._progress.position, self._waits_since, self._view
        if since is None or since[0] != position:
            return None
        latest = now - self._contact.limits.reattach_within
        overdue = [r for r, away in view.absent_since.items() if max(away, since[1]) <= latest]
        if not overdue:
            return None
        gone = [view.members[rank] for rank in overdue]
        names = ", ".join(f"{member.rank} (worker {member.worker_id})" for member in gone)
        cause = f"rank {names} has closed and is gone, and with it its input to call {position}"
        return FatalFound("JobLostError", cause, position)

    def _take(self, fetched: PartFetched) -> bool:
        """Hold a part; False if it is of an older epoch or another call."""
        view = self._view
        is_current = fetched.epoch == view.epoch and view.is_live
        if not is_current or not self._parts.awaits(fetched.epoch, fetched.position, fetched.rank):
            return False
        self._parts.put(fetched.rank, fetched.value)
        return True

    def _awaits(self, lost: PartLost) -> bool:
        """Tell whether the part that did not come is awaited."""
        return self._parts.awaits(lost.epoch, lost.position, lost.rank)

    def _gone(self, lost: PartLost) -> FatalFound | None:
        """The error for an awaited part that its rank holds no more."""
        if not lost.is_gone:
            return None
        cause = f"rank {lost.rank} has no part of call {lost.position} to give: {lost.cause}"
        return FatalFound("JobLostError", cause, lost.position)

    def parts(self) -> dict[int, Any] | None:
        """The parts of all other ranks by rank, None while some are missing."""
        return self._parts.of(self._view.epoch, self._progress.position, self._others)

    def replay(self, *, now: float) -> Completion:
        """Complete the call that was made of `parts`, unless the epoch in which they came is over.

        Like `CallProgress.replay`, it proves nothing.
        """
        return Completion.REVOKED if self.parts() is None else self._progress.replay(now=now)

    # --- for others -----------------------------------------------------------------------------

    def offer(self, position: Position) -> Contribution | Offer:
        """Offer the contribution to the call at `position`, for a rank that replays it."""
        contribution = self._archive.inputs.get(position, self._view.rank)
        if contribution is not None:
            return contribution
        return Offer.GONE if self._progress.position > position else Offer.NOT_YET
