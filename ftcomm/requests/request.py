"""Forms: one public call as plain values, ready to be run or to be answered from the log."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Generic, TypeVar

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.collectives.op_argument import UncheckedOp
from ftcomm.collectives.reductions import Reducer
from ftcomm.collectives.schedules.schedule import Schedule
from ftcomm.config.deadline import Duration
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.signature import Kind, LogMode, Scalar, Tag
from ftcomm.state.layout import Packed
from ftcomm.state.lazy import LazyState

R = TypeVar("R")
Extents = tuple[tuple[int, int], ...]  # for each rank, rows [lo, hi) of an input
Combine = Callable[[list[Array]], Array]

DIGEST_BYTES = 16  # of each rank's input; kept with every result, so no longer than it must be
UNCOMPARED = bytes(DIGEST_BYTES)  # in place of the digest of a state that nobody has packed
_OF_THE_ROOT = (
    Kind.BROADCAST,
    Kind.SCATTER,
    Kind.SCATTERV,
    Kind.SCATTER_OBJECT,
    Kind.BROADCAST_OBJECT,
)
NOTHING: Array = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The caller's wishes, not checked yet; each kind uses those that it has.

    Attributes:
        op: the reduction; a kind without one does not look at it.
        root: the rank that all others look to; -1 for a kind without one.
        algorithm: a name; None for the job's choice.
        wire: the format in which elements travel; None for that of the input.
        deadline: seconds or a timedelta from the call on; None for the job's.
        log: what is kept for the replay of a call that gives each rank another result, by the name
            of a `LogMode`; None leaves it to the size.
        copy: what is kept of the input is a copy; False keeps the user's own memory.
        counts: how many rows each rank has or gets; None if the kind has none, or finds them out.
        tag: a name of the call, which all ranks must give alike; None for none.
    """

    op: UncheckedOp = "sum"
    root: int = -1
    algorithm: str | None = None
    wire: str | None = None
    deadline: Duration | None = None
    log: str | None = None
    copy: bool = True
    counts: Sequence[int] | None = None
    tag: Tag | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ContributedForm:
    """Common part of the calls of one line and one shape, of which each rank logs its own input.

    Attributes:
        shape: of the input, with at least one dimension. Where the number of rows differs from call
            to call, of one row.
        extents: for each rank, which rows of the input are its part; None where that differs.
        combine: makes this rank's result of the parts that all ranks give it, each a 1-D array, in
            rank order; None where they follow each other in the result.
        own: which elements are this rank's result once the schedule has run; None is all.
        lent: the input is left to the log until the next checkpoint, so it is not copied.
        log: what is kept; `BY_SIZE` where ranks tell each other their sizes first, and log all
            whole where these are small.
    """

    shape: tuple[int, ...]
    extents: Extents | None = None
    combine: Combine | None = None
    own: slice | None = None
    lent: bool = False
    log: LogMode = LogMode.CONTRIBUTIONS


def extents_of(counts: Sequence[int]) -> Extents:
    """Rows of ranks that follow each other, ``counts[r]`` for rank r."""
    return tuple(pairwise((0, *accumulate(counts))))


def all_to(root: int, rows: int, world_size: int) -> Extents:
    """All rows for one rank."""
    return tuple((0, rows) if rank == root else (0, 0) for rank in range(world_size))


def anything(_: object) -> None:
    """Room for any result."""


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveSpec:
    """Common part of all calls from one line of the user's code with arguments of one shape.

    Made once and kept, so that a small call computes nothing twice.

    Attributes:
        kind: the collective.
        signature: its 48 bytes.
        site: where the user called it, with the label of a user's function.
        suffix: signature and line, as every frame carries them.
        schedule: this rank's steps; None if they follow from sizes that ranks tell each other.
        dtype: of the result's elements.
        shape: of the result; of one row of it where each rank brings as many rows as it has.
        recvbuf_count: elements of the result, 0 where that is known only when it runs.
        nbytes: bytes that each rank logs: of the result, or of its own input; 0 where that is known
            only when it runs.
        root: the rank that all others look to, else -1.
        reducer: of a reduction, else None.
        scalar: the type of a broadcast value without dimensions.
        announcement: what is run before `schedule`, without payload, by a broadcast that does not
            come the way of a small one: ranks that do not know its size hear of it. Else None.
        contributed: of a call of which each rank logs its own input, else None.
    """

    kind: Kind
    signature: bytes
    site: str
    suffix: bytes
    schedule: Schedule | None
    dtype: AnyDtype = field(default_factory=lambda: np.dtype(np.uint8))
    shape: tuple[int, ...] = (0,)
    recvbuf_count: int = 0
    nbytes: int = 0
    root: int = -1
    reducer: Reducer | None = None
    scalar: Scalar = Scalar.ARRAY
    announcement: Schedule | None = None
    contributed: ContributedForm | None = None


