"""ReplayCheck: what is replayed was a call like the one that asks for it (rule R7, in replay)."""

from collections.abc import Collection

from ftcomm.control.hub import Hub
from ftcomm.execution.data_plane import DataPlane
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import MismatchSeen


class ReplayCheck:
    """The check of one communicator; used by the user's thread alone."""

    def __init__(self, hub: Hub, plane: DataPlane) -> None:
        self._view, self._plane = hub.core.view, plane

    def matches(self, entry: LogEntry, signatures: Collection[bytes]) -> bool:
        """Tell whether the log's call has one of these signatures; if not, accuse this rank.

        An earlier incarnation of it, or the others without it, have run something else here.
        """
        if entry.signature in signatures:
            return True
        self._plane.accuse(MismatchSeen(self._view.epoch, self._view.rank, entry.signature, ""))
        return False
