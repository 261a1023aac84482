"""Nonblocking forms of the collectives: the communicator's methods with an i before their names.

Each submits what its blocking form runs, takes the same arguments, and returns a `Handle`.
"""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from ftcomm.api.collectives import CollectiveCalls
from ftcomm.api.outputs import Number, Result
from ftcomm.api.rank_results import RankResultCalls
from ftcomm.collectives.op_argument import AnyOp
from ftcomm.config.deadline import Duration
from ftcomm.nonblocking.handle import Handle
from ftcomm.protocol.signature import CallTag
from ftcomm.requests.call_site import passes_on
from ftcomm.requests.request import CallOptions, Submission

passes_on(__file__)

Out = Result | None
Deadline = Duration | None
Log = str | None
P = ParamSpec("P")
R = TypeVar("R")


class Submit(Protocol):
    """`NonblockingCalls.submit`."""

    def __call__(
        self, build: Callable[P, Submission[R]], /, *arguments: P.args, **options: P.kwargs
    ) -> Handle[R]:
        """Build a call and put it into the queue."""


class SubmitsCalls(Protocol):
    """The communicator, as these methods of it need it."""

    _calls: CollectiveCalls
    _rank_results: RankResultCalls
    _submit: Submit


@overload
def iallreduce(
    self: SubmitsCalls, x: Number, op: AnyOp = "sum", *, copy: bool = True,
    algorithm: str | None = None, wire: str | None = None, deadline: Deadline = None,
    tag: CallTag = None,
) -> Handle[Number]: ...  # fmt: skip


@overload
def iallreduce(
    self: SubmitsCalls, x: Any, op: AnyOp = "sum", *, out: Out = None, copy: bool = True,
    algorithm: str | None = None, wire: str | None = None, deadline: Deadline = None,
    tag: CallTag = None,
) -> Handle[Result]: ...  # fmt: skip


def iallreduce(
    self: SubmitsCalls, x: Any, op: AnyOp = "sum", *, out: Out = None, copy: bool = True,
    algorithm: str | None = None, wire: str | None = None, deadline: Deadline = None,
    tag: CallTag = None,
) -> Handle[Any]:  # fmt: skip
    """Begin an `allreduce`."""
    options = CallOptions(op, -1, algorithm, wire, deadline, tag=tag)
    return self._submit(self._calls.allreduce, x, options, out, copy=copy)


@overload
def ibroadcast(
    self: SubmitsCalls, x: Number, root: int = 0, *, copy: bool = True,
    algorithm: str | None = None, deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Number]: ...  # fmt: skip


@overload
def ibroadcast(
    self: SubmitsCalls, x: None = None, root: int = 0, *, out: Out = None, copy: bool = True,
    algorithm: str | None = None, deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Any]: ...  # fmt: skip


@overload
def ibroadcast(
    self: SubmitsCalls, x: Any, root: int = 0, *, out: Out = None, copy: bool = True,
    algorithm: str | None = None, deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Result]: ...  # fmt: skip


def ibroadcast(
    self: SubmitsCalls, x: Any = None, root: int = 0, *, out: Out = None, copy: bool = True,
    algorithm: str | None = None, deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Any]:  # fmt: skip
    """Begin a `broadcast`."""
    options = CallOptions(root=root, algorithm=algorithm, deadline=deadline, tag=tag)
    return self._submit(self._calls.broadcast, x, options, out, copy=copy)


def iallgather(
    self: SubmitsCalls,
    x: Any,
    *,
    out: Out = None,
    copy: bool = True,
    deadline: Deadline = None,
    tag: CallTag = None,
) -> Handle[Result]:
    """Begin an `allgather`."""
    options = CallOptions(deadline=deadline, tag=tag)
    return self._submit(self._calls.allgather, x, options, out, copy=copy)


def iallgatherv(
    self: SubmitsCalls,
    x: Any,
    counts: Sequence[int] | None = None,
    *,
    out: Out = None,
    copy: bool = True,
    deadline: Deadline = None,
    tag: CallTag = None,
) -> Handle[Result]:
    """Begin an `allgatherv`."""
    options = CallOptions(deadline=deadline, counts=counts, tag=tag)
    return self._submit(self._calls.allgatherv, x, options, out, copy=copy)


@overload
def ireduce(
    self: SubmitsCalls, x: Number, op: AnyOp = "sum", root: int = 0, *,
    algorithm: str | None = None, wire: str | None = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Number | None]: ...  # fmt: skip


@overload
def ireduce(
    self: SubmitsCalls, x: Any, op: AnyOp = "sum", root: int = 0, *, out: Out = None,
    algorithm: str | None = None, wire: str | None = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Result | None]: ...  # fmt: skip


