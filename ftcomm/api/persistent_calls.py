"""Persistent calls: a call like one before it, from the same place, goes the fast path.

These are the calls whose schedule follows from their arguments alone.  A broadcast to a rank that
passes no array is none: what comes says how much it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import _getframe
from time import perf_counter
from types import CodeType, FrameType
from typing import Any

import numpy as np

from ftcomm.api.collectives import CollectiveCalls
from ftcomm.api.outputs import OutputPolicy, Result
from ftcomm.api.session import Session
from ftcomm.collectives.op_argument import NAME_OF_ID, Op, Reduction, UncheckedOp
from ftcomm.config.deadline import Duration
from ftcomm.engine.persistent_request import PersistentRequest
from ftcomm.memory.pool import LoggedResult, Pool
from ftcomm.protocol.signature import CallTag, Kind
from ftcomm.recovery.unasked_calls import LOG_ROOM, SEQNO
from ftcomm.requests.builder import FORMS_KEPT
from ftcomm.requests.call_site import passes_on
from ftcomm.requests.request import NOTHING, CallOptions, CollectiveSpec, Request, Submission

passes_on(__file__)

Spot = tuple[CodeType, int]  # of a call in the user's code
_TAGS = (type(None), int, str)  # equal ones are of one type, as long as no other type comes here
# What is called, as a part of a key: the op of an allreduce, the text of counts, or one of these.
# Numbers and no members of `Kind`, whose hash costs more than all the rest.
_FUNCTION, _ALLGATHER, _BARRIER = -1, int(Kind.ALLGATHER), int(Kind.BARRIER)
_BROADCAST = int(Kind.BROADCAST)  # with its root


@dataclass(frozen=True, slots=True, eq=False)
class PersistentCall:
    """Calls from one place in the user's code with arguments of one form.

    Attributes:
        code: of the user's function; held, because its identity is part of the key.
        function: the reduction of the call before, if that is a function and no name.
        persistent: how to run one.
        form: of the calls.
        share: of the log, that one takes.
        row: of the call statistics.
        nbytes: of the result.
        is_broadcast: it does not prove what came before.
        flat_input: the input is 1-D.
        flat: the result is 1-D.
        pooled: its memory comes from a pool.
    """

    code: CodeType
    function: object
    persistent: PersistentRequest
    form: CollectiveSpec
    share: int
    row: list[float]
    nbytes: int
    is_broadcast: bool
    flat_input: bool
    flat: bool
    pooled: bool


class PersistentCalls:
    """Remembers calls and repeats them; every other way into a call is the slow one."""

    def __init__(self, session: Session, calls: CollectiveCalls, output: OutputPolicy) -> None:
        self._session, self._calls, self._output = session, calls, output
        self._guard, self._quota = session.guard, session.quota
        self._broadcasts = session.broadcasts
        self._known: dict[object, PersistentCall] = {}
        unasked = session.engine.unasked
        self._forms, self._words = unasked.forms, unasked.words

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
        spot: Spot | None = None
        what: object = op
        function: object = None
        if type(op) is not str:
            what, function = _named(op)
        plain = (
            algorithm is None and wire is None and deadline is None
        )  # as `_spot`, without a call
        if plain and what is not None and type(tag) in _TAGS:
            caller = _getframe(2)
            spot = caller.f_code, caller.f_lasti
        if spot is not None:
            result = self._repeat(spot, what, x, tag, out, copy=copy, function=function)
            if result is not None:
                return result
        options = CallOptions(op, -1, algorithm, wire, deadline, tag=tag)
        run, build = self._session.run, self._calls.allreduce
        return run(deadline, self._remembered, spot, what, build, x, options, out, copy=copy)

    def broadcast(
        self,
        x: Any,
        root: int,
        out: Result | None,
        copy: bool,
        algorithm: str | None,
        deadline: Duration | None,
        tag: CallTag,
    ) -> Any:
        """A broadcast, likewise."""
        spot, what = None, (_BROADCAST, root)
        if algorithm is None and type(root) is int:  # 1, 1.0 and True differ
            spot = _spot(_getframe(2), deadline, tag)
        if spot is not None:
            result = self._repeat(spot, what, x, tag, out, copy=copy)
            if result is not None:
                return result
        options = CallOptions(root=root, algorithm=algorithm, deadline=deadline, tag=tag)
        run, build = self._session.run, self._calls.broadcast
        return run(deadline, self._remembered, spot, what, build, x, options, out, copy=copy)

    def allgather(
        self, x: Any, out: Result | None, copy: bool, deadline: Duration | None, tag: CallTag
    ) -> Result:
        """An allgather, likewise."""
        spot = _spot(_getframe(2), deadline, tag)
        if spot is not None:
            result = self._repeat(spot, _ALLGATHER, x, tag, out, copy=copy)
            if result is not None:
                return result
        options = CallOptions(deadline=deadline, tag=tag)
        run, build = self._session.run, self._calls.allgather
        return run(deadline, self._remembered, spot, _ALLGATHER, build, x, options, out, copy=copy)

    def allgatherv(
        self,
        x: Any,
        counts: Sequence[int] | None,
        out: Result | None,
        copy: bool,
        deadline: Duration | None,
        tag: CallTag,
    ) -> Result:
        """An allgatherv, likewise; without counts its sizes are told anew in each call."""
        spot, what = None, ""
        if type(counts) is list or type(counts) is tuple:
            spot, what = _spot(_getframe(2), deadline, tag), f"{counts}"  # 1, 1.0 and True differ
        if spot is not None:
            result = self._repeat(spot, what, x, tag, out, copy=copy)
            if result is not None:
                return result
        options = CallOptions(deadline=deadline, counts=counts, tag=tag)
        run, build = self._session.run, self._calls.allgatherv
        return run(deadline, self._remembered, spot, what, build, x, options, out, copy=copy)

    def barrier(self, deadline: Duration | None, tag: CallTag) -> None:
        """A barrier, likewise."""
        spot = _spot(_getframe(2), deadline, tag)
        if (
            spot is not None
            and self._repeat(spot, _BARRIER, NOTHING, tag, None, copy=False) is not None
        ):
            return
        options = CallOptions(deadline=deadline, tag=tag)
        self._session.run(deadline, self._remembered_barrier, spot, options)

    def _remembered_barrier(self, spot: Spot | None, options: CallOptions) -> Submission[None]:
        submission = self._calls.barrier(options)
        if spot is not None and isinstance(submission.request, Request):
            self._remember(spot, _BARRIER, NOTHING, options, submission.request.form)
        return submission

    def _remembered(
        self,
        spot: Spot | None,
        what: object,
        build: Callable[..., Submission[Any]],
        x: Any,
        options: CallOptions,
        out: Result | None,
        *,
        copy: bool,
    ) -> Submission[Any]:
        """Build a call; the next one from `spot` may be a repeated one."""
        submission = build(x, options, out, copy=copy)
        if spot is not None and isinstance(submission.request, Request):
            self._remember(spot, what, x, options, submission.request.form)
        return submission

    def _remember(
        self, spot: Spot, what: object, x: Any, options: CallOptions, form: CollectiveSpec
    ) -> None:
        """The next call from `spot` with such arguments may be a persistent one."""
        if type(x) is not np.ndarray or not x.dtype.isnative:
            return
        persistent = self._session.engine.persistent(form)
        if persistent is None:
            return
        if len(self._known) >= FORMS_KEPT:
            self._forms.clear()  # first: a form that is repeated has its call in the other
            self._known.clear()
        code, at = spot
        self._known[id(code), at, what, x.shape, x.dtype, options.tag] = PersistentCall(
            code=code,
            function=options.op if what is _FUNCTION else None,
            persistent=persistent,
            form=form,
            share=self._quota.share_of(form.nbytes),
            row=self._session.call_stats.row(form.kind),
            nbytes=form.nbytes,
            is_broadcast=form.kind is Kind.BROADCAST,
            flat_input=x.ndim == 1,
            flat=len(form.shape) == 1,
            pooled=form.nbytes >= Pool.MIN_LENT_BYTES,
        )

    def _repeat(
        self,
        spot: Spot,
        what: object,
        x: Any,
        tag: CallTag,
        out: Any,
        *,
        copy: bool,
        function: object = None,
    ) -> Result | None:
        """The result of a call like one before; None if the slow path must make it."""
        if type(x) is not np.ndarray:
            return None
        code, at = spot
        key = id(code), at, what, x.shape, x.dtype, tag
        form = self._forms.get(key)
        # A call that asks releases what broadcasts have left unproven (R3, R9).
        unproven = self._broadcasts.number
        if form is not None and not (unproven or self._guard.is_closed or self._guard.submitters):
            seqno = self._words[SEQNO]
            try:
                done = form.repeat(x, out)
                if done is not None:
                    if done is out or type(done) is bytes:
                        result: Result = _made_of(done, x, copy=copy) if out is None else out
                        return result
                    # The others may have completed it, so no error may leave it open.
                    return self._in_steps(key, x, out, done, copy=copy, function=function)
            except BaseException as error:
                self._cut_short(self._known[key].persistent, seqno, error)
                raise
        return self._in_steps(key, x, out, None, copy=copy, function=function)

    def _in_steps(
        self, key: object, x: Result, out: Any, done: object, *, copy: bool, function: object
    ) -> Result | None:
        """Do as `_repeat`, but as far as the core has not `done` it (`Form.repeat`)."""
        flags = x.flags
        if not (flags.c_contiguous and flags.aligned):
            return None
        repeat = self._known.get(key)
        if repeat is None or repeat.function is not function:
            return None
        words, guard, persistent = self._words, self._guard, repeat.persistent
        broadcasts, unfit = self._broadcasts, out is not None and not _fits(out, repeat.form)
        if done is None and (unfit or guard.is_closed or guard.submitters):
            return None
        seqno, began = words[SEQNO], perf_counter()
        # A forked child has no quiescent core, so the guard need not ask which process this is.
        if not guard.lock.take():
            return None if done is None else guard.refuse()
        try:  # a pending call may have completed before the lock was free
            room = words[LOG_ROOM] - repeat.share
            flushes = repeat.is_broadcast and broadcasts.must_flush(repeat.nbytes)
            if flushes or room < 0 or words[SEQNO] != seqno:
                return None
            sendbuf = x if repeat.flat_input else x.reshape(-1)
            early = None
            if repeat.pooled:
                early = self._output.early(out, sendbuf, repeat.form, copy=copy)
            stored = persistent.run(sendbuf, early) if done is None else persistent.settle(done)
            if stored is None:
                return None
            words[LOG_ROOM] = room
            if repeat.is_broadcast:
                broadcasts.completed(Kind.BROADCAST, repeat.nbytes)
            else:
                broadcasts.number = broadcasts.nbytes = 0  # this call proves them
            result = early if early is not None else _handed_out(stored, repeat, out, copy=copy)
            row = repeat.row
            row[0] += 1
            row[1] += repeat.nbytes
            row[2] += perf_counter() - began
            if persistent.repeats and repeat.function is None:
                self._have_repeated(key, persistent)
        except BaseException as error:
            if words[SEQNO] != seqno:
                self._session.give_up(error)
            guard.heed(error)
            raise
        finally:
            del guard.lock.holder[0]
        return result

    def _have_repeated(self, key: object, persistent: PersistentRequest) -> None:
        """Have the core make the next call."""
        form = self._forms[key] = persistent.repeated
        if persistent.repeated is not form:  # its epoch has ended beside this
            self._forms.pop(key, None)

    def _cut_short(self, persistent: PersistentRequest, seqno: int, error: BaseException) -> None:
        """A call that the core makes is left by `error`."""
        if self._words[SEQNO] != seqno:  # it was completed, so its result is lost to the user
            self._session.give_up(error)
        else:
            persistent.cut_short(error)
        self._guard.heed(error)


def _made_of(raw: Any, x: Result, *, copy: bool) -> Result:
    """A copy or a view of the result of a call like `x`, which the log has as bytes."""
    result = np.frombuffer(raw, x.dtype).reshape(x.shape)
    return result.copy() if copy else result


def _handed_out(stored: LoggedResult, repeat: PersistentCall, out: Any, *, copy: bool) -> Result:
    """Do as `OutputPolicy.to`, in fewer steps."""
    if out is None and not copy:
        return stored.read_only()
    result = stored.flat if repeat.flat else stored.flat.reshape(repeat.form.shape)
    if out is None:
        return result.copy()
    filled: Result = out
    filled[...] = result
    return filled


def _spot(caller: FrameType, deadline: Duration | None, tag: CallTag) -> Spot | None:
    """The place of a call; None if a call with these arguments is not repeated."""
    if deadline is None and type(tag) in _TAGS:
        return caller.f_code, caller.f_lasti
    return None


def _named(op: Any) -> tuple[object, object]:
    """The part of a key for an `op` that is no plain name, and the function that it is, if it is.

    Nothing else is repeated.
    """
    if type(op) is Reduction:
        return _FUNCTION, op
    return (op, None) if type(op) is Op or id(op) in NAME_OF_ID else (None, None)


def _fits(out: Any, form: CollectiveSpec) -> bool:
    """`out` can surely take a result of this form."""
    if type(out) is not np.ndarray or out.dtype is not form.dtype or out.shape != form.shape:
        return False
    flags = out.flags
    return flags.writeable and flags.c_contiguous
