"""MessageHold: times at which no message may be sent or taken, since others count on a balance."""

from ftcomm.recovery.call_progress import CallProgress
from ftcomm.recovery.epoch_view import EpochView


class MessageHold:
    """Of one worker, for the holder of the machine's lock. A new version begins without one."""

    def __init__(self, view: EpochView, progress: CallProgress) -> None:
        self._view, self._progress = view, progress
        self._cut_in: int | None = None  # a version
        self._reported_in: int | None = None
        self._threads_in: int | None = None

    @property
    def is_on(self) -> bool:
        """True while messages are held up."""
        return self._progress.position.version in (self._cut_in, self._reported_in)

    @property
    def may_change(self) -> bool:
        """True while threads of this process may send and receive before a checkpoint's cut.

        Nobody has committed that checkpoint then, and a plan may not: messages that are on their
        way would be lost with its version.
        """
        version = self._progress.position.version
        return version == self._threads_in and version != self._cut_in

    def note_threads(self, *, others: bool) -> None:
        """This rank has come to a checkpoint or close; `others` may send and receive meanwhile."""
        self._threads_in = self._progress.position.version if others else None

    def begin_cut(self) -> None:
        """All ranks have come to a checkpoint or close, and exchange their balances."""
        self._cut_in = self._progress.position.version

    def end_cut(self) -> None:
        """This rank's call is over, be it by an error."""
        self._cut_in = self._threads_in = None

    def report(self) -> None:
        """The tracker hears the balance, and its plan may commit the tentative version."""
        self._reported_in = self._progress.position.version

    def take_plan(self) -> None:
        """A plan is here: messages go on.

        Others may have completed a cut that this rank has yet to replay.  Then they do not.
        """
        if self._progress.position >= self._view.frontier:
            self._cut_in = self._reported_in = None
