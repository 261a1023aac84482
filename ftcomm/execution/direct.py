"""Direct exchange: ranks read the inputs of all, and fold them in rank order.

Within a host they lie in a shared segment, one slot for each rank, and a call is one wait for the
others (`ftcomm.core`).  Where there is none, an allgather brings them over links.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.collectives.reductions import Array, Reducer
from ftcomm.collectives.schedules.direct import DIRECT_BYTES, DIRECT_RANKS
from ftcomm.collectives.schedules.schedule import Schedule
from ftcomm.core import DONE, INTERRUPTED, Core, Form
from ftcomm.core.segment import MAX_RANKS, SMALL_BYTES
from ftcomm.execution.fp_errors import IgnoredFpErrors
from ftcomm.execution.header_check import CallHeader, check_header
from ftcomm.transport.interruptions import Interrupted, SignatureMismatch

assert (DIRECT_BYTES, DIRECT_RANKS) == (SMALL_BYTES, MAX_RANKS), "what is chosen has a slot"

Fold = Callable[[Array, Array, Reducer], None]  # of all ranks' rows into the result


class DirectCall:
    """Calls of one suffix, shape and reduction, in one segment.

    Attributes:
        core: of the segment, among `ranks`.
    """

    __slots__ = ("_form", "_nbytes", "_quiet", "_ranks", "_reducer", "_rows", "core")

    def __init__(
        self,
        core: Core,
        ranks: Sequence[int],
        suffix: bytes,
        schedule: Schedule,
        dtype: AnyDtype,
        reducer: Reducer | None,
        quiet: IgnoredFpErrors,
    ) -> None:
        self.core, self._ranks, self._quiet = core, ranks, quiet
        self._nbytes = schedule.sendbuf_count * dtype.itemsize
        self._rows: Array | None = None
        self._reducer: Reducer | None = None  # None where the core folds, or nothing is folded
        self._form = self._made(suffix, schedule, dtype, reducer)

    def _made(
        self, suffix: bytes, schedule: Schedule, dtype: AnyDtype, reducer: Reducer | None
    ) -> Form:
        if reducer is None:
            return self.core.form(suffix, None, dtype, self._nbytes)
        if reducer.ufunc is not None:
            return self.core.form(suffix, reducer.ufunc, dtype, self._nbytes)
        self._rows = np.empty((len(self._ranks), schedule.sendbuf_count), dtype)
        self._reducer = reducer
        return self.core.form(suffix, None, dtype, self._nbytes)

    def run(
        self,
        sendbuf: Array,
        recvbuf: Array,
        header: CallHeader,
        step: int,
        out: Array | None = None,
    ) -> None:
        """Exchange once, and leave all inputs, or their reduction without its end, in `recvbuf`.

        `step` names the stage and what was called before; it must be the same on all ranks.  `out`,
        for calls without a user's function, gets the same as `recvbuf`.

        Raises:
            Interrupted: the epoch is over.
            SignatureMismatch, LinkLost: a rank runs something else.
        """
        epoch, (branch, version, seqno), _ = header
        to = recvbuf if self._rows is None else self._rows
        status = self._form.run(sendbuf, to, epoch, branch, version, seqno, step, out)
        if status != DONE:
            self.refuse(status, header)
        if self._rows is not None and self._reducer is not None:
            self._quiet.run(self._reducer.fold, self._rows, recvbuf)

    def prepared(self, *arguments: Any) -> Form | None:
        """The form of calls that the core repeats, as `Form.prepare` says; None if it does not."""
        is_small = 0 < self._nbytes <= DIRECT_BYTES and self._rows is None
        return self._form if is_small and self._form.prepare(*arguments) else None

    def refuse(self, status: int, header: CallHeader) -> None:
        """Raise what a status other than DONE means, as `run` does."""
        if status == INTERRUPTED:
            raise Interrupted
        rank = self._ranks[status - 1]
        theirs = check_header(self.core.header(status - 1), rank, header, None, self._nbytes)
        # This call is the same, so one before it was not: the tracker finds out which.
        raise SignatureMismatch(rank, theirs.position, theirs.signature, theirs.site)
