"""Watches a simulated job and raises `Violation` when a rule of the design is broken."""

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ftcomm.protocol.durable.store_messages import VersionDurable
from ftcomm.protocol.messages import (
    FatalDecision,
    Plan,
    Report,
)
from ftcomm.protocol.position import PRELUDE, START, Position
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.archive.placement import is_replica_holder, keep_stride, local_owners
from ftcomm.recovery.events import PrefetchEnded
from ftcomm_chaos.sim.end_rules import EndRules
from ftcomm_chaos.sim.fault_plan import SimulatedFaultKind as Fault
from ftcomm_chaos.sim.store import Record
from ftcomm_chaos.sim.worker.copy_rules import RESULT_LOST, CopyRules
from ftcomm_chaos.sim.workload import SimulatedMessage
from ftcomm_chaos.sim.world import Violation
from ftcomm_tracker.core.durable.attempts import PutAttempt
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import PutVersion
from ftcomm_tracker.core.link_failures import RUNNING

if TYPE_CHECKING:
    from ftcomm_chaos.sim.simulation import Simulation
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

LINK_FAULTS = frozenset(  # of one link, in one epoch
    (Fault.CUT_DATA, Fault.SILENCE, Fault.CUT_INSIDE, Fault.STALL, Fault.HALF_OPEN, Fault.ONE_WAY)
)
LOCAL_LOST = "the local state of"  # how the verdict begins
ALL_DEAD = "every member that took part in the job has died"  # likewise
INPUT_LOST = "has closed and is gone"  # in a verdict: with what it gave to a contributed call


