"""The tracker's driver: sockets, clock and journal around the pure `roster.Roster`.

`RosterLoop` feeds the roster and has its effects carried out here.  Each connection of the
`ConnectionTable` has its own reading and writing task, and can only post events to that loop.
"""

import logging
import os
import time
from collections.abc import AsyncGenerator, Callable
from typing import assert_never

import trio

import ftcomm
from ftcomm.errors import FtcommError, JobLostError, ProtocolError, RolledBackError
from ftcomm.protocol.messages import ControlMessage, Hello, WorkerMessage
from ftcomm.protocol.operator_messages import WorkerStatusReply
from ftcomm.protocol.position import Position
from ftcomm_tracker.core.control_paths import ControlPath
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
    PutClaim,
    PutEnded,
    PutEpoch,
    PutFinished,
    PutNextDigest,
    PutSeries,
    PutVersion,
    ReadStore,
    RefuseRebuild,
    Said,
    Send,
    StartAttempt,
    StepDown,
    TakeGeneration,
    Tick,
)
from ftcomm_tracker.core.reporting.live_line import group_text
from ftcomm_tracker.core.reporting.status import SCHEMA
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.server.connections.connection_table import ConnectionTable
from ftcomm_tracker.server.connections.listener import dial_address, join_address
from ftcomm_tracker.server.fault_injection import PlannedDeath, TrackerFaults
from ftcomm_tracker.server.journal import Journal, SupersededError
from ftcomm_tracker.server.old_trackers import OldTrackers
from ftcomm_tracker.server.operators import Operators
from ftcomm_tracker.server.progress_log import write_progress
from ftcomm_tracker.server.recovery_log import record_incident
from ftcomm_tracker.server.roster_loop import RosterLoop
from ftcomm_tracker.server.stall_watch import watch_stalls
from ftcomm_tracker.server.state_dir_watch import StateDirWatch
from ftcomm_tracker.server.store.chain_task import ChainTask
from ftcomm_tracker.server.store.job_store import JobStore
from ftcomm_tracker.server.token_file import TokenFile

