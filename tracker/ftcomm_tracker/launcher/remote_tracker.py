"""A job whose tracker is elsewhere, as the launcher of one worker sees it.

One connection is kept, and dialled again when it is lost: a tracker may be restarted at any time.
What is to be said is state rather than a queue (is there a liveness assertion to give, was the
worker given up, which question is the newest), so that a new connection says all that still
matters, once.
"""

import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import trio

from ftcomm.config.backoff import TRACKER_BACKOFF
from ftcomm.config.job_settings import MIN_DETECT_WITHIN_S, SILENT_WINDOWS
from ftcomm.diagnostics.logs import Reminder
from ftcomm.diagnostics.os_errors import describe
from ftcomm.errors import (
    AuthenticationError,
    ProtocolError,
    ProtocolVersionError,
    TrackerLostError,
)
from ftcomm.protocol.codec import Decoder, encode
from ftcomm.protocol.messages import ControlMessage
from ftcomm.protocol.operator_messages import (
    DeathNotice,
    Done,
    GivenUpNotice,
    KillOrder,
    LivenessAssertion,
    WorkerStatusReply,
    WorkerStatusRequest,
)
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.events import Died, GivenUp, JobEnded, LivenessAsserted, Supervised
from ftcomm_tracker.operator.client import open_operator
from ftcomm_tracker.server.connections.listener import join_address

DIAL_DEADLINE_S = 10.0  # one address, handshake included; twice the tracker's own deadline
MAX_DEATHS = 8  # kept while the tracker is away; older ones tell of recoveries that are over
LONGEST_AGE_S = 30 * 86400.0  # of a process, as it is told: the field has 32 bits of milliseconds

log = logging.getLogger("ftcomm_tracker")

_LOST = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)


