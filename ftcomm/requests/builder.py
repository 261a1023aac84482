"""From a user's arguments to a `Request`: validation, signature, memory layout.

Everything that can be wrong locally is found here, before the position or any peer is touched.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ftcomm.collectives.bfloat16 import bfloat16_reducer
from ftcomm.collectives.dtypes import AnyDtype, dtype_of, is_bfloat16
from ftcomm.collectives.op_argument import (
    Reduction,
    UncheckedOp,
    check_itemsize,
    needs_whole,
    resolve_op,
)
from ftcomm.collectives.reductions import Reducer, make_reducer, op_code
from ftcomm.collectives.schedules.schedule import Schedule
from ftcomm.collectives.selection import SCHEDULES_KEPT, allgatherv_schedule, schedule_for
from ftcomm.config.plurals import counted
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.frame_header import make_suffix
from ftcomm.protocol.host_groups import Grouping
from ftcomm.protocol.signature import (
    NO_TAG,
    RANK_LOCAL,
    Algorithm,
    Kind,
    LogMode,
    OpCode,
    Scalar,
    Signature,
    named_shape,
    site_with_function,
    tag_code,
    with_tag,
)
from ftcomm.requests.arguments import (
    as_elements,
    as_operands,
    as_rows,
    checked_root,
    is_input_function,
    named_log,
    scalar_type,
    signature_of,
    wire_code,
)
from ftcomm.requests.counts import counts_hash, given_counts_hash, listed_counts
from ftcomm.requests.object_payload import pack_item, pack_object
from ftcomm.requests.request import (
    AnyRequest,
    CallOptions,
    CollectiveSpec,
    ContributedForm,
    DeferredInput,
    OpenBroadcast,
    Request,
    Submission,
    anything,
)

R = TypeVar("R")

# After this many broadcasts, or bytes of them, without a synchronising collective, the next one
# ends with a barrier: the root's log is bounded, and all ranks count alike (rule R3).
FLUSH_BROADCASTS = 64
FLUSH_BYTES = 64 * 1024 * 1024
FORMS_KEPT = SCHEDULES_KEPT  # a program with ever new shapes keeps no more
_REDUCTIONS = (Kind.ALLREDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER)
_ALGORITHMS = {
    None: Algorithm.AUTO,
    "auto": Algorithm.AUTO,
    "ring": Algorithm.RING,
    "recursive_doubling": Algorithm.RECURSIVE_DOUBLING,
    "tree": Algorithm.TREE,
    "chain": Algorithm.CHAIN,
}


@dataclass(frozen=True, slots=True)
class Group:
    """A job's group as requests depend on it; nothing here changes while the job lives."""

    rank: int  # this worker's rank
    world_size: int  # number of ranks
    grouping: Grouping  # which ranks shared a host when the group formed
    algorithm: str  # the job's own choice of algorithm, or ``auto``


class UnprovenBroadcasts:
    """Broadcasts since the last call that proved what came before; all ranks count alike (R3)."""

    __slots__ = ("nbytes", "number")

    def __init__(self) -> None:
        self.number = self.nbytes = 0  # how many have completed, and bytes of their results

    def must_flush(self, nbytes: int) -> bool:
        """True if a broadcast of `nbytes` must prove that its predecessors have arrived."""
        return self.number + 1 >= FLUSH_BROADCASTS or self.nbytes + nbytes >= FLUSH_BYTES

    def completed(self, kind: Kind, nbytes: int = 0) -> None:
        """Count a result, executed or replayed; a call that raised has none."""
        if kind is not Kind.BROADCAST or self.must_flush(nbytes):
            self.number = self.nbytes = 0
        else:
            self.number += 1
            self.nbytes += nbytes


