"""Collectives: from a public call's arguments to its submission, the request and its output."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ftcomm.api.outputs import OutputPolicy, Result, as_passed, as_sent
from ftcomm.api.session import Session
from ftcomm.collectives.bfloat16 import widen_bfloat16
from ftcomm.memory.pool import LoggedResult
from ftcomm.protocol.signature import Kind
from ftcomm.requests.arguments import (
    check_memory,
    check_out,
    check_rows,
    is_input_function,
    result_dtype,
)
from ftcomm.requests.builder import site_text
from ftcomm.requests.call_site import call_site, passes_on
from ftcomm.requests.object_payload import part_of, unpack_items, unpack_object
from ftcomm.requests.options import CallOptions
from ftcomm.requests.request import DeferredInput, OpenBroadcast, Request, Submission, anything

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
        self._world_size = session.engine.world_size

    def allreduce(
        self, x: Any, options: CallOptions, out: Result | None, *, copy: bool
    ) -> Submission[Any]:
        """An allreduce."""
        site, wire = call_site(), options.wire

        def make(x: Any) -> Request:
            request = self._build.allreduce(x, options, site)
            if out is not None:
                check_out(out, result_dtype(request.form.dtype, wire), request.form.shape)
                if wire is None:
                    request.place = self._output.place_in(out, request.sendbuf)
            return request

        finish = self._output.to(out, copy=copy) if wire is None else _widened_into(out)
        finish = as_passed(x, finish, out)
        return self._built(Kind.ALLREDUCE, x, make, finish, site, options, _fits(out, wire))

    def broadcast(
        self, x: Any, options: CallOptions, out: Result | None, *, copy: bool
    ) -> Submission[Any]:
        """A broadcast; without an array on another rank than the root, an open one."""
        site, options = call_site(), self._rooted(options)
        finish = as_sent(self._output.to(out, copy=copy), out)
        if x is None and options.root != self._rank:
            opened = _opened(self._build.broadcast_from(options, site), out)
            return Submission(Kind.BROADCAST, opened, finish, options.deadline)

        def make(x: Any) -> Request:
            if x is None:
                raise TypeError("the input is None; pass an array: this rank is the root")
            request = self._build.broadcast(x, options, site)
            check_out(out, request.form.dtype, request.form.shape)
            return request

        return self._built(Kind.BROADCAST, x, make, finish, site, options, _fits(out))

    def allgather(
        self, x: Any, options: CallOptions, out: Result | None, *, copy: bool
    ) -> Submission[Result]:
        """An allgather."""
        finish = self._output.to(out, copy=copy)
        return self._stacked(Kind.ALLGATHER, x, options, out, finish)

    def gather(self, x: Any, options: CallOptions, out: Result | None) -> Submission[Result | None]:
        """A gather; `out` counts on the root alone."""
        options = self._rooted(options)
        out = out if self._rank == options.root else None
        return self._stacked(Kind.GATHER, x, options, out, self._on_root(options, out))

    def _stacked(
        self, kind: Kind, x: Any, options: CallOptions, out: Result | None, finish: Finish
    ) -> Submission[Any]:
        site = call_site()

        def make(x: Any) -> Request:
            request = self._build.allgather(x, site, options.root)
            check_out(out, request.form.dtype, request.form.shape)
            return request

        return self._built(kind, x, make, finish, site, options, _fits(out))

    def allgatherv(
        self, x: Any, options: CallOptions, out: Result | None, *, copy: bool
    ) -> Submission[Result]:
        """An allgatherv."""
        finish = self._output.to(out, copy=copy)
        return self._joined(Kind.ALLGATHERV, x, options, out, finish)

    def gatherv(
        self, x: Any, options: CallOptions, out: Result | None
    ) -> Submission[Result | None]:
        """A gatherv; `out` counts on the root alone."""
        options = self._rooted(options)
        out = out if self._rank == options.root else None
        return self._joined(Kind.GATHERV, x, options, out, self._on_root(options, out))

    def _joined(
        self, kind: Kind, x: Any, options: CallOptions, out: Result | None, finish: Finish
    ) -> Submission[Any]:
        site = call_site()

        def make(x: Any) -> Request:
            return _with_rows(self._build.allgatherv(x, site, options.root), out)

        return self._built(kind, x, make, finish, site, options, _fits(out))

    def reduce(self, x: Any, options: CallOptions, out: Result | None) -> Submission[Any]:
        """A reduce; `out` counts on the root alone."""
        site, options, wire = call_site(), self._rooted(options), options.wire
        out = out if self._rank == options.root else None

        def make(x: Any) -> Request:
            request = self._build.allreduce(x, options, site)
            check_out(out, result_dtype(request.form.dtype, wire), request.form.shape)
            return request

        given = self._output.to(out, copy=True) if wire is None else _widened_into(out)
        finish = self._on(options.root, as_passed(x, given, out))
        return self._built(Kind.REDUCE, x, make, finish, site, options, _fits(out, wire))

    def scatter(self, x: Any, options: CallOptions, out: Result | None) -> Submission[Result]:
        """A scatter; `x` counts on the root alone."""
        site, options = call_site(), self._rooted(options)
        check_memory(out)

        def own_part(stored: LoggedResult) -> Result:
            part = part_of(stored.flat, self._rank, self._world_size)
            if out is None:
                return part.copy()
            out[...] = part
            return out

        def check(stored: LoggedResult) -> None:
            part = part_of(stored.flat, self._rank, self._world_size)
            check_out(out, part.dtype, part.shape)

        def make(x: Any) -> Request:
            request = self._build.scatter(x, options.root, site)
            request.check = check
            return request

        x = x if self._rank == options.root else None
        return self._built(Kind.SCATTER, x, make, own_part, site, options, check)

    def broadcast_object(self, obj: Any, options: CallOptions) -> Submission[Any]:
        """A broadcast of an object, which is packed now; the root's counts."""
        options = self._rooted(options)
        obj = obj if self._rank == options.root else None
        request = self._build.broadcast_object(obj, options.root, call_site())
        return Submission(Kind.BROADCAST_OBJECT, request, _own_copy, options.deadline)

    def allgather_object(self, obj: Any, options: CallOptions) -> Submission[list[Any]]:
        """An allgather of objects, which are packed now."""
        request = self._build.allgather_object(obj, call_site())
        return Submission(Kind.ALLGATHER_OBJECT, request, _own_copies, options.deadline)

    def barrier(self, options: CallOptions) -> Submission[None]:
        """A barrier."""
        request = self._build.plain(Kind.BARRIER, call_site())
        return Submission(Kind.BARRIER, request, _dropped, options.deadline)

    # --- parts --------------------------------------------------------------------------------

    def _built(
        self,
        kind: Kind,
        x: Any,
        make: Callable[[Any], Request],
        finish: Finish,
        site: str,
        options: CallOptions,
        check: Callable[[LoggedResult], None] = anything,
    ) -> Submission[Any]:
        """A call with the input `x`, or with what `x` returns if it is a function.

        Args:
            kind: the collective.
            x: the user's.
            make: the request of an input.
            finish: the user's result of the log's.
            site: where the user called it.
            options: the user's wishes, which give the signature as far as it needs no input.
            check: given a result before it is taken from the log; raises where `out` does not fit.
        """
        if not is_input_function(x):
            return Submission(kind, make(x), finish, options.deadline)
        known = self._build.known(kind, options)
        text = site_text(site, options.op)
        request = DeferredInput(kind, known, text, lambda: make(x()), check)
        return Submission(kind, request, finish, options.deadline)

    def _rooted(self, options: CallOptions) -> CallOptions:
        return replace(options, root=self._build.checked_root(options.root))

    def _on_root(self, options: CallOptions, out: Result | None) -> Finish:
        return self._on(options.root, self._output.to(out, copy=True))

    def _on(self, root: int, finish: Finish) -> Finish:
        """The result on the root; the others have it in their logs alone (rule R11)."""
        return finish if self._rank == root else _dropped


