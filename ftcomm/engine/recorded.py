"""The engine of an incarnation whose history is recorded; others run without a line of this."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ftcomm.control.hub import Hub
from ftcomm.control.thread import ControlThread
from ftcomm.diagnostics.history import CLOSED, EXECUTED, LEFT, SERVED, Entered, Raised, Returned
from ftcomm.diagnostics.recorder import Recorder
from ftcomm.engine.engine import DistributedEngine
from ftcomm.errors import ClosedError, FtcommError
from ftcomm.memory.pool import EMPTY, LoggedResult
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.states import Checkpoint
from ftcomm.requests.request import (
    DIGEST_BYTES,
    AnyRequest,
    CheckpointPayload,
    CollectiveSpec,
    Request,
)
from ftcomm.state.layout import Packed


@dataclass(slots=True)
class _Given:
    """Inputs of a call, filled in while it runs."""

    result: str = ""
    version: int | None = None
    local: str | None = None


class RecordingEngine(DistributedEngine):
    """An engine that writes down each call: what went in, what came out, and how."""

    def __init__(self, hub: Hub, control: ControlThread, recorder: Recorder) -> None:
        super().__init__(hub, control)
        self._recorder = recorder
        self._end = (LEFT, "")

    def persistent(self, form: CollectiveSpec) -> None:
        """Return None: each call is recorded, so none takes the fast path."""

    def run(self, request: AnyRequest) -> LoggedResult:
        """Run and record a request; an input that is made in the run is not known before."""
        signature = request.known if isinstance(request, Request) else b""

        def input_digest() -> str | None:
            return digest(request.sendbuf.view("u1").data) if isinstance(request, Request) else None

        with self._recorded(request.kind, signature, request.site, input_digest) as given:
            stored = super().run(request)
            given.result = _result_digest(stored)
        return stored

    def checkpoint(self, saving: CheckpointPayload, form: CollectiveSpec) -> int:
        """Commit and record a checkpoint."""
        local = None if saving.local is None else digest(saving.local)

        state = digest(saving.raw())  # a lazy one too: as it was given

        def state_digest() -> str:
            return state

        with self._recorded(*_names(form), state_digest, local) as given:
            version = super().checkpoint(saving, form)
            given.result, given.version, given.local = state_digest(), version, local
        return version

    def load(self, raw: Packed, form: CollectiveSpec) -> Checkpoint:
        """Load a checkpoint and record it."""
        with self._recorded(*_names(form)) as given:
            loaded = super().load(raw, form)
            local = self.local_state(loaded.version)
            given.result, given.version = digest(loaded.value), loaded.version
            given.local = None if local is None else digest(local)
        return loaded

    def close(self, call: Request) -> None:
        """Close the communicator, and record that."""
        form = call.form
        with self._recorded(*_names(form)) as given:
            super().close(call)
            given.result = _result_digest(EMPTY)
        self._end = (CLOSED, "")

    def leave(self, reason: str, site: str = "") -> None:
        """Leave the job; the reason is recorded when the engine stops."""
        self._end = (LEFT, reason)
        super().leave(reason, site)

    def condemn(self, error: FtcommError) -> None:
        """End this communicator by `error`, which is recorded even if no call was entered."""
        self._end = (type(error).__name__, error.cause)
        super().condemn(error)

    def stop(self) -> None:
        """Stop the engine and end the history."""
        super().stop()
        error = self.error
        if self._end[0] != CLOSED and error is not None and not isinstance(error, ClosedError):
            self._end = (type(error).__name__, error.cause)
        self._recorder.end(*self._end)

    def _how(self) -> tuple[str, int]:
        """Return the source of the last call's result, and its epoch."""
        epoch = self._machine.executed_in
        return (SERVED, self.epoch) if epoch is None else (EXECUTED, epoch)

    @contextlib.contextmanager
    def _recorded(
        self,
        kind: Kind,
        signature: bytes,
        site: str,
        input_digest: Callable[[], str | None] = lambda: None,
        local: str | None = None,
    ) -> Iterator[_Given]:
        """Write down that a call is entered, and what becomes of it."""
        position, name, given = self.position, kind.name.lower(), _Given()
        self._machine.executed_in = None
        entered = Entered(position, name, signature.hex(), site, input_digest(), local)
        try:
            self._recorder.write(entered)
            yield given
        except BaseException as error:
            cause = error.cause if isinstance(error, FtcommError) else str(error)
            self._recorder.write(
                Raised(position, name, type(error).__name__, cause, self.epoch, input_digest())
            )
            raise
        how, epoch = self._how()
        self._recorder.write(
            Returned(
                position, name, how, epoch, given.result, input_digest(), given.version, given.local
            )
        )
        self._recorder.count_call(is_checkpoint=kind is Kind.CHECKPOINT)


def _names(form: CollectiveSpec) -> tuple[Kind, bytes, str]:
    return form.kind, form.signature, form.site


def digest(raw: bytes | memoryview) -> str:
    """Return the digest that represents these bytes in a history."""
    return hashlib.blake2b(raw, digest_size=DIGEST_BYTES).hexdigest()


def _result_digest(stored: LoggedResult) -> str:
    """Of dtype, shape and bytes of a result."""
    total = hashlib.blake2b(digest_size=DIGEST_BYTES)
    total.update(f"{stored.flat.dtype.str}{list(stored.shape)}".encode())
    total.update(stored.raw())
    return total.hexdigest()