@dataclass(slots=True)
class Request:
    """One public call, ready to run.

    Attributes:
        form: what it shares with others.
        sendbuf: this rank's input, 1-D, contiguous, native; never written.
        rows: how many rows of the result this rank brings.
        given: which rows of a contributed input are for which rank; None where the form tells, and
            for any other call.
        admit: told the result's bytes when they are known only in the run; raises if there is no
            room for them, alike on all ranks.
        admit_input: likewise told the bytes of the largest rank's input, where the log has that.
        flush: a broadcast that ends with a barrier, so that the log stays bounded (rule R3): like
            every other kind it then proves that what came before is stable.
        place: where to make this rank's own result, 1-D, contiguous; None for new memory.
        check: told the result before it is complete, or taken from the log; raises where the user's
            `out` does not fit what only the run could tell. None where all was known before.
    """

    form: CollectiveSpec
    sendbuf: Array = field(default_factory=lambda: NOTHING)
    rows: int = 0
    given: Extents | None = None
    admit: Callable[[int], None] = anything
    admit_input: Callable[[int], None] = anything
    flush: bool = False
    place: Array | None = None
    check: Callable[[LoggedResult], None] | None = None

    @property
    def kind(self) -> Kind:
        """The collective."""
        return self.form.kind

    @property
    def known(self) -> bytes:
        """The signature, all of it."""
        return self.form.signature

    @property
    def site(self) -> str:
        """Location of the call in the user's code."""
        return self.form.site

    def digest(self, rank: int) -> bytes:
        """Return a 16-byte digest of the input of `rank`; zeros if its content does not count."""
        form = self.form
        if form.kind in _OF_THE_ROOT and form.root != rank:
            return bytes(DIGEST_BYTES)
        elements = self.sendbuf.view(np.uint8).data
        return hashlib.blake2b(elements, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointPayload:
    """Contribution of one rank to a checkpoint.

    Attributes:
        state: packed, equal on all ranks; or as it is, packed only if somebody asks.
        digest: of the packed state; `UNCOMPARED` if it is not packed.
        local: this rank's packed local state; None if the checkpoint has none.
        durable: the call returns when the store has it.
    """

    state: Packed | LazyState
    digest: bytes
    local: Packed | None = None
    durable: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the copy that was made of the state."""
        return 0 if isinstance(self.state, LazyState) else len(self.state)

    def raw(self) -> Packed:
        """The packed state."""
        return self.state.packed_now() if isinstance(self.state, LazyState) else self.state


def row_elements(form: CollectiveSpec) -> int:
    """Elements of one row, of a kind to which each rank brings as many rows as it has."""
    return math.prod(form.shape)


def stored_rows(form: CollectiveSpec, flat: Array, rows: int) -> LoggedResult:
    """The result of a kind to which each rank brings as many rows as it has."""
    return LoggedResult(flat, (rows, *form.shape))


@dataclass(frozen=True, slots=True)
class DeferredInput:
    """A call whose input is a function: it becomes a `Request` only if it is executed.

    Attributes:
        kind: the collective.
        known: the signature as far as it is known without the input.
        site: where the user called it.
        make: calls the user's function and makes the call of what it returns; raises what either
            raises.
        check: told the result that the log has for this position before it is taken; raises where
            the user's other arguments do not fit it.
    """

    kind: Kind
    known: bytes
    site: str
    make: Callable[[], Request]
    check: Callable[[LoggedResult], None]


@dataclass(frozen=True, slots=True)
class OpenBroadcast:
    """A broadcast to a rank that is given dtype and shape with the array.

    Attributes:
        known: the signature as far as it is known before.
        site: where the user called it.
        announcement: this rank's steps of a small one, by whose first it hears of any.
        make: the call of a whole signature.
        check: as in `DeferredInput`.
        kind: the collective.
    """

    known: bytes
    site: str
    announcement: Schedule
    make: Callable[[bytes], Request]
    check: Callable[[LoggedResult], None]
    kind: Kind = Kind.BROADCAST


AnyRequest = Request | DeferredInput | OpenBroadcast


@dataclass(frozen=True, slots=True, eq=False)
class Submission(Generic[R]):
    """A public call, built and not run: shared by its blocking and its nonblocking form.

    Attributes:
        kind: the collective.
        request: for the engine.
        finish: returns the user's result of the log's.
        deadline: the user's, not checked yet; None for the job's.
    """

    kind: Kind
    request: AnyRequest
    finish: Callable[[LoggedResult], R]
    deadline: Duration | None = None
