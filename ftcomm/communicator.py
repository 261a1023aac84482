"""The public API: `init` and `Communicator`."""

import hashlib
import os
import platform
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from ftcomm import logs
from ftcomm.accounting import LogAccount
from ftcomm.calls import CallFactory
from ftcomm.collectives.choose import tables_digest
from ftcomm.collectives.ops import UserFunction
from ftcomm.config import WorkerOptions, job_settings, read_token
from ftcomm.control.hub import Hub
from ftcomm.control.thread import ControlThread
from ftcomm.dataplane import Call
from ftcomm.engine import Engine
from ftcomm.errors import FtcommError, ThreadError
from ftcomm.exits import use_exit_codes
from ftcomm.faults import FaultInjector
from ftcomm.gate import Gate
from ftcomm.protocol.position import PRELUDE
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.worker import Identity, Limits, WorkerCore
from ftcomm.sites import call_site
from ftcomm.solo import SoloEngine
from ftcomm.state import pack_state, unpack_state
from ftcomm.values import Stored

DIGEST_BYTES = 16
NONCE_BYTES = 16

_open_communicator: "Communicator | None" = None


def init(
    tracker: str | None = None,
    *,
    worker_id: str | None = None,
    token_file: str | Path | None = None,
    detect_within: float | None = None,
    connect_timeout: float | None = None,
    tracker_timeout: float | None = None,
    bind: str | None = None,
    advertise: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> "Communicator":
    """Join the job and return its communicator; with no tracker, a group of one.

    Returns when this worker has its rank and, after a restart, has fetched what it missed.

    Args:
        tracker: ``host:port[,host:port]``; default ``FTCOMM_TRACKER``. ``"none"`` is a group of
            one whatever a scheduler says.
        worker_id: what names this worker over its restarts; default ``FTCOMM_WORKER_ID`` or the
            scheduler's index.
        token_file: file with the job's token; default ``FTCOMM_TOKEN_FILE``.
        detect_within: seconds; only checked against the job's own value.
        connect_timeout: seconds to wait for a tracker that is not up yet (60).
        tracker_timeout: seconds to wait for a lost tracker that is needed (600).
        bind: address to listen on; default: that of the control connection.
        advertise: address to tell the others, where it differs.
        settings: further job settings to check by name.

    Raises:
        ConfigError: something is malformed, or the job has another setting than asked for.
        AuthenticationError: tracker and worker do not hold the same token.
        TrackerLostError: no tracker answered in time.
        JobFinishedError, FencedError, JobLostError and others: the job's verdict.
        ThreadError: a communicator is open in this process already.
    """
    global _open_communicator  # noqa: PLW0603 - one open communicator per process
    if _open_communicator is not None and _open_communicator.is_usable:
        raise ThreadError(
            "a communicator is open in this process already",
            remedy="close it, or use it: one open communicator per process",
        )
    asked = {**(settings or {}), "detect_within": detect_within}
    options = WorkerOptions.load(
        tracker=tracker,
        worker_id=worker_id,
        token_file=token_file,
        connect_timeout=connect_timeout,
        tracker_timeout=tracker_timeout,
        bind=bind,
        advertise=advertise,
        asked={name: value for name, value in asked.items() if value is not None},
    )
    use_exit_codes()
    if options.log_level is not None:
        logs.turn_on(options.log_level)
    communicator = _alone(options) if options.routes is None else _join(options)
    _open_communicator = communicator
    return communicator


def _alone(options: WorkerOptions) -> "Communicator":
    context = logs.LogContext(job="solo", rank=0)
    logs.JobLogger(context).info("no tracker is named: a group of one")
    return Communicator(SoloEngine(job_settings({})), options.worker_id or "solo")


def _join(options: WorkerOptions) -> "Communicator":
    token = read_token(options.token_file)
    worker_id = options.worker_id or _made_up_id()
    identity = Identity(
        worker_id=worker_id,
        nonce=secrets.token_bytes(NONCE_BYTES),
        host=platform.node()[:64] or "localhost",
        address="",
        port=0,
        tables=tables_digest(),
        asked=options.asked,
    )
    limits = Limits(tracker_timeout=options.tracker_timeout)
    hub = Hub(WorkerCore(identity, limits, now=time.monotonic()), options, token)
    if options.faults is not None:
        hub.faults = FaultInjector(options.faults, options.faults_log, hub.break_links)
    control = ControlThread(hub)
    control.start()
    engine = Engine(hub, control)
    try:
        engine.wait_until_member()
    except BaseException:
        engine.stop()
        raise
    return Communicator(engine, worker_id)


def _made_up_id() -> str:
    made_up = f"anonymous-{platform.node()[:24]}-{os.getpid()}-{secrets.token_hex(4)}"
    logs.JobLogger(logs.LogContext()).warning(
        "no FTCOMM_WORKER_ID and no scheduler's index: this worker is %s; a restart would be "
        "another worker, and ranks follow these ids",
        made_up,
    )
    return made_up


class Communicator:
    """A worker's part in the job. Use it from one thread at a time, as a context manager.

    Leaving the ``with`` block normally closes the job together with all ranks; leaving it by an
    exception is a failure at once, with the exception's text as the reason.
    """

    def __init__(self, engine: Engine | SoloEngine, worker_id: str) -> None:
        self._engine = engine
        self._worker_id = worker_id
        self._calls = CallFactory(engine)
        self._account = LogAccount(engine)
        self._gate = Gate(self._is_the_end)

    # --- where we stand -----------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's place in the group, 0 to ``world_size - 1``; it survives restarts."""
        return self._engine.rank

    @property
    def world_size(self) -> int:
        """Number of places in the group."""
        return self._engine.world_size

    @property
    def epoch(self) -> int:
        """The agreed membership in force; grows by one at every change."""
        return self._engine.epoch

    @property
    def version(self) -> int:
        """Number of committed checkpoints; -1 before `load_checkpoint`."""
        return self._engine.position.version

    @property
    def seqno(self) -> int:
        """Number of collectives since the version began."""
        return self._engine.position.seqno

    @property
    def worker_id(self) -> str:
        """What names this worker over its restarts."""
        return self._worker_id

    @property
    def is_over(self) -> bool:
        """True after `close`, or once an error has ended this communicator."""
        return self._gate.is_closed

    @property
    def is_usable(self) -> bool:
        """True while calls may be made here: not over, and not inherited by a forked child."""
        return not (self._gate.is_closed or self._gate.is_inherited)

    def __repr__(self) -> str:
        state = "over" if self.is_over else f"at {self._engine.position}"
        return f"<ftcomm.Communicator rank {self.rank} of {self.world_size}, {state}>"

    # --- collectives --------------------------------------------------------------------------

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

    # --- checkpoints --------------------------------------------------------------------------

    def checkpoint(self, state: Any) -> int:
        """Keep `state` on every rank and end the version; what was logged before may go.

        Args:
            state: equal on all ranks; nested dict, list, tuple of numpy arrays, numbers, str,
                bytes, bool, None; a dict's keys in the same order. Copied before this returns.

        Returns:
            the new version.

        Raises:
            CollectiveMismatchError: the states of two ranks differ.
        """
        with self._gate:
            self._after_load("checkpoint")
            raw = pack_state(state)
            digest = hashlib.blake2b(raw, digest_size=DIGEST_BYTES).digest()
            call = self._calls.plain(Kind.CHECKPOINT, call_site())
            try:
                version = self._engine.checkpoint(raw, digest, call.form.signature, call.form.site)
            except BaseException as error:
                self._give_up(error)
                raise
            self._account.new_version()
            self._calls.completed(call)
            return version

    def load_checkpoint(self, default: Any = None) -> tuple[int, Any]:
        """End the prelude: the newest committed version and this rank's own copy of its state.

        Args:
            default: the state of version 0, for a fresh start; rank 0's is given to all.

        Returns:
            ``(version, state)``; ``(0, rank 0's default)`` on a fresh start.

        Raises:
            ValueError: called twice.
        """
        with self._gate:
            if self.version > PRELUDE:
                raise ValueError("load_checkpoint() ends the prelude: call it once")
            raw = pack_state(default if self.rank == 0 else None)
            call = self._calls.plain(Kind.LOAD, call_site())
            checkpoint = self._engine.load(raw, call.form.signature, call.form.site)
            self._account.new_version()
            self._calls.completed(call)
            return checkpoint.version, unpack_state(checkpoint.value)

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the job together with all ranks; serve those who lag until all have closed."""
        self._close(call_site())

    def _close(self, site: str) -> None:
        if self.is_over:
            return
        with self._gate:
            self._engine.close(self._calls.plain(Kind.CLOSE, site))
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._close(call_site())  # the user's `with` statement
        elif self.is_usable:
            self._engine.leave(f"{type(error).__name__}: {error}")
            self._end()

    def _end(self) -> None:
        self._gate.is_closed = True
        self._engine.stop()

    # --- one call -----------------------------------------------------------------------------

    def _is_the_end(self, error: FtcommError) -> bool:
        """A job-wide error ends this communicator for good; a local one changes nothing."""
        if not self._is_the_end_by(error):
            return False
        self._end()
        return True

    def _give_up(self, error: BaseException) -> None:
        """A call was cut short, by Ctrl-C for example, after others may have completed it.

        This life can neither go on nor go back: it leaves, and may `init` again as a new one.
        """
        if not self._is_the_end_by(error):
            self._engine.leave(f"a call was cut short by {error!r}")
            self._end()

    def _is_the_end_by(self, error: BaseException) -> bool:
        return isinstance(self._engine, Engine) and self._engine.error is error

    def _after_load(self, what: str) -> None:
        if self.version == PRELUDE:
            raise ValueError(f"{what}() needs load_checkpoint() before it, to end the prelude")

    def _run(self, call: Call) -> Stored:
        self._account.check(call)
        before = self._engine.position
        try:
            stored = self._engine.run(call)
        except BaseException as error:
            if self._engine.position != before:  # completed, and its result will not be returned
                self._give_up(error)
            raise
        self._account.completed(call)
        self._calls.completed(call)
        return stored

    def _deliver(
        self, call: Call, out: np.ndarray[Any, Any] | None, *, copy: bool
    ) -> np.ndarray[Any, Any]:
        stored = self._run(call)
        view = stored.flat.reshape(stored.shape)
        if out is not None:
            out[...] = view
            return out
        if copy:
            return view.copy()
        view.flags.writeable = False
        return view


__all__ = ["Communicator", "init"]
