"""The clock by which a tracker loses patience: it stands still while the tracker cannot hear.

A tracker that did not run (SIGSTOP, a paused machine, a slow disk) has not read what was sent to it
meanwhile.  So no deadline may pass by that time, nor before what has come is read.  All times in
the core are of this clock; the roster translates the driver's times at its entry and at its exit.
"""

import math
from typing import NewType

DriverTime = NewType("DriverTime", float)  # whether the tracker ran or not
PatienceTime = NewType("PatienceTime", float)


class PatienceClock:
    """Seconds for which the tracker could hear. It never goes back."""

    def __init__(self, real: float) -> None:
        self._skipped = 0.0  # seconds of the driver's clock that do not count
        self._told = PatienceTime(real)  # of the last event; behind a stall it stands still here

    def now(self, real: float) -> PatienceTime:
        """The time, from that of the driver's clock."""
        return max(self._told, PatienceTime(real - self._skipped))

    def advance(self, real: float) -> PatienceTime:
        """The time of an event, which is never behind that of the one before."""
        self._told = self.now(real)
        return self._told

    def skip(self, real: float, stalled_s: float, grace_s: float) -> None:
        """The tracker did not run for `stalled_s`; what was sent meanwhile is read in `grace_s`."""
        self._skipped = real + grace_s - self.advance(real - stalled_s)

    def real(self, time: float) -> DriverTime:
        """The driver's time at which `time`, which is yet to come, has come; never earlier.

        A sum and a difference round differently: a tick that finds nothing due would come again
        and again.
        """
        real = time + self._skipped
        while real - self._skipped < time:
            real = math.nextafter(real, math.inf)
        return DriverTime(real)
