"""The communicator: the object that a training script calls."""

import enum
import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, overload

from ftcomm.api import message_forms, rank_result_forms
from ftcomm.api.checkpoints import Checkpoints
from ftcomm.api.collectives import CollectiveCalls
from ftcomm.api.outputs import Number, OutputPolicy, Result
from ftcomm.api.persistent_calls import PersistentCalls
from ftcomm.api.public_values import CallPosition, Restored, RestoredFrom, RestoredLocal, Stats
from ftcomm.api.rank_results import RankResultCalls
from ftcomm.api.session import Session
from ftcomm.collectives.op_argument import AnyOp
from ftcomm.config.deadline import Duration
from ftcomm.diagnostics.error_text import bound_to_process
from ftcomm.engine.interface import Engine
from ftcomm.errors import FtcommError
from ftcomm.nonblocking import forms
from ftcomm.nonblocking import message_forms as nonblocking_messages
from ftcomm.nonblocking.buckets import BUCKET_BYTES
from ftcomm.nonblocking.fused import BucketedCalls
from ftcomm.nonblocking.message_handles import MessageHandles
from ftcomm.nonblocking.nonblocking_calls import NonblockingCalls
from ftcomm.protocol.signature import CallTag
from ftcomm.requests.call_site import passes_on
from ftcomm.requests.request import CallOptions

if TYPE_CHECKING:
    from ftcomm.tasks.task_engine import TaskEngine

passes_on(__file__)


class _Missing(enum.Enum):
    """The type of "not given", where None would be a value."""

    NOT_GIVEN = 0


NOT_GIVEN: Final = _Missing.NOT_GIVEN
Out = Result | None
Deadline = Duration | None
# names of mpi4py, torch.distributed, Horovod and rabit, for the error of a script that uses one
_OURS: Final = {
    "Allreduce": "allreduce",
    "Barrier": "barrier",
    "Bcast": "broadcast",
    "CheckPoint": "checkpoint",
    "Get_rank": "rank",
    "Get_size": "world_size",
    "Recv": "recv(source, tag, out=buffer)",
    "Send": "send",
    "all_gather": "allgather",
    "all_reduce": "allreduce",
    "bcast": "broadcast, or broadcast_object for other objects than arrays",
    "destroy_process_group": "close",
    "get_rank": "rank",
    "get_world_size": "world_size",
    "grouped_allreduce": "bucketed",
}


