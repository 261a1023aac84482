"""EpochView: the epoch as the tracker last described it, and whether this rank may act in it.

A Revoke, a Plan and the end of the fetches that a plan orders change it.  So do a lost link and an
error that this rank has found: each of them freezes the rank until the tracker has decided.
"""

from ftcomm import errors
from ftcomm.protocol.host_groups import Grouping
from ftcomm.protocol.messages import FatalReport, Member, Mismatch, Plan, Route
from ftcomm.protocol.position import START
from ftcomm.recovery.archive.placement import keep_order
from ftcomm.recovery.states import WORKER_STATES, WorkerState

NOBODY: frozenset[int] = frozenset()
COPIES = -1  # not one rank: whom to ask for copies follows from what was fetched before
OF_COPIES = frozenset((COPIES,))


class EpochView:
    """State, epoch and plan of one worker. All methods are for the holder of the machine's lock."""

    def __init__(self) -> None:
        self.state = WorkerState.DETACHED  # of the machine; changed by `enter` alone
        # The error that ended this communicator, in state FAILED alone.
        self.error: errors.FtcommError | None = None
        self.epoch = 0  # of the plan in force, 0 before the first
        self.revoke_epoch = 0  # the newest epoch that was announced
        # The newest epoch in which this rank has had everything that its plan gave it.
        self.caught_up = 0
        self.rank = -1  # of this worker, -1 before the first plan
        self.members: tuple[Member, ...] = ()  # of the epoch, by rank
        # By rank, since when each absent one is away: the first plan that says so came.
        self.absent_since: dict[int, float] = {}
        self.grouping: Grouping = ()  # which ranks shared a host when the group formed
        self.keep_order: tuple[int, ...] = ()  # of the replica holders; follows from the grouping
        self.routes: tuple[Route, ...] = ()  # pairs of ranks whose bytes a third rank passes on
        self.frontier = START  # the first position that no living member has completed
        self.suspects: tuple[int, ...] = ()  # ranks to which a link of this epoch broke, in order
        # The mismatch or fatal error that this rank has reported.
        self.accusation: Mismatch | FatalReport | None = None
        self.fetched = 0  # results fetched in the present epoch
        # Ranks that have not sent everything yet that the plan orders from them; `OF_COPIES` behind
        # that, while copies of results are fetched.
        self.pending_fetches: frozenset[int] = frozenset()
        self.marks = False  # the checkpoint of the frontier is to be written to the store

    @property
    def is_live(self) -> bool:
        """True while a plan is in force: its epoch is neither revoked nor over."""
        return self.state in (WorkerState.RUNNING, WorkerState.CATCHING_UP)

    @property
    def is_over(self) -> bool:
        """True if no event changes anything any more."""
        return self.state in (WorkerState.FAILED, WorkerState.FINISHED)

    @property
    def is_frozen(self) -> bool:
        """True while the position may not move and nothing may be executed."""
        return (
            self.state in (WorkerState.DETACHED, WorkerState.STOPPED)
            or bool(self.suspects)
            or self.accusation is not None
        )

    def is_catching_up(self, epoch: int) -> bool:
        """Tell whether data fetched for the plan of `epoch` is still awaited (rule R1)."""
        return epoch == self.epoch and self.state is WorkerState.CATCHING_UP

    @property
    def known_version(self) -> int | None:
        """The version that `load_checkpoint` would give now, None if that is not known yet."""
        return self.frontier.version if self.frontier.past_load else None

    def allows_completion(self, epoch: int) -> bool:
        """Tell whether a call executed in `epoch` may be completed: the epoch has not ended."""
        if epoch != self.epoch or not self.is_live:
            return False
        return not self.suspects and self.accusation is None

    def enter(self, cause: str, state: WorkerState) -> None:
        """Change to `state`, along an edge of `WORKER_STATES`."""
        self.state = WORKER_STATES.take(self.state, cause, state)

    def fail(self, cause: str, error: errors.FtcommError) -> None:
        """End in `error`, which every later call raises."""
        self.enter(cause, WorkerState.FAILED)
        self.error = error

    def revoke(self, epoch: int) -> None:
        """Stop: `epoch` is announced. A mismatch is looked for again in it, an error is not."""
        self.revoke_epoch = epoch
        self.enter("Revoke", WorkerState.STOPPED)
        self.pending_fetches = frozenset()
        if isinstance(self.accusation, Mismatch):
            self.accusation = None

    def take_plan(self, plan: Plan, *, now: float) -> None:
        """Put `plan` in force; `start_fetches` then says how this rank goes on."""
        known, absent = self.absent_since, [m.rank for m in plan.members if not m.present]
        self.absent_since = {rank: known.get(rank, now) for rank in absent}
        self.epoch = plan.epoch
        self.rank = plan.rank
        self.members = plan.members
        self.routes = plan.routes
        self.frontier = plan.frontier
        self.marks = plan.mark
        self.suspects = ()
        self.fetched = 0
        self.grouping = plan.grouping
        self.keep_order = keep_order(plan.grouping)

    def start_fetches(self, sources: frozenset[int]) -> None:
        """Fetch from the ranks `sources`, or run at once if there are none."""
        if sources:
            self.enter("Plan with fetches", WorkerState.CATCHING_UP)
            self.pending_fetches = sources
        else:
            self.enter("Plan", WorkerState.RUNNING)
            self.caught_up = self.epoch

    def end_fetch(self, source: int, more: frozenset[int] = NOBODY) -> bool:
        """Note that rank `source` has sent everything; True if it was the last one.

        If it was the last one, `more` follows.
        """
        self.pending_fetches -= {source}
        self.pending_fetches = self.pending_fetches or more
        if self.pending_fetches:
            return False
        self.enter("last fetch ended", WorkerState.RUNNING)
        self.caught_up = self.epoch
        return True

    def suspect(self, epoch: int, rank: int) -> bool:
        """Note that a link of `epoch` to `rank` broke; False if that is stale or known."""
        if epoch != self.epoch or not self.is_live or rank in self.suspects:
            return False
        self.suspects = tuple(sorted({*self.suspects, rank}))
        return True

    def relay_to(self, rank: int) -> int | None:
        """The rank that passes bytes on between this one and `rank`; None for a direct link."""
        return self._relay_between(self.rank, rank)

    def relays_between(self, one: int, other: int) -> bool:
        """True if the plan has this rank pass bytes on between the two."""
        return self._relay_between(one, other) == self.rank

    def _relay_between(self, one: int, other: int) -> int | None:
        pair = (min(one, other), max(one, other))
        return next((route.via for route in self.routes if (route.a, route.b) == pair), None)

    def check_invariants(self) -> None:
        """Assert what always holds, whatever the tracker or peers send."""
        assert self.epoch <= self.revoke_epoch, "a plan without its Revoke"
        assert self.caught_up <= self.epoch
        assert (self.state is WorkerState.FAILED) == (self.error is not None)
        assert self.state is not WorkerState.RUNNING or not self.pending_fetches
