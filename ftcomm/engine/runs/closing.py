"""Closing: the last collective of a communicator, and serving others until all have closed."""

from ftcomm.control.hub import CompleteCall, Hub
from ftcomm.control.thread import ControlThread
from ftcomm.engine.locked_machine import LockedMachine
from ftcomm.engine.runs.cut_check import OPENING, CutCheck
from ftcomm.engine.runs.replay_check import ReplayCheck
from ftcomm.execution.data_plane import DataPlane
from ftcomm.execution.header_check import CallHeader
from ftcomm.memory.pool import EMPTY
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import OwnCloseDone
from ftcomm.recovery.machine import NextStep, WorkerState
from ftcomm.requests.request import CollectiveSpec


class Closing:
    """The close of one communicator; used by the user's thread alone."""

    def __init__(
        self,
        hub: Hub,
        control: ControlThread,
        plane: DataPlane,
        machine: LockedMachine,
        cut: CutCheck,
    ) -> None:
        self._hub, self._control, self._plane = hub, control, plane
        self._machine, self._cut = machine, cut
        self._view, self._progress = hub.core.view, hub.core.progress
        self._check = ReplayCheck(hub, plane)

    def close(self, form: CollectiveSpec) -> None:
        """Return when every rank has entered the close, and no message is on its way."""
        self._cut.begin()
        try:
            while not self._progress.closed:
                answer, turn = self._machine.ask(self._progress.begin, form.signature, form.site)
                if answer is NextStep.EXECUTE:
                    if self._is_a_cut(CallHeader(*turn, form.suffix), form.site):
                        self._machine.complete_close(turn[0], LogEntry(form.signature, EMPTY))
                elif isinstance(answer, LogEntry):
                    if self._check.matches(answer, (form.signature,)):
                        self._machine.replay_close()
                else:
                    self._hub.sleep()
        finally:
            self._cut.end()

    def _is_a_cut(self, header: CallHeader, site: str) -> bool:
        """All ranks have come, and no message is open; False: ask the core again."""
        rows = self._plane.gather(OPENING.pack(*self._cut.opening(header.epoch)), header)
        if rows is None:
            return False
        balances, changing = zip(*OPENING.iter_unpack(rows), strict=True)
        return self._cut.is_level("close()", site, balances, changing, header)

    def serve_until_all_have_closed(self, site: str) -> None:
        """Serve lagging ranks what they miss (rule R8); the call's deadline holds on."""
        waits = "had closed and was waiting for others to close"
        self._hub.keep_deadline(CompleteCall("close()", site, waits))
        self._control.driver.act(OwnCloseDone())
        self._machine.wait_for(lambda: self._view.state is WorkerState.FINISHED)
