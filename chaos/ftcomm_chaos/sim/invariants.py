"""Watches a simulated job and raises `Violation` when a rule of the design is broken."""

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ftcomm.protocol.messages import Plan, Report, Verdict
from ftcomm.protocol.position import PRELUDE, START, Position
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.machine import State
from ftcomm.recovery.replica_placement import is_keeper, keep_stride, local_owners
from ftcomm_chaos.sim.fault_plan import Kind as Fault
from ftcomm_chaos.sim.world import Violation
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.link_failures import RUNNING
from ftcomm_tracker.core.roster import State as JobState

if TYPE_CHECKING:
    from ftcomm_chaos.sim.simulation import Simulation
    from ftcomm_chaos.sim.worker.process import Life

LINK_FAULTS = frozenset(  # of one link, in one epoch
    (Fault.CUT_DATA, Fault.SILENCE, Fault.CUT_INSIDE, Fault.STALL, Fault.HALF_OPEN, Fault.ONE_WAY)
)
LOCAL_LOST = "the local state of"  # how the verdict begins
NOT_KEPT = "replay=off"  # in a verdict: no result of this job is kept


class Monitor:
    """All checkers; each says which rule it guards."""

    def __init__(self, sim: "Simulation") -> None:
        self.sim = sim
        self.next: dict[int, Position] = {}  # by life: what its script will be given next
        self.done: dict[Position, dict[int, int]] = defaultdict(dict)  # life -> epoch, or 0
        self.stable_below = START  # every member of some epoch had completed these
        self.executed: set[Position] = set()
        self.closed: set[int] = set()
        self.epochs: dict[int, tuple[Any, ...]] = {}
        self.life_epoch: dict[int, int] = {}
        self.endings: set[str] = set()
        self.given_up = False  # a member had to go, which counts as a death
        self.owners: set[bytes] = set()  # lives that have ever had a place
        self.kept_by_all: frozenset[Position] = frozenset()  # known with the first plan
        self.whole: dict[int, Position] = {}  # by life: all below this is here that all keep

    def on_point(self, life: "Life", name: str) -> None:
        """`life` is at a place where a fault may be planned: nothing to check."""

    # --- results: R1, R2, R5 ------------------------------------------------------------------

    def on_result(
        self, life: "Life", position: Position, value: tuple[float, ...], *, epoch: int | None
    ) -> None:
        """The script of `life` gets `value`, executed in `epoch` or served."""
        program = self.sim.program
        expected = program.expected(position)
        life.require(value == expected, f"result {value} of {position} should be {expected}")
        due = self.next.get(life.port, START)
        life.require(position == due, f"result of {position} delivered where {due} was due")
        self._note_done(life, position, epoch)
        self.next[life.port] = position.next()
        if program.calls[position].kind is Kind.CLOSE:
            self.closed.add(life.core.rank)
        self.check_copies()

    def _note_done(self, life: "Life", position: Position, epoch: int | None) -> None:
        if epoch is None:
            left = any(not member.present for member in life.core.members)
            served = position in self.executed or left
            life.require(served, f"{position} was served, but nobody has executed it")
        else:
            life.require(
                life.heard_after_resume, "completed after a stop, without being heard (R1)"
            )
            for port, earlier in self.done[position].items():
                other = self.sim.network.lives[port]
                again = port != life.port and earlier < epoch and other.is_member_of(epoch)
                life.require(not again, f"{position} was executed again; {other} had it (R2)")
            if self.sim.program.calls[position].kind is not Kind.BROADCAST:
                self._check_proof(life, position)
            self.executed.add(position)
        self.done[position][life.port] = epoch or 0

    def _check_proof(self, life: "Life", position: Position) -> None:
        """Executing a synchronising collective: every member has come this far (R3)."""
        for member in life.core.members:
            reached = self.next.get(member.port, START)
            life.require(
                reached >= position,
                f"executed {position} with rank {member.rank}, which is at {reached} (R3)",
            )
        self.stable_below = max(self.stable_below, position)
        self._check_let_go(life, position)

    def _check_let_go(self, life: "Life", proven: Position) -> None:
        """What all have completed has gone, but for the own share and a plan's pins (R9)."""
        core, report = life.core, life.last_report
        pinned = {
            Position(0, run.version, seqno)
            for run in (() if report is None or life.settled == core.epoch else report.runs)
            for seqno in run.seqnos()
        }
        index = core.keep_order.index(core.rank)
        stride = keep_stride(len(core.keep_order), self.sim.settings.replicas)
        extra = [
            held
            for held in core.log.positions()
            if held < proven
            and held not in pinned
            and not is_keeper(index, held.seqno, stride)
            and held not in self.kept_by_all
        ]
        life.require(not extra, f"still holds {extra}, which nobody may ask it for (R9)")

    def on_load(
        self,
        life: "Life",
        position: Position,
        version: int,
        states: tuple[int, int],
        *,
        epoch: int | None,
    ) -> None:
        """load_checkpoint returns `version` and its states, the common one and the local one."""
        program = self.sim.program
        local = program.locals.get((version if program.keeps_locals else 0, life.core.rank))
        expected = (program.states.get(version), local)
        life.require(states == expected, f"states {states} of version {version}, not {expected}")
        life.require(position.version == PRELUDE, "loaded twice")
        if epoch is not None:
            self._check_proof(life, position)
        for other in self._members(life):
            ahead = other.core.position.version
            life.require(ahead <= version, f"loaded {version}, but {other} is at {ahead} (R6)")
            ran = epoch is not None and other.core.position.past_load and other is not life
            same = (
                other.core.epoch == epoch
                and self.done.get(Position(0, 0, -1), {}).get(other.port) == epoch
            )
            life.require(not ran or same, f"load was executed again; {other} had it (R6)")
        self.done[Position(0, 0, -1)][life.port] = epoch or 0
        self.next[life.port] = Position(0, version, 0)

    def on_checkpoint(self, life: "Life", position: Position, version: int) -> None:
        """checkpoint() returns: the version cannot be lost but with all its holders (R6)."""
        due = self.next.get(life.port, START)
        life.require(position == due, f"checkpoint at {position} where {due} was due")
        for other in self._members(life):
            core = other.core
            if not core.position.past_load:
                continue
            held = core.checkpoint is not None and core.checkpoint.version >= version
            offered = core.tentative is not None and core.tentative.version == version
            life.require(held or offered, f"{version} is committed, but {other} has no copy (R6)")
        self.next[life.port] = Position(0, version, 0)
        self.stable_below = max(self.stable_below, position)

    def _members(self, life: "Life") -> list["Life"]:
        lives = [self.sim.network.lives.get(m.port) for m in life.core.members if m.present]
        return [x for x in lives if x is not None and x.is_member_of(life.core.epoch)]

    # --- epochs: R1 ---------------------------------------------------------------------------

    def on_report(self, life: "Life", report: Report) -> None:
        """A report says what is so."""
        life.require(report.position == life.core.position, f"{report} is not where it stands")
        done = [p for p, lives in self.done.items() if life.port in lives and p.seqno >= 0]
        ahead = [p for p in done if p >= report.position]
        life.require(not ahead, f"the report misses {ahead}, which the script has (R2)")

    def on_decided(self, plan: Plan) -> None:
        """A plan is sent: what has been known is in it, and the grouping is that of the first."""
        if plan.frontier < self.stable_below:
            raise Violation(
                f"epoch {plan.epoch} begins at {plan.frontier}; all had completed what is below "
                f"{self.stable_below}"
            )
        program = self.sim.program
        if program.grouping is None:
            program.begin(plan.grouping)
            self.kept_by_all = program.kept_by_all(self.sim.settings.keep_by_all)
        if plan.grouping != program.grouping:
            raise Violation(f"the grouping {program.grouping} became {plan.grouping} (R5)")

    def on_plan(self, life: "Life", plan: Plan) -> None:
        """A plan is taken: one membership per epoch, epochs grow, the position has not moved."""
        before = self.life_epoch.get(life.port, 0)
        life.require(plan.epoch > before, f"plan of epoch {plan.epoch} after {before}")
        self.life_epoch[life.port] = plan.epoch
        what = (plan.members, plan.frontier, plan.commit, plan.grouping)
        first = self.epochs.setdefault(plan.epoch, what)
        life.require(first == what, f"two plans for epoch {plan.epoch}: {first} and {what}")
        life.require(plan.members[plan.rank].port == life.port, "took another life's plan")
        report = life.last_report
        life.require(report is not None and report.epoch == plan.epoch, "a plan without a report")
        assert report is not None
        moved = life.core.position != report.position
        committed = moved and life.core.position == report.position.at_version(plan.commit)
        life.require(not moved or committed, "the position moved between report and plan")

    # --- copies: R3 ---------------------------------------------------------------------------

    def check_copies(self) -> None:
        """While nothing is being repaired, every needed result is held often enough."""
        current = self.sim.current_lives()
        if len(current) == self.sim.world_size:
            lowest = min(life.core.position for life in current)
            self.stable_below = max(self.stable_below, lowest)
        lives = self.sim.settled_lives()
        if not lives:
            return
        if self.sim.settings.keeps_results:
            self._check_results_kept(lives)
        else:
            self._check_nothing_kept(lives)
        self._check_local_copies(lives)

    def _check_results_kept(self, lives: list["Life"]) -> None:
        self.whole = {x.port: max(x.core.position, x.core.frontier) for x in lives}
        top = max(life.core.position for life in lives)
        enough = min(self.sim.settings.replicas, self.sim.world_size)
        for position, call in self.sim.program.calls.items():
            kept = position.version in (PRELUDE, top.version) and position < top
            if not kept or call.kind in (Kind.LOAD, Kind.CHECKPOINT):
                continue
            holders = [life for life in lives if life.core.log.get(position) is not None]
            past = [life for life in lives if life.core.position > position]
            due = [life for life in lives if self.whole[life.port] > position]
            # Nobody can know that it is stable before every member has completed it.
            wanted = lives[:enough] if position < self.stable_below else past
            if position in self.kept_by_all:
                wanted = due
            short = len(holders) < len(wanted)
            if short or (position >= self.stable_below and not set(past) <= set(holders)):
                raise Violation(f"{position} is held by {holders}, but due by {wanted} (R3)")

    def _check_nothing_kept(self, lives: list["Life"]) -> None:
        """Users may write to results that nobody keeps: none may be served; a close is none."""
        for life in lives:
            kept = [p for p in life.core.log.positions() if p != self.sim.program.end]
            life.require(not kept, f"keeps {kept}, and replay is off")

    def _check_local_copies(self, lives: list["Life"]) -> None:
        """Each holds its own local state and those that it keeps for others, bit by bit (R6)."""
        program = self.sim.program
        for life in lives:
            core = life.core
            version = core.position.version
            if version <= 0 or not program.keeps_locals:
                continue
            owners = local_owners(core.keep_order, core.rank, core.limits.local_replicas)
            held = {owner: core.locals.get(version, owner) for owner in (core.rank, *owners)}
            due = {owner: program.locals[version, owner] for owner in held}
            life.require(held == due, f"local states {held}, due are {due} (R6)")

    # --- ends: R7, R8, uniform errors ---------------------------------------------------------

    def on_journal(self, before: Durable, after: Durable) -> None:
        """The tracker has written its journal."""
        if after.epoch < before.epoch:
            raise Violation(f"the journalled epoch went from {before.epoch} to {after.epoch}")
        self.given_up |= any(not place.nonce for place in after.places)
        self.owners |= {place.nonce for place in after.places if place.nonce}
        if after.verdict is not None and before.verdict is None:
            self.on_verdict(after.verdict)

    def on_verdict(self, verdict: Verdict) -> None:
        """The job ends for all: only for a reason."""
        if verdict.error == "CollectiveMismatchError" and self.sim.counters["odd calls"]:
            self._check_where_calls_differ(verdict)
            return
        if verdict.error == "RankLostError" and self._are_apart(verdict):
            return
        if verdict.error == "RankLostError" and self._stayed_empty(verdict):
            return
        if verdict.error != "JobLostError":
            raise Violation(f"verdict without a reason: {verdict.error}: {verdict.cause}")
        current = self.sim.current_lives()
        holders = [life for life in current if self._could_help(life, verdict)]
        awaited = [life for life in holders if not self._is_given_up(life)]
        if awaited:
            raise Violation(f"{verdict.cause}: but {awaited} could have helped")
        if holders:
            return
        if verdict.position in self.kept_by_all and "the result of" in verdict.cause:
            forgot = [x for x in current if self.whole.get(x.port, START) > verdict.position]
            if forgot and self.sim.settings.keeps_results:
                raise Violation(f"{verdict.cause}: but {forgot} should have kept it (R15)")
        left = [life for life in current if life.port in self.whole]
        if left and self.sim.one_is_enough:
            raise Violation(f"{verdict.cause}: but any one of {left} is enough (R15)")
        if NOT_KEPT in verdict.cause and not self.sim.settings.keeps_results:
            return
        fatal = len(self.owners - {life.core.identity.nonce for life in current})
        settings = self.sim.settings
        local = verdict.cause.startswith(LOCAL_LOST)
        copies = settings.local_replicas + 1 if local else settings.replicas
        enough = min(copies, self.sim.world_size)
        if (self.sim.conditions.gentle and not self.given_up) or fatal < enough:
            raise Violation(f"lost after {fatal} separate deaths: {verdict.cause}")

    def _check_where_calls_differ(self, verdict: Verdict) -> None:
        """The decision names the odd call, wherever the ranks stand by then (R7)."""
        assert self.sim.odd_one is not None, "a call was odd"
        position = self.sim.odd_one[1]
        if verdict.position != position:
            raise Violation(
                f"the calls differ at {position} first, and the decision names"
                f" {verdict.position}: {verdict.cause}"
            )

    def _is_given_up(self, life: "Life") -> bool:
        """It has closed, and is stopped or was away for too long: that counts as a death."""
        tracker = self.sim.tracker
        connected = any(conn.life is life and conn.joined for conn in tracker.conns.values())
        patience = self.sim.settings.reattach_within
        away = not connected and self.sim.world.now >= life.lost_at + patience
        return life.core.closed and (life.paused_until is not None or away)

    def _stayed_empty(self, verdict: Verdict) -> bool:
        """The launcher was too slow, as conditions have it."""
        late = self.sim.conditions.may_stay_empty
        return late and "was not replaced within" in verdict.cause

    def _are_apart(self, verdict: Verdict) -> bool:
        """Two could not reach each other, and no relay or replacement helped or was possible (R12).

        Two alone for one reason: something stands between them, or their links broke in every
        plan. With a relay it takes both.
        """
        journal, roster = self.sim.tracker.journal, self.sim.tracker.roster
        left = set(journal.byes) - set(roster.seats)
        names = {p.worker_id for rank, p in enumerate(journal.places) if rank not in left}
        barred = sum(pair <= names for pair in self.sim.network.barriers.ever)
        reasons = barred + self._each_plan_lost_a_link()
        apart = reasons >= (1 if len(names) == 2 else 2)
        words = ("cannot reach each other", "links keep failing")
        return apart and any(word in verdict.cause for word in words)

    def _each_plan_lost_a_link(self) -> bool:
        """Single links broke so often that two alone may have failed in every plan it takes."""
        broken = sum(planned.kind in LINK_FAULTS for _, planned in self.sim.faults.fired)
        # One end is given up after so many, the job after as many more.
        return broken >= 2 * RUNNING

    @staticmethod
    def _could_help(life: "Life", verdict: Verdict) -> bool:
        core = life.core
        if verdict.cause.startswith("every member"):
            return core.caught_up > 0
        if verdict.cause.startswith("checkpoint"):
            held = [c.version for c in (core.checkpoint, core.tentative) if c is not None]
            return verdict.position.version in held
        if verdict.cause.startswith(LOCAL_LOST):
            return core.locals.get(verdict.position.version, verdict.rank) is not None
        return core.log.get(verdict.position) is not None

    def on_finished(self, life: "Life", position: Position) -> None:
        """close() returns (R8)."""
        program = self.sim.program
        life.require(position == program.end.next(), f"finished at {position}")
        everyone = set(range(self.sim.world_size))
        life.require(self.closed == everyone, f"finished, but only {self.closed} have closed (R8)")
        self.check_journalled(life)

    def check_journalled(self, life: "Life") -> None:
        """Nobody hears of the end before it is durable."""
        final = self.sim.tracker.journal.final_version
        last = max(self.sim.program.end.version, 0)
        life.require(final == last, f"finished with final version {final}, not {last} (R8)")

    def on_end(self, life: "Life", how: str) -> None:
        """The script of `life` has ended."""
        journal = self.sim.tracker.journal
        kind = how.split(":", maxsplit=1)[0]
        if kind == "finished":
            return
        if kind in ("FencedError", "EvictedError"):
            owner = any(p.nonce == life.core.identity.nonce for p in journal.places)
            life.require(not owner, "fenced, but the place is its own (R1)")
            life.require(life.core.state is State.FAILED, "fenced, but not ended")
        elif kind == "TrackerLostError":  # woke up, or found the way back, when all was over
            life.require(self.sim.tracker.ended, "lost a tracker that is there")
            self.sim.counters["never heard the end"] += 1
        elif kind == "JobFinishedError":
            over = journal.final_version >= 0 or bool(journal.byes)
            life.require(over, "told that the job has finished")
        else:
            verdict = journal.verdict
            life.require(verdict is not None, f"ends with {how}, which is no verdict")
            assert verdict is not None
            life.require(how == f"{verdict.error}: {verdict.cause}", f"ends with {how}")
            self.endings.add(how)

    def check_end(self) -> None:
        """All is over: one ending for everyone, and nothing half done."""
        journal, tracker = self.sim.tracker.journal, self.sim.tracker
        if len(self.endings) > 1:
            raise Violation(f"different endings: {self.endings}")
        if journal.verdict is None and journal.final_version < 0:
            raise Violation("everyone has ended, but the tracker knows of no end")
        if tracker.roster.state is not JobState.OVER and tracker.up:
            raise Violation("the tracker does not know that the job is over")
