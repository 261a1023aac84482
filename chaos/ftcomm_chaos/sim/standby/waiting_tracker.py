"""A simulated tracker beside another one: it waits, looks at the store, and leads when it may."""

from typing import TYPE_CHECKING

from ftcomm.durable.records import EpochRecord
from ftcomm.errors import RolledBackError
from ftcomm.protocol.position import PRELUDE
from ftcomm_chaos.sim.store import SimulatedStore
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import Overtaken, StoreSeen
from ftcomm_tracker.core.standby.watch import journalled_roster

if TYPE_CHECKING:
    from ftcomm_chaos.sim.tracker import SimulatedTracker

BEAT_EVERY_S = 3.0
SILENT_S = 9.0  # three looks without a beat


class StoreLooks:
    """The beats of one tracker, and its looks at the other's and at the chain.

    Args:
        tracker: whose they are.
        store: has the chain.
    """

    def __init__(self, tracker: "SimulatedTracker", store: SimulatedStore) -> None:
        self.tracker, self.store, self.world = tracker, store, tracker.world
        self.beat_at = float("-inf")
        self.away_until = 0.0  # requests of this tracker do not reach the store before

    @property
    def is_away(self) -> bool:
        """True while nothing of this tracker reaches the store."""
        return self.world.now < self.away_until

    @property
    def is_over(self) -> bool:
        """True if the job has failed, and goes on only if someone wants it to."""
        ended = self.store.facts().ended
        return ended is not None and ended.error != RolledBackError.__name__

    def must_wait(self, before: Durable) -> bool:
        """True if another tracker leads, or may; else this one leads from now on."""
        if not self._others_are_silent():
            return True
        chain = self.store.facts()
        if not chain.epochs or chain.ended is not None or chain.finished > PRELUDE:
            self.beat_at = self.world.now
            return False
        newest = chain.epochs[-1]
        mine = before.attempt == chain.newest_attempt and newest.epoch <= before.epoch
        # The generation that the journal's tracker has next.
        if not mine or newest.generation >= self.tracker.number + 1:
            return True
        roster = journalled_roster(before.places, newest)
        generation = self.tracker.number + 1
        record = EpochRecord(before.attempt, generation, before.epoch, roster)
        self.store.create(chain.length, record, (self.tracker.place, self.tracker.process))
        self.beat_at = self.world.now
        return False

    def _others_are_silent(self) -> bool:
        others = [each for each in self.tracker.sim.trackers if each is not self.tracker]
        beats = [each.looks.beat_at for each in others if each.looks is not None]
        return all(self.world.now >= beat + SILENT_S for beat in beats)

    def run(self, process: int) -> None:
        """Look and beat again and again, while this process of the tracker runs."""
        tracker = self.tracker
        if tracker.up and tracker.generation == process:
            self.world.after(BEAT_EVERY_S, self.run, process)
            tracker.deliver(self._look)

    def _look(self) -> None:
        tracker, chain = self.tracker, self.store.facts()
        if self.is_away:
            return
        if tracker.waits:
            if tracker.has_claimed and chain.newest_generation == tracker.has_claimed:
                self.beat_at = self.world.now
            silent = self._others_are_silent()
            tracker.hear(StoreSeen(chain, "the other tracker", silent))
            return
        if not tracker.roster.is_cut_off(self.world.now):
            self.beat_at = self.world.now
        attempt, nonce = tracker.journal.attempt, tracker.journal.attempt_nonce
        nonces = [each.nonce for each in chain.attempts if each.attempt == attempt]
        if nonces and nonces[-1] != nonce:
            tracker.hear(Overtaken("another tracker has begun the job", by_tracker=True))
            return
        if chain.newest_attempt > attempt > 0:
            tracker.hear(Overtaken("a later attempt has begun"))
        elif attempt > 0 and chain.newest_generation > tracker.number:
            tracker.hear(Overtaken("a later tracker leads", by_tracker=True))
