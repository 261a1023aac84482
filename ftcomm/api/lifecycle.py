"""Membership: a worker's part in the job, from its rank to its leaving, and the course of one call.

The communicator is one object, written in layers of which each calls only those below it::

    communicator             checkpoints
    nonblocking.collectives  the collectives that return a handle
    api.collectives          the collectives: arguments in, results out
    api.persistent_calls     calls like one before them, in few steps
    api.outputs              what the user gets of a result
    api.lifecycle            rank and position, one call, close and leave
"""

import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from ftcomm.api.call_guard import CallGuard
from ftcomm.api.public_values import CallPosition
from ftcomm.api.stats import CallStats, Stats
from ftcomm.collectives.op_argument import UncheckedOp
from ftcomm.config.deadline import Duration, Limit, checked_deadline, limit_from
from ftcomm.config.joined_process import forget_joined
from ftcomm.engine.engine import Engine
from ftcomm.engine.log_quota import LogQuota
from ftcomm.engine.single_process import SingleProcessEngine
from ftcomm.errors import FtcommError, LogLimitError
from ftcomm.memory.pool import LoggedResult
from ftcomm.nonblocking.queue import LEAVE_WITHIN_S, RequestQueue
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind
from ftcomm.requests.arguments import is_input_function
from ftcomm.requests.builder import RequestBuilder, site_text
from ftcomm.requests.call_site import call_site
from ftcomm.requests.request import AnyCall, DeferredInput, OpenBroadcast, Request, anything

R = TypeVar("R")


