"""UserNews: wakes tasks that wait for something that this rank's user does (rules R20, R21)."""

import contextlib
from collections.abc import Callable, Iterator

import trio


class UserNews:
    """For the tasks of the control thread; the user's threads call `note` alone.

    A call for which nobody waits costs the user's thread one look.
    """

    def __init__(self, run_soon: Callable[[Callable[[], object]], None]) -> None:
        """`run_soon` runs a function on the control thread."""
        self._run_soon = run_soon
        self._watchers = 0
        self._event = trio.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator["UserNews"]:
        """While inside, `note` is heard."""
        self._watchers += 1
        try:
            yield self
        finally:
            self._watchers -= 1

    def next(self) -> trio.Event:
        """The event of what comes next; take it before looking for what has come."""
        return self._event

    def note(self) -> None:
        """On a thread of the user's: it has logged something."""
        if self._watchers:
            self._run_soon(self.tell)

    def tell(self) -> None:
        """On the control thread: wake who waits."""
        event, self._event = self._event, trio.Event()
        event.set()
