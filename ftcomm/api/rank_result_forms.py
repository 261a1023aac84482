"""Collectives that give each rank a result of its own: methods of the communicator.

They are functions here and methods there: `Communicator.alltoall` is `alltoall`.

All take ``log=``: what is kept until the next checkpoint, so that a restarted rank gets its result
again.  ``whole``: every rank gets, and logs, all ranks' results.  ``contributions``: each rank gets
its own result alone, and logs a copy of its own input; a restarted script must compute the same
input again, or the job is lost.  ``copies``: each rank gets its own result alone, of which
``--replicas`` other ranks keep copies; a restarted script may compute something else, and an input
function is not called again.  None, the default, is ``whole`` up to 64 KiB in all and before
`load_checkpoint`, and ``contributions`` above.  All ranks pass the same.
"""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from ftcomm.api.outputs import Number, Result
from ftcomm.api.rank_results import RankResultCalls
from ftcomm.collectives.op_argument import AnyOp
from ftcomm.config.deadline import Duration
from ftcomm.protocol.signature import CallTag
from ftcomm.requests.call_site import passes_on
from ftcomm.requests.request import CallOptions, Submission

passes_on(__file__)

Out = Result | None
Deadline = Duration | None
Log = str | None
P = ParamSpec("P")
R = TypeVar("R")


class Run(Protocol):
    """`Session.run`."""

    def __call__(
        self,
        deadline: Duration | None,
        build: Callable[P, Submission[R]],
        /,
        *arguments: P.args,
        **options: P.kwargs,
    ) -> R:
        """Build a call and run it."""


class RunsCalls(Protocol):
    """The communicator, as these methods of it need it."""

    _rank_results: RankResultCalls
    _run: Run


