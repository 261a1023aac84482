"""Calls whose ranks tell each other their sizes first, and then move their parts.

Each of the three families has three steps.  `tell` tells the sizes.  `whole` gives every rank all
parts, for its log.  `apart` gives each rank its own parts alone.  All return None where the core
must be asked again.
"""

from typing import NamedTuple, Protocol

import numpy as np

from ftcomm.collectives.contributed_selection import (
    alltoallv_schedule,
    gatherv_schedule,
    scatterv_schedule,
)
from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.collectives.reductions import Reducer
from ftcomm.collectives.schedules.schedule import Schedule
from ftcomm.execution.header_check import CallHeader
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.signature import Kind
from ftcomm.requests.request import NOTHING, Request, row_elements

WORD = 8  # bytes of a size
PAYLOAD_STAGE = 2  # behind two exchanges of sizes
_BYTE: AnyDtype = np.dtype(np.uint8)
_WORDS: AnyDtype = np.dtype(np.uint64)


class Sizes(NamedTuple):
    """Sizes as all ranks know them.

    Attributes:
        each: rows or bytes by rank, as the family counts them.
        whole: bytes of the result with all parts.
        largest: bytes of the largest rank's input.
    """

    each: tuple[int, ...]
    whole: int
    largest: int


class Stages(Protocol):
    """Runs the schedules of one call; `DataPlane` implements it."""

    @property
    def rank(self) -> int:
        """This worker's rank."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    def schedule(self, kind: Kind, count: int, itemsize: int, root: int = -1) -> Schedule:
        """The schedule of a stage of `count` elements."""

    def schedule_of_rows(self, counts: tuple[int, ...]) -> Schedule:
        """The schedule of a stage that gives all ranks ``counts[r]`` elements of each rank r."""

    def run(
        self,
        schedule: Schedule,
        header: CallHeader,
        sendbuf: Array,
        recvbuf: Array,
        reducer: Reducer | None = None,
        *,
        stage: int = 0,
    ) -> bool:
        """Run a schedule; False if the core must be asked again."""

    def take(self, count: int, dtype: AnyDtype) -> Array:
        """Memory for what is logged."""

    def lend(self, count: int, dtype: AnyDtype) -> Array:
        """Memory for what the user gets."""

    def suspect(self, rank: int, cause: str, header: CallHeader) -> None:
        """Suspect a rank that contradicts itself."""


class Family(Protocol):
    """Calls whose ranks tell each other the same sizes."""

    def tell(self, call: Request, header: CallHeader) -> Sizes | None:
        """Tell the sizes."""

    def whole(self, call: Request, sizes: Sizes, header: CallHeader) -> LoggedResult | None:
        """Give every rank all parts."""

    def apart(self, call: Request, sizes: Sizes, header: CallHeader) -> LoggedResult | None:
        """Give each rank its own parts."""


class Gathers:
    """``gatherv`` and ``gather_object``: each rank's rows, or bytes, to the root."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    def tell(self, call: Request, header: CallHeader) -> Sizes | None:
        """Exchange the number of rows of each rank."""
        rows = exchange_numbers(self._stages, call.rows, header)
        if rows is None:
            return None
        row_bytes = row_elements(call.form) * call.form.dtype.itemsize
        return Sizes(rows, sum(rows) * row_bytes, max(rows) * row_bytes)

    def whole(self, call: Request, sizes: Sizes, header: CallHeader) -> LoggedResult | None:
        """All ranks' rows in rank order."""
        stages, form = self._stages, call.form
        counts = tuple(rows * row_elements(form) for rows in sizes.each)
        recvbuf = stages.take(sum(counts), form.dtype)
        schedule = stages.schedule_of_rows(counts)
        if not stages.run(schedule, header, call.sendbuf, recvbuf, stage=PAYLOAD_STAGE):
            return None
        return LoggedResult(recvbuf, (sum(sizes.each), *form.shape))

    def apart(self, call: Request, sizes: Sizes, header: CallHeader) -> LoggedResult | None:
        """The same for the root alone."""
        stages, form = self._stages, call.form
        counts = tuple(rows * row_elements(form) for rows in sizes.each)
        schedule = gatherv_schedule(stages.world_size, stages.rank, counts, form.root)
        recvbuf = stages.lend(schedule.recvbuf_count, form.dtype)
        if not stages.run(schedule, header, call.sendbuf, recvbuf, stage=PAYLOAD_STAGE):
            return None
        rows = sum(sizes.each) if stages.rank == form.root else 0
        return LoggedResult(recvbuf, (rows, *form.shape))