class RequestBuilder:
    """Builds one communicator's requests, and keeps the specs that they share.

    The user's thread builds, and so does the thread that runs nonblocking calls where an input is
    a function. Each step on the kept specs is atomic, and a spec that is built twice is the same.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._forms: dict[object, CollectiveSpec] = {}

    def allreduce(
        self,
        x: Any,
        options: CallOptions,
        site: str,
    ) -> Request:
        """A validated allreduce, or, with a root, a reduce; raises TypeError or ValueError."""
        elements, shape = as_elements(x)
        dtype, asked = elements.dtype, resolve_op(options.op)
        sendbuf = as_operands(elements, asked, options.wire)

        def make() -> CollectiveSpec:
            return self._reduction_form(sendbuf, dtype, shape, asked, options, site)

        if not isinstance(asked, str):  # a function may hold on to anything: its form is not kept
            return Request(make(), sendbuf)
        key = (dtype, shape, asked, options.algorithm, site, options.root, options.wire)
        return Request(self.kept(key, make), sendbuf)

    def reducer_of(
        self, op: str | Reduction, sendbuf: Array, shape: tuple[int, ...], wire: str | None
    ) -> Reducer:
        """The reduction `op` of elements that travel as `sendbuf`.

        Raises:
            TypeError, ValueError: the elements cannot be reduced so.
        """
        if wire is None and not is_bfloat16(sendbuf.dtype):
            reducer = make_reducer(op, sendbuf.dtype, shape=shape)
        else:
            reducer = bfloat16_reducer(op)
        if isinstance(op, Reduction):
            check_itemsize(op, sendbuf)
        return reducer

    def rooted(self, options: CallOptions) -> CallOptions:
        """The options with the root as a rank of this group; raises TypeError or ValueError."""
        return replace(options, root=checked_root(options.root, self.group.world_size))

    def submission(
        self,
        kind: Kind,
        x: Any,
        make: Callable[[Any], Request],
        finish: Callable[[LoggedResult], R],
        site: str,
        options: CallOptions,
        check: Callable[[LoggedResult], None] = anything,
    ) -> Submission[R]:
        """A call with the input `x`, or with what `x` returns if it is a function.

        `check` is given a result before it is taken from the log; it raises where `out` does not
        fit.
        """
        if not is_input_function(x):
            return self.submitted(kind, make(x), finish, options)
        known = self.known(kind, options)
        text = site_text(site, options.op)
        request = DeferredInput(kind, known, text, lambda: make(x()), check)
        return self.submitted(kind, request, finish, options)

    def submitted(
        self,
        kind: Kind,
        request: AnyRequest,
        finish: Callable[[LoggedResult], R],
        options: CallOptions,
    ) -> Submission[R]:
        """A call that is built, with the options that each kind has; raises TypeError."""
        code = tag_code(options.tag)
        if code != NO_TAG:
            request = self._tagged(request, code)
        return Submission(kind, request, finish, options.deadline)

    def _tagged(self, request: AnyRequest, code: int) -> AnyRequest:
        """The same call; its signature has a tag."""
        if isinstance(request, Request):
            request.form = self._tagged_form(request.form, code)
            return request
        known = with_tag(request.known, code)
        if isinstance(request, OpenBroadcast):
            return replace(request, known=known)  # the root's signature brings the tag
        make = request.make

        def make_tagged() -> Request:
            made = make()
            made.form = self._tagged_form(made.form, code)
            return made

        return replace(request, known=known, make=make_tagged)

    def _tagged_form(self, form: CollectiveSpec, code: int) -> CollectiveSpec:
        def make() -> CollectiveSpec:
            signature = with_tag(form.signature, code)
            return replace(
                form, signature=signature, suffix=signature + form.suffix[len(signature) :]
            )

        if form.reducer is not None and form.reducer.op is OpCode.FUNCTION:
            return make()  # a function may hold on to anything: its form is not kept
        return self.kept((form, code), make)

    def _reduction_form(
        self,
        sendbuf: Array,
        dtype: AnyDtype,
        shape: tuple[int, ...],
        op: str | Reduction,
        options: CallOptions,
        site: str,
    ) -> CollectiveSpec:
        root, wire = options.root, options.wire
        wish = self.wish(options.algorithm, op)
        reducer = self.reducer_of(op, sendbuf, shape, wire)
        kind = Kind.ALLREDUCE if root < 0 else Kind.REDUCE
        signature = signature_of(
            kind,
            sendbuf,
            shape,
            dtype=dtype,
            op=reducer.op,
            op_hash=reducer.op_hash,
            algorithm=wish,
            root=root,
            wire=wire,
        )
        schedule = self._schedule(
            Kind.ALLREDUCE,
            len(sendbuf),
            sendbuf.itemsize,
            algorithm=wish,
            whole=reducer.whole,
        )
        return make_form(
            kind,
            schedule,
            signature,
            site,
            dtype if wire is None else sendbuf.dtype,
            shape,
            root=root,
            reducer=reducer,
            site_text=site_text(site, op),
            accumulator=sendbuf.dtype,
        )

    def broadcast(self, x: Any, options: CallOptions, site: str) -> Request:
        """A validated broadcast; raises TypeError or ValueError."""
        sendbuf, shape = as_elements(x)
        scalar, root, algorithm = scalar_type(x), options.root, options.algorithm
        key = (Kind.BROADCAST, sendbuf.dtype, shape, root, site, algorithm, scalar)
        form = self._forms.get(key)
        if form is None:
            wish = algorithm_named(algorithm)
            signature = signature_of(
                Kind.BROADCAST, sendbuf, shape, root=root, algorithm=wish, scalar=scalar
            )
            form = self._broadcast_form(signature, site, sendbuf.dtype, shape)
            self._keep(key, form)
        return Request(form, sendbuf)

    def broadcast_from(self, options: CallOptions, site: str) -> OpenBroadcast:
        """A validated broadcast of which the root alone has the array, on another rank.

        Raises:
            ValueError: algorithm does not fit.
        """
        root, wish = options.root, algorithm_named(options.algorithm)

        def make(raw: bytes) -> Request:
            key = (raw, site)
            form = self._forms.get(key)
            if form is None:
                signature = Signature.decode(raw)
                shape, dtype = named_shape(signature), dtype_of(signature.dtype)
                assert shape is not None, "it was looked at when it came"
                form = self._broadcast_form(raw, site, dtype, shape)
                self._keep(key, form)
            return Request(form)

        known = Signature(Kind.BROADCAST, root=root, algorithm=wish).encode()
        return OpenBroadcast(known, site, self._announcement(root, wish), make, anything)

    def _broadcast_form(
        self, raw: bytes, site: str, dtype: AnyDtype, shape: tuple[int, ...]
    ) -> CollectiveSpec:
        signature = Signature.decode(raw)
        root, wish = signature.root, signature.algorithm
        schedule = self._schedule(
            Kind.BROADCAST, signature.count, dtype.itemsize, root=root, algorithm=wish
        )
        small = self._announcement(root, wish)
        announcement = None if schedule.algorithm is small.algorithm else small
        return make_form(
            Kind.BROADCAST,
            schedule,
            raw,
            site,
            dtype,
            shape,
            root=root,
            scalar=signature.scalar,
            announcement=announcement,
        )

    def _announcement(self, root: int, wish: Algorithm) -> Schedule:
        """The way of a broadcast without elements, which is that of all small ones."""
        return self._schedule(Kind.BROADCAST, 0, 1, root=root, algorithm=wish)

    def allgather(self, x: Any, site: str, root: int = -1) -> Request:
        """A validated allgather, or, with a root, a gather that every rank logs whole."""
        kind = Kind.ALLGATHER if root < 0 else Kind.GATHER
        sendbuf, shape = as_elements(x)
        key = (kind, sendbuf.dtype, shape, site, root)
        form = self._forms.get(key)
        if form is None:
            signature = signature_of(kind, sendbuf, shape, root=root)
            schedule = self._schedule(Kind.ALLGATHER, len(sendbuf), sendbuf.itemsize)
            stacked = (self.group.world_size, *shape)
            form = make_form(kind, schedule, signature, site, sendbuf.dtype, stacked, root=root)
            self._keep(key, form)
        return Request(form, sendbuf)

    def allgatherv(self, x: Any, options: CallOptions, site: str) -> Request:
        """A validated allgatherv; raises TypeError or ValueError."""
        sendbuf, shape = as_rows(x, "allgatherv")
        if options.counts is not None:
            return Request(self._counted_form(sendbuf, shape, options.counts, site), sendbuf)
        key = (Kind.ALLGATHERV, sendbuf.dtype, shape[1:], site)
        form = self._forms.get(key)
        if form is None:
            signature = signature_of(Kind.ALLGATHERV, sendbuf, shape)
            form = make_form(Kind.ALLGATHERV, None, signature, site, sendbuf.dtype, shape[1:])
            self._keep(key, form)
        return Request(form, sendbuf, rows=shape[0])

    def _counted_form(
        self, sendbuf: Array, shape: tuple[int, ...], counts: Sequence[int], site: str
    ) -> CollectiveSpec:
        """The form of an allgatherv of which all ranks know how many rows each has."""
        group, rows = self.group, listed_counts(counts, self.group.world_size)
        if rows[group.rank] != shape[0]:
            found = counted(shape[0], "row")
            raise ValueError(f"counts[{group.rank}] is {rows[group.rank]}, x has {found}")

        def make() -> CollectiveSpec:
            sizes = tuple(count * math.prod(shape[1:]) for count in rows)
            schedule = allgatherv_schedule(group.world_size, group.rank, sizes, group.grouping)
            hashed = given_counts_hash(rows)
            signature = signature_of(Kind.ALLGATHERV, sendbuf, shape, op_hash=hashed)
            joined = (sum(rows), *shape[1:])
            return make_form(Kind.ALLGATHERV, schedule, signature, site, sendbuf.dtype, joined)

        return self.kept((Kind.ALLGATHERV, sendbuf.dtype, shape, rows, site), make)

    def broadcast_object(self, value: Any, root: int, site: str) -> Request:
        """A validated broadcast of one object; only the root's counts.

        Raises:
            TypeError: at the root the object holds what objects may not hold.
        """
        form = self._of_bytes(Kind.BROADCAST_OBJECT, root, site)
        return _of_source(form, pack_object(value) if self.group.rank == root else None)

    def allgather_object(self, value: Any, site: str) -> Request:
        """A validated allgather of one object of each rank; raises TypeError."""
        return _of_source(self._of_bytes(Kind.ALLGATHER_OBJECT, -1, site), pack_item(value))

    def _of_bytes(self, kind: Kind, root: int, site: str) -> CollectiveSpec:
        """The form of a call whose bytes are told apart by no dtype or shape."""
        key = (kind, root, site)
        form = self._forms.get(key)
        if form is None:
            signature = Signature(kind, root=root).encode()
            form = make_form(kind, None, signature, site, np.dtype(np.uint8), (), root=root)
            self._keep(key, form)
        return form

    def plain(self, kind: Kind, site: str, *, count: int = 0) -> Request:
        """A call without arguments: barrier, load, close, checkpoint; `count` says of what kind."""
        key = (kind, site, count)
        form = self._forms.get(key)
        if form is None:
            signature = Signature(kind, count=count).encode()
            schedule = self._schedule(Kind.BARRIER, 0, 1)
            form = CollectiveSpec(kind, signature, site, make_suffix(signature, site), schedule)
            self._keep(key, form)
        return Request(form)

    def known(self, kind: Kind, options: CallOptions) -> bytes:
        """The signature of a call as far as it is known without the input.

        Raises:
            TypeError, ValueError: op, root, algorithm, wire or log do not fit.
        """
        root = options.root
        log = named_log(options.log)
        if log is None:
            log = LogMode.BY_SIZE if kind in RANK_LOCAL else LogMode.WHOLE
        rows = None
        if options.counts is not None:
            rows = listed_counts(options.counts, self.group.world_size)
        if kind not in _REDUCTIONS:
            wish = algorithm_named(options.algorithm)
            hashed = 0 if rows is None else given_counts_hash(rows)
            return Signature(kind, root=root, algorithm=wish, op_hash=hashed, log=log).encode()
        asked = resolve_op(options.op)
        code, op_hash = op_code(asked)
        op_hash ^= 0 if rows is None else counts_hash(rows)
        wish = self.wish(options.algorithm, asked)
        return Signature(
            kind,
            code,
            algorithm=wish,
            root=root,
            op_hash=op_hash,
            wire=wire_code(options.wire),
            log=log,
        ).encode()

    def wish(self, algorithm: str | None, op: str | Reduction) -> Algorithm:
        """The algorithm that a caller or the job asks for; raises ValueError."""
        wish = algorithm_named(algorithm)
        if wish is not Algorithm.AUTO or needs_whole(op):  # whole arrays go one way only
            return wish
        return _ALGORITHMS[self.group.algorithm]

    def _schedule(self, kind: Kind, count: int, itemsize: int, **choice: Any) -> Schedule:
        group = self.group
        choice["grouping"] = group.grouping
        return schedule_for(kind, group.world_size, group.rank, count, itemsize, **choice)

    def kept(self, key: object, make: Callable[[], CollectiveSpec]) -> CollectiveSpec:
        """The spec of `key`, made now if it is not kept."""
        form = self._forms.get(key)
        if form is None:
            form = make()
            self._keep(key, form)
        return form

    def _keep(self, key: object, form: CollectiveSpec) -> None:
        if len(self._forms) >= FORMS_KEPT:
            self._forms.clear()
        self._forms[key] = form


def site_text(site: str, op: UncheckedOp) -> str:
    """The call site for messages: with the label of a user's function."""
    asked = resolve_op(op)
    if not isinstance(asked, Reduction):
        return site
    return site_with_function(site, asked.label)


