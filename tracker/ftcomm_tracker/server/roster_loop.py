"""One task owns the roster: it takes events from a queue, journals, and has the effects done.

What the roster answers is carried out in order and without waiting.  Journal writes happen right
here, between the decision and the messages that announce it.
"""

import logging
from collections.abc import Callable, Iterable

import trio

from ftcomm.protocol.messages import Plan
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import Effect, Event, Persist, Send, Stalled, TakeGeneration, Tick
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.server.journal import Journal
from ftcomm_tracker.server.state_dir_watch import StateDirWatch

log = logging.getLogger("ftcomm_tracker")


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


class RosterLoop:
    """Feeds a roster, until its attempt or its job is over.

    Args:
        roster: decides.
        journal: where what it decides is made durable, before anyone hears of it.
        state_dir: of the journal.
        perform: carries out one effect, at once.

    Attributes:
        roster: that of the present attempt.
        watch_job: called with the job after each batch of events.
    """

    def __init__(
        self,
        roster: Roster,
        journal: Journal,
        state_dir: StateDirWatch,
        perform: Callable[[Effect], None],
    ) -> None:
        self.roster = roster
        self.watch_job: Callable[[Durable], None] | None = None
        self._journal = journal
        self._state_dir = state_dir
        self._perform = perform
        self._inbox = EventQueue()
        self._fed = trio.Event()  # set, and replaced, when the roster has heard something

    def go_on(self, roster: Roster) -> None:
        """Feed the roster of the next attempt, first with what came too late for the lost one."""
        late, self.roster = self.roster.handed_on, roster
        if late is not None:
            self.hear([(late, None)], trio.current_time())

    def post(self, event: Event, then: Callable[[], object] | None = None) -> None:
        """Let the roster hear of `event`, then call `then`; returns at once."""
        self._inbox.post(event, then)

    async def ask(self, event: Event) -> None:
        """Post `event`; return when its effects have been carried out."""
        handled = trio.Event()
        self.post(event, handled.set)
        await handled.wait()

    async def reports_are_in(self) -> None:
        """Return when the roster waits for no report, or has waited for `detect_within`."""
        with trio.move_on_after(self.roster.settings.detect_within):
            while self.roster.awaits_reports:
                await self._fed.wait()

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Feed the roster: events as they come, a tick at its deadline, its own stalls first.

        A task that has not had its turn for long has not read its heartbeats either, whether
        because of SIGSTOP, a paused machine or a slow disk.  The roster must hear that before
        anything else, since it looks at its deadlines on every event.

        Raises:
            SupersededError: a newer tracker has taken over.
            JournalError: the journal cannot be written.
        """
        woke = trio.current_time()
        self.hear([(Tick(), None)], woke)
        while not is_over():
            settings = self.roster.settings  # others once the job is rebuilt from its workers
            detect_within, beat = settings.detect_within, settings.heartbeat_every
            due = self.roster.next_deadline()
            with trio.move_on_at(woke + beat if due is None else min(woke + beat, due)):
                await self._inbox.wait()
            now = trio.current_time()
            if now - woke > beat + detect_within / 4:
                log.warning("the tracker itself did not run for %.1f s", now - woke)
                self._journal.check()  # a successor may have been started meanwhile
                self.hear([(Stalled(now - woke), None)], now)
            woke = now
            self.hear(self._inbox.take(), now)
            if due is not None and due <= now:
                self.hear([(Tick(), None)], now)
            self._fed.set()
            self._fed = trio.Event()
        self.hear(self._inbox.take(), woke)
        self._fed.set()

    def hear(self, waiting: list[Waiting], now: float) -> None:
        """Let the roster take everything that has come, journal once, then act.

        To journal what the last of these events led to before the first one's effects is early
        and never late (rule R13).  When a whole job joins or closes, each writes the whole state.
        """
        decided = [self.roster.handle(event, now=now) for event, _ in waiting]
        for effect in (effect for effects in decided for effect in effects):
            if isinstance(effect, TakeGeneration):
                self._journal.take_generation(effect.generation)
        self._journal_last(effect for effects in decided for effect in effects)
        if self.watch_job is not None:
            self.watch_job(self.roster.durable)
        for (_, then), effects in zip(waiting, decided, strict=True):
            self._carry_out(effects)
            if then is not None:
                then()

    def _journal_last(self, effects: Iterable[Effect]) -> None:
        """Make the newest state durable."""
        states = [effect.durable for effect in effects if isinstance(effect, Persist)]
        if states:
            self._state_dir.repair()
            self._journal.write(states[-1].to_wire())

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._perform(effect)
        if any(isinstance(effect, Send) and isinstance(effect.message, Plan) for effect in effects):
            self.roster.plan_sent(trio.current_time())
