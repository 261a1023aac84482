"""Permits: what a tracker beside which another may run has recorded, before it tells anybody (R19).

Of two trackers that believe that they lead one job, the store's chain knows one.  A plan goes out
only after the record of its epoch and roster, and a fatal decision only after its own record: a
tracker that was replaced meanwhile gets no record any more.
"""

from dataclasses import dataclass

from ftcomm.durable.records import EpochRecord
from ftcomm.protocol.messages import FatalDecision


@dataclass(slots=True)
class Permits:
    """Records of one tracker that are there, and those on their way.

    Attributes:
        is_on: another tracker may take over; without one nothing is recorded.
        asked: the epoch whose record is on its way.
        granted: the newest epoch whose record is there.
        end: the fatal decision that is told once its record is there.
        since: since when a record is awaited.
    """

    is_on: bool = False
    asked: EpochRecord | None = None
    granted: EpochRecord | None = None
    end: FatalDecision | None = None
    since: float = float("inf")

    def ask(self, wanted: EpochRecord, now: float) -> bool:
        """True if the record of `wanted` has to be put now; one is on its way at a time."""
        if self.asked is not None:
            return False
        self.asked = wanted
        self.since = min(self.since, now)
        return True

    def grant(self, record: EpochRecord) -> None:
        """Note that this record is in the chain."""
        self.asked, self.granted = None, record
        if self.end is None:
            self.since = float("inf")