def algorithm_named(name: str | None) -> Algorithm:
    """The algorithm that a user's ``algorithm=`` names; raises ValueError."""
    if name not in _ALGORITHMS:
        names = ", ".join(str(name) for name in _ALGORITHMS if name)
        raise ValueError(f"no algorithm is called {name!r}; use one of {names}")
    return _ALGORITHMS[name]


def _of_source(form: CollectiveSpec, sendbuf: Array | None) -> Request:
    return Request(form) if sendbuf is None else Request(form, sendbuf, rows=len(sendbuf))


def make_form(
    kind: Kind,
    schedule: Schedule | None,
    signature: bytes,
    site: str,
    dtype: AnyDtype,
    shape: tuple[int, ...],
    *,
    root: int = -1,
    reducer: Reducer | None = None,
    scalar: Scalar = Scalar.ARRAY,
    announcement: Schedule | None = None,
    site_text: str = "",
    contributed: ContributedForm | None = None,
    logged: int | None = None,
    accumulator: AnyDtype | None = None,
) -> CollectiveSpec:
    """The form of a call with a result, or rows of one, of `dtype` and `shape`.

    `logged` are the bytes that each rank logs, where these are not the bytes of the result.
    """
    recvbuf_count = 0 if schedule is None else schedule.recvbuf_count
    return CollectiveSpec(
        kind=kind,
        signature=signature,
        site=site_text or site,
        suffix=make_suffix(signature, site),
        schedule=schedule,
        dtype=dtype,
        shape=shape,
        recvbuf_count=recvbuf_count,
        nbytes=recvbuf_count * dtype.itemsize if logged is None else logged,
        root=root,
        reducer=reducer,
        scalar=scalar,
        announcement=announcement,
        contributed=contributed,
        accumulator=accumulator,
    )
