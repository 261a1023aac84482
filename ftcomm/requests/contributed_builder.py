"""From a user's arguments to the request of a call that gives each rank a result of its own.

Each is run in one of two ways.  With the log ``whole`` it is an allreduce, an allgather or a
broadcast whose result every rank logs, and of which it takes its own part.  With the logs
``contributions`` and ``copies`` each rank gets its part alone (rule R20).  It logs its own input,
or the results of some ranks.  Where all ranks know the sizes, the way is chosen here; else the run
chooses it.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ftcomm.collectives.combination import combine_parts, combine_whole
from ftcomm.collectives.contributed_selection import (
    gatherv_schedule,
    reduce_scatter_schedule,
    reduce_schedule,
)
from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.collectives.op_argument import Reduction, check_itemsize, needs_whole, resolve_op
from ftcomm.collectives.reductions import Reducer
from ftcomm.collectives.selection import schedule_for
from ftcomm.memory.pool import Array
from ftcomm.protocol.signature import Algorithm, Kind, LogMode, Signature
from ftcomm.requests.arguments import as_elements, as_operands, as_rows, chosen_log, signature_of
from ftcomm.requests.builder import RequestBuilder, algorithm_named, make_form, site_text
from ftcomm.requests.counts import checked_counts, counts_hash
from ftcomm.requests.object_payload import (
    array_blobs,
    listed_parts,
    object_blobs,
    pack_item,
)
from ftcomm.requests.request import (
    CallOptions,
    CollectiveSpec,
    ContributedForm,
    Request,
    all_to,
    extents_of,
)

_BYTE: AnyDtype = np.dtype(np.uint8)
Lend = Callable[[int, AnyDtype], Array]


class ContributedBuilder:
    """Builds requests of calls whose results differ between ranks; see `RequestBuilder`.

    Each method is told whether the call comes before the first load, where every log is whole.
    """

    def __init__(self, builder: RequestBuilder, lend: Lend, copies: int) -> None:
        """Make one."""
        self._builder, self._lend, self._copies = builder, lend, copies
        self._group = builder.group
        self._rank, self._size = builder.group.rank, builder.group.world_size

    # --- sizes that all ranks know --------------------------------------------------------------

    def reduce_scatter(
        self,
        x: Any,
        options: CallOptions,
        site: str,
        *,
        prelude: bool,
    ) -> Request:
        """A validated reduce_scatter of the rows of `x`; raises TypeError or ValueError."""
        elements, shape = as_elements(x)
        rows = checked_counts(options.counts, shape, self._size, "reduce_scatter")
        op = resolve_op(options.op)
        sendbuf = as_operands(elements, op, None)
        if isinstance(op, Reduction) and len(sendbuf):
            check_itemsize(op, sendbuf[: len(sendbuf) // shape[0]], "a row of the input")
        log = _log_of_reduction(op, elements.nbytes, options.log, prelude=prelude)
        whole = log is LogMode.WHOLE
        named = options.algorithm
        wish = self._builder.wish(named, op) if whole else _own_algorithm(named)
        shaped = _Rows(sendbuf, elements.dtype, shape, rows, log, lent=not options.copy)
        make = functools.partial(
            self._allreduced if whole else self._scattered, shaped, op, wish, site
        )
        if not isinstance(op, str):  # a function may hold on to anything: its form is not kept
            return Request(make(), sendbuf)
        key = (Kind.REDUCE_SCATTER, *shaped.key, op, wish, site)
        return Request(self._builder.kept(key, make), sendbuf)

    def _allreduced(
        self, x: "_Rows", op: str | Reduction, wish: Algorithm, site: str
    ) -> CollectiveSpec:
        """The form of a reduce_scatter that every rank logs whole."""
        group, sendbuf, shape = self._group, x.sendbuf, x.shape
        reducer = self._builder.reducer_of(op, sendbuf, shape, None)
        schedule = schedule_for(
            Kind.ALLREDUCE,
            self._size,
            self._rank,
            len(sendbuf),
            sendbuf.itemsize,
            algorithm=wish,
            whole=reducer.whole,
            grouping=group.grouping,
        )
        return make_form(
            Kind.REDUCE_SCATTER,
            schedule,
            _signature_of_rows(x, reducer, wish),
            site,
            x.dtype,
            shape,
            reducer=reducer,
            site_text=site_text(site, op),
            accumulator=sendbuf.dtype,
        )

    def _scattered(
        self, x: "_Rows", op: str | Reduction, wish: Algorithm, site: str
    ) -> CollectiveSpec:
        """The form of a reduce_scatter that gives each rank its own rows alone."""
        sendbuf, shape, rows = x.sendbuf, x.shape, x.rows
        reducer = self._builder.reducer_of(op, sendbuf, shape, None)
        width, extents = math.prod(shape[1:]), extents_of(rows)
        bounds = (0, *(hi * width for _, hi in extents))
        schedule = reduce_scatter_schedule(self._size, self._rank, bounds)
        own = slice(bounds[self._rank], bounds[self._rank + 1])

        def combine(parts: list[Array]) -> Array:
            return combine_parts(
                parts, reducer, bounds[self._rank + 1] - bounds[self._rank], self._rank
            )

        return make_form(
            Kind.REDUCE_SCATTER,
            schedule,
            _signature_of_rows(x, reducer, wish),
            site,
            x.dtype,
            (rows[self._rank], *shape[1:]),
            reducer=reducer,
            site_text=site_text(site, op),
            contributed=ContributedForm(shape, extents, combine, own, lent=x.lent, log=x.log),
            logged=self._logged(x.log, sendbuf.nbytes, max(rows) * width * x.dtype.itemsize),
            accumulator=sendbuf.dtype,
        )

    def reduce(self, x: Any, options: CallOptions, site: str, *, prelude: bool) -> Request:
        """A validated reduce; raises TypeError or ValueError."""
        elements, shape = as_elements(x)
        op = resolve_op(options.op)
        log = _log_of_reduction(op, elements.nbytes, options.log, prelude=prelude)
        is_ring = algorithm_named(options.algorithm) in (Algorithm.AUTO, Algorithm.RING)
        if log is LogMode.CONTRIBUTIONS and options.log is None and not is_ring:
            log = LogMode.WHOLE  # an algorithm of allreduce is asked for
        if log is LogMode.WHOLE:
            return self._builder.allreduce(x, options, site)
        sendbuf, dtype = as_operands(elements, op, options.wire), elements.dtype
        wish = _own_algorithm(options.algorithm)
        make = functools.partial(self._reduced, sendbuf, dtype, shape, op, wish, options, log, site)
        if not isinstance(op, str):
            return Request(make(), sendbuf)
        key = (Kind.REDUCE, log, dtype, shape, op, wish, options.root, options.wire, site)
        return Request(self._builder.kept(key, make), sendbuf)

    def _reduced(
        self,
        sendbuf: Array,
        dtype: AnyDtype,
        shape: tuple[int, ...],
        op: str | Reduction,
        wish: Algorithm,
        options: CallOptions,
        log: LogMode,
        site: str,
    ) -> CollectiveSpec:
        root, count = options.root, len(sendbuf)
        reducer = self._builder.reducer_of(op, sendbuf, shape, options.wire)

        def combine(parts: list[Array]) -> Array:
            return combine_whole(parts, reducer, count)

        signature = signature_of(
            Kind.REDUCE,
            sendbuf,
            shape,
            dtype=dtype,
            op=reducer.op,
            op_hash=reducer.op_hash,
            algorithm=wish,
            root=root,
            wire=options.wire,
            log=log,
        )
        is_root = self._rank == root
        result = dtype if options.wire is None else sendbuf.dtype
        return make_form(
            Kind.REDUCE,
            reduce_schedule(self._size, self._rank, count, root),
            signature,
            site,
            result,
            shape if is_root else (0,),
            root=root,
            reducer=reducer,
            site_text=site_text(site, op),
            contributed=ContributedForm(
                (count,),
                all_to(root, count, self._size),
                combine if is_root else None,
                None if is_root else slice(0, 0),
                log=log,
            ),
            logged=self._logged(log, sendbuf.nbytes, count * result.itemsize),
            accumulator=sendbuf.dtype,
        )

    def gather(self, x: Any, options: CallOptions, site: str, *, prelude: bool) -> Request:
        """A validated gather; raises TypeError or ValueError."""
        sendbuf, shape = as_elements(x)
        log = chosen_log(options.log, sendbuf.nbytes * self._size, in_prelude=prelude)
        if log is LogMode.WHOLE:
            return self._builder.allgather(x, site, options.root)
        make = functools.partial(self._gathered, sendbuf, shape, options.root, log, site)
        key = (Kind.GATHER, log, sendbuf.dtype, shape, options.root, site)
        return Request(self._builder.kept(key, make), sendbuf)

    def _gathered(
        self, sendbuf: Array, shape: tuple[int, ...], root: int, log: LogMode, site: str
    ) -> CollectiveSpec:
        rows = shape or (1,)
        return make_form(
            Kind.GATHER,
            gatherv_schedule(self._size, self._rank, (len(sendbuf),) * self._size, root),
            signature_of(Kind.GATHER, sendbuf, shape, root=root, log=log),
            site,
            sendbuf.dtype,
            (self._size, *shape) if self._rank == root else (0,),
            root=root,
            contributed=ContributedForm(rows, all_to(root, rows[0], self._size), log=log),
            logged=self._logged(log, sendbuf.nbytes, sendbuf.nbytes * self._size),
        )

    def alltoall(self, x: Any, options: CallOptions, site: str, *, prelude: bool) -> Request:
        """A validated alltoall of the rows of `x`; raises TypeError or ValueError."""
        sendbuf, shape = as_elements(x)
        rows = checked_counts(None, shape, self._size, "alltoall")
        log = chosen_log(options.log, sendbuf.nbytes * self._size, in_prelude=prelude)
        shaped = _Rows(sendbuf, sendbuf.dtype, shape, rows, log, lent=not options.copy)
        make = functools.partial(self._exchanged, shaped, site)
        return Request(self._builder.kept((Kind.ALLTOALL, *shaped.key, site), make), sendbuf)

    def _exchanged(self, x: "_Rows", site: str) -> CollectiveSpec:
        sendbuf, shape, log = x.sendbuf, x.shape, x.log
        apart = ContributedForm(shape, extents_of(x.rows), lent=x.lent, log=log)
        cut = None if log is LogMode.WHOLE else apart
        schedule = schedule_for(
            Kind.ALLGATHER if cut is None else Kind.ALLTOALL,
            self._size,
            self._rank,
            len(sendbuf),
            sendbuf.itemsize,
            grouping=self._group.grouping,
        )
        return make_form(
            Kind.ALLTOALL,
            schedule,
            signature_of(Kind.ALLTOALL, sendbuf, shape, log=log),
            site,
            sendbuf.dtype,
            (self._size, *shape) if cut is None else shape,
            contributed=cut,
            logged=None if cut is None else self._logged(log, sendbuf.nbytes, sendbuf.nbytes),
        )

    def _logged(self, log: LogMode, own: int, largest: int) -> int:
        """Bytes that count in a rank's log: its own input, or the largest result so many times."""
        return own if log is LogMode.CONTRIBUTIONS else largest * (1 + self._copies)

    # --- sizes that ranks tell each other -------------------------------------------------------

    def alltoallv(self, arrays: Any, options: CallOptions, site: str, *, prelude: bool) -> Request:
        """A validated alltoallv of one array for each rank; raises TypeError or ValueError."""
        elements, shapes = listed_parts(arrays, self._size, "alltoallv")
        sendbuf = self._joined(elements)
        form = self._of_rows(Kind.ALLTOALLV, sendbuf, shapes[0], options, site, prelude=prelude)
        return Request(form, sendbuf, given=extents_of([shape[0] for shape in shapes]))

    def gatherv(self, x: Any, options: CallOptions, site: str, *, prelude: bool) -> Request:
        """A validated gatherv; raises TypeError or ValueError."""
        sendbuf, shape = as_rows(x, "gatherv")
        form = self._of_rows(Kind.GATHERV, sendbuf, shape, options, site, prelude=prelude)
        given = all_to(options.root, shape[0], self._size)
        return Request(form, sendbuf, rows=shape[0], given=given)

    def gather_object(
        self, value: Any, options: CallOptions, site: str, *, prelude: bool
    ) -> Request:
        """A validated gather of one object of each rank; raises TypeError."""
        form = self._of_bytes(Kind.GATHER_OBJECT, options, site, prelude=prelude)
        blob = pack_item(value)
        given = all_to(options.root, len(blob), self._size)
        return Request(form, blob, rows=len(blob), given=given)

    def scatter(
        self, kind: Kind, x: Any, options: CallOptions, site: str, *, prelude: bool
    ) -> Request:
        """A validated scatter of any kind; only the root's `x` is looked at.

        Raises:
            TypeError, ValueError: at the root x does not fit, or log does not.
        """
        form = self._of_bytes(kind, options, site, prelude=prelude)
        if self._rank != options.root:
            return Request(form, given=((0, 0),) * self._size)
        blobs = self._blobs(kind, x)
        return Request(form, self._joined(blobs), given=extents_of([len(blob) for blob in blobs]))

    def _blobs(self, kind: Kind, x: Any) -> list[Array]:
        if kind is Kind.SCATTER_OBJECT:
            return object_blobs(x, self._size)
        if kind is Kind.SCATTERV:
            listed_parts(x, self._size, "scatterv")
        return array_blobs(x, self._size, kind.name.lower())

    def _joined(self, parts: list[Array]) -> Array:
        """The parts one behind the other, in new memory."""
        joined = self._lend(sum(len(part) for part in parts), parts[0].dtype)
        np.concatenate(parts, out=joined)
        return joined

    def _of_rows(
        self,
        kind: Kind,
        sendbuf: Array,
        shape: tuple[int, ...],
        options: CallOptions,
        site: str,
        *,
        prelude: bool,
    ) -> CollectiveSpec:
        """The form of a call to which each rank brings as many rows of one shape as it has."""
        log, row = chosen_log(options.log, None, in_prelude=prelude), shape[1:]

        def make() -> CollectiveSpec:
            signature = signature_of(kind, sendbuf, shape, root=options.root, log=log)
            cut = ContributedForm(row, lent=kind is Kind.ALLTOALLV, log=log)
            return make_form(
                kind, None, signature, site, sendbuf.dtype, row, root=options.root, contributed=cut
            )

        return self._builder.kept((kind, log, sendbuf.dtype, row, options.root, site), make)

    def _of_bytes(
        self, kind: Kind, options: CallOptions, site: str, *, prelude: bool
    ) -> CollectiveSpec:
        """The form of a call whose bytes are told apart by no dtype or shape."""
        log, root = chosen_log(options.log, None, in_prelude=prelude), options.root

        def make() -> CollectiveSpec:
            signature = Signature(kind, root=root, log=log).encode()
            cut = ContributedForm((), lent=True, log=log)
            return make_form(kind, None, signature, site, _BYTE, (), root=root, contributed=cut)

        return self._builder.kept((kind, log, root, site), make)