def _opened(opened: OpenBroadcast, out: Result | None) -> OpenBroadcast:
    """A broadcast that is compared with `out` when its size is known."""
    check_memory(out)

    def make(raw: bytes) -> Request:
        request = opened.make(raw)
        request.check = _fits(out)
        return request

    return replace(opened, make=make, check=_fits(out))


def _fits(out: Result | None, wire: str | None = None) -> Callable[[LoggedResult], None]:
    """Refuses a result for which `out` is no place."""

    def check(stored: LoggedResult) -> None:
        check_out(out, result_dtype(stored.flat.dtype, wire), stored.shape)

    return check


def _with_rows(request: Request, out: Result | None) -> Request:
    """A request of which only the run tells how many rows `out` must have."""
    if out is not None:
        check_rows(out, request.form.dtype, request.form.shape)
        request.check = _fits(out)
    return request


def _widened_into(out: Result | None = None) -> Callable[[LoggedResult], Result]:
    """Hand out, like `OutputPolicy.to`, a result that travelled and is kept as bfloat16."""

    def widened(stored: LoggedResult) -> Result:
        wide = np.empty(len(stored.flat), np.float32)
        widen_bfloat16(stored.flat, wide)
        shaped = wide.reshape(stored.shape)
        if out is None:
            return shaped
        out[...] = shaped
        return out

    return widened


def _own_copy(stored: LoggedResult) -> Any:
    return unpack_object(stored.flat)


def _own_copies(stored: LoggedResult) -> list[Any]:
    return list(unpack_items(stored.flat))


def _dropped(stored: LoggedResult) -> None:
    """Give this rank nothing."""
