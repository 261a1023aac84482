"""The tracker's side of its conversations with operators: commands, and supervisors of workers."""

import contextlib
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING

import trio

from ftcomm.errors import ProtocolError
from ftcomm.protocol.messages import ControlMessage
from ftcomm.protocol.operator_messages import (
    DeathNotice,
    DialBack,
    DialedBack,
    Done,
    GivenUpNotice,
    KillOrder,
    KillReply,
    KillRequest,
    LivenessAssertion,
    StatusReply,
    StatusRequest,
    StopRequest,
    SupersededNotice,
    WorkerStatusRequest,
)
from ftcomm_tracker.core.events import (
    Died,
    GivenUp,
    LivenessAsserted,
    StopAsked,
    Superseded,
    Supervised,
)
from ftcomm_tracker.core.reporting.status_document import status_document

if TYPE_CHECKING:
    from ftcomm_tracker.server.server import Server

OPERATOR_IDLE_S = 30.0  # a command asks within milliseconds, a supervisor each `detect_within`
OF_SUPERVISORS = (WorkerStatusRequest, LivenessAssertion, GivenUpNotice, DeathNotice)
MAX_AT_ONCE = 8  # a job's machines are examined one by one, or all at once and a little later
DIAL_WITHIN_S = 3.0  # a lost SYN is repeated after 1 s; a firewall that drops never answers


class Operators:
    """Answers operators; tells supervisors, unasked, that the job is over."""

    def __init__(self, tracker: "Server") -> None:
        self._tracker = tracker
        self._supervised: dict[int, str] = {}  # connection -> worker id
        self._put_off: dict[int, WorkerStatusRequest] = {}  # by connection, until an attempt begins
        self._dial_backs = DialBacks()

    async def hear(
        self,
        conn: int,
        role: str,
        first: ControlMessage,
        messages: AsyncGenerator[ControlMessage, None],
    ) -> None:
        """Answer `first` and what follows it, until the operator ends or has long been silent.

        A supervisor is hung up on while another tracker leads: it would stay, and that one miss it.

        Raises:
            ProtocolError: it said what an operator may not say.
        """
        if role != "operator":
            raise ProtocolError(f"role {role!r} has no business with the tracker")
        message: ControlMessage | None = first
        try:
            while message is not None and not self._is_for_another(message):
                await self._answer(conn, message)
                message = None
                with trio.move_on_after(self._patience_s()):
                    with contextlib.suppress(trio.BrokenResourceError):
                        message = await anext(messages, None)
        finally:
            self._supervised.pop(conn, None)
            self._put_off.pop(conn, None)

    def tell_over(self) -> None:
        """Tell every supervisor how the job has ended."""
        for conn, worker_id in self._supervised.items():
            self._tracker.send(conn, self._tracker.standing_of(worker_id, 0))

    async def answer_put_off(self) -> None:
        """An attempt has begun: answer what supervisors have asked since the one before."""
        asked, self._put_off = self._put_off, {}
        for conn, question in asked.items():
            await self._answer_supervisor(conn, question)

    def _order_kill(self, worker_id: str) -> bool:
        """Tell whoever has started the worker; False if nobody has that is connected."""
        supervisors = [conn for conn, name in self._supervised.items() if name == worker_id]
        for conn in supervisors:
            self._tracker.send(conn, KillOrder(worker_id))
        return bool(supervisors) or self._tracker.kill_own(worker_id)

    def _is_for_another(self, message: ControlMessage) -> bool:
        """True if the tracker that leads the job must hear this, and it is not this one."""
        return isinstance(message, OF_SUPERVISORS) and self._tracker.sends_away

    def _patience_s(self) -> float:
        return max(OPERATOR_IDLE_S, 3 * self._tracker.detect_within_s)

    async def _answer_supervisor(self, conn: int, asked: WorkerStatusRequest) -> None:
        """Answer a question; between two attempts say only that this tracker is there."""
        tracker, worker_id, number = self._tracker, asked.worker_id, asked.number
        self._supervised[conn] = worker_id
        if tracker.is_between_attempts:
            number = 0  # the answer to no question: it starts no worker before that one is answered
            self._put_off[conn] = asked
        else:
            tracker.post(Supervised(worker_id, asked.host, asked.pid, asked.age_ms / 1000))
            await tracker.catch_up()  # what the worker said last counts
        tracker.send(conn, tracker.standing_of(worker_id, number))

    async def _answer(self, conn: int, message: ControlMessage) -> None:
        tracker = self._tracker
        done = partial(tracker.send, conn, Done())
        match message:
            case StatusRequest():
                # One read brings thousands: all others have a turn, and a cut has its effect.
                await trio.lowlevel.checkpoint()
                tracker.send(conn, StatusReply(status_document(tracker.snapshot())))
            case StopRequest(reason):
                tracker.post(StopAsked(reason), done)
            case LivenessAssertion(worker_id):
                tracker.post(LivenessAsserted(worker_id), done)
            case GivenUpNotice(worker_id, reason, script_failed):
                tracker.post(GivenUp(worker_id, reason, script_failed), done)
            case DeathNotice(worker_id, pid, how):
                tracker.post(Died(worker_id, pid, how), done)
            case SupersededNotice(job_id, generation):
                tracker.post(Superseded(job_id, generation), done)
            case KillRequest(worker_id):
                tracker.send(conn, KillReply(self._order_kill(worker_id)))
            case WorkerStatusRequest():
                await self._answer_supervisor(conn, message)
            case DialBack(port, nonce):
                host = tracker.host_of(conn)
                tracker.send(conn, DialedBack(host, await self._dial_backs.dial(host, port, nonce)))
            case _:
                raise ProtocolError(f"an operator may not send {type(message).__name__}")


class DialBacks:
    """Dials operators back, so that `doctor` learns whether this machine can reach its own.

    Only the address of the asking connection is dialled, after the asker has proven that it holds
    the job's token.  A few are dialled at a time, each for a short time, and nothing is read.
    """

    def __init__(self) -> None:
        self._under_way = 0

    async def dial(self, host: str, port: int, nonce: bytes) -> str:
        """Connect to `host`, send `nonce`, hang up; returns why it failed, empty if it did not."""
        if self._under_way >= MAX_AT_ONCE:
            return f"the tracker examines {MAX_AT_ONCE} other machines just now: try again"
        self._under_way += 1
        try:
            with trio.move_on_after(DIAL_WITHIN_S):
                async with await trio.open_tcp_stream(host, port) as stream:
                    await stream.send_all(nonce)
                return ""
        except (OSError, trio.BrokenResourceError) as error:
            return str(error) or type(error).__name__
        finally:
            self._under_way -= 1
        return f"no answer within {DIAL_WITHIN_S:g} s, as if a firewall drops it"
