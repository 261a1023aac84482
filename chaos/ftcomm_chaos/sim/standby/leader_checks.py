"""Checks of two trackers with one store: one leads at a time, as the store says (rule R19)."""

from typing import TYPE_CHECKING

from ftcomm.durable.records import EndedRecord, EpochRecord
from ftcomm.protocol.messages import AllClosed, FatalDecision, Plan
from ftcomm_chaos.sim.world import Violation
from ftcomm_tracker.core.durable.attempts import PutAttempt
from ftcomm_tracker.core.events import PutFinished

if TYPE_CHECKING:
    from ftcomm_chaos.sim.simulation import Simulation
    from ftcomm_chaos.sim.store import Record
    from ftcomm_chaos.sim.tracker import SimulatedTracker

Writer = tuple[int, int]  # number of a tracker, and of its process


class LeaderChecks:
    """Trackers that have led, by the chain, and those that have sent plans and verdicts."""

    def __init__(self, sim: "Simulation") -> None:
        self.sim = sim
        self._writers: dict[tuple[int, int], Writer] = {}  # of an attempt's generations
        self._planners: dict[tuple[int, int], Writer] = {}  # of an attempt's epochs
        self._newest: dict[int, int] = {}  # generation of an attempt

    def on_record(self, record: "Record", who: Writer) -> None:
        """A record is in the chain, put by `who`."""
        if isinstance(record, PutAttempt) or (
            isinstance(record, EpochRecord)
            and record.generation > self._newest.get(record.attempt, 0)
        ):
            self.sim.leading = who[0]
        if not isinstance(record, EpochRecord):
            return
        known = self._writers.setdefault((record.attempt, record.generation), who)
        if known != who:
            raise Violation(f"{record} is of tracker {who}, its generation of {known} (R19)")
        if record.generation < self._newest.get(record.attempt, 0):
            raise Violation(f"{record} of a tracker that has lost (R19)")
        self._newest[record.attempt] = record.generation
        self.sim.counters["epoch records"] += 1

    def on_sent(self, message: object, tracker: "SimulatedTracker") -> None:
        """A tracker has sent a message: what it says is recorded."""
        assert self.sim.store is not None
        attempt, who = tracker.journal.attempt, (tracker.place, tracker.process)
        records = self.sim.store.records
        match message:
            case Plan():
                named = tuple((m.worker_id, m.nonce) for m in message.members)
                recorded = any(
                    isinstance(each, EpochRecord)
                    and (each.attempt, each.generation) == (attempt, tracker.number)
                    and each.epoch == message.epoch
                    and tuple((m.worker_id, m.nonce) for m in each.roster) == named
                    for each in records
                )
                if not recorded:
                    raise Violation(f"the plan of epoch {message.epoch} is not recorded (R19)")
                known = self._planners.setdefault((attempt, message.epoch), who)
                if known != who:
                    raise Violation(
                        f"the plan of epoch {message.epoch} is of {who} and of {known} (R19)"
                    )
            case FatalDecision():
                ends = [each for each in records if isinstance(each, EndedRecord)]
                if not any((e.error, e.cause) == (message.error, message.cause) for e in ends):
                    raise Violation(f"{message} is not recorded (R19)")
            case AllClosed():
                if not any(isinstance(each, PutFinished) for each in records):
                    raise Violation("all have closed, and the store does not say so (R19)")
            case _:
                pass
