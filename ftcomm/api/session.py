"""Session: a worker's part in the job, from its rank to its leaving, and the course of one call."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, Protocol, TypeVar

from ftcomm.api.call_guard import CallGuard
from ftcomm.api.public_values import KindStats, Stats
from ftcomm.api.signal_handlers import may_be_in_handler, run_beside
from ftcomm.config.deadline import Duration, Limit, QueuedLimit, checked_deadline, limit_from_now
from ftcomm.config.plurals import kind_of
from ftcomm.diagnostics.error_text import named
from ftcomm.diagnostics.script_failures import failure_site
from ftcomm.engine.interface import Engine
from ftcomm.engine.log_quota import LogQuota
from ftcomm.errors import ClosedError, FtcommError, LogLimitError
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.recovery.unasked_calls import CALLS, NANOSECONDS, UnaskedCalls
from ftcomm.requests.builder import RequestBuilder, UnprovenBroadcasts
from ftcomm.requests.call_site import call_site, passes_on
from ftcomm.requests.request import AnyRequest, OpenBroadcast, Request, Submission

passes_on(__file__)

P = ParamSpec("P")
R = TypeVar("R")


class BackgroundCalls(Protocol):
    """The calls that run beside the script, as the end of a session needs them."""

    def wait_for_tasks(self, limit: QueuedLimit | None) -> None:
        """Wait for all functions and collectives that were pushed to task engines."""

    def end(self, abort: Callable[[], None], finish: Callable[[], None]) -> None:
        """Run nothing any more; see `RequestQueue.end`."""

    def wait_for_callbacks(self) -> None:
        """Wait, within a limit, for callbacks that still run."""


class CallStats:
    """Counts calls by kind; written in every call, so it does as little as possible.

    Any thread may send and receive.  A collective is counted by who owns its turn alone.
    """

    def __init__(self, unasked: UnaskedCalls) -> None:
        self._lock = threading.Lock()
        self._unasked = unasked.words  # allreduces that are counted there
        # by the kind's number: the hash of an enumeration's member costs more than all the rest
        self._rows: list[list[float]] = [[0, 0, 0.0] for _ in range(max(Kind) + 1)]

    def add(self, kind: Kind, nbytes: int, seconds: float) -> None:
        """Count one call that returned."""
        row = self._rows[kind]
        with self._lock:
            row[0] += 1
            row[1] += nbytes
            row[2] += seconds

    def row(self, kind: Kind) -> list[float]:
        """Count, bytes and seconds of a collective, to be added to by who owns its turn."""
        return self._rows[kind]

    def snapshot(self) -> dict[str, KindStats]:
        """Return the counts so far."""
        rows = [list(row) for row in self._rows]
        calls, nbytes, ns = self._unasked[CALLS : NANOSECONDS + 1].tolist()
        asked = rows[Kind.ALLREDUCE]
        rows[Kind.ALLREDUCE] = [asked[0] + calls, asked[1] + nbytes, asked[2] + ns * 1e-9]
        return {
            kind.name.lower(): KindStats(int(count), int(nbytes), seconds)
            for kind in Kind
            for count, nbytes, seconds in [rows[kind]]
            if count
        }


class Session:
    """One open communicator's engine, limits and counters; used by one thread at a time."""

    background: BackgroundCalls  # set once by the owner, before the first call

    def __init__(self, engine: Engine, worker_id: str, at_end: Callable[[], None]) -> None:
        self.engine = engine  # takes requests through failures
        self.worker_id = worker_id  # names this worker over its restarts
        self._at_end = at_end
        self.builder = RequestBuilder(engine.group)  # makes requests of arguments
        self.quota = LogQuota(engine)  # bytes of the log
        # Broadcasts that no synchronising call has proved yet.
        self.broadcasts = UnprovenBroadcasts()
        self.call_stats = CallStats(engine.unasked)  # counts calls by kind
        self.guard = CallGuard(self.ended_by)  # admits one call at a time
        # What this communicator was given up by, until the others were told.
        self._leaving_by: BaseException | None = None
        self._call_deadline = engine.call_deadline
        self._has_room: Callable[[int], None] = self.quota.check  # bound once, not in every call
        engine.unasked.holder, engine.unasked.share_of = self.guard.lock.holder, self.quota.share_of
        engine.report_log(self.quota.counter())

    @property
    def is_usable(self) -> bool:
        """True while calls may be made here: not over, and not inherited by a forked child."""
        return not (self.guard.is_closed or self.guard.is_inherited)

    def stats(self) -> Stats:
        """A snapshot of the calls, their cost, and the recoveries."""
        seen = self.engine.recovered
        kinds, links = self.call_stats.snapshot(), dict(seen.links)
        return Stats(kinds, seen.replays, seen.fetched, seen.epochs, seen.corrupted, links)

    # --- one call -----------------------------------------------------------------------------

    def run(
        self,
        deadline: Duration | None,
        build: Callable[P, Submission[R]],
        /,
        *arguments: P.args,
        **options: P.kwargs,
    ) -> R:
        """Build a call and run it, as the only one inside.

        Nothing of the job is touched before `build` has made the submission.
        """
        limit = self.limit_of(deadline)
        return self.guard.run(lambda: self.run_built(limit, build(*arguments, **options)), limit)

    def run_built(self, limit: Limit | None, submission: Submission[R]) -> R:
        """Run a call that was built now or earlier; what depends on calls before it is decided now.

        The caller owns the guard, or is the thread that runs the request queue.
        """
        engine, request = self.engine, submission.request
        kind, before, began = submission.kind, engine.position, time.perf_counter()
        try:
            stored = engine.within(limit, request, engine.run, self._admitted(request))
            nbytes = stored.flat.nbytes
            if stored.logged < 0:
                self.quota.completed(nbytes)
            else:
                self.quota.completed_input(stored.logged)
            self.broadcasts.completed(kind, nbytes)
            result = submission.finish(stored)
            self.call_stats.add(kind, nbytes, time.perf_counter() - began)
        except BaseException as error:
            self.give_up_if_past(before, error)
            raise
        return result

    def limit_of(self, deadline: Duration | None) -> Limit | None:
        """The limit of a call that is made now: its own, or the job's; None if there is none."""
        seconds = self._call_deadline if deadline is None else checked_deadline(deadline)
        return None if seconds is None else limit_from_now(seconds)

    def _admitted(self, request: AnyRequest) -> AnyRequest:
        """The request, to be refused where its result has no room in the log."""
        if isinstance(request, Request):
            return self._admit(request)
        if isinstance(request, OpenBroadcast):
            learn = request.make
            return replace(request, make=lambda raw: self._admit(learn(raw)))
        make = request.make
        return replace(request, make=lambda: self._admit(make()))

    def _admit(self, request: Request) -> Request:
        request.admit, request.admit_input = self._has_room, self.quota.check_input
        if request.form.contributed is None:
            self._has_room(request.form.nbytes)
        else:
            self.quota.check_input(request.form.nbytes)
        if request.form.kind is Kind.BROADCAST:  # all ranks count the same broadcasts (R3)
            request.flush = self.broadcasts.must_flush(request.form.nbytes)
        return request

    # --- the end ------------------------------------------------------------------------------

    def close(self, deadline: Duration | None) -> None:
        """Close the job together with all ranks; see `Communicator.close`."""
        site, limit = call_site(), self.limit_of(deadline)
        known = Signature(Kind.CLOSE).encode()
        if not self.guard.is_closed:
            queued = limit and QueuedLimit(limit, known, site, "what its task engines run")
            self.background.wait_for_tasks(queued)
        if self.guard.is_closed:
            self._end()  # if it was ended beside a call, which came to its own end
            return

        def run() -> None:
            self.check_no_receive("close()")
            request = self.builder.plain(Kind.CLOSE, site)
            self.engine.within(limit, request, self.engine.close, request)
            self._end()

        self.guard.run(run, limit, known)
        self.background.wait_for_callbacks()

    def check_no_receive(self, what: str) -> None:
        """Refuse a checkpoint or close while a handle or a task waits for a message.

        What a thread waits for itself is not refused: it may come to that just before this or just
        behind it, on a rank that was restarted at another time than before.

        Raises:
            ValueError: naming the receive.
        """
        messages = self.engine.messages
        waiting = None if messages is None else messages.open_receive
        if waiting is not None:
            raise ValueError(
                f"{what} was called while {waiting.what} at {waiting.site} is pending; complete it"
                " first"
            )

    def leave_block(self, error: BaseException | None) -> None:
        """The user's `with` block ends: by `error`, or with a close."""
        if error is not None:
            self._leave_by(error)
            return
        try:
            self.close(None)
        except BaseException as failure:  # of a nonblocking call, for example
            self._leave_by(failure)
            raise

    def _leave_by(self, error: BaseException) -> None:
        """`error` leaves the user's block."""
        if self.is_usable:
            if isinstance(error, LogLimitError):  # all reach it here; who is behind is told
                self.engine.condemn(error)
                self._end()
            else:
                self._abort(error)  # no handler: the block is left on its own thread
        else:
            self._end_behind_calls()

    def abort(self, reason: object) -> None:
        """Leave the job without closing it; see `Communicator.abort`."""
        if not isinstance(reason, str | BaseException):
            raise TypeError(f"reason is {kind_of(reason)}, must be a text or an exception")
        if may_be_in_handler():
            run_beside(lambda: self._abort(reason))
        else:
            self._abort(reason)

    def _abort(self, reason: str | BaseException) -> None:
        if not self.is_usable:
            self._end_behind_calls()
            return
        self._leave(reason)
        if self.guard.is_inside:  # the call would go on with what is closed here
            self.guard.is_closed = True
            self.engine.abort()
            if self.engine.error is not None:  # the call raises it, and ends the rest
                return
        self._end()

    def _leave(self, reason: str | BaseException) -> None:
        if isinstance(reason, str):
            self.engine.leave(reason)
        else:
            self.engine.leave(named(reason), failure_site(reason))

    def _end_behind_calls(self) -> None:
        """End what is over already: the call that was to do so may have raised something else."""
        if not (self.guard.is_inherited or self.guard.is_inside):
            self._end()

    def _end(self) -> None:
        self.guard.is_closed = True
        if self._leaving_by is not None:  # an interrupt may have come first, before: again
            self._leave(self._leaving_by)
            self._leaving_by = None
        if not self.guard.lock.shut():  # a call of another thread uses what would be closed here
            self.engine.abort()
            return
        at_end, self._at_end = self._at_end, _nothing  # first: several may end it at once
        at_end()
        self.background.end(self.engine.abort, self.engine.stop)

    def ended_by(self, error: BaseException) -> FtcommError | None:
        """Act on an error that leaves a call: a job-wide one ends this communicator for good.

        So does an interrupt, which is an error that is no `Exception`, such as Ctrl-C: others may
        have completed the call.  A group of one has no others: there it is an end only where the
        call was given up.

        Returns:
            the error of later calls; None if `error` is a local one, which changes nothing.
        """
        if isinstance(error, Exception):
            if self.engine.error is not error:
                return None
            self._end()
            return self.engine.error
        if self.engine.world_size == 1 and not (self.guard.is_closed and self.guard.is_inside):
            return None
        self.give_up(error)
        return ClosedError(f"a call was ended by {named(error)}, and the communicator with it")

    def give_up_if_past(self, position: Position, error: BaseException) -> None:
        """A call at `position` raises: was it completed, so that its result is lost to the user?"""
        if self.engine.position != position:
            self.give_up(error)

    def give_up(self, error: BaseException) -> None:
        """Leave the job by `error`, after which others may have completed the call.

        This process can neither go on nor go back; it may `init` again as a new one.
        """
        if self.engine.error is not error and not self.guard.is_closed:
            # First, and no call between: who ends this after an interrupt finds both.
            self._leaving_by = error
            self.guard.is_closed = True
        self._end()


def _nothing() -> None:
    """Do nothing: what is called at the end was called."""
