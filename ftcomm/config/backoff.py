"""Delays before something that failed is tried again; pure."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that grow with the failures in a row."""

    # The delay after the first, second, ... failure; the last one repeats.
    delays_s: tuple[float, ...]
    # The share of a delay that is left to chance, so that many do not try at once.
    jitter: float = 0.0

    def delay_s(self, failures: int, draw: float = 0.0) -> float:
        """Return the seconds to wait after `failures` failures in a row, 1 or more.

        `draw`, a random number from 0 to 1, shortens the delay within `jitter`.
        """
        longest = self.delays_s[min(failures, len(self.delays_s)) - 1]
        return longest * (1 - self.jitter * draw)


# A restarted tracker is found within about a second.
TRACKER_BACKOFF: Final = Backoff((0.05, 0.1, 0.2, 0.4, 0.8, 1.0), jitter=0.5)
# Between two workers. An honest dialler that was dropped at the limit of unauthenticated
# connections tries again before it suspects.
LINK_ATTEMPTS: Final = 4
LINK_BACKOFF: Final = Backoff((0.05, 0.1, 0.15, 0.2), jitter=0.5)
# Of a worker's process, after its deaths in one version: at once the first time.
RESTART_BACKOFF: Final = Backoff((0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0))
# Of a worker whose rank a spare has taken: its start would compete with that recovery for a core.
REFILL_DELAY_S: Final = 0.5
ACCEPT_PAUSE_S: Final = 0.1  # at the limit of open files; a worker waits for seconds
# Of one call to an object store; a service that asks for fewer requests passes in seconds.
STORE_ATTEMPTS: Final = 4
STORE_BACKOFF: Final = Backoff((0.2, 0.8, 3.0), jitter=0.5)