class Communicator:
    """A worker's part in the job. Use it from one thread at a time, as a context manager.

    Leaving the ``with`` block normally closes the job together with all ranks; leaving it by an
    exception is a failure at once, with the exception's text as the reason.

    Every collective is one position; all ranks call the same in the same order. An input array may
    also be a function without arguments. It is called at most once, when the collective is
    executed. A replayed call does not call it, unless its log is ``contributions``. It may not call
    a collective. An error that it raises leaves the position unchanged.

    ``deadline=`` is a number of seconds or a `datetime.timedelta`. It counts from the call. When a
    call takes longer, waiting for the replacement of a dead rank included, all ranks raise
    `CollectiveTimeoutError` and the job is over. Without it the job's ``call_deadline`` holds,
    which is off by default.

    ``tag=`` is an int or a str that names the call. All ranks must give the same one. It tells
    calls of one shape apart, such as two buckets of one size in another order.

    A name with an i before it is the nonblocking form of a collective: it takes the same arguments
    and returns a `Handle`. One rank may call the one form and another rank the other. Inputs and
    ``out=`` belong to the call until the handle's `wait` has returned.

    Ctrl-C in a call, or in a wait for one, ends this rank's part as `abort` does; so does any other
    error that is no `Exception`. In a group of one the call is interrupted, and the script goes on,
    unless the result was complete: it is lost, and the communicator ends there too.
    """

    def __init__(
        self, engine: Engine, worker_id: str, at_end: Callable[[], None] = lambda: None
    ) -> None:
        """For the library alone: the communicator of a worker that has its rank.

        Args:
            engine: takes its requests through failures.
            worker_id: names the worker.
            at_end: called once when the communicator is over.
        """
        self._session = session = Session(engine, worker_id, at_end)
        self._output = OutputPolicy(engine)
        self._calls = CollectiveCalls(session, self._output)
        self._rank_results = RankResultCalls(session, self._output)
        self._persistent = PersistentCalls(session, self._calls, self._output)
        self._checkpoints = Checkpoints(session)
        self._nonblocking = NonblockingCalls(session, self._calls)
        self._buckets = BucketedCalls(session, self._nonblocking, self._calls)
        self._messages = self._nonblocking.messages
        self._message_handles = MessageHandles(self._messages, self._nonblocking.queue.callbacks)
        self._run, self._submit = session.run, self._nonblocking.submit

    if not TYPE_CHECKING:  # or a type checker would take a name that is not there for Any

        def __getattr__(self, name: str) -> Any:
            text = f"a communicator has no attribute {name!r}"
            if name in _OURS:
                text += f": use {_OURS[name]}; see `ftcomm-tracker help porting`"
            raise AttributeError(text, name=name, obj=self)

    def __dir__(self) -> list[str]:
        """The public names alone."""
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        state = "over" if self.is_over else f"at {self._session.engine.position}"
        return f"<ftcomm.Communicator rank {self.rank} of {self.world_size}, {state}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies and pickles, which would have the job's connections.

        Raises:
            TypeError: always.
        """
        raise bound_to_process("a communicator", "pass on what is needed of it, such as comm.rank")

    @property
    def rank(self) -> int:
        """This worker's place in the group, 0 to ``world_size - 1``; it survives restarts."""
        return self._session.engine.rank

    @property
    def world_size(self) -> int:
        """Number of places in the group."""
        return self._session.engine.world_size

    @property
    def epoch(self) -> int:
        """The agreed membership in force; grows by one at every change."""
        return self._session.engine.epoch

    @property
    def version(self) -> int:
        """Number of committed checkpoints; -1 before `load_checkpoint`."""
        return self._session.engine.position.version

    @property
    def seqno(self) -> int:
        """Number of collectives since the version began."""
        return self._session.engine.position.seqno

    @property
    def position(self) -> CallPosition:
        """`version` and `seqno` as one value, which can be compared and printed."""
        return CallPosition(self.version, self.seqno)

    @property
    def worker_id(self) -> str:
        """Name of this worker, the same over its restarts."""
        return self._session.worker_id

    @property
    def incarnation(self) -> int:
        """This process's number among the processes of this worker, from 1: 2 after a restart.

        A spare that took a place counts from 1 again.
        """
        return self._session.engine.incarnation

    @property
    def is_replaying(self) -> bool:
        """True while the next collective has its result already: it is served, not executed.

        This holds in a restarted process until it has caught up. It also holds for a call or two
        after a failure, where others have completed a call that was interrupted here.
        """
        return self._session.engine.is_replaying

    @property
    def error(self) -> FtcommError | None:
        """The error that has ended the job here; None while it lives, and after `close`.

        Frameworks wrap errors in their own: this one has the exit status (`error.exit_code`).
        """
        return self._session.engine.error

    @property
    def is_over(self) -> bool:
        """True after `close`, or once an error has ended this communicator."""
        return self._session.guard.is_closed

    @property
    def is_usable(self) -> bool:
        """True while calls may be made here: not over, and not inherited by a forked child."""
        return self._session.is_usable

    def stats(self) -> Stats:
        """A snapshot of the calls made here, their cost, and the recoveries."""
        return self._session.stats()

    # --- the end ------------------------------------------------------------------------------

    def close(self, *, deadline: Deadline = None) -> None:
        """Close the job together with all ranks; serve lagging ranks until all have closed.

        Args:
            deadline: as for `allreduce`, until all have closed.
        """
        self._session.close(deadline)

    def abort(self, reason: str | BaseException) -> None:
        """Leave the job without closing it: a failure at once, told to the others as `reason`.

        Nothing happens where this communicator is over already, or is a forked child's copy. A call
        that runs meanwhile raises `ClosedError`; one that is all but complete returns, and the next
        one raises. A signal handler may call it at any point: it waits half a second at most for
        work that may need its thread's locks.

        Args:
            reason: a text, or an exception, which is named by its class and text.

        Raises:
            TypeError: `reason` is neither.
            ThreadLimitError: in a signal handler, where the process can start no thread.
        """
        self._session.abort(reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._session.leave_block(error)

    # --- checkpoints --------------------------------------------------------------------------

    def checkpoint(
        self,
        state: Any,
        local: Any | None = None,
        *,
        lazy: bool = False,
        durable: bool = False,
        deadline: Deadline = None,
    ) -> int:
        """Store `state` on every rank and start the next version.

        Results logged before it are released.

        Args:
            state: equal on all ranks; nested dict, list, tuple of numpy arrays, numbers, str,
                bytes, bool, None; a dict's keys in the same order. Copied before this returns.
                What is one object under several names is loaded as one.
            local: this rank's own state, of the same types and different on each rank; kept here
                and by `local_replicas` other ranks. All ranks pass one, or none does.
            lazy: do not copy `state`: it is packed only if that is needed. Its arrays must not be
                written to until the next checkpoint has returned. The same on all ranks.
            durable: return when the job's store has it (``--checkpoint``). Likewise.
            deadline: as for `allreduce`.

        Returns:
            the new version.

        Raises:
            CollectiveMismatchError: the states or the arguments of two ranks differ.
            ConfigError: `durable`, and the job has no store.
            StateChangedError: with ``FTCOMM_VERIFY=checkpoints``, a lazy state was written to.
        """
        return self._checkpoints.save(state, local, lazy=lazy, durable=durable, deadline=deadline)

    @overload
    def load_checkpoint(self, default: Any = None, *, deadline: Deadline = None) -> Restored: ...

    @overload
    def load_checkpoint(
        self, default: Any, local_default: Any, *, deadline: Deadline = None
    ) -> RestoredLocal: ...

    @overload
    def load_checkpoint(
        self, default: Any = None, *, local_default: Any, deadline: Deadline = None
    ) -> RestoredLocal: ...

    def load_checkpoint(
        self, default: Any = None, local_default: Any = NOT_GIVEN, *, deadline: Deadline = None
    ) -> Restored | RestoredLocal:
        """End the prelude: the newest committed version and this rank's own copy of its state.

        Args:
            default: the state of version 0, for a fresh start; rank 0's is given to all.
            local_default: this rank's local state where the version has none: on a fresh start, or
                if it was checkpointed without.
            deadline: as for `allreduce`.

        Returns:
            ``Restored(version, state)``; with a local default, even None,
            ``RestoredLocal(version, state, local)``. On a fresh start the version is 0, the state
            rank 0's default and the local state one's own default; `restored_from` tells.

        Raises:
            ValueError: called twice.
        """
        own = () if local_default is NOT_GIVEN else (local_default,)
        return self._checkpoints.load(default, own, deadline)

    @property
    def restored_from(self) -> RestoredFrom | None:
        """Source of the state of `load_checkpoint`; None before that call.

        ``default``: a fresh start, with rank 0's default.  ``memory``: a checkpoint that members of
        the job held.  After a loss of all members, some of them have read it from the store before:
        that is ``memory`` too, since the others do not know it.
        """
        return self._checkpoints.restored_from

    def peek_checkpoint(self) -> int | None:
        """The version that `load_checkpoint` would return, if this worker knows it already.

        It is known where the others have loaded before: a restarted worker may then skip the work
        of a fresh start. It is no collective: other ranks may get another answer. If the others
        commit their next checkpoint in between, the load returns that version.

        Returns:
            the version; None if it is not known, as on a fresh start.

        Raises:
            ValueError: the prelude has ended; see `version`.
        """
        return self._checkpoints.known_version()

    # --- collectives --------------------------------------------------------------------------

    @overload
    def allreduce(
        self, x: Number, op: AnyOp = "sum", *, copy: bool = True,
        algorithm: str | None = None, wire: str | None = None, deadline: Deadline = None,
        tag: CallTag = None,
    ) -> Number: ...  # fmt: skip

    @overload
    def allreduce(
        self, x: Any, op: AnyOp = "sum", *, out: Out = None, copy: bool = True,
        algorithm: str | None = None, wire: str | None = None, deadline: Deadline = None,
        tag: CallTag = None,
    ) -> Result: ...  # fmt: skip

    def allreduce(
        self, x: Any, op: AnyOp = "sum", *, out: Out = None, copy: bool = True,
        algorithm: str | None = None, wire: str | None = None, deadline: Deadline = None,
        tag: CallTag = None,
    ) -> Any:  # fmt: skip
        """Combine the arrays of all ranks elementwise; every rank gets the same bytes.

        Args:
            x: array-like of one dtype and shape on all ranks; never written.
            op: sum prod min max mean band bor bxor land lor or an `ftcomm.Op`, a builtin such as
                `sum`, or a function that `ftcomm.reduction` has declared.
            out: array for the result: same dtype and shape, C-contiguous, writable; unchanged if
                the call raises. May be `x` itself.
            copy: False returns a read-only view of the logged result instead of a copy. With `wire`
                the result is always a copy.
            algorithm: ``ring`` or ``recursive_doubling``, on all ranks.
            wire: ``bf16`` sends float32 as bfloat16, half the bytes: x and every partial result
                are rounded to 8 bits of precision, and the log holds and `out` gets the rounded
                result. Of n ranks a sum is within ``(1 + h) / 256`` of the exact one, relative to
                the sum of absolute values and up to terms of second order; h is n - 1 by ring,
                no more by hosts, ceil(log2(n)) by the other two. For sum, prod, min, max and mean.
            deadline: seconds or a timedelta; longer, and all raise `CollectiveTimeoutError`.
            tag: an int or a str, the same on all ranks.

        Returns:
            `out`, or a new array of x's dtype and shape; for one number a number of its type.

        Raises:
            TypeError, ValueError: local mistakes; the position is unchanged.
            CollectiveMismatchError: a rank called something else.
            FtcommError: see the module `ftcomm.errors`.
        """
        return self._persistent.allreduce(x, op, out, copy, algorithm, wire, deadline, tag)

    @overload
    def broadcast(
        self, x: Number, root: int = 0, *, copy: bool = True,
        algorithm: str | None = None, deadline: Deadline = None, tag: CallTag = None,
    ) -> Number: ...  # fmt: skip

    @overload
    def broadcast(
        self, x: None = None, root: int = 0, *, out: Out = None, copy: bool = True,
        algorithm: str | None = None, deadline: Deadline = None, tag: CallTag = None,
    ) -> Any: ...  # fmt: skip

    @overload
    def broadcast(
        self, x: Any, root: int = 0, *, out: Out = None, copy: bool = True,
        algorithm: str | None = None, deadline: Deadline = None, tag: CallTag = None,
    ) -> Result: ...  # fmt: skip

    def broadcast(
        self, x: Any = None, root: int = 0, *, out: Out = None, copy: bool = True,
        algorithm: str | None = None, deadline: Deadline = None, tag: CallTag = None,
    ) -> Any:  # fmt: skip
        """The root's array on every rank; where it is one number, a number of its type.

        Args:
            x: on the root an array-like. Elsewhere an array-like of the same dtype and shape, whose
                content does not count, or None: then dtype and shape come with the root's, which
                has four dimensions at most. Where the root passes a Python number, the others pass
                a Python number or None, and likewise with numpy scalars. Each rank may choose.
            root: the rank whose array is sent.
            out: as for `allreduce`; ``broadcast(x, out=x)`` is in place.
            copy: False returns a read-only view of the log's own memory.
            algorithm: ``tree`` or ``chain``, on all ranks.
            deadline: as for `allreduce`.
            tag: likewise.
        """
        return self._persistent.broadcast(x, root, out, copy, algorithm, deadline, tag)

    def allgather(
        self,
        x: Any,
        *,
        out: Out = None,
        copy: bool = True,
        deadline: Deadline = None,
        tag: CallTag = None,
    ) -> Result:
        """The arrays of all ranks, stacked in rank order: shape ``(world_size, *x.shape)``.

        Args:
            x: array-like of one dtype and shape on all ranks.
            out: as for `allreduce`, of that shape.
            copy: False returns a read-only view of the log's own memory.
            deadline: as for `allreduce`.
            tag: likewise.
        """
        return self._persistent.allgather(x, out, copy, deadline, tag)

    def allgatherv(
        self,
        x: Any,
        counts: Sequence[int] | None = None,
        *,
        out: Out = None,
        copy: bool = True,
        deadline: Deadline = None,
        tag: CallTag = None,
    ) -> Result:
        """The arrays of all ranks, one after the other along axis 0, in rank order.

        Args:
            x: array-like with at least one dimension; dtype and all dimensions but the first are
                the same on all ranks, the first may differ and may be 0.
            counts: number of rows of each rank, the same on all ranks; None has the ranks tell each
                other, which is one more exchange.
            out: as for `allreduce`, of the result's shape. If only its number of rows is wrong, the
                others complete the call; made again with another `out` it is served.
            copy: False returns a read-only view of the log's own memory.
            deadline: as for `allreduce`.
            tag: likewise.
        """
        return self._persistent.allgatherv(x, counts, out, copy, deadline, tag)

    # --- collectives with a result of each rank's own: see `ftcomm.api.rank_result_forms` -----

    reduce = rank_result_forms.reduce
    reduce_scatter = rank_result_forms.reduce_scatter
    gather = rank_result_forms.gather
    gatherv = rank_result_forms.gatherv
    gather_object = rank_result_forms.gather_object
    scatter = rank_result_forms.scatter
    scatterv = rank_result_forms.scatterv
    scatter_object = rank_result_forms.scatter_object
    alltoall = rank_result_forms.alltoall
    alltoallv = rank_result_forms.alltoallv

    # --- objects, and all the others ----------------------------------------------------------

    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, deadline: Deadline = None, tag: CallTag = None
    ) -> Any:
        """The root's object on every rank, each its own copy (the root's too).

        Args:
            obj: on the root, nested dict, list, tuple of numpy arrays, numbers, str, bytes, bool,
                None. Elsewhere ignored. A function is refused, and not called for the object.
            root: the rank whose object is sent.
            deadline: as for `allreduce`.
            tag: likewise.
        """
        options = CallOptions(root=root, deadline=deadline, tag=tag)
        return self._run(deadline, self._calls.broadcast_object, obj, options)

    def allgather_object(
        self, obj: Any, *, deadline: Deadline = None, tag: CallTag = None
    ) -> list[Any]:
        """The objects of all ranks in rank order; `broadcast_object` lists their types."""
        options = CallOptions(deadline=deadline, tag=tag)
        return self._run(deadline, self._calls.allgather_object, obj, options)

    def barrier(self, *, deadline: Deadline = None, tag: CallTag = None) -> None:
        """Return when every rank has entered it."""
        self._persistent.barrier(deadline, tag)

    def bucketed(
        self, arrays: Iterable[Any], op: AnyOp = "sum", *, bucket_bytes: int = BUCKET_BYTES,
        out: Iterable[Result] | None = None, algorithm: str | None = None,
        wire: str | None = None, deadline: Deadline = None, tag: CallTag = None,
    ) -> list[Result]:  # fmt: skip
        """Combine each of `arrays` over all ranks, in few collectives.

        The arrays are copied, one after the other, into buckets of one dtype; a bucket is under way
        while the next one is being filled.  The cut into buckets follows from shapes and dtypes in
        the order given, and from `bucket_bytes`.  It is part of the order of operands: another
        `bucket_bytes` may give other last bits, as an `allreduce` of each array may.

        Args:
            arrays: array-likes; the same number, dtypes and shapes on all ranks; never written.
            op: as for `allreduce`; a function must be elementwise.
            bucket_bytes: bytes of a bucket of several arrays, at most; the same on all ranks.
            out: arrays for the results, of any memory layout; unchanged if the
                call raises. May be `arrays` themselves.
            algorithm: as for `allreduce`, for every bucket.
            wire: likewise.
            deadline: as for `allreduce`, until all buckets are done.
            tag: as for `allreduce`, of every bucket.

        Returns:
            a list of `out`'s arrays, or of new ones of the same dtypes and shapes, in order.
            New ones of one bucket share their memory: to keep one array keeps all of them.
            In place of an array of one number, passed as such, there is a number of its type.

        Raises:
            TypeError, ValueError: local mistakes; no position is taken.
            FtcommError: see `allreduce`.
        """
        options = CallOptions(op, -1, algorithm, wire, deadline, tag=tag)
        return self._buckets.allreduce(arrays, options, out, bucket_bytes)

    # --- the same without waiting: see `ftcomm.nonblocking.forms` --------------------------------

    iallreduce = forms.iallreduce
    ibroadcast = forms.ibroadcast
    iallgather = forms.iallgather
    iallgatherv = forms.iallgatherv
    ireduce = forms.ireduce
    ireduce_scatter = forms.ireduce_scatter
    igather = forms.igather
    igatherv = forms.igatherv
    igather_object = forms.igather_object
    iscatter = forms.iscatter
    iscatterv = forms.iscatterv
    iscatter_object = forms.iscatter_object
    ialltoall = forms.ialltoall
    ialltoallv = forms.ialltoallv
    ibroadcast_object = forms.ibroadcast_object
    iallgather_object = forms.iallgather_object
    ibarrier = forms.ibarrier

    # --- messages: see `ftcomm.api.message_forms` and `ftcomm.nonblocking.message_forms` --------

    send = message_forms.send
    recv = message_forms.recv
    sendrecv = message_forms.sendrecv
    probe = message_forms.probe
    send_object = message_forms.send_object
    recv_object = message_forms.recv_object
    isend = nonblocking_messages.isend
    irecv = nonblocking_messages.irecv
    isend_object = nonblocking_messages.isend_object
    irecv_object = nonblocking_messages.irecv_object

    def engine(self, workers: int = 2) -> "TaskEngine":
        """A new engine, whose functions run on `workers` threads; see `TaskEngine`.

        It is no collective: each rank may have another number of threads. `close` waits for all
        that was pushed; `checkpoint` waits for pushed collectives alone, so call `wait` before it.

        Raises:
            TypeError, ValueError: `workers` is no number from 1 to 64.
            FtcommError: the communicator is over.
        """
        make: type[TaskEngine] = importlib.import_module("ftcomm").TaskEngine
        return self._nonblocking.begin_engine(lambda: make(self._nonblocking, workers))


for _name, _call in vars(Communicator).items():
    if inspect.isfunction(_call):  # Python's errors about arguments name it as it is called
        _call.__qualname__ = f"Communicator.{_name}"