@overload
def reduce(
    self: RunsCalls, x: Number, op: AnyOp = "sum", root: int = 0, *,
    algorithm: str | None = None, wire: str | None = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Number | None: ...  # fmt: skip


@overload
def reduce(
    self: RunsCalls, x: Any, op: AnyOp = "sum", root: int = 0, *, out: Out = None,
    algorithm: str | None = None, wire: str | None = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Result | None: ...  # fmt: skip


def reduce(
    self: RunsCalls, x: Any, op: AnyOp = "sum", root: int = 0, *, out: Out = None,
    algorithm: str | None = None, wire: str | None = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Any:  # fmt: skip
    """Reduce like `allreduce`, with the result on `root` and None on the others.

    `out` is looked at on the root alone. Another `algorithm` than ``ring`` makes the log whole.

    Args:
        x: as for `allreduce`.
        op: likewise.
        root: the rank that gets the result.
        out: as for `allreduce`.
        algorithm: likewise.
        wire: likewise.
        log: ``whole``, ``contributions`` or ``copies``; None chooses by the size of `x`.
        deadline: as for `allreduce`.
        tag: likewise.
    """
    options = CallOptions(op, root, algorithm, wire, deadline, log, tag=tag)
    return self._run(deadline, self._rank_results.reduce, x, options, out)


def reduce_scatter(
    self: RunsCalls, x: Any, op: AnyOp = "sum", counts: Sequence[int] | None = None, *,
    out: Out = None, copy: bool = True, algorithm: str | None = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Result:  # fmt: skip
    """Combine `x` over all ranks, and give each rank its rows of the result.

    Args:
        x: array-like of one dtype and shape on all ranks, with at least one dimension.
        op: as for `allreduce`; a function must be elementwise, but for the log ``whole``.
        counts: how many rows each rank gets, the same on all ranks; they add up to the rows of `x`.
            None gives all as many.
        out: as for `allreduce`, of the shape ``(counts[rank], *x.shape[1:])``.
        copy: False leaves `x` itself to the log: it may not be written to until the next checkpoint
            has returned.
        algorithm: ``ring``, on all ranks.
        log: ``whole``, ``contributions`` or ``copies``; None chooses by the size of `x`.
        deadline: as for `allreduce`.
        tag: likewise.

    Returns:
        `out`, or an own array of that shape.

    Raises:
        TypeError, ValueError: local mistakes; the position is unchanged.
        JobLostError: with the log ``contributions``, a restarted rank gave other bytes than before.
        FtcommError: see `allreduce`.
    """
    options = CallOptions(op, -1, algorithm, None, deadline, log, copy, counts, tag)
    return self._run(deadline, self._rank_results.reduce_scatter, x, options, out)


def gather(
    self: RunsCalls, x: Any, root: int = 0, *, out: Out = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Result | None:  # fmt: skip
    """Gather like `allgather`, with the result on `root` and None on the others.

    `out` is looked at on the root alone.
    """
    options = CallOptions(root=root, deadline=deadline, log=log, tag=tag)
    return self._run(deadline, self._rank_results.gather, x, options, out)


def gatherv(
    self: RunsCalls, x: Any, root: int = 0, *, out: Out = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Result | None:  # fmt: skip
    """Gather like `allgatherv`, with the result on `root` and None on the others.

    `out` is looked at on the root alone.
    """
    options = CallOptions(root=root, deadline=deadline, log=log, tag=tag)
    return self._run(deadline, self._rank_results.gatherv, x, options, out)


def gather_object(
    self: RunsCalls,
    obj: Any,
    root: int = 0,
    *,
    log: Log = None,
    deadline: Deadline = None,
    tag: CallTag = None,
) -> list[Any] | None:
    """The objects of all ranks in rank order on `root`, None on the others.

    See `broadcast_object` for what they may be.
    """
    options = CallOptions(root=root, deadline=deadline, log=log, tag=tag)
    return self._run(deadline, self._rank_results.gather_object, obj, options)


def scatter(
    self: RunsCalls, x: Any = None, root: int = 0, *, out: Out = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Result:  # fmt: skip
    """Part i of the root's `x` on rank i, as its own writable copy.

    Args:
        x: on the root an array-like of shape ``(world_size, ...)``, of which rank i gets
            ``x[i]``, or a list or tuple of `world_size` arrays of one dtype, such as
            `numpy.array_split` gives, whose first dimensions may differ. Elsewhere ignored.
        root: the rank whose `x` is taken apart.
        out: as for `allreduce`, of the part's dtype and shape. If these are wrong, the others
            complete the call; made again with another `out` it is served.
        log: ``whole``, ``contributions`` or ``copies``; None chooses by the size of the root's `x`.
        deadline: as for `allreduce`.
        tag: likewise.
    """
    options = CallOptions(root=root, deadline=deadline, log=log, tag=tag)
    return self._run(deadline, self._rank_results.scatter, x, options, out)


def scatterv(
    self: RunsCalls, arrays: Any = None, root: int = 0, *, out: Out = None, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Result:  # fmt: skip
    """Array i of the root's list on rank i, as its own writable copy.

    Args:
        arrays: on the root a list or tuple of `world_size` arrays of one dtype, with at least one
            dimension; only their first dimensions may differ. Elsewhere ignored.
        root: the rank that has the list.
        out: as for `scatter`.
        log: likewise.
        deadline: as for `allreduce`.
        tag: likewise.
    """
    options = CallOptions(root=root, deadline=deadline, log=log, tag=tag)
    return self._run(deadline, self._rank_results.scatterv, arrays, options, out)


def scatter_object(
    self: RunsCalls, objects: Any = None, root: int = 0, *, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Any:  # fmt: skip
    """Object i of the root's list on rank i, its own copy (the root's too).

    Args:
        objects: on the root a list or tuple of `world_size` objects; see `broadcast_object` for
            what they may be. Elsewhere ignored.
        root: the rank that has the list.
        log: as for `scatter`.
        deadline: as for `allreduce`.
        tag: likewise.
    """
    options = CallOptions(root=root, deadline=deadline, log=log, tag=tag)
    return self._run(deadline, self._rank_results.scatter_object, objects, options)


def alltoall(
    self: RunsCalls, x: Any, *, out: Out = None, copy: bool = True, log: Log = None,
    deadline: Deadline = None, tag: CallTag = None,
) -> Result:  # fmt: skip
    """Block r of each rank's `x` to rank r: a transpose of blocks over the ranks.

    Args:
        x: array-like of one dtype and shape on all ranks, whose rows are a multiple of
            `world_size`; block r is the r-th of as many equal parts.
        out: as for `allreduce`, of the dtype and shape of `x`.
        copy: as for `reduce_scatter`.
        log: ``whole``, ``contributions`` or ``copies``; None chooses by the size of all ranks' `x`
            together.
        deadline: as for `allreduce`.
        tag: likewise.

    Returns:
        `out`, or an own array of the shape of `x`: the blocks for this rank in rank order.

    Raises:
        TypeError, ValueError: local mistakes; the position is unchanged.
        JobLostError: with the log ``contributions``, a restarted rank gave other bytes than before.
        FtcommError: see `allreduce`.
    """
    options = CallOptions(deadline=deadline, log=log, copy=copy, tag=tag)
    return self._run(deadline, self._rank_results.alltoall, x, options, out)


def alltoallv(
    self: RunsCalls,
    arrays: Any,
    *,
    log: Log = None,
    deadline: Deadline = None,
    tag: CallTag = None,
) -> list[Result]:
    """Array r of each rank's list to rank r.

    Args:
        arrays: a list or tuple of `world_size` arrays of one dtype, the same on all ranks, with at
            least one dimension; only their first dimensions may differ, and may be 0.
        log: ``whole``, ``contributions`` or ``copies``; None chooses by the size of all arrays
            together.
        deadline: as for `allreduce`.
        tag: likewise.

    Returns:
        the arrays for this rank in rank order. They may share their memory: to keep one may keep
        all of them.

    Raises:
        TypeError, ValueError: local mistakes; the position is unchanged.
        JobLostError: with the log ``contributions``, a restarted rank gave other bytes than before.
        FtcommError: see `allreduce`.
    """
    options = CallOptions(deadline=deadline, log=log, tag=tag)
    return self._run(deadline, self._rank_results.alltoallv, arrays, options)
