"""The tracker's driver: sockets, clock and journal around the pure `roster.Roster`.

One task owns the roster: it takes events from a queue, and carries out what the roster answers,
in order and without waiting.  Journal writes happen right there, between the decision and the
messages that announce it.  Each connection has its own reading and writing task and can only
put events into that queue.
"""

import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import NoReturn, assert_never

import trio

import ftcomm
from ftcomm.config.backoff import ACCEPT_PAUSE_S
from ftcomm.errors import ConfigError, FtcommError, ProtocolError, RolledBackError
from ftcomm.protocol.member_deltas import MemberDeltaWriter
from ftcomm.protocol.messages import ControlMessage, Hello, Plan
from ftcomm.protocol.operator_messages import WorkerStatusReply
from ftcomm.protocol.position import Position
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    ConnectionLost,
    Disconnect,
    Effect,
    Event,
    IncidentClosed,
    JobEnded,
    Joined,
    Note,
    Persist,
    PutBegun,
    PutClaim,
    PutEnded,
    PutEpoch,
    PutFinished,
    PutSeries,
    PutVersion,
    ReadStore,
    RefuseRebuild,
    Said,
    Send,
    Stalled,
    StartAttempt,
    StepDown,
    TakeGeneration,
    Tick,
)
from ftcomm_tracker.core.reporting.status import SCHEMA, summary
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.server.connection import (
    FLUSH_DEADLINE_S,
    Connection,
    SilentPeerError,
    authenticate,
    of_a_member,
)
from ftcomm_tracker.server.event_queue import EventQueue, Waiting
from ftcomm_tracker.server.fault_injection import PlannedDeath, TrackerFaults
from ftcomm_tracker.server.journal import Journal, SupersededError
from ftcomm_tracker.server.listener import dial_address, host_in, join_address, peer_name
from ftcomm_tracker.server.operators import Operators
from ftcomm_tracker.server.outgoing.old_trackers import OldTrackers
from ftcomm_tracker.server.progress_log import ProgressLog
from ftcomm_tracker.server.recovery_log import record_incident, record_progress
from ftcomm_tracker.server.store.chain_task import ChainTask
from ftcomm_tracker.server.store.job_store import JobStore
from ftcomm_tracker.server.token_file import TokenFile
from ftcomm_tracker.server.unauthenticated import RateLimitedLog, UnauthenticatedPeers

# Between two looks at the state directory: whether it is there, and still this tracker's.
STATE_DIR_LOOK_S = 1.0
PROGRESS_LOOK_S = 1.0  # so exact is the age of a checkpoint; workers' heartbeats are no faster

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

log = logging.getLogger("ftcomm_tracker")


