"""Engine: what a communicator asks of the part that takes its requests through failures.

Three classes answer: `DistributedEngine`, `SingleProcessEngine` for a group of one, and
`RecordingEngine`, which also writes a history.
"""

from collections.abc import Callable
from typing import NoReturn, ParamSpec, Protocol, TypeVar

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.config.deadline import Limit, QueuedLimit
from ftcomm.control.hub import Recovered
from ftcomm.engine.message_port import MessagePort
from ftcomm.engine.persistent_request import PersistentRequest
from ftcomm.errors import FtcommError
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.position import Position
from ftcomm.recovery.machine import Checkpoint
from ftcomm.recovery.unasked_calls import UnaskedCalls
from ftcomm.requests.builder import Group
from ftcomm.requests.request import AnyRequest, CheckpointPayload, CollectiveSpec, Request
from ftcomm.state.layout import Packed

P = ParamSpec("P")
R = TypeVar("R")


class Engine(Protocol):
    """One communicator's engine; used by one thread at a time."""

    @property
    def rank(self) -> int:
        """This worker's rank; it never changes."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def group(self) -> Group:
        """The group as requests depend on it."""

    @property
    def epoch(self) -> int:
        """The epoch whose plan is in force."""

    @property
    def position(self) -> Position:
        """The collective that this worker will complete next."""

    @property
    def incarnation(self) -> int:
        """This process's number among those of its worker, from 1."""

    @property
    def is_replaying(self) -> bool:
        """True while the next call has its result already."""

    @property
    def error(self) -> FtcommError | None:
        """The error that ended this communicator, None while it lives."""

    @property
    def recovered(self) -> Recovered:
        """Counters of recoveries."""

    @property
    def messages(self) -> MessagePort | None:
        """Messages from rank to rank; None in a group of one."""

    @property
    def unasked(self) -> UnaskedCalls:
        """Calls that are completed without asking this engine."""

    @property
    def known_version(self) -> int | None:
        """The version that `load` would give now, None if that is not known yet."""

    @property
    def log_limit(self) -> int:
        """Bytes of results that the job allows between two checkpoints."""

    @property
    def replicas(self) -> int:
        """Copies of each stable result."""

    @property
    def has_store(self) -> bool:
        """True where checkpoints are written to a store."""

    @property
    def call_deadline(self) -> float | None:
        """Seconds that a call may take where its caller says nothing else; None is no limit."""

    @property
    def watches_states(self) -> bool:
        """True where writes to the arrays of a lazy checkpoint are to be found."""

    def lend(self, count: int, dtype: AnyDtype) -> Array:
        """Memory for a result that the user gets."""

    def report_log(self, nbytes: Callable[[], int]) -> None:
        """Have the tracker know how much the log holds."""

    def report_queue(self, earliest: Callable[[], QueuedLimit | None]) -> None:
        """Have the control thread ask which queued limit passes first."""

    def within(
        self,
        limit: Limit | None,
        call: AnyRequest,
        body: Callable[P, R],
        /,
        *arguments: P.args,
        **rest: P.kwargs,
    ) -> R:
        """Run `body`, which is `call`; if it takes longer than `limit`, the job ends for all."""

    def persistent(self, form: CollectiveSpec) -> PersistentRequest | None:
        """Calls of `form` in few steps; None where each has something to do in between."""

    def run(self, request: AnyRequest) -> LoggedResult:
        """One collective, served or executed; the log owns what is returned."""

    def checkpoint(self, saving: CheckpointPayload, form: CollectiveSpec) -> int:
        """Commit a checkpoint, and return its version."""

    def load(self, raw: Packed, form: CollectiveSpec) -> Checkpoint:
        """The newest committed checkpoint, or rank 0's `raw`."""

    def local_state(self, version: int) -> Packed | None:
        """This rank's own local state of the loaded `version`; None if that has none."""

    def close(self, call: Request) -> None:
        """The closing collective, then serve others until all have closed (rule R8)."""

    def condemn(self, error: FtcommError) -> None:
        """Have the tracker raise `error` on all ranks, this one included."""

    def end_by(self, error: FtcommError) -> NoReturn:
        """`condemn`, and raise the fatal decision here."""

    def leave(self, reason: str, site: str = "") -> None:
        """Say that this worker leaves, so that nobody waits for a deadline.

        `site` is the line of the script whose error it is, empty for other reasons.
        """

    def abort(self) -> None:
        """Have the call that another thread runs here raise `ClosedError`."""

    def stop(self) -> None:
        """End the control thread and close every socket of this process."""
