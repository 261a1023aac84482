"""The communicator: what a training script holds on to."""

import enum
import hashlib
import time
from typing import TYPE_CHECKING, Any, Final, overload

from ftcomm.api.foreign_names import hint_for_communicator
from ftcomm.api.public_values import Restored, RestoredFrom, RestoredLocal
from ftcomm.config.deadline import Duration
from ftcomm.errors import StateChangedError
from ftcomm.nonblocking.task_api import TaskCalls
from ftcomm.protocol.position import PRELUDE
from ftcomm.protocol.signature import LAZY, WITH_LOCAL, Kind
from ftcomm.requests.call_site import call_site
from ftcomm.requests.request import DIGEST_BYTES, UNCOMPARED, CheckpointPayload
from ftcomm.state.layout import Packed
from ftcomm.state.lazy import LazyState
from ftcomm.state.serializer import pack_state, unpack_state


class _Missing(enum.Enum):
    """The type of "not given", where None would be a value."""

    NOT_GIVEN = 0


NOT_GIVEN: Final = _Missing.NOT_GIVEN


class Communicator(TaskCalls):
    """A worker's part in the job. Use it from one thread at a time, as a context manager.

    Leaving the ``with`` block normally closes the job together with all ranks; leaving it by an
    exception is a failure at once, with the exception's text as the reason.
    """

    if not TYPE_CHECKING:  # or a type checker would take a name that is not there for Any

        def __getattr__(self, name: str) -> Any:
            hint = hint_for_communicator(name)
            text = f"a communicator has no attribute {name!r}" + (f": {hint}" if hint else "")
            raise AttributeError(text, name=name, obj=self)

    _restored_from: RestoredFrom | None = None
    _lazy: LazyState | None = None  # of the committed version, if it was checkpointed lazily

    def checkpoint(
        self,
        state: Any,
        local: Any | None = None,
        *,
        lazy: bool = False,
        deadline: Duration | None = None,
    ) -> int:
        """Keep `state` on every rank and end the version; what was logged before may go.

        Args:
            state: equal on all ranks; nested dict, list, tuple of numpy arrays, numbers, str,
                bytes, bool, None; a dict's keys in the same order. Copied before this returns.
            local: this rank's own state, of the same types and different on each rank; kept here
                and by `local_replicas` other ranks. All ranks pass one, or none does.
            lazy: do not copy `state`: it is packed only if a restarted worker has to load it.
                Nobody may write to its arrays until the next checkpoint has returned, and the
                states of the ranks are not compared. The same on all ranks.
            deadline: as for `allreduce`.

        Returns:
            the new version.

        Raises:
            CollectiveMismatchError: the states of two ranks differ, or only some passed a `local`
                or `lazy`.
            StateChangedError: with ``FTCOMM_DEBUG=checkpoints``, somebody has written to an array
                of the lazy checkpoint before this one.
        """
        with self._guard:
            began, limit = time.perf_counter(), self._limit_of(deadline)
            self._after_load("checkpoint")
            saving = self._saving(state, local, lazy=lazy)
            count = WITH_LOCAL * (local is not None) + LAZY * lazy
            call = self._calls.plain(Kind.CHECKPOINT, call_site(), count=count)
            try:
                self._check_lazy()
                version = self._engine.within(
                    limit,
                    call,
                    self._engine.checkpoint,
                    saving,
                    call.form.signature,
                    call.form.site,
                )
                self._begin_version(call.kind)
                self._keep_lazy(saving.state)
            except BaseException as error:
                self._give_up(error)
                raise
            self._call_stats.add(call.kind, saving.nbytes, time.perf_counter() - began)
            return version

    def _saving(self, state: Any, local: Any | None, *, lazy: bool) -> CheckpointPayload:
        packed = None if local is None else pack_state(local, "local")
        if lazy:
            watched = self._engine.watches_states
            return CheckpointPayload(LazyState(state, watched=watched), UNCOMPARED, packed)
        raw = pack_state(state)
        return CheckpointPayload(
            raw, hashlib.blake2b(raw, digest_size=DIGEST_BYTES).digest(), packed
        )

    def _check_lazy(self) -> None:
        """The user has kept the promise that goes with a lazy checkpoint, if that is watched."""
        broken = None
        try:
            if self._lazy is not None:
                self._lazy.check()
        except StateChangedError as error:
            broken = error
        if broken is not None:  # outside, so that the fatal decision is raised alone
            self._engine.end_by(broken)

    def _keep_lazy(self, state: Packed | LazyState) -> None:
        """A new version is committed: nobody will ask for the one before."""
        if self._lazy is not None:
            self._lazy.release()
        self._lazy = state if isinstance(state, LazyState) else None

    @overload
    def load_checkpoint(
        self, default: Any = None, *, deadline: Duration | None = None
    ) -> Restored: ...

    @overload
    def load_checkpoint(
        self, default: Any, local_default: Any, *, deadline: Duration | None = None
    ) -> RestoredLocal: ...

    @overload
    def load_checkpoint(
        self, default: Any = None, *, local_default: Any, deadline: Duration | None = None
    ) -> RestoredLocal: ...

    def load_checkpoint(
        self,
        default: Any = None,
        local_default: Any = NOT_GIVEN,
        *,
        deadline: Duration | None = None,
    ) -> Restored | RestoredLocal:
        """End the prelude: the newest committed version and this rank's own copy of its state.

        Args:
            default: the state of version 0, for a fresh start; rank 0's is given to all.
            local_default: this rank's local state where the version has none: on a fresh start, or
                if it was checkpointed without.
            deadline: as for `allreduce`.

        Returns:
            ``Restored(version, state)``; with a local default, even None,
            ``RestoredLocal(version, state, local)``. On a fresh start the version is 0, the state
            rank 0's default and the local state one's own default; `restored_from` tells.

        Raises:
            ValueError: called twice.
        """
        with self._guard:
            began, limit = time.perf_counter(), self._limit_of(deadline)
            self._before_load("load_checkpoint", "ends the prelude: call it once")
            raw = pack_state(default if self.rank == 0 else None)
            asked = local_default is not NOT_GIVEN
            packed = pack_state(local_default, "local_default") if asked else b""
            call = self._calls.plain(Kind.LOAD, call_site())
            before = self._engine.position
            try:
                checkpoint = self._engine.within(
                    limit, call, self._engine.load, raw, call.form.signature, call.form.site
                )
                self._begin_version(call.kind)
                version, state = checkpoint.version, unpack_state(checkpoint.value)
                self._restored_from = "memory" if version else "default"
                local = self._engine.local_state(version)
                own = unpack_state(packed if local is None else local) if asked else None
            except BaseException as error:
                self._give_up_if_past(before, error)
                raise
            self._call_stats.add(call.kind, len(checkpoint.value), time.perf_counter() - began)
            return RestoredLocal(version, state, own) if asked else Restored(version, state)

    @property
    def restored_from(self) -> RestoredFrom | None:
        """Where the state of `load_checkpoint` came from; None before it.

        ``default``: a fresh start, with rank 0's default.  ``memory``: a checkpoint that members of
        the job kept in their memory.
        """
        return self._restored_from

    def peek_checkpoint(self) -> int | None:
        """The version that `load_checkpoint` would return, if this worker knows it already.

        It is known where the others have loaded before: a restarted worker may then skip what only
        a fresh start needs. No collective: other ranks may be answered differently, and if the
        others' next checkpoint is committed in between, the load returns that.

        Returns:
            the version; None if it is not known, as on a fresh start.

        Raises:
            ValueError: the prelude has ended; see `version`.
        """
        with self._guard:
            self._before_load("peek_checkpoint", "looks ahead of load_checkpoint()")
            return self._engine.known_version

    def _begin_version(self, kind: Kind) -> None:
        """All ranks count from zero again, at the same position."""
        self._account.new_version()
        self._calls.completed(kind)

    def _before_load(self, what: str, meaning: str) -> None:
        if self.version > PRELUDE:
            raise ValueError(f"{what}() {meaning}; version {self.version} is loaded")

    def _after_load(self, what: str) -> None:
        if self.version == PRELUDE:
            raise ValueError(f"{what}() needs load_checkpoint() before it, to end the prelude")