class Server:
    """A tracker at work.

    Attributes:
        address: host and port that workers dial.
        over: set once it is journalled how the job ends; `outcome` is then known.
        ended: set once everyone who could be told has been told.
        faults: planned deaths, for tests.
        launcher_kills: kills a worker that this process has started, see `kill_own`.
        watch_job: called with the job after each batch of events. It has another id once its next
            attempt has begun, or workers have named it to a tracker without a journal.
    """

    def __init__(
        self,
        roster: Roster,
        journal: Journal,
        token: TokenFile,
        listener: trio.SocketListener,
        chain: ChainTask | None = None,
    ) -> None:
        """Serve `roster` on `listener`; who calls must hold the job's `token`.

        Checkpoints are recorded in `chain`, if the job has a store.
        """
        self.address = dial_address(listener)  # now: after the end the listener has none
        self.over = trio.Event()
        self.ended = trio.Event()
        self.outcome: JobEnded | None = None
        self.faults: TrackerFaults | None = None
        self.launcher_kills: Callable[[str], bool] | None = None
        self.watch_job: Callable[[Durable], None] | None = None
        self._roster = roster
        self._journal = journal
        self._store = JobStore(
            chain, self.post, lambda: self._roster.is_cut_off(trio.current_time())
        )
        self._token = token
        self._listener = listener
        self._state_dir = journal.path.parent
        self._inbox = EventQueue()
        self._fed = trio.Event()  # set, and replaced, when the roster has heard something
        self._connections: dict[int, Connection] = {}
        self._member_deltas = MemberDeltaWriter()
        self._unauthenticated = UnauthenticatedPeers()
        self._refusals = RateLimitedLog()
        self._operators = Operators(self)
        self._numbers = 0
        self._failure: FtcommError | None = None
        self._started_at = time.time()
        self._nursery: trio.Nursery

    # --- for the launcher and the command line ------------------------------------------------

    def post(self, event: Event, then: Callable[[], object] | None = None) -> None:
        """Let the roster hear of `event`, then call `then`; returns at once."""
        self._inbox.post(event, then)

    async def ask(self, event: Event) -> None:
        """Post `event`; return when its effects have been carried out."""
        if self.ended.is_set():
            return
        handled = trio.Event()
        self.post(event, handled.set)
        await handled.wait()

    async def catch_up(self) -> None:
        """Return when everything that had arrived at this machine has been taken in.

        A dead process's last words lie in our sockets before its exit can be seen; its reading
        task needs a turn to read them and another to see the end.  How far the job has come is
        in the reports of those who live; without them the group cannot form again either.
        """
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        await self.ask(Tick())
        with trio.move_on_after(self.detect_within_s):
            while self._roster.awaits_reports:
                await self._fed.wait()

    @property
    def detect_within_s(self) -> float:
        """Seconds after which a silent worker loses its place."""
        return self._roster.settings.detect_within

    @property
    def has_callers(self) -> bool:
        """True while a worker, a supervisor or an operator is connected."""
        return bool(self._connections)

    def has_closed(self, worker_id: str) -> bool:
        """True if that worker's rank has completed its close()."""
        return self._roster.has_closed(worker_id)

    def is_connected(self, worker_id: str) -> bool:
        """True if an incarnation of that worker is connected."""
        return self._roster.is_connected(worker_id)

    def misses(self, worker_id: str) -> bool:
        """True while there is a place for that worker, and none of its processes is connected."""
        return self._roster.misses(worker_id)

    def ended_as_spare(self, worker_id: str, pid: int) -> bool:
        """True if the process `pid` of that worker had no rank when its connection ended."""
        return self._roster.ended_as_spare(worker_id, pid)

    def has_rank(self, worker_id: str) -> bool:
        """True if that worker has a place in the group, whether it is connected or not."""
        return self._roster.has_rank(worker_id)

    def progress(self) -> Position:
        """The highest position known of any member."""
        return self._roster.progress()

    def host_of(self, conn: int) -> str:
        """Address from which a connection comes, empty if it has gone."""
        connection = self._connections.get(conn)
        return "" if connection is None else host_in(connection.peer)

    def kill_own(self, worker_id: str) -> bool:
        """Kill a worker that this process has started; False if it has not, or none runs."""
        return self.launcher_kills is not None and self.launcher_kills(worker_id)

    def standing_of(self, worker_id: str, number: int) -> WorkerStatusReply:
        """Answer question `number` of the supervisor of `worker_id`."""
        return self._roster.standing_of(worker_id, number)

    def summary(self) -> str:
        """The job's state in one line."""
        return summary(self._roster.snapshot(trio.current_time()))

    def snapshot(self) -> dict[str, object]:
        """The job's state for people and scripts."""
        return {
            "schema": SCHEMA,
            "version": ftcomm.__version__,
            "now": round(time.time(), 3),
            **self._roster.snapshot(trio.current_time()),
            "address": join_address(*self.address),
            "state_dir": str(self._state_dir),
            "pid": os.getpid(),
            "uptime_s": round(time.time() - self._started_at, 1),
        }

    # --- running ------------------------------------------------------------------------------

    async def run(self) -> JobEnded:
        """Serve until the job has ended.

        Raises:
            SupersededError: a newer tracker has taken over.
            JournalError: the journal cannot be written.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._accept)
            nursery.start_soon(self._watch_state_dir, nursery.cancel_scope)
            nursery.start_soon(self._note_progress)
            self._store.start(nursery)
            try:
                await self._own_roster()
                while self._store.must_begin:
                    for connection in list(self._connections.values()):
                        connection.finish()
                    self._roster = await self._store.next_roster(self._roster, self._journal)
                    await self._own_roster()
                await self._flush()
            except FtcommError as error:
                self._failure = error
            except PlannedDeath:
                await self._die()
            nursery.cancel_scope.cancel()
        failure = self._failure or self._store.failure
        if failure is not None:
            raise failure
        assert self.outcome is not None
        return self.outcome

    async def close(self) -> None:
        """Give the address and the journal back without serving."""
        await self._listener.aclose()
        self._journal.close()

    async def _own_roster(self) -> None:
        """Feed the roster: events as they come, a tick at its deadline, its own stalls first.

        A task that has not had its turn for long has not read its heartbeats either, whether
        because of SIGSTOP, a paused machine or a slow disk.  The roster must hear that before
        anything else, since it looks at its deadlines on every event.
        """
        woke = trio.current_time()
        self._feed(Tick(), woke)
        while not (self.ended.is_set() or self._store.must_begin):
            settings = self._roster.settings  # others once the job is rebuilt from its workers
            detect_within, beat = settings.detect_within, settings.heartbeat_every
            due = self._roster.next_deadline()
            with trio.move_on_at(woke + beat if due is None else min(woke + beat, due)):
                await self._inbox.wait()
            now = trio.current_time()
            if now - woke > beat + detect_within / 4:
                log.warning("the tracker itself did not run for %.1f s", now - woke)
                self._journal.check()  # a successor may have been started meanwhile
                self._feed(Stalled(), now)
            woke = now
            self._feed_all(self._inbox.take(), now)
            if due is not None and due <= now:
                self._feed(Tick(), now)
            self._fed.set()
            self._fed = trio.Event()
        self._feed_all(self._inbox.take(), woke)
        self._fed.set()

    async def _watch_state_dir(self, whole: trio.CancelScope) -> None:
        """Look at the state directory again and again; end with this tracker's last right to it."""
        try:
            while True:
                await trio.sleep(STATE_DIR_LOOK_S)
                self._repair_state_dir()
                self._journal.check()
        except FtcommError as error:
            self._failure = error
            whole.cancel()

    def _repair_state_dir(self) -> None:
        """Write the journal again if its directory was deleted, which would lose its records."""
        if self._journal.repair():
            self._token.put_back()
            log.warning(
                "the state directory %s was deleted while its job runs: made again, with journal,"
                " address and token, from what the tracker holds",
                self._state_dir,
            )

    async def _note_progress(self) -> None:
        """A line a minute about the job, beside its journal."""
        progress = ProgressLog.begin(trio.current_time())
        while True:
            await trio.sleep(PROGRESS_LOOK_S)
            now = trio.current_time()
            progress.observe(self._roster.progress(), now)
            if now >= progress.due:
                record = progress.record(
                    self._roster.snapshot(now), self._roster.settings.log_limit, now
                )
                if not record_progress(self._state_dir, record):
                    return

    def _feed(self, event: Event, now: float) -> None:
        self._feed_all([(event, None)], now)

    def _feed_all(self, waiting: list[Waiting], now: float) -> None:
        """Let the roster take everything that has come, journal once, then act.

        To journal what the last of these events led to before the first one's effects is early
        and never late (rule R13).  When a whole job joins or closes, each writes the whole state.
        """
        decided = [self._roster.handle(event, now=now) for event, _ in waiting]
        for effect in (effect for effects in decided for effect in effects):
            if isinstance(effect, TakeGeneration):
                self._journal.take_generation(effect.generation)
        self._journal_last(effect for effects in decided for effect in effects)
        if self.watch_job is not None:
            self.watch_job(self._roster.durable)
        for (_, then), effects in zip(waiting, decided, strict=True):
            self._carry_out(effects)
            if then is not None:
                then()

    def _journal_last(self, effects: Iterable[Effect]) -> None:
        """Make the newest state durable; of every epoch, since the journal keeps a history."""
        states = (effect.durable for effect in effects if isinstance(effect, Persist))
        newest = {state.epoch: state for state in states}
        if newest:
            self._repair_state_dir()
        for epoch, state in newest.items():
            self._journal.write(state.to_wire(), epoch=epoch)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._perform(effect)
            if self.faults is not None:
                self.faults.performed(effect)
        if any(isinstance(effect, Send) and isinstance(effect.message, Plan) for effect in effects):
            self._roster.plan_sent(trio.current_time())

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(conn, message):
                self.send(conn, message)
            case Disconnect(conn, reason):
                self._disconnect(conn, reason)
            case Persist(durable):
                self._persist(durable)
            case TakeGeneration(generation, old_trackers):
                self._store.lead(self._roster.durable, generation)
                notices = OldTrackers(self._token.token, self._roster.durable.job_id, generation)
                self._nursery.start_soon(notices.tell, old_trackers, self.address)
            case StepDown() | RefuseRebuild():
                raise _reason_to_end(effect)
            case ReadStore():
                self._nursery.start_soon(self._store.read, effect, self._nursery)
            case Note(level, text):
                log.log(_LEVELS.get(level, logging.INFO), "%s", text)
            case IncidentClosed(incident):
                record_incident(self._state_dir, incident, now=trio.current_time())
            case (
                PutSeries()
                | PutVersion()
                | PutFinished()
                | PutBegun()
                | PutEpoch()
                | PutEnded()
                | PutClaim()
                | StartAttempt()
                | JobEnded(error="RolledBackError")
            ):
                self._store.perform(effect)
            case JobEnded():
                self.outcome = effect
                self.over.set()
                self._operators.tell_over()  # a supervisor that asked just now, too
                self.ended.set()
            case _:
                assert_never(effect)

    def send(self, conn: int, message: ControlMessage) -> None:
        """Send on a connection that may have ended; returns at once."""
        connection = self._connections.get(conn)
        if connection is None or connection.closing:
            return
        if not connection.post(message):
            log.warning("%s does not read what the tracker sends: cut", connection.peer)
            connection.cut()

    def _disconnect(self, conn: int, reason: str) -> None:
        connection = self._connections.get(conn)
        if connection is not None:
            log.debug("ending the connection of %s: %s", connection.peer, reason)
            connection.finish()

    def _persist(self, durable: Durable) -> None:
        decision = durable.fatal_decision
        if decision is not None and decision.error == RolledBackError.__name__:
            return  # the job goes on
        if durable.fatal_decision is not None:
            self.outcome = JobEnded(
                False, durable.fatal_decision.error, durable.fatal_decision.cause
            )
        elif durable.final_version >= 0:
            self.outcome = JobEnded(True)
        if self.outcome is not None and not self.over.is_set():
            self.over.set()
            self._operators.tell_over()

    async def _flush(self) -> None:
        """Let every connection take its last messages."""
        for connection in self._connections.values():
            connection.finish()
        with trio.move_on_after(FLUSH_DEADLINE_S):
            for connection in list(self._connections.values()):
                await connection.ended.wait()

    async def _die(self) -> None:
        """At a planned fault: what was sent before it goes out, and nothing else."""
        while any(connection.unsent for connection in self._connections.values()):
            await trio.lowlevel.checkpoint()
        if self.faults is not None:
            self.faults.die()

    # --- connections --------------------------------------------------------------------------

    async def _accept(self) -> NoReturn:
        async with self._listener, trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await self._listener.accept()
                except OSError as error:  # out of descriptors: who hangs up gives some back
                    self._note_refusal(f"cannot accept a connection: {error}")
                    await trio.sleep(ACCEPT_PAUSE_S)
                else:
                    nursery.start_soon(self._serve, stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        """One connection, from accept to end; nothing that a peer does may escape from here."""
        self._numbers += 1
        if self.faults is not None:
            self.faults.accepted()
        connection = Connection(self._numbers, stream, peer_name(stream), self._member_deltas)
        messages = connection.messages()
        try:
            async with stream, contextlib.aclosing(messages):
                with self._unauthenticated.admit(connection.number):
                    request = await authenticate(stream, self._token.key)
                    first = await anext(messages, None)
                await self._converse(connection, request.role, first, messages)
        except SilentPeerError:
            log.debug("%s connected and left without a word", connection.peer)
        except FtcommError as error:
            self._note_refusal(f"refused a connection from {connection.peer}: {error.cause}")
        except (trio.BrokenResourceError, OSError):
            self._note_refusal(f"a connection from {connection.peer} broke in its handshake")

    def _note_refusal(self, text: str) -> None:
        line = self._refusals.line(text, now=trio.current_time())
        if line is not None:
            log.info("%s", line)

    async def _converse(
        self,
        connection: Connection,
        role: str,
        first: ControlMessage | None,
        messages: AsyncGenerator[ControlMessage, None],
    ) -> None:
        if first is None:
            return
        self._connections[connection.number] = connection
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.write)
            try:
                if role == "worker":
                    await self._hear_worker(connection, first, messages)
                else:
                    await self._operators.hear(connection.number, role, first, messages)
            except ProtocolError as error:
                log.warning("cut the connection of %s: %s", connection.peer, error.cause)
                connection.cut()
            connection.finish()
        del self._connections[connection.number]

    async def _hear_worker(
        self,
        connection: Connection,
        first: ControlMessage,
        messages: AsyncGenerator[ControlMessage, None],
    ) -> None:
        if not isinstance(first, Hello):
            raise ProtocolError(f"a worker began with {type(first).__name__}, not with Hello")
        number = connection.number
        self.post(Joined(number, first))
        reason = "its connection ended"
        try:
            async for message in messages:
                self.post(Said(number, of_a_member(message)))
        except trio.BrokenResourceError:
            reason = "its connection was reset"
        except ProtocolError as error:
            reason = f"it broke the protocol: {error.cause}"
            raise
        finally:
            self.post(ConnectionLost(number, reason))


def _reason_to_end(effect: StepDown | RefuseRebuild) -> FtcommError:
    if isinstance(effect, RefuseRebuild):
        return ConfigError(effect.cause, remedy=effect.remedy)
    return SupersededError(effect.reason, remedy=effect.remedy or None)
