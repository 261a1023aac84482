"""Nonblocking calls: the requests that blocking calls run, submitted to the request queue."""

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from ftcomm.api.collectives import CollectiveCalls
from ftcomm.api.messages import MessageCalls
from ftcomm.api.session import Session
from ftcomm.config.deadline import Limit, QueuedLimit
from ftcomm.nonblocking.handle import Handle, QueuedCall
from ftcomm.nonblocking.queue import LEAVE_WITHIN_S, RequestQueue
from ftcomm.requests.call_site import passes_on
from ftcomm.requests.request import Submission

passes_on(__file__)

P = ParamSpec("P")
R = TypeVar("R")


class PushedCalls(Protocol):
    """An engine whose collectives run in the queue, as the end of the communicator needs it."""

    @property
    def is_spent(self) -> bool:
        """True once it is closed, with nothing that is waited for and no error to be raised."""

    def wait_for_what_began(self) -> None:
        """Wait for all that was pushed to it; raises what that has raised."""

    def close(self) -> None:
        """End its threads."""


E = TypeVar("E", bound=PushedCalls)


class NonblockingCalls:
    """Every method here takes the arguments of its blocking variant and returns a `Handle`.

    The order of the calls is the order of positions, whichever thread runs them; that of the
    handles' waits plays no part.  A rank may call the one where another calls the other.  A
    synchronous call waits for all that is pending, and so do `load_checkpoint`, `checkpoint` and
    `close`.

    Local mistakes are raised here, and `ThreadLimitError` if the thread that runs them cannot be
    started; what the collective raises by the handle.  All calls that were
    made before the user has heard of an error raise it too: none of them has run.

    The input is not copied: it belongs to the call, as ``out=`` does, until the handle's `wait` has
    returned.  An input function is called on another thread, at most once.  At most 1,024 calls
    wait for their turn; one more waits here.  A `deadline` counts from here: waiting for the turn
    is a part of it, and the job ends when it passes, even while an earlier call is blocked.

    Attributes:
        calls: builds them.
        queue: where the calls wait; the first of them starts its thread.
        messages: they have no place in the queue.
    """

    def __init__(self, session: Session, calls: CollectiveCalls) -> None:
        self._session, self.calls = session, calls
        self.messages = MessageCalls(session)
        self.queue = session.guard.pending = RequestQueue(session.guard)
        self._engines: list[PushedCalls] = []
        session.background = self
        session.engine.report_queue(self.queue.earliest_limit)

    def submit(
        self, build: Callable[P, Submission[R]], /, *arguments: P.args, **options: P.kwargs
    ) -> Handle[R]:
        """Build a call and put it into the queue."""
        return self.queue.run_alone(lambda: self._begun(build(*arguments, **options)))

    def _begun(self, submission: Submission[R]) -> Handle[R]:
        return Handle(self.queue.put(self.queued(submission)), self.queue)

    def queued(self, submission: Submission[R], whole: Limit | None = None) -> QueuedCall[R]:
        """A call that runs `submission`; `whole` is the limit of what it is a part of."""
        session = self._session
        limit = whole or session.limit_of(submission.deadline)

        def work() -> R:
            return session.run_built(limit, submission)

        request = submission.request
        queued = limit and QueuedLimit(limit, request.known, request.site)
        return QueuedCall(work, submission.kind.name.lower(), queued)

    # --- engines that push to the queue ---------------------------------------------------------

    def begin_engine(self, make: Callable[[], E]) -> E:
        """Make an engine; it is waited for, and closed, before the end."""

        def begin() -> E:
            engine = make()
            self._engines = [*(e for e in self._engines if not e.is_spent), engine]
            return engine

        return self.queue.run_alone(begin)

    @property
    def job_has_ended(self) -> bool:
        """A collective raises at once."""
        return self._session.engine.error is not None

    # --- the end ------------------------------------------------------------------------------

    def wait_for_tasks(self, limit: QueuedLimit | None) -> None:
        """Wait for all that was pushed to task engines, for a close with `limit`.

        Raises:
            BaseException: the error of a task, but for functions that a closed engine did not run.
        """
        try:
            self.queue.closing = limit
            for engine in self._engines:
                engine.wait_for_what_began()
        finally:
            self.queue.closing = None

    def end(self, abort: Callable[[], None], finish: Callable[[], None]) -> None:
        """Run nothing any more; see `RequestQueue.end`."""
        for engine in self._engines:
            engine.close()
        self.queue.end(abort, finish)

    def wait_for_callbacks(self) -> None:
        """Wait for callbacks that still run, `LEAVE_WITHIN_S` at most."""
        self.queue.callbacks.end(within_s=LEAVE_WITHIN_S)