def ireduce(
    self: SubmitsCalls, x: Any, op: AnyOp = "sum", root: int = 0, *, out: Out = None,
    algorithm: str | None = None, wire: str | None = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Any]:  # fmt: skip
    """Begin a `reduce`."""
    options = CallOptions(op, root, algorithm, wire, deadline, log, tag=tag)
    return self._submit(self._rank_results.reduce, x, options, out)


def ireduce_scatter(
    self: SubmitsCalls, x: Any, op: AnyOp = "sum", counts: Sequence[int] | None = None, *,
    out: Out = None, copy: bool = True, algorithm: str | None = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Result]:  # fmt: skip
    """Begin a `reduce_scatter`."""
    options = CallOptions(op, -1, algorithm, None, deadline, log, copy, counts, tag)
    return self._submit(self._rank_results.reduce_scatter, x, options, out)


def igather(
    self: SubmitsCalls, x: Any, root: int = 0, *, out: Out = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Result | None]:  # fmt: skip
    """Begin a `gather`."""
    options = CallOptions(root=root, deadline=deadline, log=log, tag=tag)
    return self._submit(self._rank_results.gather, x, options, out)


def igatherv(
    self: SubmitsCalls, x: Any, root: int = 0, *, out: Out = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Result | None]:  # fmt: skip
    """Begin a `gatherv`."""
    options = CallOptions(root=root, deadline=deadline, log=log, tag=tag)
    return self._submit(self._rank_results.gatherv, x, options, out)


def igather_object(
    self: SubmitsCalls,
    obj: Any,
    root: int = 0,
    *,
    log: Log = None,
    deadline: Deadline = None,
    tag: CallTag = None,
) -> Handle[list[Any] | None]:
    """Begin a `gather_object`; the object is packed now, and may change afterwards."""
    options = CallOptions(root=root, deadline=deadline, log=log, tag=tag)
    return self._submit(self._rank_results.gather_object, obj, options)


def iscatter(
    self: SubmitsCalls, x: Any = None, root: int = 0, *, out: Out = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Result]:  # fmt: skip
    """Begin a `scatter`."""
    options = CallOptions(root=root, deadline=deadline, log=log, tag=tag)
    return self._submit(self._rank_results.scatter, x, options, out)


def iscatterv(
    self: SubmitsCalls, arrays: Any = None, root: int = 0, *, out: Out = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Result]:  # fmt: skip
    """Begin a `scatterv`."""
    options = CallOptions(root=root, deadline=deadline, log=log, tag=tag)
    return self._submit(self._rank_results.scatterv, arrays, options, out)


def iscatter_object(
    self: SubmitsCalls, objects: Any = None, root: int = 0, *, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Any]:  # fmt: skip
    """Begin a `scatter_object`; the objects are packed now, and may change afterwards."""
    options = CallOptions(root=root, deadline=deadline, log=log, tag=tag)
    return self._submit(self._rank_results.scatter_object, objects, options)


def ialltoall(
    self: SubmitsCalls, x: Any, *, out: Out = None, copy: bool = True, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Handle[Result]:  # fmt: skip
    """Begin an `alltoall`."""
    options = CallOptions(deadline=deadline, log=log, copy=copy, tag=tag)
    return self._submit(self._rank_results.alltoall, x, options, out)


def ialltoallv(
    self: SubmitsCalls,
    arrays: Any,
    *,
    log: Log = None,
    deadline: Deadline = None,
    tag: CallTag = None,
) -> Handle[list[Result]]:
    """Begin an `alltoallv`; the arrays are copied now, and may change afterwards."""
    options = CallOptions(deadline=deadline, log=log, tag=tag)
    return self._submit(self._rank_results.alltoallv, arrays, options)


def ibroadcast_object(
    self: SubmitsCalls,
    obj: Any = None,
    root: int = 0,
    *,
    deadline: Deadline = None,
    tag: CallTag = None,
) -> Handle[Any]:
    """Begin a `broadcast_object`; the object is packed now, and may change afterwards."""
    options = CallOptions(root=root, deadline=deadline, tag=tag)
    return self._submit(self._calls.broadcast_object, obj, options)


def iallgather_object(
    self: SubmitsCalls, obj: Any, *, deadline: Deadline = None, tag: CallTag = None
) -> Handle[list[Any]]:
    """Begin an `allgather_object`; the object is packed now, and may change afterwards."""
    return self._submit(self._calls.allgather_object, obj, CallOptions(deadline=deadline, tag=tag))


def ibarrier(self: SubmitsCalls, *, deadline: Deadline = None, tag: CallTag = None) -> Handle[None]:
    """Begin a `barrier`: it is done when every rank has begun it."""
    return self._submit(self._calls.barrier, CallOptions(deadline=deadline, tag=tag))