# Where the state directory says that the job has ended, its tracker says no more than that.
READ_WHY = "read why the workers died or left"
IN_ANOTHER_PLACE = "to go on from the store then, serve with another --state-dir"
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
        self._journal = journal
        self._token = token
        self._state_dir = StateDirWatch(journal, token)
        self._loop = RosterLoop(roster, journal, self._state_dir, self._perform)
        self._connections = ConnectionTable(listener, token, self._hear, self._accepted)
        self._store = JobStore(
            chain, self.post, lambda: self._roster.is_cut_off(trio.current_time())
        )
        self._operators = Operators(self)
        self._failure: FtcommError | None = None
        self._started_at = time.time()
        self._nursery: trio.Nursery

    @property
    def _roster(self) -> Roster:
        return self._loop.roster

    @property
    def watch_job(self) -> Callable[[Durable], None] | None:
        """Called with the job after each batch of events.

        It has another id once its next attempt has begun, or workers have named it to a tracker
        without a journal.
        """
        return self._loop.watch_job

    @watch_job.setter
    def watch_job(self, watch: Callable[[Durable], None]) -> None:
        self._loop.watch_job = watch

    # --- for the launcher and the command line ------------------------------------------------

    def post(self, event: Event, then: Callable[[], object] | None = None) -> None:
        """Let the roster hear of `event`, then call `then`; returns at once."""
        self._loop.post(event, then)

    async def ask(self, event: Event) -> None:
        """Post `event`; return when its effects have been carried out."""
        if not self.ended.is_set():
            await self._loop.ask(event)

    async def catch_up(self) -> None:
        """Return when everything that had arrived at this machine has been taken in.

        A dead process's last words lie in our sockets before its exit can be seen; its reading
        task needs a turn to read them and another to see the end.  How far the job has come is
        in the reports of those who live; without them the group cannot form again either.
        """
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        await self.ask(Tick())
        await self._loop.reports_are_in()

    @property
    def detect_within_s(self) -> float:
        """Seconds after which a silent worker loses its place."""
        return self._roster.settings.detect_within

    @property
    def sends_away(self) -> bool:
        """True while this tracker waits beside another one, which leads the job."""
        rebuild = self._roster.rebuild
        return rebuild is not None and rebuild.standby is not None and rebuild.standby.sends_away

    @property
    def is_between_attempts(self) -> bool:
        """True while the next attempt is about to begin: a checkpoint may be read for long."""
        return self._store.must_begin

    @property
    def has_callers(self) -> bool:
        """True while a worker, a supervisor or an operator is connected."""
        return not self._connections.is_empty

    def has_closed(self, worker_id: str) -> bool:
        """True if that worker's rank has completed its close()."""
        return self._roster.has_closed(worker_id)

    def is_connected(self, worker_id: str) -> bool:
        """True if an incarnation of that worker is connected."""
        return self._roster.is_connected(worker_id)

    def misses(self, worker_id: str) -> bool:
        """True while there is a place for that worker, and none of its processes is connected."""
        return self._roster.misses(worker_id)

    def had_rank(self, worker_id: str, pid: int) -> bool | None:
        """Tell whether its process `pid` had a rank when it ended; None if that is not known."""
        return self._roster.had_rank(worker_id, pid)

    def has_rank(self, worker_id: str) -> bool:
        """True if that worker has a place in the group, whether it is connected or not."""
        return self._roster.has_rank(worker_id)

    def progress(self) -> Position:
        """The highest position known of any member."""
        return self._roster.progress()

    @property
    def final_version(self) -> int:
        """Number of the last checkpoint of a job that has ended well, else -1."""
        return self._roster.durable.final_version

    @property
    def attempt(self) -> int:
        """The present attempt, 0 of a job without a store."""
        return self._roster.durable.attempt

    def host_of(self, conn: int) -> str:
        """Address from which a connection comes, empty if it has gone."""
        return self._connections.host_of(conn)

    def kill_own(self, worker_id: str) -> bool:
        """Kill a worker that this process has started; False if it has not, or none runs."""
        return self.launcher_kills is not None and self.launcher_kills(worker_id)

    def standing_of(self, worker_id: str, number: int) -> WorkerStatusReply:
        """Answer question `number` of the supervisor of `worker_id`."""
        return self._roster.standing_of(worker_id, number)

    def summary(self) -> str:
        """The job's group and store in one line, without its position."""
        return group_text(self._roster.snapshot(trio.current_time()))

    def snapshot(self) -> dict[str, object]:
        """The job's state for people and scripts."""
        return {
            "schema": SCHEMA,
            "version": ftcomm.__version__,
            "now": round(time.time(), 3),
            **self._roster.snapshot(trio.current_time()),
            "address": join_address(*self.address),
            "state_dir": str(self._state_dir.path),
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
            nursery.start_soon(self._connections.accept)
            nursery.start_soon(self._watch_state_dir, nursery.cancel_scope)
            nursery.start_soon(write_progress, lambda: self._roster, self._state_dir.path)
            nursery.start_soon(watch_stalls, lambda: self._roster)
            self._store.start(nursery)
            try:
                await self._loop.run(self._is_over)
                while self._store.must_begin:
                    self._connections.finish_all()
                    self._loop.go_on(await self._next_roster())
                    self._note_end(self._roster.durable)
                    nursery.start_soon(self._operators.answer_put_off)
                    await self._loop.run(self._is_over)
                await self._connections.flush()
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

    async def _next_roster(self) -> Roster:
        """Begin the next attempt; if none may follow, stay for those who come to hear of it."""
        try:
            return await self._store.next_roster(self._roster, self._journal)
        except JobLostError as error:
            if self.launcher_kills is not None:  # this process's own workers end with it
                raise
            log.warning(
                "the job has ended: %s; staying up to %g s for workers and supervisors to hear it",
                error.cause,
                self._roster.settings.reattach_within,
            )
            has_own = error.remedy != error.default_remedy  # which is of commands that go on
            remedy = f"{error.remedy if has_own else READ_WHY}; {IN_ANOTHER_PLACE}"
            self._failure = JobLostError(error.cause, remedy=remedy)
            return await self._store.ended_roster(self._roster, self._journal, error)

    async def close(self) -> None:
        """Give the address and the journal back without serving."""
        await self._connections.close()
        self._journal.close()

    def abandon(self) -> None:
        """In a forked child: close its copies of what keeps others from serving this job.

        The parent goes on; when it is gone, another tracker has the address and the directory.
        """
        self._connections.abandon()
        self._journal.abandon()

    def _is_over(self) -> bool:
        """True if the job or its present attempt is."""
        return self.ended.is_set() or self._store.must_begin

    async def _watch_state_dir(self, whole: trio.CancelScope) -> None:
        """End with this tracker's last right to its state directory."""
        try:
            await self._state_dir.run()
        except FtcommError as error:
            self._failure = error
            whole.cancel()

    async def _die(self) -> None:
        """At a planned fault: what was sent before it goes out, and nothing else."""
        while not self._connections.is_all_sent:
            await trio.lowlevel.checkpoint()
        if self.faults is not None:
            self.faults.die()

    # --- effects ------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        self._carry_out(effect)
        if self.faults is not None:
            self.faults.performed(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(conn, message):
                self.send(conn, message)
            case Disconnect(conn, reason):
                self._connections.finish(conn, reason)
            case Persist(durable):
                self._note_end(durable)
            case TakeGeneration(generation, old_trackers):
                self._store.lead(self._roster.durable, generation)
                notices = OldTrackers(self._token.token, self._roster.durable.job_id, generation)
                self._nursery.start_soon(notices.tell, old_trackers, self.address)
            case StepDown(reason, remedy):
                raise SupersededError(reason, remedy=remedy or None)
            case RefuseRebuild(error):
                self._failure = error
                self.ended.set()
            case ReadStore():
                self._nursery.start_soon(self._store.read, effect, self._nursery)
            case Note(level, text):
                log.log(_LEVELS.get(level, logging.INFO), "%s", text)
            case IncidentClosed(incident):
                durable, now = self._roster.durable, trio.current_time()
                record_incident(self._state_dir.path, incident, durable, now=now)
            case (
                PutSeries()
                | PutVersion()
                | PutNextDigest()
                | PutFinished()
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
        self._connections.send(conn, message)

    def _note_end(self, durable: Durable) -> None:
        """If it is journalled how the job ends, let it be known."""
        decision = durable.fatal_decision
        if decision is not None and decision.error == RolledBackError.__name__:
            return  # the job goes on
        if decision is not None:
            self.outcome = JobEnded(False, decision.error, decision.cause)
        elif durable.final_version >= 0 and not self._roster.awaits_end_record:
            self.outcome = JobEnded(True)
        if self.outcome is not None and not self.over.is_set():
            self.over.set()
            self._operators.tell_over()

    # --- connections --------------------------------------------------------------------------

    def _accepted(self) -> None:
        if self.faults is not None:
            self.faults.accepted()

    async def _hear(
        self,
        conn: int,
        role: str,
        first: ControlMessage,
        messages: AsyncGenerator[ControlMessage, None],
    ) -> None:
        if role == "worker":
            await hear_worker(conn, first, messages, self.post, self._connections.path_of(conn))
        else:
            await self._operators.hear(conn, role, first, messages)


async def hear_worker(
    conn: int,
    first: ControlMessage,
    messages: AsyncGenerator[ControlMessage, None],
    post: Callable[[Joined | Said | ConnectionLost], None],
    path: ControlPath | None = None,
) -> None:
    """Post what a worker says, `first` and what follows it, and how its connection has ended.

    Raises:
        ProtocolError: it said what a worker may not say.
    """
    if not isinstance(first, Hello):
        raise ProtocolError(f"a worker began with {type(first).__name__}, not with Hello")
    post(Joined(conn, first, path))
    reason = "its connection ended"
    try:
        async for message in messages:
            post(Said(conn, of_a_member(message)))
    except trio.BrokenResourceError:
        reason = "its connection was reset"
    except ProtocolError as error:
        reason = f"it broke the protocol: {error.cause}"
        raise
    finally:
        post(ConnectionLost(conn, reason))


def of_a_member(message: ControlMessage) -> WorkerMessage:
    """Convert a worker's message after its hello into an event.

    Raises:
        ProtocolError: no member says so.
    """
    if isinstance(message, Hello) or not isinstance(message, WorkerMessage):
        raise ProtocolError(f"a worker may not send {type(message).__name__} here")
    return message
