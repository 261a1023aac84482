"""From a user's arguments to a `Call`: validation, signature, memory layout.

Everything that can be wrong locally is found here, before the position or any peer is touched.
"""

from typing import Any, Protocol

import numpy as np

from ftcomm.collectives.choose import SCHEDULES_KEPT, schedule_for
from ftcomm.collectives.dtypes import AnyDtype, dtype_code
from ftcomm.collectives.ops import Reducer, UserFunction, make_reducer
from ftcomm.collectives.schedule import Schedule
from ftcomm.dataplane import Call, Form
from ftcomm.protocol.frames import make_suffix
from ftcomm.protocol.signature import MAX_NAMED_DIMS, Algorithm, Kind, Op, Signature
from ftcomm.values import Array

# After this many broadcasts, or bytes of them, without a synchronising collective, the next one
# ends with a barrier: the root's log is bounded, and all ranks count alike (rule R3).
FLUSH_BROADCASTS = 64
FLUSH_BYTES = 64 * 1024 * 1024
FORMS_KEPT = SCHEDULES_KEPT  # a program with ever new shapes keeps no more
_ALGORITHMS = {
    None: Algorithm.AUTO,
    "auto": Algorithm.AUTO,
    "ring": Algorithm.RING,
    "recursive_doubling": Algorithm.RECURSIVE_DOUBLING,
}


class Group(Protocol):
    """What is read of an engine."""

    @property
    def rank(self) -> int:
        """This worker's place."""

    @property
    def world_size(self) -> int:
        """Number of places."""

    @property
    def algorithm(self) -> str:
        """The job's own choice of algorithm, ``auto`` for the table's."""


def as_elements(x: Any) -> tuple[Array, tuple[int, ...]]:
    """A user's argument as 1-D contiguous native elements, and its shape; copied only if needed."""
    array = np.asarray(x)
    shape = array.shape
    if not (array.flags.c_contiguous and array.dtype.isnative):
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return array.reshape(-1), shape


