"""The collectives of the public API: arguments in, results out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, overload

import numpy as np

from ftcomm.api.outputs import Number, Result, as_passed, as_sent
from ftcomm.api.persistent_calls import PersistentCalls
from ftcomm.collectives.bfloat16 import widen_bfloat16
from ftcomm.collectives.op_argument import AnyOp
from ftcomm.config.deadline import Duration
from ftcomm.memory.pool import LoggedResult
from ftcomm.protocol.signature import Kind
from ftcomm.requests.arguments import check_memory, check_out, check_rows, result_dtype
from ftcomm.requests.call_site import call_site, spot_of_call
from ftcomm.requests.object_payload import part_of, unpack_items, unpack_object
from ftcomm.requests.request import OpenBroadcast, Request


class CollectiveCalls(PersistentCalls):
    """Every method here is one position; all ranks call the same in the same order.

    An input array may also be a function without arguments: it is called at most once, only if the
    collective is executed, never where the result is replayed.  It may not call a collective.  What
    it raises leaves the position unchanged.

    ``deadline=`` is a number of seconds or a `datetime.timedelta`.  It counts from the call and is
    never a time of the clock, as a deadline of trio's is.  When a call takes longer, waiting for
    the replacement of a dead rank included, all ranks raise `CollectiveTimeoutError` and the job
    is over.  Without it the job's ``call_deadline`` holds, which is off by default.
    """

    @overload
    def allreduce(
        self,
        x: Number,
        op: AnyOp = "sum",
        *,
        copy: bool = True,
        algorithm: str | None = None,
        wire: str | None = None,
        deadline: Duration | None = None,
    ) -> Number: ...

    @overload
    def allreduce(
        self,
        x: Any,
        op: AnyOp = "sum",
        *,
        out: Result | None = None,
        copy: bool = True,
        algorithm: str | None = None,
        wire: str | None = None,
        deadline: Duration | None = None,
    ) -> Result: ...

    def allreduce(
        self,
        x: Any,
        op: AnyOp = "sum",
        *,
        out: Result | None = None,
        copy: bool = True,
        algorithm: str | None = None,
        wire: str | None = None,
        deadline: Duration | None = None,
    ) -> Any:
        """Combine the arrays of all ranks elementwise; every rank gets the same bytes.

        Args:
            x: array-like of one dtype and shape on all ranks; never written.
            op: sum prod min max mean band bor bxor land lor or an `ftcomm.Op`, a builtin such as
                `sum`, or a function of (accumulator, operand); see `ftcomm.reduction`.
            out: where to put the result: same dtype and shape, C-contiguous, writable; unchanged
                if the call raises, unless the job runs with ``replay=off``. May be `x` itself.
            copy: False returns a read-only view of the log's own memory, the host's for large ones
                (with `wire`, which the log keeps in its own format, a new array as ever).
            algorithm: ring, recursive_doubling, halving_doubling or hierarchical, on all ranks.
            wire: ``bf16`` sends float32 as bfloat16, half the bytes: x and every partial result
                are rounded to 8 bits of precision, and the log holds and `out` gets the rounded
                result. Of n ranks a sum is within ``(1 + h) / 256`` of the exact one, relative to
                the sum of absolute values and up to terms of second order; h is n - 1 by ring,
                no more by hosts, ceil(log2(n)) by the other two. For sum, prod, min, max and mean.
            deadline: seconds or a timedelta; longer, and all raise `CollectiveTimeoutError`.

        Returns:
            `out`, or a new array of x's dtype and shape; for one number a number of its type.

        Raises:
            TypeError, ValueError: local mistakes; the position is unchanged.
            CollectiveMismatchError: a rank called something else.
            FtcommError: see the module `ftcomm.errors`.
        """
        spot = spot_of_call()
        plain = algorithm is None and deadline is None and wire is None
        if plain:
            result = self._repeat(spot, x, op, out, copy=copy)
            if result is not None:
                return result
        with self._guard:
            site = call_site()

            def make(x: Any) -> Request:
                call = self._calls.allreduce(x, op, algorithm, site, wire=wire)
                if out is not None:
                    check_out(out, result_dtype(call.form.dtype, wire), call.form.shape)
                    call.place = self._place_in(out, call.sendbuf) if wire is None else None
                if plain:
                    self._remember(spot, x, op, call.form)
                return call

            hand_out = self._given(out, copy=copy) if wire is None else _widened_into(out)
            return self._perform(
                x, make, as_passed(x, hand_out, out), Kind.ALLREDUCE, site, deadline,
                check=_fits(out, wire), op=op, algorithm=algorithm, wire=wire,
            )  # fmt: skip

    @overload
    def broadcast(
        self,
        x: Number,
        root: int = 0,
        *,
        copy: bool = True,
        algorithm: str | None = None,
        deadline: Duration | None = None,
    ) -> Number: ...

    @overload
    def broadcast(
        self,
        x: None = None,
        root: int = 0,
        *,
        out: Result | None = None,
        copy: bool = True,
        algorithm: str | None = None,
        deadline: Duration | None = None,
    ) -> Any: ...

    @overload
    def broadcast(
        self,
        x: Any = None,
        root: int = 0,
        *,
        out: Result | None = None,
        copy: bool = True,
        algorithm: str | None = None,
        deadline: Duration | None = None,
    ) -> Result: ...

    def broadcast(
        self,
        x: Any = None,
        root: int = 0,
        *,
        out: Result | None = None,
        copy: bool = True,
        algorithm: str | None = None,
        deadline: Duration | None = None,
    ) -> Any:
        """The root's array on every rank; where it is one number, a number of its type.

        Args:
            x: on the root an array-like. Elsewhere an array-like of the same dtype and shape, whose
                content does not count, or None: then dtype and shape come with the root's, which
                has four dimensions at most. Where the root passes a Python number, the others pass
                a Python number or None, and likewise with numpy scalars. Each rank may choose.
            root: the rank whose array is sent.
            out: as for `allreduce`; ``broadcast(x, out=x)`` is in place.
            copy: False returns a read-only view of the log's own memory.
            algorithm: ``binomial``, ``chain`` or ``hierarchical``, on all ranks.
            deadline: as for `allreduce`.
        """
        with self._guard:
            site, root = call_site(), self._calls.checked_root(root)
            hand_out = as_sent(self._given(out, copy=copy), out)
            if x is None and root != self.rank:
                opened = self._calls.broadcast_from(root, site, algorithm)
                return self._run(self._opened(opened, out), hand_out, deadline)

            def make(x: Any) -> Request:
                if x is None:
                    raise TypeError("the input is None; pass an array: this rank is the root")
                call = self._calls.broadcast(x, root, site, algorithm)
                check_out(out, call.form.dtype, call.form.shape)
                return call

            return self._perform(
                x, make, hand_out, Kind.BROADCAST, site, deadline,
                check=_fits(out), root=root, algorithm=algorithm,
            )  # fmt: skip

    def allgather(
        self,
        x: Any,
        *,
        out: Result | None = None,
        copy: bool = True,
        deadline: Duration | None = None,
    ) -> Result:
        """The arrays of all ranks, stacked in rank order: shape ``(world_size, *x.shape)``.

        Args:
            x: array-like of one dtype and shape on all ranks.
            out: as for `allreduce`, of that shape.
            copy: False returns a read-only view of the log's own memory.
            deadline: as for `allreduce`.
        """
        with self._guard:
            site = call_site()

            def make(x: Any) -> Request:
                call = self._calls.allgather(x, site)
                check_out(out, call.form.dtype, call.form.shape)
                return call

            hand_out = self._given(out, copy=copy)
            return self._perform(
                x, make, hand_out, Kind.ALLGATHER, site, deadline, check=_fits(out)
            )

    def allgatherv(
        self,
        x: Any,
        *,
        out: Result | None = None,
        copy: bool = True,
        deadline: Duration | None = None,
    ) -> Result:
        """The arrays of all ranks, one after the other along axis 0, in rank order.

        Args:
            x: array-like with at least one dimension; dtype and all dimensions but the first are
                the same on all ranks, the first may differ and may be 0.
            out: as for `allreduce`, of the result's shape. If only its number of rows is wrong, the
                others complete the call; made again with another `out` it is served.
            copy: False returns a read-only view of the log's own memory.
            deadline: as for `allreduce`.
        """
        with self._guard:
            site = call_site()

            def make(x: Any) -> Request:
                return _with_rows(self._calls.allgatherv(x, site), out)

            hand_out = self._given(out, copy=copy)
            return self._perform(
                x, make, hand_out, Kind.ALLGATHERV, site, deadline, check=_fits(out)
            )

    @overload
    def reduce(
        self,
        x: Number,
        op: AnyOp = "sum",
        root: int = 0,
        *,
        algorithm: str | None = None,
        wire: str | None = None,
        deadline: Duration | None = None,
    ) -> Number | None: ...

    @overload
    def reduce(
        self,
        x: Any,
        op: AnyOp = "sum",
        root: int = 0,
        *,
        out: Result | None = None,
        algorithm: str | None = None,
        wire: str | None = None,
        deadline: Duration | None = None,
    ) -> Result | None: ...

    def reduce(
        self,
        x: Any,
        op: AnyOp = "sum",
        root: int = 0,
        *,
        out: Result | None = None,
        algorithm: str | None = None,
        wire: str | None = None,
        deadline: Duration | None = None,
    ) -> Any:
        """As `allreduce`, with the result on `root` and None on the others.

        It costs what an allreduce costs: every rank's log keeps the result for the root's replay.
        `out` is looked at on the root alone.
        """
        with self._guard:
            site, root = call_site(), self._calls.checked_root(root)
            out = out if self.rank == root else None

            def make(x: Any) -> Request:
                call = self._calls.allreduce(x, op, algorithm, site, root, wire)
                check_out(out, result_dtype(call.form.dtype, wire), call.form.shape)
                return call

            given = self._given(out, copy=True) if wire is None else _widened_into(out)
            return self._perform(
                x,
                make,
                self._on(root, as_passed(x, given, out)),
                Kind.REDUCE,
                site,
                deadline,
                check=_fits(out, wire),
                op=op,
                root=root,
                algorithm=algorithm,
                wire=wire,
            )

    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Result | None = None,
        deadline: Duration | None = None,
    ) -> Result | None:
        """As `allgather`, with the result on `root` and None on the others.

        `out` is looked at on the root alone.
        """
        with self._guard:
            site, root = call_site(), self._calls.checked_root(root)
            out = out if self.rank == root else None

            def make(x: Any) -> Request:
                call = self._calls.allgather(x, site, root)
                check_out(out, call.form.dtype, call.form.shape)
                return call

            return self._perform(
                x, make, self._on(root, self._given(out, copy=True)), Kind.GATHER, site, deadline,
                check=_fits(out), root=root,
            )  # fmt: skip

    def gatherv(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Result | None = None,
        deadline: Duration | None = None,
    ) -> Result | None:
        """As `allgatherv`, with the result on `root` and None on the others.

        `out` is looked at on the root alone.
        """
        with self._guard:
            site, root = call_site(), self._calls.checked_root(root)
            out = out if self.rank == root else None

            def make(x: Any) -> Request:
                return _with_rows(self._calls.allgatherv(x, site, root), out)

            return self._perform(
                x, make, self._on(root, self._given(out, copy=True)), Kind.GATHERV, site, deadline,
                check=_fits(out), root=root,
            )  # fmt: skip

    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        out: Result | None = None,
        deadline: Duration | None = None,
    ) -> Result:
        """Part i of the root's `x` on rank i, as its own writable copy.

        Args:
            x: on the root an array-like of shape ``(world_size, ...)``, of which rank i gets
                ``x[i]``, or a list or tuple of `world_size` arrays of one dtype, such as
                `numpy.array_split` gives, whose first dimensions may differ. Elsewhere ignored.
            root: the rank whose `x` is taken apart.
            out: as for `allreduce`, of the part's dtype and shape. If these are wrong, the others
                complete the call; made again with another `out` it is served.
            deadline: as for `allreduce`.
        """
        with self._guard:
            site, root = call_site(), self._calls.checked_root(root)

            check_memory(out)

            def own_part(stored: LoggedResult) -> Result:
                part = part_of(stored.flat, self.rank, self.world_size)
                if out is None:
                    return part.copy()
                out[...] = part
                return out

            def check(stored: LoggedResult) -> None:
                part = part_of(stored.flat, self.rank, self.world_size)
                check_out(out, part.dtype, part.shape)

            def make(x: Any) -> Request:
                call = self._calls.scatter(x, root, site)
                call.check = check
                return call

            x = x if self.rank == root else None
            return self._perform(
                x, make, own_part, Kind.SCATTER, site, deadline, check=check, root=root
            )

    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, deadline: Duration | None = None
    ) -> Any:
        """The root's object on every rank, each its own copy (the root's too).

        Args:
            obj: on the root, nested dict, list, tuple of numpy arrays, numbers, str, bytes, bool,
                None. Elsewhere ignored. A function is refused, and not called for the object.
            root: the rank whose object is sent.
            deadline: as for `allreduce`.
        """
        with self._guard:
            site, root = call_site(), self._calls.checked_root(root)

            def own_copy(stored: LoggedResult) -> Any:
                return unpack_object(stored.flat)

            call = self._calls.broadcast_object(obj if self.rank == root else None, root, site)
            return self._run(self._admitted(call), own_copy, deadline)

    def allgather_object(self, obj: Any, *, deadline: Duration | None = None) -> list[Any]:
        """The objects of all ranks in rank order; see `broadcast_object` for what they may be."""
        with self._guard:

            def own_copies(stored: LoggedResult) -> list[Any]:
                return list(unpack_items(stored.flat))

            call = self._calls.allgather_object(obj, call_site())
            return self._run(self._admitted(call), own_copies, deadline)

    def barrier(self, *, deadline: Duration | None = None) -> None:
        """Return when every rank has entered it."""
        with self._guard:
            self._run(self._calls.plain(Kind.BARRIER, call_site()), _dropped, deadline)

    def _opened(self, opened: OpenBroadcast, out: Result | None) -> OpenBroadcast:
        """A broadcast that is admitted, and compared with `out`, when its size is known."""
        check_memory(out)

        def make(raw: bytes) -> Request:
            call = self._admitted(opened.make(raw))
            call.check = _fits(out)
            return call

        return replace(opened, make=make, check=_fits(out))

    # --- handing out --------------------------------------------------------------------------

    def _on(
        self, root: int, hand_out: Callable[[LoggedResult], Result]
    ) -> Callable[[LoggedResult], Result | None]:
        """The result on the root; the others have it in their logs alone (rule R11)."""
        return hand_out if self.rank == root else _dropped


def _fits(out: Result | None, wire: str | None = None) -> Callable[[LoggedResult], None]:
    """Refuses a result for which `out` is no place."""

    def check(stored: LoggedResult) -> None:
        check_out(out, result_dtype(stored.flat.dtype, wire), stored.shape)

    return check


def _with_rows(call: Request, out: Result | None) -> Request:
    """A call of which only the run tells how many rows `out` must have."""
    if out is not None:
        check_rows(out, call.form.dtype, call.form.shape)
        call.check = _fits(out)
    return call


def _widened_into(out: Result | None = None) -> Callable[[LoggedResult], Result]:
    """As `_given`, of a result that travelled and is kept as bfloat16."""

    def widened(stored: LoggedResult) -> Result:
        wide = np.empty(len(stored.flat), np.float32)
        widen_bfloat16(stored.flat, wide)
        shaped = wide.reshape(stored.shape)
        if out is None:
            return shaped
        out[...] = shaped
        return out

    return widened


def _dropped(stored: LoggedResult) -> None:
    """What this rank is not given."""
