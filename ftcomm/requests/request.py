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
    """The caller's wishes, not checked yet; each kind uses those that it has."""

    op: UncheckedOp = "sum"  # the reduction; a kind without one does not look at it
    root: int = -1  # the rank that all others look to; -1 for a kind without one
    algorithm: str | None = None  # a name; None for the job's choice
    wire: str | None = None  # the format in which elements travel; None for that of the input
    deadline: Duration | None = None  # seconds or a timedelta from the call on; None for the job's
    # What is kept for the replay of a call that gives each rank another result, by the name of a
    # `LogMode`; None leaves it to the size.
    log: str | None = None
    copy: bool = True  # what is kept of the input is a copy; False keeps the user's own memory
    # How many rows each rank has or gets; None if the kind has none, or finds them out.
    counts: Sequence[int] | None = None
    tag: Tag | None = None  # a name of the call, which all ranks must give alike; None for none


@dataclass(frozen=True, slots=True, eq=False)
class ContributedForm:
    """Common part of the calls of one line and one shape, of which each rank logs its own input."""

    # Of the input, with at least one dimension. Where the number of rows differs from call to call,
    # of one row.
    shape: tuple[int, ...]
    # For each rank, which rows of the input are its part; None where that differs.
    extents: Extents | None = None
    # Makes this rank's result of the parts that all ranks give it, each a 1-D array, in rank order;
    # None where they follow each other in the result.
    combine: Combine | None = None
    # Which elements are this rank's result once the schedule has run; None is all.
    own: slice | None = None
    # The input is left to the log until the next checkpoint, so it is not copied.
    lent: bool = False
    # What is kept; `BY_SIZE` where ranks tell each other their sizes first, and log all whole where
    # these are small.
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
    """

    kind: Kind  # the collective
    signature: bytes  # its 48 bytes
    site: str  # where the user called it, with the label of a user's function
    suffix: bytes  # signature and line, as every frame carries them
    # This rank's steps; None if they follow from sizes that ranks tell each other.
    schedule: Schedule | None
    dtype: AnyDtype = field(default_factory=lambda: np.dtype(np.uint8))  # of the result's elements
    # Of the result; of one row of it where each rank brings as many rows as it has.
    shape: tuple[int, ...] = (0,)
    recvbuf_count: int = 0  # elements of the result, 0 where that is known only when it runs
    # Bytes that each rank logs: of the result, or of its own input; 0 where that is known only when
    # it runs.
    nbytes: int = 0
    root: int = -1  # the rank that all others look to, else -1
    reducer: Reducer | None = None  # of a reduction, else None
    scalar: Scalar = Scalar.ARRAY  # the type of a broadcast value without dimensions
    # What is run before `schedule`, without payload, by a broadcast that does not come the way of a
    # small one: ranks that do not know its size hear of it. Else None.
    announcement: Schedule | None = None
    # Of a call of which each rank logs its own input, else None.
    contributed: ContributedForm | None = None
    # In which elements travel and are combined, where that is not `dtype`; the result is rounded.
    accumulator: AnyDtype | None = None

    @property
    def work_dtype(self) -> AnyDtype:
        """Dtype of the elements that travel."""
        return self.dtype if self.accumulator is None else self.accumulator


@dataclass(slots=True)
class Request:
    """One public call, ready to run."""

    form: CollectiveSpec  # what it shares with others
    # This rank's input, 1-D, contiguous, native; never written.
    sendbuf: Array = field(default_factory=lambda: NOTHING)
    rows: int = 0  # how many rows of the result this rank brings
    # Which rows of a contributed input are for which rank; None where the form tells, and for any
    # other call.
    given: Extents | None = None
    # Told the result's bytes when they are known only in the run; raises if there is no room for
    # them, alike on all ranks.
    admit: Callable[[int], None] = anything
    # Likewise told the bytes of the largest rank's input, where the log has that.
    admit_input: Callable[[int], None] = anything
    # A broadcast that ends with a barrier, so that the log stays bounded (rule R3): like every
    # other kind it then proves that what came before is stable.
    flush: bool = False
    # Where to make this rank's own result, 1-D, contiguous; None for new memory.
    place: Array | None = None
    # Told the result before it is complete, or taken from the log; raises where the user's `out`
    # does not fit what only the run could tell. None where all was known before.
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
    """Contribution of one rank to a checkpoint."""

    # Packed, equal on all ranks; or as it is, packed only if somebody asks.
    state: Packed | LazyState
    digest: bytes  # of the packed state; `UNCOMPARED` if it is not packed
    local: Packed | None = None  # this rank's packed local state; None if the checkpoint has none
    durable: bool = False  # the call returns when the store has it

    @property
    def nbytes(self) -> int:
        """Bytes of the copy that was made of the state."""
        return 0 if isinstance(self.state, LazyState) else len(self.state)

    def raw(self) -> Packed:
        """The packed state."""
        return self.state.packed_now() if isinstance(self.state, LazyState) else self.state


def in_result_dtype(form: CollectiveSpec, work: Array) -> Array:
    """The elements of a result: those of `work`, rounded if they were combined in a wider dtype."""
    if form.work_dtype == form.dtype:
        return work.view(form.dtype)
    with np.errstate(all="ignore"):  # as in the combination: no two machines warn alike
        return work.astype(form.dtype)


def row_elements(form: CollectiveSpec) -> int:
    """Elements of one row, of a kind to which each rank brings as many rows as it has."""
    return math.prod(form.shape)


def stored_rows(form: CollectiveSpec, flat: Array, rows: int) -> LoggedResult:
    """The result of a kind to which each rank brings as many rows as it has."""
    return LoggedResult(flat, (rows, *form.shape))


@dataclass(frozen=True, slots=True)
class DeferredInput:
    """A call whose input is a function: it becomes a `Request` only if it is executed."""

    kind: Kind  # the collective
    known: bytes  # the signature as far as it is known without the input
    site: str  # where the user called it
    # Calls the user's function and makes the call of what it returns; raises what either raises.
    make: Callable[[], Request]
    # Told the result that the log has for this position before it is taken; raises where the user's
    # other arguments do not fit it.
    check: Callable[[LoggedResult], None]


@dataclass(frozen=True, slots=True)
class OpenBroadcast:
    """A broadcast to a rank that is given dtype and shape with the array."""

    known: bytes  # the signature as far as it is known before
    site: str  # where the user called it
    announcement: Schedule  # this rank's steps of a small one, by whose first it hears of any
    make: Callable[[bytes], Request]  # the call of a whole signature
    check: Callable[[LoggedResult], None]  # as in `DeferredInput`
    kind: Kind = Kind.BROADCAST  # the collective


AnyRequest = Request | DeferredInput | OpenBroadcast


@dataclass(frozen=True, slots=True, eq=False)
class Submission(Generic[R]):
    """A public call, built and not run: shared by its blocking and its nonblocking form."""

    kind: Kind  # the collective
    request: AnyRequest  # for the engine
    finish: Callable[[LoggedResult], R]  # returns the user's result of the log's
    deadline: Duration | None = None  # the user's, not checked yet; None for the job's
