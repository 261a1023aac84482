"""CopiedReplay: takes this rank's result of a call that others have completed (rule R20)."""

from ftcomm.control.hub import Hub
from ftcomm.execution.data_plane import DataPlane
from ftcomm.memory.packed_result import unpack_result
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.recovery.result_log import LogEntry


class CopiedReplay:
    """Results of one communicator's calls; used by the user's thread alone."""

    def __init__(self, hub: Hub, plane: DataPlane) -> None:
        self._hub, self._plane = hub, plane

    def result(self, entry: LogEntry, place: Array | None = None) -> LoggedResult | None:
        """This rank's result, in memory of the user's; None: it has yet to come, ask the core.

        `place` is the user's own array, where the result is made in it.
        """
        with self._hub.lock:
            packed = self._hub.core.copied.own()
        if packed is None:
            self._hub.sleep()
            return None
        kept = unpack_result(packed.flat)
        flat = self._plane.lend(len(kept.flat), kept.flat.dtype) if place is None else place
        flat[:] = kept.flat
        logged = int(entry.value.flat[0])
        return LoggedResult(flat, kept.shape, logged=logged, rows=kept.rows)
