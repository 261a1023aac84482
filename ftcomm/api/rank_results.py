"""Collectives that give each rank a result of its own: from arguments to the submission."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ftcomm.api.outputs import (
    OutputPolicy,
    Result,
    as_passed,
    dropped,
    fits,
    shares_input,
    to_own,
    widened_into,
    with_rows,
)
from ftcomm.api.session import Session
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.position import PRELUDE
from ftcomm.protocol.signature import Kind, LogMode
from ftcomm.recovery.archive.placement import local_copies
from ftcomm.requests.arguments import check_memory, check_out, result_dtype
from ftcomm.requests.call_site import call_site, passes_on
from ftcomm.requests.contributed_builder import ContributedBuilder
from ftcomm.requests.counts import checked_counts
from ftcomm.requests.object_payload import (
    array_of,
    own_blob,
    own_rows,
    unpack_items,
    unpack_object,
)
from ftcomm.requests.request import CallOptions, Request, Submission, extents_of

passes_on(__file__)

Finish = Callable[[LoggedResult], Any]


class RankResultCalls:
    """Builds calls, and runs none; see `CollectiveCalls`.

    What a call returns is either a part of a result that every rank logs, or this rank's own
    (`LoggedResult.is_own`), and then it belongs to the user already.
    """

    def __init__(self, session: Session, output: OutputPolicy) -> None:
        self._engine = engine = session.engine
        copies = local_copies(engine.world_size, engine.replicas)
        self._build = ContributedBuilder(session.builder, engine.lend, copies)
        self._base = session.builder
        self._output = output
        self._rank, self._size = engine.rank, engine.world_size

    @property
    def _prelude(self) -> bool:
        return self._engine.position.version == PRELUDE

    # --- reductions -----------------------------------------------------------------------------

    def reduce(self, x: Any, options: CallOptions, out: Result | None) -> Submission[Any]:
        """A reduce; `out` counts on the root alone."""
        site, options, wire = call_site(), self._base.rooted(options), options.wire
        is_root = self._rank == options.root
        out, prelude = out if is_root else None, self._prelude

        def make(x: Any) -> Request:
            request = self._build.reduce(x, options, site, prelude=prelude)
            if is_root:
                check_out(out, result_dtype(request.form.dtype, wire), request.form.shape)
            return request if wire else _placed(request, out, x)

        given = self._handed_out(out) if wire is None else widened_into(out)
        finish = self._on(options.root, as_passed(x, given, out))
        check = fits(out, wire)
        return self._base.submission(Kind.REDUCE, x, make, finish, site, options, check)

    def reduce_scatter(
        self, x: Any, options: CallOptions, out: Result | None
    ) -> Submission[Result]:
        """A reduce_scatter."""
        site, prelude = call_site(), self._prelude
        check_memory(out)

        def rows_of(shape: tuple[int, ...]) -> slice:
            rows = checked_counts(options.counts, shape, self._size, "reduce_scatter")
            return slice(*extents_of(rows)[self._rank])

        def part(stored: LoggedResult) -> Result:
            if stored.is_own:
                return stored.flat.reshape(stored.shape)
            return stored.flat.reshape(stored.shape)[rows_of(stored.shape)]

        def make(x: Any) -> Request:
            return self._build.reduce_scatter(x, options, site, prelude=prelude)

        return self._parted(Kind.REDUCE_SCATTER, x, make, part, site, options, out)

    # --- exchanges ------------------------------------------------------------------------------

    def alltoall(self, x: Any, options: CallOptions, out: Result | None) -> Submission[Result]:
        """An alltoall."""
        site, prelude = call_site(), self._prelude

        def part(stored: LoggedResult) -> Result:
            whole = stored.flat.reshape(stored.shape)
            if stored.is_own:
                return whole
            rows = whole.shape[1] // self._size
            mine = whole[:, self._rank * rows : (self._rank + 1) * rows]
            return mine.reshape(self._size * rows, *whole.shape[2:])

        def make(x: Any) -> Request:
            return self._build.alltoall(x, options, site, prelude=prelude)

        return self._parted(Kind.ALLTOALL, x, make, part, site, options, out)

    def alltoallv(self, arrays: Any, options: CallOptions) -> Submission[list[Result]]:
        """An alltoallv."""
        site = call_site()
        request = self._build.alltoallv(arrays, options, site, prelude=self._prelude)
        dtype, row = request.form.dtype, request.form.shape

        def parts(stored: LoggedResult) -> list[Result]:
            if not stored.is_own:
                every = own_rows(stored.flat, self._rank, self._size, dtype, row)
                return [part.copy() for part in every]
            joined = stored.flat.reshape(stored.shape)
            return [joined[lo:hi] for lo, hi in extents_of(stored.rows)]

        return self._base.submitted(Kind.ALLTOALLV, request, parts, options)

    # --- to the root ----------------------------------------------------------------------------

    def gather(self, x: Any, options: CallOptions, out: Result | None) -> Submission[Result | None]:
        """A gather; `out` counts on the root alone."""
        site, options = call_site(), self._base.rooted(options)
        is_root = self._rank == options.root
        out, prelude = out if is_root else None, self._prelude

        def make(x: Any) -> Request:
            request = self._build.gather(x, options, site, prelude=prelude)
            if is_root:
                check_out(out, request.form.dtype, request.form.shape)
            return _placed(request, out, x)

        finish = self._on(options.root, self._handed_out(out))
        return self._base.submission(Kind.GATHER, x, make, finish, site, options, fits(out))

    def gatherv(
        self, x: Any, options: CallOptions, out: Result | None
    ) -> Submission[Result | None]:
        """A gatherv; `out` counts on the root alone."""
        site, options = call_site(), self._base.rooted(options)
        out, prelude = out if self._rank == options.root else None, self._prelude

        def make(x: Any) -> Request:
            return with_rows(self._build.gatherv(x, options, site, prelude=prelude), out)

        finish = self._on(options.root, self._handed_out(out))
        return self._base.submission(Kind.GATHERV, x, make, finish, site, options, fits(out))

    def gather_object(self, obj: Any, options: CallOptions) -> Submission[list[Any] | None]:
        """A gather of objects, which are packed now."""
        options = self._base.rooted(options)
        request = self._build.gather_object(obj, options, call_site(), prelude=self._prelude)
        finish = self._on(options.root, lambda stored: list(unpack_items(stored.flat)))
        return self._base.submitted(Kind.GATHER_OBJECT, request, finish, options)

    # --- from the root --------------------------------------------------------------------------

    def scatter(self, x: Any, options: CallOptions, out: Result | None) -> Submission[Result]:
        """A scatter; `x` counts on the root alone."""
        return self._scattered(Kind.SCATTER, x, options, out)

    def scatterv(self, arrays: Any, options: CallOptions, out: Result | None) -> Submission[Result]:
        """A scatterv; `arrays` count on the root alone."""
        return self._scattered(Kind.SCATTERV, arrays, options, out)

    def _scattered(
        self, kind: Kind, x: Any, options: CallOptions, out: Result | None
    ) -> Submission[Result]:
        site, options = call_site(), self._base.rooted(options)
        prelude = self._prelude

        def make(x: Any) -> Request:
            return self._build.scatter(kind, x, options, site, prelude=prelude)

        def part(stored: LoggedResult) -> Result:
            return array_of(self._blob(stored))

        x = x if self._rank == options.root else None
        return self._parted(kind, x, make, part, site, options, out)

    def scatter_object(self, objects: Any, options: CallOptions) -> Submission[Any]:
        """A scatter of objects, which are packed now; the root's count."""
        options = self._base.rooted(options)
        objects = objects if self._rank == options.root else None
        request = self._build.scatter(
            Kind.SCATTER_OBJECT, objects, options, call_site(), prelude=self._prelude
        )
        return self._base.submitted(
            Kind.SCATTER_OBJECT,
            request,
            lambda stored: unpack_object(self._blob(stored)),
            options,
        )

    def _blob(self, stored: LoggedResult) -> Array:
        """The root's bytes for this rank."""
        return stored.flat if stored.is_own else own_blob(stored.flat, self._rank, self._size)

    # --- outputs --------------------------------------------------------------------------------

    def _parted(
        self,
        kind: Kind,
        x: Any,
        make: Callable[[Any], Request],
        part: Callable[[LoggedResult], Result],
        site: str,
        options: CallOptions,
        out: Result | None,
    ) -> Submission[Any]:
        """A call of whose result this rank gets `part`, into `out` or as its own array."""
        check_memory(out)

        def check(stored: LoggedResult) -> None:
            if out is not None:
                found = part(stored)
                check_out(out, found.dtype, found.shape)

        def made(x: Any) -> Request:
            request = make(x)
            request.check = check
            if out is not None and _is_sized_and_own(request):
                check_out(out, request.form.dtype, request.form.shape)
            return _placed(request, out, x)

        def finish(stored: LoggedResult) -> Result:
            found = part(stored)
            if out is None:
                return found if stored.is_own else np.array(found)
            if not np.may_share_memory(out, found):
                out[...] = found
            return out

        return self._base.submission(kind, x, made, finish, site, options, check)

    def _handed_out(self, out: Result | None) -> Finish:
        """Hand out a result that every rank logs, or that is this rank's own."""
        logged, own = self._output.to(out, copy=True), to_own(out)
        return lambda stored: own(stored) if stored.is_own else logged(stored)

    def _on(self, root: int, finish: Finish) -> Finish:
        """The result on the root alone."""
        return finish if self._rank == root else dropped


def _is_sized_and_own(request: Request) -> bool:
    """The result is this rank's own, and its size is known before the run."""
    return request.form.contributed is not None and request.form.schedule is not None


def _placed(request: Request, out: Result | None, x: Any) -> Request:
    """A request that makes its result in `out` itself, where no log needs it and no input is there.

    What an attempt leaves there that fails is overwritten by the next, or the job is over.

    Raises:
        ValueError: `out` is the input, which the caller has left to the log.
    """
    if out is not None and _is_sized_and_own(request):
        flat = out.reshape(-1)
        if not shares_input(flat, x, request.sendbuf):
            request.place = flat
        elif _is_logged_as_it_is(request):
            raise ValueError(
                "out shares memory with x, which copy=False leaves to the log until the next "
                "checkpoint; pass another out, or copy=True"
            )
    return request


def _is_logged_as_it_is(request: Request) -> bool:
    """The log keeps the user's input without a copy."""
    cut = request.form.contributed
    return cut is not None and cut.lent and cut.log is LogMode.CONTRIBUTIONS
