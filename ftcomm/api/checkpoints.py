"""Checkpoints: states to bytes and back, and the versions that they begin."""

import hashlib
import time
from typing import Any

from ftcomm.api.public_values import Restored, RestoredFrom, RestoredLocal
from ftcomm.api.session import Session
from ftcomm.config.deadline import Duration, Limit
from ftcomm.errors import ConfigError, StateChangedError
from ftcomm.protocol.position import PRELUDE
from ftcomm.protocol.signature import DURABLE, LAZY, WITH_LOCAL, Kind, Signature
from ftcomm.recovery.states import Checkpoint
from ftcomm.requests.call_site import call_site, passes_on
from ftcomm.requests.request import DIGEST_BYTES, UNCOMPARED, CheckpointPayload
from ftcomm.state.layout import Packed
from ftcomm.state.lazy import LazyState
from ftcomm.state.serializer import pack_state, unpack_state

passes_on(__file__)

_CHECKPOINT, _LOAD = Signature(Kind.CHECKPOINT).encode(), Signature(Kind.LOAD).encode()


class Checkpoints:
    """The checkpoints of one communicator."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lazy: LazyState | None = None  # of the committed version, if checkpointed lazily
        # Where the loaded state came from; None before the load.
        self.restored_from: RestoredFrom | None = None

    def save(
        self,
        state: Any,
        local: Any | None,
        *,
        lazy: bool,
        durable: bool,
        deadline: Duration | None,
    ) -> int:
        """Commit a checkpoint and return its version; see `Communicator.checkpoint`."""
        limit = self._session.limit_of(deadline)
        return self._session.guard.run(
            lambda: self._save(limit, state, local, lazy=lazy, durable=durable), limit, _CHECKPOINT
        )

    def _save(
        self, limit: Limit | None, state: Any, local: Any | None, *, lazy: bool, durable: bool
    ) -> int:
        session, engine = self._session, self._session.engine
        began = time.perf_counter()
        if engine.position.version == PRELUDE:
            raise ValueError("call load_checkpoint() before checkpoint(); it ends the prelude")
        if durable and not engine.has_store:
            raise ConfigError(
                "checkpoint(durable=True) needs a store, and this job has none",
                remedy="start the job with --checkpoint DIRECTORY",
            )
        session.check_no_receive("checkpoint()")
        # One that is waited for is packed at once: its states are compared like others.
        payload = self._payload(state, local, lazy=lazy and not durable, durable=durable)
        count = WITH_LOCAL * (local is not None) + LAZY * lazy + DURABLE * durable
        request = session.builder.plain(Kind.CHECKPOINT, call_site(), count=count)
        before = engine.position
        try:
            self._check_lazy()
            version = engine.within(limit, request, engine.checkpoint, payload, request.form)
            self._begin_version(request.kind)
            self._keep_lazy(payload.state)
            seconds = time.perf_counter() - began
            session.call_stats.add(request.kind, payload.nbytes, seconds)
        except BaseException as error:
            if isinstance(error, Exception):
                session.give_up(error)
            session.give_up_if_past(before, error)
            raise
        return version

    def load(
        self, default: Any, local_default: tuple[()] | tuple[Any], deadline: Duration | None
    ) -> Restored | RestoredLocal:
        """End the prelude; see `Communicator.load_checkpoint`.

        Args:
            default: the state of version 0; rank 0's counts.
            local_default: empty if the script wants no local state.
            deadline: as for `allreduce`.
        """
        limit = self._session.limit_of(deadline)
        return self._session.guard.run(
            lambda: self._load(limit, default, local_default), limit, _LOAD
        )

    def _load(
        self, limit: Limit | None, default: Any, local_default: tuple[()] | tuple[Any]
    ) -> Restored | RestoredLocal:
        session, engine = self._session, self._session.engine
        began = time.perf_counter()
        self._check_prelude("load_checkpoint", "ends the prelude: call it once")
        raw = pack_state(default if engine.rank == 0 else None)
        packed = [pack_state(own, "local_default") for own in local_default]
        request = session.builder.plain(Kind.LOAD, call_site())
        before = engine.position
        try:
            checkpoint = engine.within(limit, request, engine.load, raw, request.form)
            self._begin_version(request.kind)
            version, state = checkpoint.version, _unpacked(checkpoint)
            self.restored_from = "memory" if version else "default"
            local = engine.local_state(version)
            own = [unpack_state(raw if local is None else local) for raw in packed]
            restored = RestoredLocal(version, state, *own) if own else Restored(version, state)
            nbytes, seconds = len(checkpoint.value), time.perf_counter() - began
            session.call_stats.add(request.kind, nbytes, seconds)
        except BaseException as error:
            session.give_up_if_past(before, error)
            raise
        return restored

    def known_version(self) -> int | None:
        """The version that a load would give; see `Communicator.peek_checkpoint`."""

        def look() -> int | None:
            self._check_prelude("peek_checkpoint", "looks ahead of load_checkpoint()")
            return self._session.engine.known_version

        return self._session.guard.run(look)

    def _payload(
        self, state: Any, local: Any | None, *, lazy: bool, durable: bool
    ) -> CheckpointPayload:
        packed = None if local is None else pack_state(local, "local")
        if lazy:
            watched = self._session.engine.watches_states
            return CheckpointPayload(LazyState(state, watched=watched), UNCOMPARED, packed)
        raw = pack_state(state)
        digest = hashlib.blake2b(raw, digest_size=DIGEST_BYTES).digest()
        return CheckpointPayload(raw, digest, packed, durable)

    def _check_lazy(self) -> None:
        """Find out, if that is watched, that the user has written to a lazy checkpoint."""
        broken = None
        try:
            if self._lazy is not None:
                self._lazy.check()
        except StateChangedError as error:
            broken = error
        if broken is not None:  # outside, so that the fatal decision is raised alone
            self._session.engine.end_by(broken)

    def _keep_lazy(self, state: Packed | LazyState) -> None:
        """A new version is committed: nobody will ask for the one before."""
        if self._lazy is not None:
            self._lazy.release()
        self._lazy = state if isinstance(state, LazyState) else None

    def _begin_version(self, kind: Kind) -> None:
        """All ranks count from zero again, at the same position."""
        self._session.quota.new_version()
        self._session.broadcasts.completed(kind)

    def _check_prelude(self, name: str, meaning: str) -> None:
        version = self._session.engine.position.version
        if version > PRELUDE:
            raise ValueError(f"{name}() {meaning}; version {version} is loaded")


def _unpacked(checkpoint: Checkpoint) -> Any:
    """The user's own state: a spare has made the copy in advance, since fresh memory is slow."""
    if checkpoint.own is not None:
        return unpack_state(checkpoint.own, copy=False)
    return unpack_state(checkpoint.value)
