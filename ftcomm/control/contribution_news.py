"""ContributionNews: wakes tasks that wait until this rank's user has made a call (rule R20)."""

import contextlib
from collections.abc import Callable, Iterator

import trio


class ContributionNews:
    """For the tasks of the control thread; the user's thread calls `logged` alone.

    A call in which nobody waits costs the user's thread one look.
    """

    def __init__(self, run_soon: Callable[[Callable[[], object]], None]) -> None:
        """`run_soon` runs a function on the control thread."""
        self._run_soon = run_soon
        self._watchers = 0
        self._event = trio.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator["ContributionNews"]:
        """While inside, `logged` is heard."""
        self._watchers += 1
        try:
            yield self
        finally:
            self._watchers -= 1

    def next(self) -> trio.Event:
        """The event of the next contribution; take it before looking for what has come."""
        return self._event

    def logged(self) -> None:
        """On the user's thread: an input was logged."""
        if self._watchers:
            self._run_soon(self._tell)

    def _tell(self) -> None:
        event, self._event = self._event, trio.Event()
        event.set()
