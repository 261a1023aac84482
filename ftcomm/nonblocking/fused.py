"""Bucketed calls: one call for many arrays, such as the gradients of a model's layers."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from ftcomm.api.collectives import CollectiveCalls
from ftcomm.api.outputs import Result, as_number
from ftcomm.api.session import Session
from ftcomm.collectives.op_argument import needs_whole
from ftcomm.config.deadline import Limit
from ftcomm.config.plurals import counted, kind_of
from ftcomm.errors import LogLimitError
from ftcomm.memory.pool import Array
from ftcomm.nonblocking.buckets import Bucket, cut
from ftcomm.nonblocking.handle import Handle, QueuedCall
from ftcomm.nonblocking.nonblocking_calls import NonblockingCalls
from ftcomm.requests.arguments import as_elements, check_out
from ftcomm.requests.call_site import passes_on
from ftcomm.requests.request import CallOptions, Submission

passes_on(__file__)


class BucketedCalls:
    """Several arrays in one call; it takes a position for each bucket."""

    def __init__(
        self, session: Session, nonblocking: NonblockingCalls, calls: CollectiveCalls
    ) -> None:
        self._session, self._nonblocking, self._calls = session, nonblocking, calls

    def allreduce(
        self,
        arrays: Iterable[Any],
        options: CallOptions,
        out: Iterable[Result] | None,
        bucket_bytes: int,
    ) -> list[Result]:
        """Combine each of `arrays` over all ranks; see `Communicator.bucketed`."""
        given, places = list(arrays), None if out is None else list(out)
        op = options.op
        if not isinstance(op, str) and needs_whole(op):
            raise ValueError("this op needs whole arrays; bucketed() cuts them, use allreduce()")
        most, limit = _checked_bytes(bucket_bytes), self._session.limit_of(options.deadline)
        parts = [as_elements(x) for x in given]
        _check_outs(places, parts)
        members = cut([(flat.nbytes, flat.dtype.str) for flat, _ in parts], most)
        buckets = [Bucket([parts[number] for number in numbers]) for numbers in members]
        calls: list[QueuedCall[Result]] = []
        session = self._session

        def handed_out(combined: Iterable[list[Result]]) -> list[Result]:
            found: list[Any] = [None] * len(parts)
            for numbers, results in zip(members, combined, strict=True):
                for number, result in zip(numbers, results, strict=True):
                    found[number] = result
            return _handed_out(given, found, places)

        def run() -> list[Result]:
            try:
                return handed_out(self._combine(buckets, options, limit, calls))
            except Exception as error:
                if session.is_usable and _may_be_lost(calls, error):
                    session.give_up(error)
                raise

        if len(buckets) != 1:
            return self._nonblocking.queue.run_alone(run)
        # Nothing is to be done while it is under way, and another thread would be slower to run it.
        (bucket,) = buckets
        one = self._packed(bucket, options)
        whole = Submission(
            one.kind, one.request, lambda stored: handed_out([bucket.unpack(one.finish(stored))])
        )
        return session.guard.run(lambda: session.run_built(limit, whole), limit)

    def _combine(
        self,
        buckets: Sequence[Bucket],
        options: CallOptions,
        limit: Limit | None,
        calls: list[QueuedCall[Result]],
    ) -> list[list[Result]]:
        """Each bucket's parts, combined; `calls` gets what is placed."""
        nonblocking = self._nonblocking
        for bucket in buckets:
            self._built(bucket.flat[:0], options)  # all mistakes, before the first is under way
        for bucket in buckets:
            submission = self._packed(bucket, options)
            calls.append(nonblocking.queue.put(nonblocking.queued(submission, limit)))
        results = [Handle(call, nonblocking.queue).wait() for call in calls]
        return [bucket.unpack(result) for bucket, result in zip(buckets, results, strict=True)]

    def _packed(self, bucket: Bucket, options: CallOptions) -> Submission[Result]:
        bucket.pack()
        return self._built(bucket.flat, options, bucket.flat if bucket.is_shared else None)

    def _built(
        self, flat: Array, options: CallOptions, out: Result | None = None
    ) -> Submission[Result]:
        return self._calls.allreduce(flat, options, out, copy=True)


def _handed_out(
    arrays: Sequence[Any], found: Sequence[Result], out: list[Result] | None
) -> list[Result]:
    if out is None:
        return [as_number(x, result) for x, result in zip(arrays, found, strict=True)]
    for place, result in zip(out, found, strict=True):
        place[...] = result
    return out


def _may_be_lost(calls: Sequence[QueuedCall[Result]], error: BaseException) -> bool:
    """Tell whether a bucket took its position: its result is lost, and a retry would take another.

    A bucket that raised took none, and those behind it raise the same.
    """
    if isinstance(error, LogLimitError):  # all ranks raise it in the same bucket
        return False
    return any(call.error is None for call in calls)


def _checked_bytes(bucket_bytes: Any) -> int:
    try:
        nbytes = operator.index(bucket_bytes)
    except TypeError:
        kind = kind_of(bucket_bytes)
        raise TypeError(f"bucket_bytes is {kind}, must be a whole number of bytes") from None
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
