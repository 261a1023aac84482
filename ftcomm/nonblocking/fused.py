"""Bucketed calls: one call for many arrays, such as the gradients of a model's layers."""

import operator
from collections.abc import Sequence
from typing import Any

from ftcomm.api.outputs import Result, as_number
from ftcomm.collectives.op_argument import AnyOp, needs_whole
from ftcomm.config.deadline import Duration, Limit
from ftcomm.config.plurals import counted
from ftcomm.memory.pool import Array
from ftcomm.nonblocking.buckets import BUCKET_BYTES, Bucket, cut
from ftcomm.nonblocking.collectives import NonblockingCalls
from ftcomm.nonblocking.handle import Handle
from ftcomm.requests.arguments import as_elements, check_out
from ftcomm.requests.call_site import passes_on

passes_on(__file__)


class BucketedCalls(NonblockingCalls):
    """Several arrays in one call; it takes a position for each bucket."""

    def bucketed(
        self,
        arrays: Sequence[Any],
        op: AnyOp = "sum",
        *,
        bucket_bytes: int = BUCKET_BYTES,
        out: Sequence[Result] | None = None,
        algorithm: str | None = None,
        wire: str | None = None,
        deadline: Duration | None = None,
    ) -> list[Result]:
        """Combine each of `arrays` over all ranks, in few collectives.

        The arrays are copied, one after the other, into buckets of one dtype; a bucket is under way
        while the next one is being filled.  How they are cut into buckets follows from shapes and
        dtypes in the order given, and from `bucket_bytes`.  It is part of the order of operands:
        another `bucket_bytes` may give other last bits, as an `allreduce` of each array may.

        Args:
            arrays: array-likes; the same number, dtypes and shapes on all ranks; never written.
            op: as for `allreduce`; a function must be elementwise.
            bucket_bytes: how large a bucket of several arrays may be; the same on all ranks.
            out: where to put the results, an array of any memory layout for each; unchanged if the
                call raises. May be `arrays` themselves.
            algorithm: as for `allreduce`, for every bucket.
            wire: likewise.
            deadline: as for `allreduce`, until all buckets are done.

        Returns:
            a list of `out`'s arrays, or of new ones of the same dtypes and shapes, in order.
            New ones of one bucket share their memory: to keep one array keeps all of them.
            In place of an array of one number, passed as such, there is a number of its type.

        Raises:
            TypeError, ValueError: local mistakes; no position is taken.
            FtcommError: see `allreduce`.
        """
        if not isinstance(op, str) and needs_whole(op):
            raise ValueError("op wants whole arrays, and buckets are cut otherwise; use allreduce")
        most, limit = _checked_bytes(bucket_bytes), self._limit_of(deadline)
        parts = [as_elements(x) for x in arrays]
        _check_outs(out, parts)
        members = cut([(flat.nbytes, flat.dtype.str) for flat, _ in parts], most)
        buckets = [Bucket([parts[number] for number in numbers]) for numbers in members]
        found: list[Any] = [None] * len(parts)
        for numbers, results in zip(
            members, self._combine(buckets, op, algorithm, wire, limit), strict=True
        ):
            for number, result in zip(numbers, results, strict=True):
                found[number] = result
        if out is None:
            return [as_number(x, result) for x, result in zip(arrays, found, strict=True)]
        for place, result in zip(out, found, strict=True):
            place[...] = result
        return list(out)

    def _combine(
        self,
        buckets: Sequence[Bucket],
        op: AnyOp,
        algorithm: str | None,
        wire: str | None,
        limit: Limit | None,
    ) -> list[list[Result]]:
        """Each bucket's parts, combined."""
        writer = self._writer
        handles: list[Handle[Result]] = []

        def write_down(flat: Array, out: Result | None) -> None:
            writer.allreduce(flat, op, out=out, algorithm=algorithm, wire=wire)

        with self._queue.one_user():
            for bucket in buckets:
                write_down(bucket.flat[:0], None)  # all mistakes, before the first is under way
                writer.written()
            try:
                for bucket in buckets:
                    bucket.pack()
                    write_down(bucket.flat, bucket.flat if bucket.is_shared else None)
                    handles.append(Handle(self._place(self._written(limit)), self._queue))
                results = [handle.wait() for handle in handles]
            except BaseException as error:
                if not all(handle.done() for handle in handles):  # Ctrl-C: results would be lost
                    self._give_up(error)
                raise
        return [bucket.unpack(result) for bucket, result in zip(buckets, results, strict=True)]


def _checked_bytes(bucket_bytes: Any) -> int:
    try:
        nbytes = operator.index(bucket_bytes)
    except TypeError:
        name = type(bucket_bytes).__name__
        raise TypeError(f"bucket_bytes is a {name}, must be a whole number of bytes") from None
    if nbytes < 1:
        raise ValueError(f"bucket_bytes is {nbytes}, must be at least 1")
    return nbytes


def _check_outs(
    out: Sequence[Result] | None, parts: Sequence[tuple[Array, tuple[int, ...]]]
) -> None:
    if out is None:
        return
    if len(out) != len(parts):
        raise ValueError(
            f"out has {counted(len(out), 'array')}, and there are {len(parts)} to combine"
        )
    for place, (flat, shape) in zip(out, parts, strict=True):
        check_out(place, flat.dtype, shape, strided=True)
