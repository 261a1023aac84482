"""Bucketed calls: one call for many arrays, such as the gradients of a model's layers."""

import operator
from collections.abc import Sequence
from typing import Any

from ftcomm.api.collectives import CollectiveCalls
from ftcomm.api.outputs import Result, as_number
from ftcomm.api.session import Session
from ftcomm.collectives.op_argument import needs_whole
from ftcomm.config.deadline import Limit
from ftcomm.config.plurals import counted
from ftcomm.memory.pool import Array
from ftcomm.nonblocking.buckets import Bucket, cut
from ftcomm.nonblocking.handle import Handle
from ftcomm.nonblocking.nonblocking_calls import NonblockingCalls
from ftcomm.requests.arguments import as_elements, check_out
from ftcomm.requests.call_site import passes_on
from ftcomm.requests.options import CallOptions
from ftcomm.requests.request import Submission

passes_on(__file__)


class BucketedCalls:
    """Several arrays in one call; it takes a position for each bucket."""

    def __init__(
        self, session: Session, nonblocking: NonblockingCalls, calls: CollectiveCalls
    ) -> None:
        self._session, self._nonblocking, self._calls = session, nonblocking, calls

    def allreduce(
        self,
        arrays: Sequence[Any],
        options: CallOptions,
        out: Sequence[Result] | None,
        bucket_bytes: int,
    ) -> list[Result]:
        """Combine each of `arrays` over all ranks; see `Communicator.bucketed`."""
        op = options.op
        if not isinstance(op, str) and needs_whole(op):
            raise ValueError("this op needs whole arrays; bucketed() cuts them, use allreduce()")
        most, limit = _checked_bytes(bucket_bytes), self._session.limit_of(options.deadline)
        parts = [as_elements(x) for x in arrays]
        _check_outs(out, parts)
        members = cut([(flat.nbytes, flat.dtype.str) for flat, _ in parts], most)
        buckets = [Bucket([parts[number] for number in numbers]) for numbers in members]
        found: list[Any] = [None] * len(parts)
        for numbers, results in zip(members, self._combine(buckets, options, limit), strict=True):
            for number, result in zip(numbers, results, strict=True):
                found[number] = result
        if out is None:
            return [as_number(x, result) for x, result in zip(arrays, found, strict=True)]
        for place, result in zip(out, found, strict=True):
            place[...] = result
        return list(out)

    def _combine(
        self, buckets: Sequence[Bucket], options: CallOptions, limit: Limit | None
    ) -> list[list[Result]]:
        """Each bucket's parts, combined."""
        nonblocking = self._nonblocking
        handles: list[Handle[Result]] = []

        def built(flat: Array, out: Result | None) -> Submission[Result]:
            return self._calls.allreduce(flat, options, out, copy=True)

        with nonblocking.queue.one_user():
            for bucket in buckets:
                built(bucket.flat[:0], None)  # all mistakes, before the first is under way
            try:
                for bucket in buckets:
                    bucket.pack()
                    submission = built(bucket.flat, bucket.flat if bucket.is_shared else None)
                    call = nonblocking.place(nonblocking.queued(submission, limit))
                    handles.append(Handle(call, nonblocking.queue))
                results = [handle.wait() for handle in handles]
            except BaseException as error:
                if not all(handle.done() for handle in handles):  # Ctrl-C: results would be lost
                    self._session.give_up(error)
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