class _Rows(NamedTuple):
    """An input whose rows go to different ranks."""

    sendbuf: Array
    dtype: AnyDtype  # the user's
    shape: tuple[int, ...]
    rows: tuple[int, ...]
    log: LogMode
    lent: bool

    @property
    def key(self) -> tuple[object, ...]:
        """All that the form of a call depends on."""
        return (self.log, self.dtype, self.shape, self.rows, self.lent)


def _log_of_reduction(
    op: str | Reduction, nbytes: int, log: str | None, *, prelude: bool
) -> LogMode:
    """The log of a reduction; one by a function of whole arrays runs as an allreduce alone.

    Raises:
        ValueError: the caller's choice does not fit.
    """
    chosen = chosen_log(log, nbytes, in_prelude=prelude)
    if chosen is LogMode.WHOLE or not needs_whole(op):
        return chosen
    if log is not None:
        raise ValueError(
            f"log={log!r} is for elementwise functions, and this one was declared to need whole"
            " arrays; leave log= out"
        )
    return LogMode.WHOLE


def _own_algorithm(name: str | None) -> Algorithm:
    """The algorithm of a reduction whose results are of one rank each; raises ValueError."""
    wish = algorithm_named(name)
    if wish not in (Algorithm.AUTO, Algorithm.RING):
        raise ValueError(
            f"algorithm {name} gives every rank the whole result; use ring, or log='whole'"
        )
    return wish


def _signature_of_rows(x: _Rows, reducer: Reducer, wish: Algorithm) -> bytes:
    return signature_of(
        Kind.REDUCE_SCATTER,
        x.sendbuf,
        x.shape,
        dtype=x.dtype,
        op=reducer.op,
        op_hash=reducer.op_hash ^ counts_hash(x.rows),
        algorithm=wish,
        log=x.log,
    )
