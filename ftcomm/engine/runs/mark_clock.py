"""MarkClock: when rank 0 marks a checkpoint to be written to the store."""

from ftcomm.config.setting_kinds import CheckpointPeriod
from ftcomm.control.hub import Hub


class MarkClock:
    """Rank 0's clock.

    A version is due when the job's period has passed since the last one that was due, and no marked
    version is still being written: the next one is then the newest.  The first checkpoint of a
    process is due, since it does not know what was marked before.

    Args:
        hub: has the job's settings, once the tracker has sent them.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._due_at = float("-inf")
        self._due_version = 0
        self._last_due = -1

    def is_due(self, version: int, now: float, *, is_idle: bool) -> bool:
        """Tell whether `version` is to be marked, at the time `now` in seconds."""
        if version == self._last_due:  # once more: an epoch ended its exchange
            return True
        if not is_idle:
            return False
        period = CheckpointPeriod.of(self._hub.settings.checkpoint_every)
        is_due = version >= self._due_version if period.versions else now >= self._due_at
        if is_due:
            self._due_at, self._due_version = now + period.seconds, version + period.versions
            self._last_due = version
        return is_due
