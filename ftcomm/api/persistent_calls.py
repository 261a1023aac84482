"""Persistent calls: a call like one before it, from the same place, goes the fast path."""

from dataclasses import dataclass
from sys import _getframe
from time import perf_counter
from types import CodeType
from typing import Any

import numpy as np

from ftcomm.api.collectives import CollectiveCalls
from ftcomm.api.outputs import OutputPolicy, Result
from ftcomm.api.session import Session
from ftcomm.collectives.op_argument import NAME_OF_ID, Op, UncheckedOp
from ftcomm.config.deadline import Duration
from ftcomm.engine.persistent_request import PersistentRequest
from ftcomm.memory.pool import Pool
from ftcomm.protocol.signature import CallTag
from ftcomm.requests.builder import FORMS_KEPT
from ftcomm.requests.call_site import passes_on
from ftcomm.requests.options import CallOptions
from ftcomm.requests.request import CollectiveSpec, Request, Submission

passes_on(__file__)

Spot = tuple[CodeType, int]  # of a call in the user's code
_TAGS = (type(None), int, str)  # equal ones are of one type, as long as no other type comes here


@dataclass(frozen=True, slots=True, eq=False)
class PersistentCall:
    """Calls from one place in the user's code with arguments of one form.

    Attributes:
        code: of the user's function; held, because its identity is part of the key.
        persistent: how to run one.
        share: of the log, that one takes.
        row: of the call statistics.
        nbytes: of the result.
        flat: the result is 1-D.
        pooled: its memory comes from a pool.
    """

    code: CodeType
    persistent: PersistentRequest
    form: CollectiveSpec
    share: int
    row: list[float]
    nbytes: int
    flat: bool
    pooled: bool


class PersistentCalls:
    """Remembers calls and repeats them; every other way into a call is the slow one."""

    def __init__(self, session: Session, calls: CollectiveCalls, output: OutputPolicy) -> None:
        self._session, self._calls, self._output = session, calls, output
        self._guard, self._quota = session.guard, session.quota
        self._broadcasts = session.broadcasts
        self._known: dict[object, PersistentCall] = {}

    def allreduce(
        self,
        x: Any,
        op: UncheckedOp,
        out: Result | None,
        copy: bool,
        algorithm: str | None,
        wire: str | None,
        deadline: Duration | None,
        tag: CallTag,
    ) -> Any:
        """An allreduce called from two frames above: repeated, or else by the slow path."""
        caller = _getframe(2)
        spot = None
        if algorithm is None and wire is None and deadline is None and type(tag) in _TAGS:
            spot = caller.f_code, caller.f_lasti
            result = self._repeat(spot, x, op, tag, out, copy=copy)
            if result is not None:
                return result
        options = CallOptions(op, -1, algorithm, wire, deadline, tag=tag)
        return self._session.run(self._remembered, spot, x, options, out, copy=copy)

    def _remembered(
        self, spot: Spot | None, x: Any, options: CallOptions, out: Result | None, *, copy: bool
    ) -> Submission[Any]:
        """Build an allreduce; the next one from `spot` may be a repeated one."""
        submission = self._calls.allreduce(x, options, out, copy=copy)
        if spot is not None and isinstance(submission.request, Request):
            self._remember(spot, x, options, submission.request.form)
        return submission

    def _remember(self, spot: Spot, x: Any, options: CallOptions, form: CollectiveSpec) -> None:
        """The next call from `spot` with such arguments may be a persistent one."""
        op = options.op
        if type(x) is not np.ndarray or not _has_name(op) or not x.dtype.isnative:
            return
        persistent = self._session.engine.persistent(form)
        if persistent is None:
            return
        if len(self._known) >= FORMS_KEPT:
            self._known.clear()
        code, at = spot
        share, row = self._quota.share_of(form.nbytes), self._session.call_stats.row(form.kind)
        flat, pooled = len(form.shape) == 1, form.nbytes >= Pool.MIN_LENT_BYTES
        repeat = PersistentCall(code, persistent, form, share, row, form.nbytes, flat, pooled)
        self._known[id(code), at, op, x.shape, x.dtype, options.tag] = repeat

    def _repeat(
        self, spot: Spot, x: Any, op: Any, tag: CallTag, out: Any, *, copy: bool
    ) -> Result | None:
        """The result of a call like one before; None if there was none or it goes the long way."""
        if type(x) is not np.ndarray or not x.flags.c_contiguous:
            return None
        if type(op) is not str and not _has_name(op):
            return None
        code, at = spot
        repeat = self._known.get((id(code), at, op, x.shape, x.dtype, tag))
        if repeat is None or (out is not None and not _fits(out, x)):
            return None
        account, guard, persistent = self._quota, self._guard, repeat.persistent
        total = account.nbytes + repeat.share
        if guard.is_closed or guard.waiting_submitters or total > account.plenty:
            return None
        before, began = persistent.progress.position, perf_counter()
        # A forked child has no quiescent core, so the guard need not ask which process this is.
        if not guard.lock.take(_getframe(), before):
            return None
        try:
            sendbuf = x if repeat.flat else x.reshape(-1)
            place = (
                self._output.place_in(out, sendbuf) if repeat.pooled and out is not None else None
            )
            stored = persistent.run(sendbuf, place)
            if stored is None:
                return None
            account.nbytes = total
            broadcasts = self._broadcasts
            broadcasts.number = broadcasts.nbytes = 0  # this call proves them
            if repeat.pooled:
                result = self._output.to(out, copy=copy)(stored)
            elif out is None and not copy:
                result = stored.read_only()
            else:  # the same, in fewer steps
                result = stored.flat if repeat.flat else stored.flat.reshape(repeat.form.shape)
                if out is not None:
                    out[...] = result
                    result = out
                else:
                    result = result.copy()
            row = repeat.row
            row[0] += 1
            row[1] += repeat.nbytes
            row[2] += perf_counter() - began
        except BaseException as error:
            self._session.give_up_if_past(before, error)
            raise
        finally:
            guard.lock.release()
        return result  # nothing is called from here on, where Ctrl-C would lose it


def _has_name(op: Any) -> bool:
    """`op` is a name, or a builtin that stands for one: both have a hash and never change."""
    return type(op) is str or type(op) is Op or id(op) in NAME_OF_ID


def _fits(out: Any, x: Result) -> bool:
    """`out` can surely take a result like `x`."""
    if type(out) is not np.ndarray or out.dtype is not x.dtype or out.shape != x.shape:
        return False
    flags = out.flags
    return flags.writeable and flags.c_contiguous