class Scatters:
    """``scatter``, ``scatterv`` and ``scatter_object``: one blob for each rank from the root."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    def tell(self, call: Request, header: CallHeader) -> Sizes | None:
        """Have the root tell all the length of each rank's blob."""
        stages, root = self._stages, call.form.root
        lengths: Array = np.zeros(stages.world_size, np.uint64)
        if stages.rank == root:
            assert call.given is not None, "the root has a part for each rank"
            lengths[:] = [hi - lo for lo, hi in call.given]
        schedule = stages.schedule(Kind.BROADCAST, len(lengths), WORD, root)
        if not stages.run(schedule, header, lengths, lengths):
            return None
        each = tuple(int(length) for length in lengths)
        return Sizes(each, sum(each) + WORD * len(each), sum(each))

    def whole(self, call: Request, sizes: Sizes, header: CallHeader) -> LoggedResult | None:
        """The lengths and all blobs, on every rank; a barrier proves their arrival."""
        stages, root = self._stages, call.form.root
        result = stages.take(sizes.whole, _BYTE)
        head = WORD * len(sizes.each)
        result[:head] = np.array(sizes.each, np.uint64).view(np.uint8)
        blobs = result[head:]
        if stages.rank == root:
            blobs[:] = call.sendbuf
        schedule = stages.schedule(Kind.BROADCAST, len(blobs), 1, root)
        barrier = stages.schedule(Kind.BARRIER, 0, 1)
        done = stages.run(schedule, header, blobs, blobs, stage=1)
        if not done or not stages.run(barrier, header, NOTHING, NOTHING, stage=PAYLOAD_STAGE):
            return None
        return LoggedResult(result, (len(result),))

    def apart(self, call: Request, sizes: Sizes, header: CallHeader) -> LoggedResult | None:
        """Each rank's blob to it alone."""
        stages = self._stages
        schedule = scatterv_schedule(stages.world_size, stages.rank, sizes.each, call.form.root)
        blob = stages.lend(schedule.recvbuf_count, _BYTE)
        if not stages.run(schedule, header, call.sendbuf, blob, stage=PAYLOAD_STAGE):
            return None
        return LoggedResult(blob, (len(blob),))


class Exchanges:
    """``alltoallv``: rows of every rank for every other."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    def tell(self, call: Request, header: CallHeader) -> Sizes | None:
        """Exchange the bytes that each rank has for all."""
        each = exchange_numbers(self._stages, call.sendbuf.nbytes, header)
        if each is None:
            return None
        return Sizes(each, sum(each) + WORD * len(each) ** 2, max(each))

    def whole(self, call: Request, sizes: Sizes, header: CallHeader) -> LoggedResult | None:
        """The number of rows of each for each, and all rows, on every rank."""
        stages, size, form = self._stages, self._stages.world_size, call.form
        result = stages.take(sizes.whole, _BYTE)
        head = WORD * size * size
        schedule = stages.schedule(Kind.ALLGATHER, size, WORD)
        if not stages.run(schedule, header, _rows_for(call), result[:head].view(_WORDS), stage=1):
            return None
        counts = tuple(nbytes // form.dtype.itemsize for nbytes in sizes.each)
        schedule = stages.schedule_of_rows(counts)
        rows = result[head:].view(form.dtype)
        if not stages.run(schedule, header, call.sendbuf, rows, stage=PAYLOAD_STAGE):
            return None
        return LoggedResult(result, (len(result),))

    def apart(self, call: Request, sizes: Sizes, header: CallHeader) -> LoggedResult | None:
        """The rows for each rank to it alone, one rank's behind the other's."""
        stages, size, form = self._stages, self._stages.world_size, call.form
        sent, told = _rows_for(call), np.empty(size, np.uint64)
        schedule = stages.schedule(Kind.ALLTOALL, size, WORD)
        if not stages.run(schedule, header, sent, told, stage=1):
            return None
        width, rows = row_elements(form), tuple(int(count) for count in told)
        for rank, (count, nbytes) in enumerate(zip(rows, sizes.each, strict=True)):
            if count * width * form.dtype.itemsize > nbytes:
                cause = f"it announces {count} rows of a call to which it gives {nbytes} bytes"
                stages.suspect(rank, cause, header)
                return None
        schedule = alltoallv_schedule(
            size, stages.rank, tuple(int(n) * width for n in sent), tuple(n * width for n in rows)
        )
        recvbuf = stages.lend(schedule.recvbuf_count, form.dtype)
        if not stages.run(schedule, header, call.sendbuf, recvbuf, stage=PAYLOAD_STAGE):
            return None
        return LoggedResult(recvbuf, (sum(rows), *form.shape), rows=rows)


def exchange_numbers(stages: Stages, number: int, header: CallHeader) -> tuple[int, ...] | None:
    """Every rank's number, by rank."""
    size = stages.world_size
    numbers: Array = np.empty(size, np.uint64)
    own: Array = np.array([number], np.uint64)
    if not stages.run(stages.schedule(Kind.ALLGATHER, 1, WORD), header, own, numbers):
        return None
    return tuple(int(number) for number in numbers)


def _rows_for(call: Request) -> Array:
    assert call.given is not None, "rows for each rank"
    return np.array([hi - lo for lo, hi in call.given], np.uint64)