class RemoteJob:
    """Implementation of `launch.Job` for a tracker over the network.

    Attributes:
        over: set once the tracker has said how the job ended; `outcome` is then known.
        on_kill: called with the worker's id when an operator wants its process killed.
    """

    def __init__(
        self,
        routes: Sequence[tuple[str, int]],
        token: bytes,
        worker_id: str,
        *,
        patience_s: float,
    ) -> None:
        """Ask the first of `routes` that answers; give a lost tracker `patience_s` to come back."""
        self.over = trio.Event()
        self.outcome: JobEnded | None = None
        self._routes = routes
        self._token = token
        self._worker_id = worker_id
        self._patience_s = patience_s
        self._standing: WorkerStatusReply | None = None
        self._generations: dict[int, int] = {}  # the highest that has answered, by attempt
        self._attached = False
        self._why_not = "it has not been tried yet"
        self._asked = 0
        self._named_with = 0  # the question that first named the present process
        self._answered = 0
        self._asserting_liveness = False
        self._given_up: GivenUpNotice | None = None
        self._deaths: deque[DeathNotice] = deque(maxlen=MAX_DEATHS)
        self.on_kill: Callable[[str], object] | None = None
        self._host, self._pid, self._started_at = "", 0, 0.0
        self._wake = trio.Event()
        self._news = trio.Event()

    # --- what the launcher asks ---------------------------------------------------------------

    @property
    def detect_within_s(self) -> float:
        """Seconds after which a silent worker loses its place.

        Until the tracker has said it, the least that it can be: by any more the first look at a
        worker, and the first word for it, could come too late.
        """
        if self._standing is None:
            return MIN_DETECT_WITHIN_S
        return self._standing.detect_within_ms / 1000

    def post(self, event: Died | GivenUp | LivenessAsserted | Supervised) -> None:
        """Tell the tracker, now or when it is back; an old assertion is worth nothing."""
        match event:
            case LivenessAsserted():
                self._asserting_liveness = self._attached
            case Died(worker_id, pid, how):
                self._deaths.append(DeathNotice(worker_id, pid, how))
            case GivenUp(worker_id, reason, script_failed):
                self._given_up = GivenUpNotice(worker_id, reason, script_failed)
            case Supervised(_, host, pid, age_s):
                self._host, self._pid = host, pid
                self._started_at = trio.current_time() - age_s
                self._asked += 1  # the process is named with the next question
                self._named_with = self._asked
        self._wake.set()

    async def catch_up(self) -> None:
        """Return when the tracker has answered a question put now, or the job is over.

        It may be about to begin an attempt, and says that it is there: then it is waited for.

        Raises:
            TrackerLostError: it was not heard in time.
        """
        mine, is_heard = self._ask(), True
        while is_heard:
            if self._answered >= mine or self.over.is_set():
                return
            with trio.move_on_after(self._patience_s) as patience:
                await self._news.wait()
            is_heard = not patience.cancelled_caught
        unknown = f"whether worker {self._worker_id} has closed is not known"
        if self.has_closed(self._worker_id):
            unknown = f"worker {self._worker_id} has closed; how the job ended is not known"
        raise TrackerLostError(
            f"no tracker answered at {self._names()} within {self._patience_s:g} s"
            f" ({self._why_not}); {unknown}"
        )

    def has_closed(self, worker_id: str) -> bool:
        """True if the worker's rank has completed its close()."""
        assert worker_id == self._worker_id
        return self._standing is not None and self._standing.closed

    def is_connected(self, worker_id: str) -> bool:
        """True unless the tracker says that the worker is not; without a tracker nobody knows."""
        assert worker_id == self._worker_id
        return not self._attached or self._standing is None or self._standing.connected

    def had_rank(self, worker_id: str, pid: int) -> None:
        """None: a supervisor is not told whether its worker has a rank."""
        assert worker_id == self._worker_id
        assert pid > 0

    def standing_of(self, worker_id: str, number: int) -> WorkerStatusReply:
        """The newest answer, as number `number`; without one a worker of which nothing is known."""
        assert worker_id == self._worker_id
        found = self._standing or WorkerStatusReply(
            0, False, False, False, START, "", 0, round(MIN_DETECT_WITHIN_S * 1000), False
        )
        # An answer to an earlier question is about an earlier process.
        if self._answered < self._named_with:
            found = replace(found, process="", pid=0)
        return replace(found, number=number)

    def has_rank(self, worker_id: str) -> bool:
        """True: a supervisor treats every worker as a member."""
        assert worker_id == self._worker_id
        return True

    def misses(self, worker_id: str) -> bool:
        """True if the tracker says that it has a place for the worker, and no incarnation of it."""
        assert worker_id == self._worker_id
        return self._attached and self._standing is not None and self._standing.missed

    def progress(self) -> Position:
        """The highest position known of any member."""
        return START if self._standing is None else self._standing.progress

    @property
    def attempt(self) -> int:
        """The attempt that the tracker works on, 0 where it has not said one."""
        return 0 if self._standing is None else self._standing.attempt

    def summary(self) -> str:
        """The job's state in one line, without its position."""
        if not self._attached or self._standing is None:
            return f"no tracker: {self._why_not}"
        return self._standing.state.lower()

    # --- the connection -----------------------------------------------------------------------

    async def run(self) -> None:
        """Keep in touch with the tracker until the job is over.

        Raises:
            AuthenticationError, ProtocolVersionError: what answers is not our tracker, and ours
                has never answered.
        """
        failures = 0
        silence = Reminder(trio.current_time())
        while not self.over.is_set():
            for host, port in self._routes:
                try:
                    await self._one_connection(host, port)
                    self._why_not = "it ended the connection"
                except (AuthenticationError, ProtocolVersionError) as error:
                    if self._standing is None:
                        raise
                    # Somebody took the address while our tracker is away; it may come back.
                    self._why_not = f"{join_address(host, port)}: {error.cause}"
                except (*_LOST, ProtocolError) as error:
                    self._why_not = f"{join_address(host, port)}: {describe(error)}"
                finally:
                    answered, self._attached = self._attached, False
                if self.over.is_set():
                    return
                if answered:  # the first tracker leads, unless it is away
                    failures, silence = 0, Reminder(trio.current_time())
                    break
            if silence.is_due(trio.current_time()):
                self._say_that_none_answers()
            failures += 1
            await trio.sleep(TRACKER_BACKOFF.delay_s(failures, random.random()))  # noqa: S311 - jitter

    def _say_that_none_answers(self) -> None:
        names = self._names()
        log.warning(
            "no tracker answers at %s (%s); dialling on, and when the worker has ended waiting up"
            " to %g s for it (FTCOMM_TRACKER_TIMEOUT)",
            names,
            self._why_not.removeprefix(f"{names}: "),
            self._patience_s,
        )

    def _names(self) -> str:
        return ", ".join(join_address(*route) for route in self._routes)

    async def _one_connection(self, host: str, port: int) -> None:
        """Converse until either side ends."""
        self._ask()
        async with contextlib.AsyncExitStack() as stack:
            with trio.fail_after(DIAL_DEADLINE_S):
                stream = await stack.enter_async_context(open_operator((host, port), self._token))
            await self._converse(stream)

    async def _converse(self, stream: trio.SocketStream) -> None:
        failures: list[Exception] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, stream, nursery.cancel_scope)
            try:
                await self._read(stream)
            except (*_LOST, ProtocolError) as error:
                failures.append(error)  # raised below: a nursery would wrap it in a group
            nursery.cancel_scope.cancel()
        if failures:
            raise failures[0]

    async def _read(self, stream: trio.SocketStream) -> None:
        decoder = Decoder()
        while not self.over.is_set():
            with trio.fail_after(SILENT_WINDOWS * max(self.detect_within_s, 1.0)):
                data = await stream.receive_some()
            if not data:
                return
            for message in decoder.feed(data):
                self._hear(message)

    def _hear(self, message: ControlMessage) -> None:
        match message:
            case WorkerStatusReply():
                self._must_be_newest(message.attempt, message.generation)
                self._standing, self._attached = message, True
                self._answered = max(self._answered, message.number)
                if message.over:
                    self.outcome = JobEnded(not message.error, message.error, message.cause)
                    self.over.set()
                news, self._news = self._news, trio.Event()
                news.set()
            case Done():
                pass
            case KillOrder(worker_id) if worker_id == self._worker_id:
                if self.on_kill is not None:
                    self.on_kill(worker_id)
            case _:
                raise ProtocolError(f"the tracker answered with {type(message).__name__}")

    def _must_be_newest(self, attempt: int, generation: int) -> None:
        """Refuse a tracker that was replaced.

        Generations count within an attempt: a tracker that has the store alone begins with the
        first one.  While it has yet to begin its attempt, it names none.
        """
        newest = max(self._generations, default=0)
        if 0 < attempt < newest or generation < self._generations.get(attempt, 0):
            raise ProtocolError("a tracker answered that a newer one has replaced")
        self._generations[attempt] = generation

    async def _write(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        """Say what is to be said; at least one question in each `detect_within`.

        A tracker that waits beside the one that leads hangs up at the first question: what it was
        told before would be lost.
        """
        told = asked = 0
        try:
            await stream.send_all(encode(self._question(0)))
            while not self._attached:
                await self._news.wait()
            while True:
                self._wake = trio.Event()
                if self._given_up is not None and not told:
                    told = 1
                    await stream.send_all(encode(self._given_up))
                while self._deaths:
                    notice = self._deaths[0]
                    await stream.send_all(encode(notice))
                    # Only now: what a broken connection has not taken is sent on the next one, and
                    # the tracker takes a notice twice.  More deaths may have pushed it out.
                    if self._deaths[0] is notice:
                        self._deaths.popleft()
                if self._asserting_liveness:
                    self._asserting_liveness = False
                    await stream.send_all(encode(LivenessAssertion(self._worker_id)))
                if asked < self._asked:
                    asked = self._asked
                    await stream.send_all(encode(self._question(asked)))
                with trio.move_on_after(self.detect_within_s) as patience:
                    await self._wake.wait()
                if patience.cancelled_caught:
                    self._ask()
        except _LOST:
            scope.cancel()  # the reader learns the cause, or its connection is as dead as ours

    def _question(self, number: int) -> WorkerStatusRequest:
        age_s = min(trio.current_time() - self._started_at, LONGEST_AGE_S) if self._pid else 0.0
        return WorkerStatusRequest(
            number, self._worker_id, self._host, self._pid, round(age_s * 1000)
        )

    def _ask(self) -> int:
        self._asked += 1
        self._wake.set()
        return self._asked
