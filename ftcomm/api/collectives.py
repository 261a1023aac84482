"""Collectives: from a public call's arguments to its submission, the request and its output."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ftcomm.api.outputs import (
    OutputPolicy,
    Result,
    as_passed,
    as_sent,
    dropped,
    fits,
    widened_into,
    with_rows,
)
from ftcomm.api.session import Session
from ftcomm.memory.pool import LoggedResult
from ftcomm.protocol.signature import Kind
from ftcomm.requests.arguments import (
    check_memory,
    check_out,
    result_dtype,
)
from ftcomm.requests.call_site import call_site, passes_on
from ftcomm.requests.object_payload import unpack_items, unpack_object
from ftcomm.requests.request import CallOptions, OpenBroadcast, Request, Submission

passes_on(__file__)

Finish = Callable[[LoggedResult], Any]


class CollectiveCalls:
    """Builds calls, and runs none: blocking and nonblocking forms share what is built here.

    Methods are called as those of the communicator that they are named after, and raise what is a
    local mistake. An input function is kept for the run, which may not need it.
    """

    def __init__(self, session: Session, output: OutputPolicy) -> None:
        self._build = session.builder
        self._output = output
        self._rank = session.engine.rank

    def allreduce(
        self, x: Any, options: CallOptions, out: Result | None, *, copy: bool
    ) -> Submission[Any]:
        """An allreduce."""
        site, wire = call_site(), options.wire

        def make(x: Any) -> Request:
            request = self._build.allreduce(x, options, site)
            if out is not None:
                check_out(out, result_dtype(request.form.dtype, wire), request.form.shape)
            return request

        finish = self._output.to(out, copy=copy) if wire is None else widened_into(out)
        finish = as_passed(x, finish, out)
        return self._build.submission(
            Kind.ALLREDUCE, x, make, finish, site, options, fits(out, wire)
        )

    def broadcast(
        self, x: Any, options: CallOptions, out: Result | None, *, copy: bool
    ) -> Submission[Any]:
        """A broadcast; without an array on another rank than the root, an open one."""
        site, options = call_site(), self._build.rooted(options)
        finish = as_sent(self._output.to(out, copy=copy), out)
        if x is None and options.root != self._rank:
            opened = _opened(self._build.broadcast_from(options, site), out)
            return self._build.submitted(Kind.BROADCAST, opened, finish, options)

        def make(x: Any) -> Request:
            if x is None:
                raise TypeError("the input is None; pass an array: this rank is the root")
            request = self._build.broadcast(x, options, site)
            check_out(out, request.form.dtype, request.form.shape)
            return request

        return self._build.submission(Kind.BROADCAST, x, make, finish, site, options, fits(out))

    def allgather(
        self, x: Any, options: CallOptions, out: Result | None, *, copy: bool
    ) -> Submission[Result]:
        """An allgather."""
        site, finish = call_site(), self._output.to(out, copy=copy)

        def make(x: Any) -> Request:
            request = self._build.allgather(x, site)
            check_out(out, request.form.dtype, request.form.shape)
            return request

        return self._build.submission(Kind.ALLGATHER, x, make, finish, site, options, fits(out))

    def allgatherv(
        self, x: Any, options: CallOptions, out: Result | None, *, copy: bool
    ) -> Submission[Result]:
        """An allgatherv."""
        site, finish = call_site(), self._output.to(out, copy=copy)

        def make(x: Any) -> Request:
            request = self._build.allgatherv(x, options, site)
            if request.form.schedule is None:
                return with_rows(request, out)
            check_out(out, request.form.dtype, request.form.shape)
            return request

        return self._build.submission(Kind.ALLGATHERV, x, make, finish, site, options, fits(out))

    def broadcast_object(self, obj: Any, options: CallOptions) -> Submission[Any]:
        """A broadcast of an object, which is packed now; the root's counts."""
        options = self._build.rooted(options)
        obj = obj if self._rank == options.root else None
        request = self._build.broadcast_object(obj, options.root, call_site())
        return self._build.submitted(
            Kind.BROADCAST_OBJECT, request, lambda stored: unpack_object(stored.flat), options
        )

    def allgather_object(self, obj: Any, options: CallOptions) -> Submission[list[Any]]:
        """An allgather of objects, which are packed now."""
        request = self._build.allgather_object(obj, call_site())
        return self._build.submitted(
            Kind.ALLGATHER_OBJECT, request, lambda stored: list(unpack_items(stored.flat)), options
        )

    def barrier(self, options: CallOptions) -> Submission[None]:
        """A barrier."""
        request = self._build.plain(Kind.BARRIER, call_site())
        return self._build.submitted(Kind.BARRIER, request, dropped, options)


def _opened(opened: OpenBroadcast, out: Result | None) -> OpenBroadcast:
    """A broadcast that is compared with `out` when its size is known."""
    check_memory(out)

    def make(raw: bytes) -> Request:
        request = opened.make(raw)
        request.check = fits(out)
        return request

    return replace(opened, make=make, check=fits(out))