class CallFactory:
    """Builds one communicator's calls; counts broadcasts towards the next flush."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._broadcasts = 0
        self._broadcast_bytes = 0
        self._forms: dict[object, Form] = {}

    def allreduce(self, x: Any, op: str | UserFunction, algorithm: str | None, site: str) -> Call:
        """A validated allreduce.

        Raises:
            TypeError, ValueError: x, op or algorithm do not fit.
        """
        source, shape = as_elements(x)
        if not isinstance(op, str):  # a function may hold on to anything: its form is not kept
            return Call(self._allreduce_form(source, shape, op, algorithm, site), source)
        key = (source.dtype, shape, op, algorithm, site)
        form = self._forms.get(key)
        if form is None:
            form = self._allreduce_form(source, shape, op, algorithm, site)
            self._keep(key, form)
        return Call(form, source)

    def _allreduce_form(
        self,
        source: Array,
        shape: tuple[int, ...],
        op: str | UserFunction,
        algorithm: str | None,
        site: str,
    ) -> Form:
        wish = self._wish(algorithm)
        reducer = make_reducer(op, source.dtype, shape=shape)
        signature = _signature(
            Kind.ALLREDUCE, source, shape, op=reducer.op, op_hash=reducer.op_hash, algorithm=wish
        )
        schedule = self._schedule(
            Kind.ALLREDUCE, len(source), source.itemsize, algorithm=wish, whole=reducer.whole
        )
        return _form(schedule, signature, site, source.dtype, shape, reducer=reducer)

    def broadcast(self, x: Any, root: int, site: str) -> Call:
        """A validated broadcast.

        Raises:
            TypeError, ValueError: x or root do not fit.
        """
        source, shape = as_elements(x)
        key = (Kind.BROADCAST, source.dtype, shape, root, site)
        form = self._forms.get(key)
        if form is None:
            if not 0 <= root < self._group.world_size:
                raise ValueError(f"root is {root!r}, must be 0 to {self._group.world_size - 1}")
            signature = _signature(Kind.BROADCAST, source, shape, root=root)
            schedule = self._schedule(Kind.BROADCAST, len(source), source.itemsize, root=root)
            form = _form(schedule, signature, site, source.dtype, shape, root=root)
            self._keep(key, form)
        return Call(form, source, flush=self._must_flush(source.nbytes))

    def _must_flush(self, nbytes: int) -> bool:
        """True if this broadcast must prove that its predecessors have arrived."""
        return (
            self._broadcasts + 1 >= FLUSH_BROADCASTS
            or self._broadcast_bytes + nbytes >= FLUSH_BYTES
        )

    def completed(self, call: Call) -> None:
        """Count a call; only now, so that one which raised locally leaves all ranks alike."""
        if call.synchronising:
            self._broadcasts = self._broadcast_bytes = 0
        else:
            self._broadcasts += 1
            self._broadcast_bytes += call.form.nbytes

    def allgather(self, x: Any, site: str) -> Call:
        """A validated allgather."""
        source, shape = as_elements(x)
        key = (Kind.ALLGATHER, source.dtype, shape, site)
        form = self._forms.get(key)
        if form is None:
            signature = _signature(Kind.ALLGATHER, source, shape)
            schedule = self._schedule(Kind.ALLGATHER, len(source), source.itemsize)
            stacked = (self._group.world_size, *shape)
            form = _form(schedule, signature, site, source.dtype, stacked)
            self._keep(key, form)
        return Call(form, source)

    def plain(self, kind: Kind, site: str) -> Call:
        """A call without arguments: barrier, checkpoint, load, close."""
        key = (kind, site)
        form = self._forms.get(key)
        if form is None:
            signature = Signature(kind).encode()
            schedule = self._schedule(Kind.BARRIER, 0, 1)
            form = Form(kind, signature, site, make_suffix(signature, site), schedule)
            self._keep(key, form)
        return Call(form)

    def check_out(self, call: Call, out: np.ndarray[Any, Any] | None) -> None:
        """Refuse an `out` that cannot take the result, before anything happens.

        Raises:
            TypeError, ValueError: naming what does not fit.
        """
        if out is None:
            return
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out is a {type(out).__name__}, must be a numpy array")
        form = call.form
        if out.dtype != form.dtype or out.shape != form.shape:
            raise ValueError(
                f"out is {out.dtype.name}{list(out.shape)}, "
                f"the result is {form.dtype.name}{list(form.shape)}"
            )
        if not out.flags.writeable:
            raise ValueError("out is read-only")

    def _wish(self, algorithm: str | None) -> Algorithm:
        if algorithm not in _ALGORITHMS:
            names = ", ".join(str(name) for name in _ALGORITHMS if name)
            raise ValueError(f"no algorithm is called {algorithm!r}; use one of {names}")
        wish = _ALGORITHMS[algorithm]
        return _ALGORITHMS[self._group.algorithm] if wish is Algorithm.AUTO else wish

    def _schedule(self, kind: Kind, count: int, itemsize: int, **choice: Any) -> Schedule:
        group = self._group
        return schedule_for(kind, group.world_size, group.rank, count, itemsize, **choice)

    def _keep(self, key: object, form: Form) -> None:
        if len(self._forms) >= FORMS_KEPT:
            self._forms.clear()
        self._forms[key] = form


def _form(
    schedule: Schedule,
    signature: bytes,
    site: str,
    dtype: AnyDtype,
    shape: tuple[int, ...],
    *,
    root: int = -1,
    reducer: Reducer | None = None,
) -> Form:
    """The form of a call with a result of `dtype` and `shape`."""
    return Form(
        kind=schedule.kind,
        signature=signature,
        site=site,
        suffix=make_suffix(signature, site),
        schedule=schedule,
        dtype=dtype,
        shape=shape,
        work_count=schedule.work_count,
        nbytes=schedule.work_count * dtype.itemsize,
        root=root,
        reducer=reducer,
    )


def _signature(
    kind: Kind,
    source: Array,
    shape: tuple[int, ...],
    *,
    op: Op = Op.NONE,
    op_hash: int = 0,
    root: int = -1,
    algorithm: Algorithm = Algorithm.AUTO,
) -> bytes:
    """The 40 bytes that all ranks must agree on.

    Raises:
        TypeError: a dtype that collectives do not carry.
    """
    return Signature(
        kind=kind,
        op=op,
        dtype=dtype_code(source.dtype),
        algorithm=algorithm,
        root=root,
        count=len(source),
        ndim=len(shape),
        dims=_dims(shape),
        op_hash=op_hash,
    ).encode()


def _dims(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """The shape in four numbers: as it is, or folded where it does not fit."""
    if len(shape) <= MAX_NAMED_DIMS and all(extent < 2**32 for extent in shape):
        first, second, third, fourth = (*shape, 0, 0, 0, 0)[:4]
        return first, second, third, fourth
    folded = 0
    for extent in shape:
        folded = (folded * 1_000_003 + extent + 1) % 2**128
    return (
        folded & 0xFFFFFFFF,
        folded >> 32 & 0xFFFFFFFF,
        folded >> 64 & 0xFFFFFFFF,
        folded >> 96 & 0xFFFFFFFF,
    )
