"""The collectives of the public API: arguments in, results out."""

from typing import Any

import numpy as np

from ftcomm.collectives.ops import UserFunction
from ftcomm.membership import Membership
from ftcomm.protocol.signature import Kind
from ftcomm.sites import call_site


class CollectiveCalls(Membership):
    """Every method here is one position; all ranks call the same in the same order."""

    def allreduce(
        self,
        x: Any,
        op: str | UserFunction = "sum",
        *,
        out: np.ndarray[Any, Any] | None = None,
        copy: bool = True,
        algorithm: str | None = None,
    ) -> np.ndarray[Any, Any]:
        """Combine the arrays of all ranks elementwise; every rank gets the same bytes.

        Args:
            x: array-like of one dtype and shape on all ranks; never written.
            op: sum prod min max mean band bor bxor land lor, or a function of
                (accumulator, operand) that is elementwise and commutative.
            out: where to put the result: same dtype and shape, C-contiguous, writable; unchanged
                if the call raises. May be `x` itself.
            copy: False returns a read-only view of the log's own memory.
            algorithm: ``ring`` or ``recursive_doubling`` for this call, on all ranks.

        Returns:
            `out`, or a new array of x's dtype and shape.

        Raises:
            TypeError, ValueError: local mistakes; the position is unchanged.
            CollectiveMismatchError: a rank called something else.
            FtcommError: see the module `ftcomm.errors`.
        """
        with self._gate:
            call = self._calls.allreduce(x, op, algorithm, call_site())
            self._calls.check_out(call, out)
            return self._deliver(call, out, copy=copy)

    def broadcast(self, x: Any, root: int = 0, *, copy: bool = True) -> np.ndarray[Any, Any]:
        """The root's array on every rank.

        Args:
            x: array-like of one dtype and shape on all ranks; only the root's content counts.
            root: the rank whose array is sent.
            copy: False returns a read-only view of the log's own memory.
        """
        with self._gate:
            return self._deliver(self._calls.broadcast(x, root, call_site()), None, copy=copy)

    def allgather(self, x: Any, *, copy: bool = True) -> np.ndarray[Any, Any]:
        """The arrays of all ranks, stacked in rank order: shape ``(world_size, *x.shape)``."""
        with self._gate:
            return self._deliver(self._calls.allgather(x, call_site()), None, copy=copy)

    def barrier(self) -> None:
        """Return when every rank has entered it."""
        with self._gate:
            self._run(self._calls.plain(Kind.BARRIER, call_site()))
