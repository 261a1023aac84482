"""The ends that a simulated job may have: one decision, which all its processes hear."""

from typing import TYPE_CHECKING

from ftcomm.protocol.messages import FatalDecision
from ftcomm.recovery.machine import WorkerState
from ftcomm_chaos.sim.world import Violation
from ftcomm_tracker.core.events import PutFinished
from ftcomm_tracker.core.roster import JobState

if TYPE_CHECKING:
    from ftcomm_chaos.sim.simulation import Simulation
    from ftcomm_chaos.sim.tracker import SimulatedTracker
    from ftcomm_chaos.sim.worker.process import SimulatedProcess


class EndRules:
    """The ends of one attempt's processes.

    Args:
        sim: the job.
    """

    def __init__(self, sim: "Simulation") -> None:
        self.sim = sim
        self.endings: set[str] = set()
        self.has_waited = False  # the store did not take the end in time, and it was told

    def on_all_closed(self, tracker: "SimulatedTracker") -> None:
        """`tracker` tells that all have closed: it is recorded, or was awaited for long (R16)."""
        store, chain = self.sim.store, tracker.chain
        if store is None or store.facts().finished == tracker.journal.final_version:
            return
        until = tracker.closed_at + self.sim.settings.replace_within
        tries = chain is not None and chain.is_putting(PutFinished)
        if self.sim.standby or not tries or self.sim.world.now < until:
            raise Violation("the end is told, and the store does not say so (R16)")
        self.has_waited = True
        self.sim.counters["ends without a record"] += 1

    def check_recorded(self, process: "SimulatedProcess", last: int) -> None:
        """Nobody hears of the end at version `last` before it is recorded (R16)."""
        store = self.sim.store
        recorded = store is None or store.facts().finished == last
        process.require(
            recorded or self.has_waited, "finished, and the store does not say so (R16)"
        )

    def on_end(self, process: "SimulatedProcess", how: str) -> None:
        """The script of `process` has ended."""
        journal = self.sim.tracker.journal
        kind = how.split(":", maxsplit=1)[0]
        if kind == "finished":
            return
        if kind in ("FencedError", "EvictedError"):
            owner = any(p.nonce == process.core.contact.identity.nonce for p in journal.places)
            owner = owner and not self._was_fenced_by_the_other(process)
            process.require(not owner, "fenced, but the place is its own (R1)")
            process.require(process.core.view.state is WorkerState.FAILED, "fenced, but not ended")
        elif kind == "RolledBackError":
            process.require(self.sim.store is not None, "rolled back without a store")
        elif kind == "TrackerLostError":  # woke up, or found the way back, when all was over
            given_up = process.port in self.sim.tracker.given_up
            gone = self.sim.tracker.ended or given_up or self._is_turned_away(process)
            process.require(gone, "lost a tracker that is there")
            name = "told that the tracker ends" if given_up else "never heard the end"
            self.sim.counters[name] += 1
        elif kind == "JobFinishedError":
            # the journal that said so may be lost by now
            closed = bool(journal.closed_ranks or process.monitor.closed)
            over = self.sim.tracker.final_version >= 0 or closed
            process.require(over, "told that the job has finished")
        else:
            decision = self.sim.tracker.fatal_decision
            told = self._lost_endings | ({_words_of(decision)} if decision is not None else set())
            process.require(told != set(), f"ends with {how}, which is no verdict")
            process.require(how in told, f"ends with {how}")
            self.endings.add(how)

    @property
    def has_lost_endings(self) -> bool:
        """A process has ended by a decision that was lost with its journal."""
        return bool(self.endings & self._lost_endings)

    @property
    def _lost_endings(self) -> set[str]:
        """Decisions that were lost with their journals: those who heard them may be dead (R19)."""
        return {_words_of(decision) for decision in self.sim.tracker.lost_decisions}

    def _is_turned_away(self, process: "SimulatedProcess") -> bool:
        """Only the next attempt would take it: its worker, or the job, had closed (R16)."""
        never_had_a_plan = not process.core.view.epoch
        was_turned_away = any(process.port in each.turned_away for each in self.sim.trackers)
        return self.sim.store is not None and never_had_a_plan and was_turned_away

    def _was_fenced_by_the_other(self, process: "SimulatedProcess") -> bool:
        """A tracker that has lost, and does not know it, has taken in a later process (R19)."""
        others = self.sim.network.processes.values()
        later = any(x.worker_id == process.worker_id and x.port > process.port for x in others)
        return self.sim.standby and later

    def check(self) -> None:
        """All is over: one ending for everyone, and nothing half done."""
        journal, tracker = self.sim.tracker.journal, self.sim.tracker
        if len(self.endings - self._lost_endings) > 1:
            raise Violation(f"different endings: {self.endings}")
        was_over = tracker.fatal_decision is not None or tracker.final_version >= 0
        if tracker.has_given_up or (tracker.disk_lost and was_over):
            return  # it decides nothing; or the last member heard it, and it waits for one
        store = self.sim.store
        is_recorded = store is not None and store.facts().finished >= 0
        is_told = any(each.journal.final_version >= 0 for each in self.sim.trackers)
        if is_recorded and (tracker.ended or is_told):
            return  # a command that was given again has heard of it, or the tracker beside it has
        is_journalled = journal.fatal_decision is not None or journal.final_version >= 0
        if not is_journalled and self.has_lost_endings:
            return  # rebuilt from one that had not heard it, and died: its launcher had heard it
        if not is_journalled and tracker.fatal_decision is None:
            raise Violation("everyone has ended, but the tracker knows of no end")
        if is_journalled and tracker.roster.state is not JobState.OVER and tracker.up:
            raise Violation("the tracker does not know that the job is over")


def _words_of(decision: FatalDecision) -> str:
    return f"{decision.error}: {decision.cause}"
