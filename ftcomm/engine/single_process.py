"""A group of one: the same calls without a tracker, sockets or threads."""

from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.config.deadline import Limit, QueuedLimit
from ftcomm.config.job_settings import JobSettings
from ftcomm.control.hub import Recovered
from ftcomm.errors import FtcommError
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.position import START, Position
from ftcomm.recovery.machine import Checkpoint
from ftcomm.recovery.unasked_calls import UnaskedCalls
from ftcomm.requests.builder import Group
from ftcomm.requests.request import (
    AnyRequest,
    CheckpointPayload,
    CollectiveSpec,
    DeferredInput,
    Request,
    in_result_dtype,
    stored_rows,
)
from ftcomm.state.layout import Packed

P = ParamSpec("P")
R = TypeVar("R")


class SingleProcessEngine:
    """Every collective of one rank is its own input; checkpoints live in this process."""

    rank = 0
    world_size = 1
    epoch = 0
    incarnation = 1
    is_replaying = False
    error: FtcommError | None = None
    recovered = Recovered(epochs=1)
    messages = None

    def __init__(self, settings: JobSettings) -> None:
        self.watches_states = settings.watches_states
        self.position: Position = START
        self.unasked = UnaskedCalls()
        self.log_limit = settings.log_limit
        self.replicas = settings.replicas
        self.call_deadline = settings.call_deadline or None
        self.group = Group(0, 1, (0,), settings.algorithm)

    def lend(self, count: int, dtype: AnyDtype) -> Array:
        """Memory for a result that the user gets."""
        return np.empty(count, dtype)

    def report_log(self, nbytes: Callable[[], int]) -> None:
        """There is nobody to be told."""

    def report_queue(self, earliest: Callable[[], QueuedLimit | None]) -> None:
        """Do nothing: no call here waits for another rank."""

    def persistent(self, form: CollectiveSpec) -> None:
        """Nothing is sent that could be sent in fewer steps."""

    def run(self, request: AnyRequest) -> LoggedResult:
        """The result for one rank: the input, finished as the reduction says."""
        if isinstance(request, DeferredInput):  # nothing is ever replayed here: it is needed
            return self._run(request.make())
        if isinstance(request, Request):
            return self._run(request)
        raise AssertionError(f"a broadcast without an array on its root: {request}")

    def _run(self, call: Request) -> LoggedResult:
        form, recvbuf = call.form, call.sendbuf.copy()
        if form.reducer is not None:
            form.reducer.finish(recvbuf, 1)
            recvbuf = in_result_dtype(form, recvbuf)
        if form.contributed is not None:
            return self._own(call, recvbuf)
        if form.schedule is None:
            call.admit(recvbuf.nbytes)
            stored = stored_rows(form, recvbuf, call.rows)
        else:
            stored = LoggedResult(recvbuf, form.shape, scalar=form.scalar)
        if call.check is not None:
            call.check(stored)
        self.position = self.position.next()
        return stored

    def _own(self, call: Request, recvbuf: Array) -> LoggedResult:
        """The result of a call that gives each rank its own."""
        form = call.form
        if form.schedule is not None:
            stored = LoggedResult(recvbuf, form.shape, logged=form.nbytes)
        else:
            call.admit_input(recvbuf.nbytes)
            assert call.given is not None, "rows for each rank"
            lo, hi = call.given[0]
            stored = LoggedResult(
                recvbuf, (hi - lo, *form.shape), logged=recvbuf.nbytes, rows=(hi - lo,)
            )
        if call.check is not None:
            call.check(stored)
        self.position = self.position.next()
        return stored

    def within(
        self,
        limit: Limit | None,
        call: AnyRequest,
        body: Callable[P, R],
        /,
        *arguments: P.args,
        **rest: P.kwargs,
    ) -> R:
        """There is nobody to wait for."""
        del limit, call
        return body(*arguments, **rest)

    def checkpoint(self, saving: CheckpointPayload, form: CollectiveSpec) -> int:
        """Commit: the state was copied by the caller, and there is nobody to compare with."""
        del saving, form
        self.position = self.position.at_version(self.position.version + 1)
        return self.position.version

    def load(self, raw: Packed, form: CollectiveSpec) -> Checkpoint:
        """A fresh start: one's own default."""
        del form
        self.position = self.position.at_version(0)
        return Checkpoint(0, raw)

    @property
    def has_store(self) -> bool:
        """There is no tracker that could record a checkpoint."""
        return False

    @property
    def known_version(self) -> int | None:
        """Nothing exists before the load."""
        return None

    def local_state(self, version: int) -> Packed | None:
        """Only version 0 is ever loaded, and that has none."""
        del version
        return None

    def close(self, call: Request) -> None:
        """Nobody needs serving."""
        del call

    def condemn(self, error: FtcommError) -> None:
        """Nobody needs to know."""

    def end_by(self, error: FtcommError) -> NoReturn:
        """Nobody else needs to know."""
        raise error

    def leave(self, reason: str, site: str = "") -> None:
        """Nobody needs to know."""

    def abort(self) -> None:
        """A call of one waits for nobody."""

    def stop(self) -> None:
        """Nothing to stop."""
