"""Queue of events for the roster from all connections, in order of arrival."""

from collections.abc import Callable

import trio

from ftcomm_tracker.core.events import Event

GATHERED_TURNS = 16  # a millisecond or two, and a sixteenth of the journal's writes

Waiting = tuple[Event, Callable[[], object] | None]


class EventQueue:
    """A queue of events; whoever posts never waits."""

    def __init__(self) -> None:
        self._events: list[Waiting] = []
        self._wake = trio.Event()

    def post(self, event: Event, then: Callable[[], object] | None = None) -> None:
        """Add `event`; `then` is for who takes it, to call when it has been dealt with."""
        self._events.append((event, then))
        self._wake.set()

    async def wait(self) -> None:
        """Return when there is an event, and with it what comes in the same moment.

        A journal write blocks all tasks, and in each of their turns one connection is accepted:
        with a write between any two of them, a large job would form at the speed of the disk.
        """
        await self._wake.wait()
        for _ in range(GATHERED_TURNS):
            before = len(self._events)
            await trio.lowlevel.checkpoint()
            if len(self._events) == before:
                return

    def take(self) -> list[Waiting]:
        """All that has come; the inbox is empty then."""
        events, self._events = self._events, []
        self._wake = trio.Event()
        return events