class Monitor:
    """All checkers; each says which rule it guards."""

    def __init__(self, sim: "Simulation") -> None:
        self.sim = sim
        self.next: dict[int, Position] = {}  # by incarnation: what its script will be given next
        self.done: dict[Position, dict[int, int]] = defaultdict(dict)  # incarnation -> epoch, or 0
        self.stable_below = START  # every member of some epoch had completed these
        self.executed: set[Position] = set()
        self.closed: set[int] = set()
        self.epochs: dict[int, tuple[Any, ...]] = {}
        self.process_epoch: dict[int, int] = {}
        self.ends = EndRules(sim)
        self.copies = CopyRules(sim)
        self.given_up = False  # a member had to go, which counts as a death
        self.owners: set[bytes] = set()  # incarnations that have ever had a place
        self.kept_by_all: frozenset[Position] = frozenset()  # known with the first plan
        self.resumed = False  # this attempt began from the store
        self.lost_all = False  # everything, or all workers, at one moment of this attempt
        self.whole: dict[int, Position] = {}  # by incarnation: all below this is here that all keep

    # --- the store: R16 -------------------------------------------------------------------------

    def resume(self, durable: Durable) -> None:
        """A later attempt begins: what the store has of earlier ones was executed in them."""
        program = self.sim.program
        if program.grouping is not None:
            self.kept_by_all = program.kept_by_all(self.sim.settings.by_all_limit)
        self.resumed = durable.restore > 0
        if durable.restore:
            self.executed = {p for p in program.calls if p.version == PRELUDE}

    def on_record(self, record: Record, number: int) -> None:
        """A record is in the chain, for good."""
        store = self.sim.store
        assert store is not None
        before = store.records[: number - 1]
        attempts = [each.attempt for each in before if isinstance(each, PutAttempt)]
        newest = max(attempts, default=0)
        versions = [n for n, each in enumerate(before, 1) if isinstance(each, PutVersion)]
        if isinstance(record, PutAttempt):
            whole = [n for n in versions if not store.problem(n)]
            parent = whole[-1] if whole else 0
            # The series record says already that attempt 1 has begun.
            due = (newest + 1,) if newest else (1, 2)
            if record.attempt not in due or record.parent != parent:
                raise Violation(
                    f"{record} after attempt {newest} and version record {parent} (R16)"
                )
        elif isinstance(record, PutVersion):
            if record.attempt != newest:
                raise Violation(f"{record.attempt} writes a version, {newest} has begun (R16)")
            found, program = store.read(number), self.sim.program
            locals_ = {
                rank: program.locals[found.version, rank] for rank in range(self.sim.world_size)
            }
            expected = (program.states[found.version], locals_ if program.keeps_locals else None)
            if (found.state, found.locals) != expected:
                raise Violation(f"version {found.version} has {found}, not {expected} (R16)")
            self.sim.counters["version records"] += 1

    def on_durable(self, process: "SimulatedProcess", message: VersionDurable) -> None:
        """A worker hears that a version is durable: then a record of its attempt's line says so."""
        store = self.sim.store
        assert store is not None
        named = any(
            isinstance(record, PutVersion)
            and record.version == message.version
            and record.attempt <= message.attempt
            for record in store.records
        )
        process.require(named, f"{message} without a record (R16)")

    def on_refused(self, error: str, cause: str) -> None:
        """There is no attempt to begin."""
        raise Violation(f"no attempt begins: {error}: {cause}")

    def on_point(self, process: "SimulatedProcess", name: str) -> None:
        """`process` is at a place where a fault may be planned: nothing to check."""

    # --- results: R1, R2, R5 ------------------------------------------------------------------

    def on_result(
        self,
        process: "SimulatedProcess",
        position: Position,
        value: tuple[float, ...],
        *,
        epoch: int | None,
    ) -> None:
        """The script of `process` gets `value`, executed in `epoch` or served."""
        program = self.sim.program
        if program.calls[position].is_copied:
            self.copies.check_result(process, position, value, epoch=epoch)
        else:
            expected = program.expected(position, process.core.view.rank)
            process.require(value == expected, f"result {value} of {position} should be {expected}")
        due = self.next.get(process.port, START)
        process.require(position == due, f"result of {position} delivered where {due} was due")
        self._note_done(process, position, epoch)
        self.next[process.port] = position.next()
        if program.calls[position].kind is Kind.CLOSE:
            self.closed.add(process.core.view.rank)
        self.check_copies()

    def on_message(
        self, process: "SimulatedProcess", message: SimulatedMessage, content: object
    ) -> None:
        """The script of `process` takes the next message of a stream (R21)."""
        process.require(content == message.content, f"got {content!r}, due was {message.content!r}")

    def _note_done(
        self, process: "SimulatedProcess", position: Position, epoch: int | None
    ) -> None:
        if epoch is None:
            left = any(not member.present for member in process.core.view.members)
            served = position in self.executed or left
            process.require(served, f"{position} was served, but no rank has executed it")
        else:
            process.require(
                process.heard_after_resume, "completed after a stop, without being heard (R1)"
            )
            for port, earlier in self.done[position].items():
                other = self.sim.network.processes[port]
                again = port != process.port and earlier < epoch and other.is_member_of(epoch)
                process.require(not again, f"{position} was executed again; {other} had it (R2)")
            if self.sim.program.calls[position].kind is not Kind.BROADCAST:
                self._check_proof(process, position)
            self.executed.add(position)
        self.done[position][process.port] = epoch or 0

    def _check_proof(self, process: "SimulatedProcess", position: Position) -> None:
        """Executing a synchronising collective: every member has come this far (R3)."""
        for member in process.core.view.members:
            reached = self.next.get(member.port, START)
            process.require(
                reached >= position,
                f"executed {position} with rank {member.rank}, which is at {reached} (R3)",
            )
        self.stable_below = max(self.stable_below, position)
        self._check_released(process, position)

    def _check_released(self, process: "SimulatedProcess", proven: Position) -> None:
        """Check that results completed by all are released, except own shares and pins (R9)."""
        core, report = process.core, process.last_report
        pinned = {
            Position(0, run.version, seqno)
            for run in (() if report is None or process.settled == core.view.epoch else report.runs)
            for seqno in run.seqnos()
        }
        index = core.view.keep_order.index(core.view.rank)
        stride = keep_stride(len(core.view.keep_order), self.sim.settings.replicas)
        extra = [
            held
            for held in core.log.positions()
            if held < proven
            and held not in pinned
            and not is_replica_holder(index, held.seqno, stride)
            and held not in self.kept_by_all
        ]
        process.require(not extra, f"still holds {extra}, which nobody may ask it for (R9)")

    def on_load(
        self,
        process: "SimulatedProcess",
        position: Position,
        version: int,
        states: tuple[int, int],
        *,
        epoch: int | None,
    ) -> None:
        """load_checkpoint returns `version` and its states, the common one and the local one."""
        program = self.sim.program
        local = program.locals.get((version if program.keeps_locals else 0, process.core.view.rank))
        expected = (program.states.get(version), local)
        process.require(states == expected, f"states {states} of version {version}, not {expected}")
        process.require(position.version == PRELUDE, "loaded twice")
        if epoch is not None:
            self._check_proof(process, position)
        for other in self._members(process):
            ahead = other.core.progress.position.version
            process.require(ahead <= version, f"loaded {version}, but {other} is at {ahead} (R6)")
            ran = (
                epoch is not None
                and other.core.progress.position.past_load
                and other is not process
            )
            same = (
                other.core.view.epoch == epoch
                and self.done.get(Position(0, 0, -1), {}).get(other.port) == epoch
            )
            process.require(not ran or same, f"load was executed again; {other} had it (R6)")
        self.done[Position(0, 0, -1)][process.port] = epoch or 0
        self.next[process.port] = Position(0, version, 0)

    def on_checkpoint(self, process: "SimulatedProcess", position: Position, version: int) -> None:
        """checkpoint() returns: the version cannot be lost but with all its holders (R6)."""
        due = self.next.get(process.port, START)
        process.require(position == due, f"checkpoint at {position} where {due} was due")
        for other in self._members(process):
            core = other.core
            if not core.progress.position.past_load:
                continue
            held = core.archive.committed is not None and core.archive.committed.version >= version
            offered = (
                core.archive.tentative is not None and core.archive.tentative.version == version
            )
            process.require(
                held or offered, f"{version} is committed, but {other} has no copy (R6)"
            )
        self.next[process.port] = Position(0, version, 0)
        self.stable_below = max(self.stable_below, position)

    def _members(self, process: "SimulatedProcess") -> list["SimulatedProcess"]:
        processes = [
            self.sim.network.processes.get(m.port) for m in process.core.view.members if m.present
        ]
        return [x for x in processes if x is not None and x.is_member_of(process.core.view.epoch)]

    # --- spares: R17 --------------------------------------------------------------------------

    def on_prefetched(self, process: "SimulatedProcess", event: PrefetchEnded) -> None:
        """A spare has fetched a checkpoint: some member was in its version, so it is committed."""
        reached = max(x.core.progress.position.version for x in self.sim.network.processes.values())
        process.require(
            event.version <= reached, f"holds checkpoint {event.version}, not committed (R17)"
        )
        expected = self.sim.program.states.get(event.version)
        process.require(event.value == expected, f"holds {event}, not {expected} (R17)")
        self.sim.counters["prefetched"] += 1

    def _check_spare(self, process: "SimulatedProcess", report: Report) -> None:
        """A spare reports what it holds, and that the version has local states."""
        held = process.core.prefetching.held
        if process.core.view.epoch or held == PRELUDE:  # it has had a plan, or held nothing
            return
        self.sim.counters["prefetches reported"] += 1
        named = {states.version for states in report.locals}
        due = {held} if self.sim.program.keeps_locals and held > 0 else set()
        process.require(
            (report.committed, named) == (held, due), f"{report} of a spare with {held} (R17)"
        )

    # --- epochs: R1 ---------------------------------------------------------------------------

    def on_report(self, process: "SimulatedProcess", report: Report) -> None:
        """A report says what is so."""
        process.require(
            report.position == process.core.progress.position, f"{report} is not where it stands"
        )
        done = [
            p for p, processes in self.done.items() if process.port in processes and p.seqno >= 0
        ]
        self._check_spare(process, report)
        ahead = [p for p in done if p >= report.position]
        process.require(not ahead, f"the report misses {ahead}, which the script has (R2)")

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
        if not self.kept_by_all:  # the grouping may be that of another attempt's first plan
            self.kept_by_all = program.kept_by_all(self.sim.settings.by_all_limit)
        if plan.grouping != program.grouping:
            raise Violation(f"the grouping {program.grouping} became {plan.grouping} (R5)")

    def on_plan(self, process: "SimulatedProcess", plan: Plan) -> None:
        """A plan is taken: one membership per epoch, epochs grow, the position has not moved."""
        before = self.process_epoch.get(process.port, 0)
        process.require(plan.epoch > before, f"plan of epoch {plan.epoch} after {before}")
        self.process_epoch[process.port] = plan.epoch
        what = (plan.members, plan.frontier, plan.commit, plan.grouping)
        first = self.epochs.setdefault(plan.epoch, what)
        process.require(first == what, f"two plans for epoch {plan.epoch}: {first} and {what}")
        process.require(plan.members[plan.rank].port == process.port, "took another process's plan")
        report = process.last_report
        process.require(
            report is not None and report.epoch == plan.epoch, "a plan without a report"
        )
        assert report is not None
        moved = process.core.progress.position != report.position
        committed = moved and process.core.progress.position == report.position.at_version(
            plan.commit
        )
        process.require(not moved or committed, "the position moved between report and plan")

    # --- copies: R3 ---------------------------------------------------------------------------

    def check_copies(self) -> None:
        """While nothing is being repaired, every needed result is held often enough."""
        current = self.sim.current_processes()
        if len(current) == self.sim.world_size:
            lowest = min(process.core.progress.position for process in current)
            self.stable_below = max(self.stable_below, lowest)
        processes = self.sim.settled_processes()
        if not processes:
            return
        self._check_results_kept(processes)
        self._check_local_copies(processes)
        self.copies.check_held(processes, self.closed)

    def _check_results_kept(self, processes: list["SimulatedProcess"]) -> None:
        self.whole = {
            x.port: max(x.core.progress.position, x.core.view.frontier) for x in processes
        }
        top = max(process.core.progress.position for process in processes)
        enough = min(self.sim.settings.replicas, self.sim.world_size)
        for position, call in self.sim.program.calls.items():
            kept = position.version in (PRELUDE, top.version) and position < top
            if not kept or call.kind in (Kind.LOAD, Kind.CHECKPOINT):
                continue
            holders = [
                process for process in processes if process.core.log.get(position) is not None
            ]
            past = [process for process in processes if process.core.progress.position > position]
            due = [process for process in processes if self.whole[process.port] > position]
            # Nobody can know that it is stable before every member has completed it.
            wanted = processes[:enough] if position < self.stable_below else past
            if position in self.kept_by_all:
                wanted = due
            short = len(holders) < len(wanted)
            if short or (position >= self.stable_below and not set(past) <= set(holders)):
                raise Violation(f"{position} is held by {holders}, but due by {wanted} (R3)")

    def _check_local_copies(self, processes: list["SimulatedProcess"]) -> None:
        """Each holds its own local state and those that it keeps for others, bit by bit (R6)."""
        program = self.sim.program
        for process in processes:
            core = process.core
            version = core.progress.position.version
            if version <= 0 or not program.keeps_locals:
                continue
            owners = local_owners(
                core.view.keep_order, core.view.rank, core.contact.limits.local_replicas
            )
            held = {
                owner: core.archive.locals.get(version, owner)
                for owner in (core.view.rank, *owners)
            }
            due = {owner: program.locals[version, owner] for owner in held}
            process.require(held == due, f"local states {held}, due are {due} (R6)")

    # --- ends: R7, R8, uniform errors ---------------------------------------------------------

    def on_journal(self, before: Durable, after: Durable) -> None:
        """The tracker has written its journal."""
        if after.epoch < before.epoch and after.job_id == before.job_id:
            raise Violation(f"the journalled epoch went from {before.epoch} to {after.epoch}")
        self.given_up |= any(not place.nonce for place in after.places)
        self.owners |= {place.nonce for place in after.places if place.nonce}
        if after.fatal_decision is not None and before.fatal_decision is None:
            self.on_verdict(after.fatal_decision)

    def on_verdict(self, fatal_decision: FatalDecision) -> None:
        """The job ends for all: only for a reason."""
        if fatal_decision.error == "CollectiveMismatchError" and self.sim.counters["odd calls"]:
            self._check_where_calls_differ(fatal_decision)
            return
        if fatal_decision.error == "RankLostError" and (
            self._are_apart(fatal_decision) or self._stayed_empty(fatal_decision)
        ):
            return
        if fatal_decision.error == "RolledBackError" and self.lost_all:
            return
        if fatal_decision.error not in ("JobLostError", "RolledBackError"):
            raise Violation(
                f"verdict without a reason: {fatal_decision.error}: {fatal_decision.cause}"
            )
        if not self._is_lost_input(fatal_decision):
            self._check_that_it_is_lost(fatal_decision)

    def _check_that_it_is_lost(self, fatal_decision: FatalDecision) -> None:
        """No process has what is missing, and enough have died."""
        current = self.sim.current_processes()
        holders = [process for process in current if self._could_help(process, fatal_decision)]
        awaited = [process for process in holders if not self._is_given_up(process)]
        if awaited:
            raise Violation(f"{fatal_decision.cause}: but {awaited} could have helped")
        if holders:
            return
        is_copy = RESULT_LOST in fatal_decision.cause
        by_all = fatal_decision.position in self.kept_by_all and not is_copy
        if by_all and "the result of" in fatal_decision.cause:
            forgot = [x for x in current if self.whole.get(x.port, START) > fatal_decision.position]
            if forgot:
                raise Violation(f"{fatal_decision.cause}: but {forgot} should have kept it (R15)")
        left = [process for process in current if process.port in self.whole]
        if left and self.sim.one_is_enough:
            raise Violation(f"{fatal_decision.cause}: but any one of {left} is enough (R15)")
        fatal = len(self.owners - {process.core.contact.identity.nonce for process in current})
        settings = self.sim.settings
        # What an attempt begins from is with `replicas` members until the others have fetched it.
        local = fatal_decision.cause.startswith(LOCAL_LOST) and not self._is_restored(
            fatal_decision
        )
        copies = settings.local_replicas + 1 if local else settings.replicas
        copies += is_copy  # its owner too
        enough = min(copies, self.sim.world_size)
        if fatal < enough and self._is_beginning_forgotten(fatal_decision):
            return
        if (self.sim.conditions.gentle and not self.given_up) or fatal < enough:
            raise Violation(f"lost after {fatal} separate deaths: {fatal_decision.cause}")

    def _is_beginning_forgotten(self, fatal_decision: FatalDecision) -> bool:
        """A rebuilt tracker does not know who is there from the beginning (R19).

        It takes members without results for replacements, and those who had some have died. What
        no living member has completed is not acknowledged.
        """
        is_forgotten = self.sim.counters["journals lost"] > 0
        living = [process.port for process in self.sim.current_processes()]
        has_nothing = all(self.next.get(port, START) == START for port in living)
        return is_forgotten and has_nothing and fatal_decision.cause.startswith(ALL_DEAD)

    def _is_lost_input(self, fatal_decision: FatalDecision) -> bool:
        """A rank that has closed is gone, and with it its input (R20) and its messages (R21)."""
        call = self.sim.program.calls.get(fatal_decision.position)
        current = self.sim.current_processes()
        here = {one.core.view.rank for one in current if not self._is_given_up(one)}
        gone = self.closed - here
        is_contributed = call is not None and call.is_contributed
        could_be = is_contributed or self.sim.program.messages
        return bool(could_be) and bool(gone) and INPUT_LOST in fatal_decision.cause

    def _is_restored(self, fatal_decision: FatalDecision) -> bool:
        """The version that is needed is the one from which the attempt began."""
        store, restored = self.sim.store, self.sim.tracker.journal.restore
        return bool(restored) and (
            store is not None and store.read(restored).version == fatal_decision.position.version
        )

    def _check_where_calls_differ(self, fatal_decision: FatalDecision) -> None:
        """The decision names the odd call, wherever the ranks stand by then (R7)."""
        assert self.sim.odd_one is not None, "a call was odd"
        position = self.sim.odd_one[1]
        if fatal_decision.position != position:
            raise Violation(
                f"the calls differ at {position} first, and the decision names"
                f" {fatal_decision.position}: {fatal_decision.cause}"
            )

    def _is_given_up(self, process: "SimulatedProcess") -> bool:
        """It has closed, and is stopped or was away for too long: that counts as a death."""
        tracker = self.sim.tracker
        connected = any(conn.process is process and conn.joined for conn in tracker.conns.values())
        patience = self.sim.settings.reattach_within
        away = not connected and self.sim.world.now >= process.lost_at + patience
        return process.core.progress.closed and (process.paused_until is not None or away)

    def _stayed_empty(self, fatal_decision: FatalDecision) -> bool:
        """The launcher was too slow, as conditions have it, or two trackers stood still in turn.

        Or a process was told an end that was lost with its journal: nobody starts it again.
        """
        late = self.sim.conditions.may_stay_empty or len(self.sim.trackers) > 1
        late = late or self.ends.has_lost_endings
        return late and "was not replaced within" in fatal_decision.cause

    def _are_apart(self, fatal_decision: FatalDecision) -> bool:
        """Two could not reach each other, and no relay or replacement helped or was possible (R12).

        Two alone for one reason: something stands between them, or their links broke in every
        plan. With a relay it takes both.
        """
        journal, roster = self.sim.tracker.journal, self.sim.tracker.roster
        left = set(journal.closed_ranks) - set(roster.members.slots)
        names = {p.worker_id for rank, p in enumerate(journal.places) if rank not in left}
        barred = sum(pair <= names for pair in self.sim.network.barriers.ever)
        reasons = barred + self._each_plan_lost_a_link()
        apart = reasons >= (1 if len(names) == 2 else 2)
        words = ("cannot reach each other", "links keep failing")
        return apart and any(word in fatal_decision.cause for word in words)

    def _each_plan_lost_a_link(self) -> bool:
        """Single links broke so often that two alone may have failed in every plan it takes."""
        broken = sum(planned.kind in LINK_FAULTS for _, planned in self.sim.faults.fired)
        # One end is given up after so many, the job after as many more.
        return broken >= 2 * RUNNING

    def _could_help(self, process: "SimulatedProcess", fatal_decision: FatalDecision) -> bool:
        core = process.core
        if RESULT_LOST in fatal_decision.cause:
            return self.copies.holds_lost(process, fatal_decision)
        if fatal_decision.cause.startswith("every member"):
            return core.view.caught_up > 0
        if fatal_decision.cause.startswith("checkpoint"):
            version, held = fatal_decision.position.version, core.archive
            is_tentative = held.tentative_version == version and self._has_all_locals(version)
            return held.committed_version == version or is_tentative
        if fatal_decision.cause.startswith(LOCAL_LOST):
            return (
                core.archive.locals.get(fatal_decision.position.version, fatal_decision.rank)
                is not None
            )
        return core.log.get(fatal_decision.position) is not None

    def _has_all_locals(self, version: int) -> bool:
        """A tentative version is of use only with the local states of all ranks."""
        stores = [process.core.archive.locals for process in self.sim.current_processes()]
        return not self.sim.program.keeps_locals or all(
            any(store.get(version, rank) is not None for store in stores)
            for rank in range(self.sim.world_size)
        )

    def on_finished(self, process: "SimulatedProcess", position: Position) -> None:
        """close() returns (R8)."""
        program = self.sim.program
        process.require(position == program.end.next(), f"finished at {position}")
        everyone = set(range(self.sim.world_size))
        process.require(
            self.closed == everyone, f"finished, but only {self.closed} have closed (R8)"
        )
        self.check_journalled(process)

    def check_journalled(self, process: "SimulatedProcess") -> None:
        """Nobody hears of the end before it is durable."""
        final = self.sim.tracker.final_version  # the journal may be lost by now
        last = max(self.sim.program.end.version, 0)
        process.require(final == last, f"finished with final version {final}, not {last} (R8)")
        self.ends.check_recorded(process, last)

    def on_end(self, process: "SimulatedProcess", how: str) -> None:
        """The script of `process` has ended."""
        self.ends.on_end(process, how)

    def check_end(self) -> None:
        """All is over: one ending for everyone, and nothing half done."""
        self.ends.check()