class Session:
    """One place in the group and what is at hand for its calls; used by one thread at a time."""

    def __init__(self, engine: Engine | SingleProcessEngine, worker_id: str) -> None:
        self._engine = engine
        self._worker_id = worker_id
        self._keeps_results = engine.keeps_results
        self._call_deadline = engine.call_deadline
        self._calls = RequestBuilder(engine)
        self._account = LogQuota(engine)
        self._admit: Callable[[int], None] = self._account.check  # bound once, not in every call
        self._call_stats = CallStats()
        self._guard = CallGuard(self._is_the_end, self._reached, self._give_up)
        self._queue = self._guard.pending = RequestQueue(self._guard)

    # --- where we stand ----------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's place in the group, 0 to ``world_size - 1``; it survives restarts."""
        return self._engine.rank

    @property
    def world_size(self) -> int:
        """Number of places in the group."""
        return self._engine.world_size

    @property
    def epoch(self) -> int:
        """The agreed membership in force; grows by one at every change."""
        return self._engine.epoch

    @property
    def version(self) -> int:
        """Number of committed checkpoints; -1 before `load_checkpoint`."""
        return self._engine.position.version

    @property
    def seqno(self) -> int:
        """Number of collectives since the version began."""
        return self._engine.position.seqno

    @property
    def position(self) -> CallPosition:
        """`version` and `seqno` as one value, which can be compared and printed."""
        at = self._engine.position
        return CallPosition(at.version, at.seqno)

    @property
    def worker_id(self) -> str:
        """What names this worker over its restarts."""
        return self._worker_id

    @property
    def is_over(self) -> bool:
        """True after `close`, or once an error has ended this communicator."""
        return self._guard.is_closed

    @property
    def is_usable(self) -> bool:
        """True while calls may be made here: not over, and not inherited by a forked child."""
        return not (self._guard.is_closed or self._guard.is_inherited)

    def stats(self) -> Stats:
        """A snapshot of what was called here, what it cost, and what was recovered."""
        seen = self._engine.recovered
        kinds, links = self._call_stats.snapshot(), dict(seen.links)
        return Stats(kinds, seen.replays, seen.fetched, seen.epochs, seen.corrupted, links)

    def __dir__(self) -> list[str]:
        """The public names alone."""
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        state = "over" if self.is_over else f"at {self._engine.position}"
        return f"<ftcomm.Communicator rank {self.rank} of {self.world_size}, {state}>"

    # --- the end ------------------------------------------------------------------------------

    def close(self, *, deadline: Duration | None = None) -> None:
        """Close the job together with all ranks; serve those who lag until all have closed.

        Args:
            deadline: as for `allreduce`, until all have closed.
        """
        self._close(call_site(), deadline)

    def _close(self, site: str, deadline: Duration | None = None) -> None:
        limit = self._limit_of(deadline)
        if self.is_over:
            return
        with self._guard:
            call = self._calls.plain(Kind.CLOSE, site)
            self._engine.within(limit, call, self._engine.close, call)
            self._end()  # inside: Ctrl-C behind it finds a communicator that is closed
        self._queue.callbacks.end(within_s=LEAVE_WITHIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        site = call_site()  # the user's `with` statement
        if error is not None:
            self._leave_by(error)
            return
        try:
            self._close(site)
        except BaseException as failure:  # of a nonblocking call, for example
            self._leave_by(failure)
            raise

    def _leave_by(self, error: BaseException) -> None:
        """`error` leaves the user's block."""
        if self.is_usable:
            if isinstance(error, LogLimitError):  # all reach it here; who is behind is told
                self._engine.condemn(error)
                self._end()
            else:
                self.abort(f"{type(error).__name__}: {error}")

    def abort(self, reason: str) -> None:
        """Leave the job without closing it: a failure at once, told to the others as `reason`.

        Nothing happens where this communicator is over already, or is a forked child's copy.
        """
        if self.is_usable:
            self._engine.leave(reason)
            self._end()

    def _end(self) -> None:
        self._guard.is_closed = True
        forget_joined()
        self._queue.end(self._engine.abort, self._engine.stop)

    # --- one call -----------------------------------------------------------------------------

    def _is_the_end(self, error: FtcommError) -> bool:
        """A job-wide error ends this communicator for good; a local one changes nothing."""
        if not self._is_the_end_by(error):
            return False
        self._end()
        return True

    def _give_up_if_past(self, position: Position, error: BaseException) -> None:
        """A call at `position` raises: was it completed, so that its result is lost to the user?"""
        if self._engine.position != position:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """A call was cut short, by Ctrl-C for example, after others may have completed it.

        This incarnation can neither go on nor go back: it leaves, and may `init` again as a new
        one.
        """
        if not self._is_the_end_by(error):
            self._engine.leave(f"a call was cut short by {error!r}")
            self._end()

    def _is_the_end_by(self, error: BaseException) -> bool:
        return isinstance(self._engine, Engine) and self._engine.error is error

    def _reached(self) -> Position | None:
        """What differs if a call has been completed since."""
        return self._engine.position

    def _perform(
        self,
        x: Any,
        make: Callable[[Any], Request],
        hand_out: Callable[[LoggedResult], R],
        kind: Kind,
        site: str,
        deadline: Duration | None,
        *,
        check: Callable[[LoggedResult], None] = anything,
        op: UncheckedOp | None = None,
        root: int = -1,
        algorithm: str | None = None,
        wire: str | None = None,
    ) -> R:
        """One call with the input `x`, or with what `x` returns if it is a function.

        Args:
            x: the user's.
            make: the call of an input.
            hand_out: what the user gets of the log's result.
            kind: the collective.
            site: where the user called it.
            deadline: after which the job ends, None for the job's own.
            check: told a result before it is taken from the log; raises where `out` does not fit.
            op: as far as the kind has one, like the next two.
            root: what is known of the signature without the input.
            algorithm: the user's wish.
            wire: likewise.
        """
        if not is_input_function(x):
            return self._run(self._admitted(make(x)), hand_out, deadline)

        def made() -> Request:
            return self._admitted(make(x()))

        known = self._calls.known(kind, op=op, root=root, algorithm=algorithm, wire=wire)
        lazy = DeferredInput(kind, known, site_text(site, op), made, check)
        return self._run(lazy, hand_out, deadline)

    def _limit_of(self, deadline: Duration | None) -> Limit | None:
        """The limit of a call made now: its own, or that of the job's calls; None is no limit."""
        since = self._guard.asked_at()
        seconds = self._call_deadline if deadline is None else checked_deadline(deadline)
        return None if seconds is None else limit_from(since, seconds)

    def _run_later(
        self, call: AnyCall, hand_out: Callable[[LoggedResult], R], limit: Limit | None
    ) -> R:
        """A call that was made earlier has its turn: what hangs on those before it is looked up."""
        if isinstance(call, Request):
            return self._run_within(limit, self._renewed(call), hand_out)
        if isinstance(call, OpenBroadcast):
            learned = call.make
            call = replace(call, make=lambda raw: self._renewed(learned(raw)))
            return self._run_within(limit, call, hand_out)
        make = call.make
        return self._run_within(limit, replace(call, make=lambda: self._renewed(make())), hand_out)

    def _renewed(self, call: Request) -> Request:
        call.admit(call.form.nbytes)
        self._calls.look_at_flush(call)
        return call

    def _admitted(self, call: Request) -> Request:
        """Refuse a call whose result has no room in the log."""
        call.admit = self._admit
        self._admit(call.form.nbytes)
        return call

    def _run(
        self,
        call: AnyCall,
        hand_out: Callable[[LoggedResult], R],
        deadline: Duration | None,
    ) -> R:
        return self._run_within(self._limit_of(deadline), call, hand_out)

    def _run_within(
        self, limit: Limit | None, call: AnyCall, hand_out: Callable[[LoggedResult], R]
    ) -> R:
        engine, kind = self._engine, call.kind
        before, began = engine.position, time.perf_counter()
        try:
            if isinstance(call, Request):
                stored = engine.within(limit, call, engine.run, call)
            elif isinstance(call, OpenBroadcast):
                stored = engine.within(limit, call, engine.run_open, call)
            else:
                stored = engine.within(limit, call, engine.run_lazy, call)
            nbytes = stored.flat.nbytes
            self._account.completed(nbytes)
            self._calls.completed(kind, nbytes)
            result = hand_out(stored)
            self._call_stats.add(kind, nbytes, time.perf_counter() - began)
        except BaseException as error:
            self._give_up_if_past(before, error)
            raise
        return result
