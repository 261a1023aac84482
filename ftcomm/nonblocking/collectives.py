"""The collectives without waiting: each returns a `Handle` at once."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast, overload

from ftcomm.api.collectives import CollectiveCalls
from ftcomm.api.outputs import Number, Result
from ftcomm.api.persistent_calls import Spot
from ftcomm.collectives.op_argument import AnyOp
from ftcomm.config.deadline import Duration, Limit
from ftcomm.engine.engine import Engine
from ftcomm.engine.single_process import SingleProcessEngine
from ftcomm.memory.pool import LoggedResult
from ftcomm.nonblocking.handle import Handle, QueuedCall
from ftcomm.requests.call_site import passes_on
from ftcomm.requests.request import AnyCall, CollectiveSpec, Request

P = ParamSpec("P")
R = TypeVar("R")
Written = tuple[AnyCall, Callable[[LoggedResult], Any], Limit | None]

passes_on(__file__)


class _RequestRecorder(CollectiveCalls):
    """The same collectives, checked in the same way, but written down instead of run.

    It has forms of its own, so that the two threads share none.

    """

    _newest: Written | None = None

    def __init__(
        self, engine: Engine | SingleProcessEngine, worker_id: str, admit: Callable[[int], None]
    ) -> None:
        super().__init__(engine, worker_id)
        self._admit = admit

    def _reached(self) -> None:
        """Nothing is ever completed here; the other thread may be completing."""

    def _repeat(self, spot: Spot, x: Any, op: Any, out: Any, *, copy: bool) -> None:
        """No call has run here, so none is like one that has."""
        del spot, x, op, out, copy

    def _remember(self, spot: Spot, x: Any, op: Any, form: CollectiveSpec) -> None:
        """As above."""

    def _admitted(self, call: Request) -> Request:
        call.admit = self._admit  # whether there is room is asked when its turn has come
        return call

    def _run(
        self,
        call: AnyCall,
        hand_out: Callable[[LoggedResult], R],
        deadline: Duration | None,
    ) -> R:
        self._newest = call, hand_out, self._limit_of(deadline)
        return cast("R", None)  # its callers ask for what was `written`

    def written(self) -> Written:
        """What the newest call comes to; asked once for each, so that its input is not kept."""
        assert self._newest is not None, "a call has been written down"
        newest, self._newest = self._newest, None
        return newest


class NonblockingCalls(CollectiveCalls):
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
    is a part of it, and a call whose time is over by its turn ends the job as any other does.
    """

    def __init__(self, engine: Engine | SingleProcessEngine, worker_id: str) -> None:
        super().__init__(engine, worker_id)
        self._writer = _RequestRecorder(engine, worker_id, self._admit)
        engine.report_log(self._account.counter())

    @overload
    def iallreduce(
        self,
        x: Number,
        op: AnyOp = "sum",
        *,
        copy: bool = True,
        algorithm: str | None = None,
        wire: str | None = None,
        deadline: Duration | None = None,
    ) -> Handle[Number]: ...

    @overload
    def iallreduce(
        self,
        x: Any,
        op: AnyOp = "sum",
        *,
        out: Result | None = None,
        copy: bool = True,
        algorithm: str | None = None,
        wire: str | None = None,
        deadline: Duration | None = None,
    ) -> Handle[Result]: ...

    def iallreduce(
        self,
        x: Any,
        op: AnyOp = "sum",
        *,
        out: Result | None = None,
        copy: bool = True,
        algorithm: str | None = None,
        wire: str | None = None,
        deadline: Duration | None = None,
    ) -> Handle[Any]:
        """Begin an `allreduce`."""
        return self._begin(
            self._writer.allreduce,
            x,
            op,
            out=out,
            copy=copy,
            algorithm=algorithm,
            wire=wire,
            deadline=deadline,
        )

    @overload
    def ibroadcast(
        self,
        x: Number,
        root: int = 0,
        *,
        copy: bool = True,
        algorithm: str | None = None,
        deadline: Duration | None = None,
    ) -> Handle[Number]: ...

    @overload
    def ibroadcast(
        self,
        x: None = None,
        root: int = 0,
        *,
        out: Result | None = None,
        copy: bool = True,
        algorithm: str | None = None,
        deadline: Duration | None = None,
    ) -> Handle[Any]: ...

    @overload
    def ibroadcast(
        self,
        x: Any = None,
        root: int = 0,
        *,
        out: Result | None = None,
        copy: bool = True,
        algorithm: str | None = None,
        deadline: Duration | None = None,
    ) -> Handle[Result]: ...

    def ibroadcast(
        self,
        x: Any = None,
        root: int = 0,
        *,
        out: Result | None = None,
        copy: bool = True,
        algorithm: str | None = None,
        deadline: Duration | None = None,
    ) -> Handle[Any]:
        """Begin a `broadcast`."""
        return self._begin(
            self._writer.broadcast,
            x,
            root,
            out=out,
            copy=copy,
            algorithm=algorithm,
            deadline=deadline,
        )

    def iallgather(
        self,
        x: Any,
        *,
        out: Result | None = None,
        copy: bool = True,
        deadline: Duration | None = None,
    ) -> Handle[Result]:
        """Begin an `allgather`."""
        return self._begin(self._writer.allgather, x, out=out, copy=copy, deadline=deadline)

    def iallgatherv(
        self,
        x: Any,
        *,
        out: Result | None = None,
        copy: bool = True,
        deadline: Duration | None = None,
    ) -> Handle[Result]:
        """Begin an `allgatherv`."""
        return self._begin(self._writer.allgatherv, x, out=out, copy=copy, deadline=deadline)

    @overload
    def ireduce(
        self,
        x: Number,
        op: AnyOp = "sum",
        root: int = 0,
        *,
        algorithm: str | None = None,
        wire: str | None = None,
        deadline: Duration | None = None,
    ) -> Handle[Number | None]: ...

    @overload
    def ireduce(
        self,
        x: Any,
        op: AnyOp = "sum",
        root: int = 0,
        *,
        out: Result | None = None,
        algorithm: str | None = None,
        wire: str | None = None,
        deadline: Duration | None = None,
    ) -> Handle[Result | None]: ...

    def ireduce(
        self,
        x: Any,
        op: AnyOp = "sum",
        root: int = 0,
        *,
        out: Result | None = None,
        algorithm: str | None = None,
        wire: str | None = None,
        deadline: Duration | None = None,
    ) -> Handle[Any]:
        """Begin a `reduce`."""
        return self._begin(
            self._writer.reduce,
            x,
            op,
            root,
            out=out,
            algorithm=algorithm,
            wire=wire,
            deadline=deadline,
        )

    def igather(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Result | None = None,
        deadline: Duration | None = None,
    ) -> Handle[Result | None]:
        """Begin a `gather`."""
        return self._begin(self._writer.gather, x, root, out=out, deadline=deadline)

    def igatherv(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Result | None = None,
        deadline: Duration | None = None,
    ) -> Handle[Result | None]:
        """Begin a `gatherv`."""
        return self._begin(self._writer.gatherv, x, root, out=out, deadline=deadline)

    def iscatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        out: Result | None = None,
        deadline: Duration | None = None,
    ) -> Handle[Result]:
        """Begin a `scatter`."""
        return self._begin(self._writer.scatter, x, root, out=out, deadline=deadline)

    def ibroadcast_object(
        self, obj: Any = None, root: int = 0, *, deadline: Duration | None = None
    ) -> Handle[Any]:
        """Begin a `broadcast_object`; the object is packed now, and may change afterwards."""
        return self._begin(self._writer.broadcast_object, obj, root, deadline=deadline)

    def iallgather_object(self, obj: Any, *, deadline: Duration | None = None) -> Handle[list[Any]]:
        """Begin an `allgather_object`; the object is packed now, and may change afterwards."""
        return self._begin(self._writer.allgather_object, obj, deadline=deadline)

    def ibarrier(self, *, deadline: Duration | None = None) -> Handle[None]:
        """Begin a `barrier`: it is done when every rank has begun it."""
        return self._begin(self._writer.barrier, deadline=deadline)

    def _begin(
        self, write: Callable[P, R], /, *arguments: P.args, **options: P.kwargs
    ) -> Handle[R]:
        """Write a call down and put it in line."""
        with self._queue.one_user():
            write(*arguments, **options)
            return Handle(self._place(self._written()), self._queue)

    def _place(self, call: QueuedCall[R]) -> QueuedCall[R]:
        """Put a call in line; if that is cut short, it has no place, or this incarnation leaves."""
        try:
            return self._queue.put(call)
        except BaseException as error:
            if call.has_place:  # Ctrl-C: it would be called again, and run twice
                self._give_up(error)
            raise

    def _written(self, whole: Limit | None = None) -> QueuedCall[Any]:
        """The call that was written down last; `whole` is the limit of what it is a part of."""
        call, hand_out, own = self._writer.written()
        limit = whole or own

        def work() -> Any:
            return self._run_later(call, hand_out, limit)

        return QueuedCall(work, call.kind.name.lower())
