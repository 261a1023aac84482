"""Exits of workers' processes, as their launchers report them: the tracker's record. Pure.

A launcher or supervisor sees how a process ended; the tracker only sees that a connection ended.
The two come in either order.
"""

from ftcomm.protocol.messages import Hello
from ftcomm_tracker.core.events import Death, Died


class WorkerExits:
    """The newest death of each worker that has no newer process."""

    def __init__(self) -> None:
        self._of: dict[str, Death] = {}

    def note(self, died: Died, host: str, connected: Hello | None) -> Death:
        """A process has ended; kept, unless a newer one is connected and this was told late."""
        death = Death(died.worker_id, died.pid, host, died.how)
        if connected is None or connected.group == died.pid:
            self._of[died.worker_id] = death
        return death

    def forget(self, worker_id: str) -> None:
        """A newer process has its worker's place."""
        self._of.pop(worker_id, None)

    def of(self, worker_id: str) -> Death | None:
        """Return the end of the worker's last process; None if one runs, or no end was reported."""
        return self._of.get(worker_id)
