"""Results as the log keeps them, and the pool from which their memory comes."""

import math
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype, dtype_code, dtype_of
from ftcomm.config.peak_usage import KEPT_VERSIONS, Peaks
from ftcomm.errors import ProtocolError
from ftcomm.protocol.signature import Scalar

Array = np.ndarray[Any, AnyDtype]
_BYTE = np.dtype(np.uint8)


@dataclass(slots=True)  # made in every call: a frozen one takes twice as long to make
class LoggedResult:
    """One result: 1-D contiguous elements, and the shape that the user sees.

    The log owns `flat`; nobody writes to it once the position is complete.  `digests` are those of
    all ranks' inputs, in rank order, where the job verifies them, else empty.  `scalar` is the type
    that a broadcast value without dimensions has on every rank.

    A result that this rank alone has is no part of the log, and belongs to the user.  Its `logged`
    is what the call keeps on every rank in its place, in bytes; else it is -1.  `rows` are those of
    each rank's part, where the parts have sizes of their own.
    """

    flat: Array
    shape: tuple[int, ...]
    digests: bytes = b""
    scalar: Scalar = Scalar.ARRAY
    logged: int = -1
    rows: tuple[int, ...] = ()

    @property
    def is_own(self) -> bool:
        """This rank alone has it."""
        return self.logged >= 0

    def raw(self) -> memoryview:
        """The bytes, without a copy; they keep the memory from being used again."""
        return self.flat.view(np.uint8).data

    def read_only(self) -> Array:
        """A view in the user's shape, which nobody can make writable.

        Its base is a read-only memoryview: numpy asks that before it sets the flag.  Of a mere
        view it asks the log's own array, and `numpy.ndarray` with a buffer looks below it too.
        """
        flat = self.flat
        try:
            raw = flat.data
        except ValueError:  # bfloat16, of which there are no memoryviews
            raw = flat.view(np.uint8).data
        view = np.frombuffer(raw.toreadonly(), flat.dtype)
        return view if len(self.shape) == 1 else view.reshape(self.shape)

    @property
    def dtype(self) -> int:
        """Wire code of the dtype."""
        return dtype_code(self.flat.dtype)


def _references(stored: LoggedResult) -> tuple[int, int]:
    """Count the references to a result's elements and to the memory under them."""
    flat, base = stored.flat, stored.flat.base
    return sys.getrefcount(flat), sys.getrefcount(base)


# As counted for a result that nobody else refers to; what a frame adds differs by interpreter.
_UNSHARED = _references(LoggedResult(np.empty(8, np.uint8).view(np.float32), (2,)))


def _references_to(lent: "_Lent") -> int:
    """Count the references to lent memory; each of a user's views of it has one."""
    return sys.getrefcount(lent[1])


_Lent = tuple[int, np.ndarray[Any, Any]]  # the version that lent it, and the memory
_RELEASE = _references_to((0, np.empty(8, np.uint8)))

# A free-threaded interpreter counts in two places and other threads may be counting meanwhile.
_COUNTS_ARE_EXACT = "t" not in getattr(sys, "abiflags", "")

EMPTY = LoggedResult(np.empty(0, np.uint8), (0,))


def dtype_from_wire(code: int, shape: tuple[int, ...], nbytes: int, limit: int) -> AnyDtype:
    """The dtype of a result that a peer announces; no memory is taken for it.

    Raises:
        ProtocolError: sizes that contradict each other or pass `limit` bytes.
    """
    try:
        dtype = dtype_of(code)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    if math.prod(shape) * dtype.itemsize != nbytes or not 0 <= nbytes <= limit:
        raise ProtocolError(f"a result of {nbytes} bytes announced as {dtype.name}{list(shape)}")
    return dtype


def stored_from_wire(dtype: AnyDtype, shape: tuple[int, ...], raw: Array) -> LoggedResult:
    """The result whose bytes have come; it owns `raw`; raises ProtocolError."""
    stored = LoggedResult(raw.view(dtype), shape)
    try:
        stored.flat.reshape(shape)
    except ValueError as error:
        raise ProtocolError(f"no room for a result of shape {list(shape)}: {error}") from None
    return stored


def size_class(nbytes: int) -> int:
    """Bytes of the buffer that is made for so many: one of eight sizes for each power of two."""
    step = 1 << max(nbytes.bit_length() - 4, 0)
    return -(-nbytes // step) * step


class Pool:
    """Buffers of dropped results: fresh pages cost as much as the copy into them.

    Buffers are made in classes of sizes, and a result takes the smallest free one that has room, of
    at most twice its class.  So results whose sizes differ from version to version need about as
    much memory as those of one size: what is held, in use or not, is bounded by `Peaks`.

    A buffer is taken again only if nothing refers to it: a user's view of a ``copy=False`` result
    or a transfer that is still serving it keeps it out.  The same holds for what is lent to the
    user: a training loop drops the results of its last step when it has those of the next.

    What `KEPT_VERSIONS` versions in a row did not need is given back to the system.
    """

    # Below, the allocator's own lists are as fast.  Results of a version are freed all at once, and
    # the allocator returns what that leaves at the end of its heap: of 16 KiB and more, the page
    # faults of the next version cost more than this class does.
    MIN_BYTES = 16 * 1024
    # A user mostly drops one result at a time, which the allocator keeps.
    MIN_LENT_BYTES = 64 * 1024
    # Of what users were given: a step's results of one program, and no more memory than nobody
    # misses who has released it.
    MAX_LENT = 16
    MAX_LENT_BYTES = 512 * 1024 * 1024

    def __init__(self) -> None:
        self._lent: list[_Lent] = []  # to the user, who may have released it since
        self._version = 0
        # by size: buffers and the version that left them; the newest, still in a cache, last
        self._free: dict[int, deque[_Lent]] = {}
        self._in_use = 0  # of what was taken in this version
        self._peaks = Peaks(sys.maxsize)

    @property
    def nbytes(self) -> int:
        """Bytes that wait to be taken."""
        return sum(size * len(shelf) for size, shelf in self._free.items())

    def keep_within(self, limit: int) -> None:
        """Hold nothing unused where that would be more than `limit` bytes with what is used."""
        self._peaks.limit = limit

    def take(self, count: int, dtype: AnyDtype) -> Array:
        """A 1-D array of `count` elements with arbitrary content."""
        nbytes = count * dtype.itemsize
        if nbytes < self.MIN_BYTES:
            return np.empty(count, dtype)
        shelf = self._free.get(nbytes)
        if shelf:  # mostly one of just its bytes is free, and every large call pays for this
            memory = shelf.pop()[1]
            self._in_use = in_use = self._in_use + nbytes
            self._peaks.newest = max(self._peaks.newest, in_use)
            return memory.view(dtype)
        size = size_class(nbytes)
        left_over = self._left_over(size)
        self._in_use += size if left_over is None else left_over.nbytes
        self._peaks.note(self._in_use)
        if left_over is None:
            self._shed()  # before there is more
            left_over = np.empty(size, np.uint8)
        return (left_over if left_over.nbytes == nbytes else left_over[:nbytes]).view(dtype)

    def lend(self, count: int, dtype: AnyDtype) -> Array:
        """Take a buffer for the user, who may write to it and drops it some time."""
        nbytes = count * dtype.itemsize
        if nbytes < self.MIN_LENT_BYTES:
            return np.empty(count, dtype)
        size = size_class(nbytes)
        memory = self._left_over(size)
        if memory is None:
            self._replace_lent(size)
            memory = np.empty(size, np.uint8)
        if _COUNTS_ARE_EXACT:
            self._lent.append((self._version, memory))
            self._forget_lent()
        return (memory if memory.nbytes == nbytes else memory[:nbytes]).view(dtype)

    def give(self, stored: Any) -> None:
        """Offer a dropped result's memory, if it is ours alone."""
        if not _COUNTS_ARE_EXACT or stored.flat.nbytes < self.MIN_BYTES:
            return
        references = _references(stored)  # before this frame refers to them too
        flat = stored.flat
        base = flat.base
        if type(base) is not np.ndarray or base.dtype != _BYTE:
            return
        if base.base is not None:  # None: its memory is its own
            return
        if base.ndim != 1 or not base.flags.writeable:  # a user's, sent with copy=False
            return
        size = base.nbytes
        self._in_use = self._in_use - size if self._in_use > size else 0
        if references != _UNSHARED:
            return
        shelf = self._free.get(size)
        if shelf is not None and size == flat.nbytes:  # mostly; every large call pays for this
            shelf.append((self._version, base))
        elif size <= 2 * size_class(flat.nbytes):
            self._keep(base)

    def put(self, memory: Array) -> None:
        """Bytes that were taken for a while; the caller refers to them no more."""
        if memory.nbytes >= self.MIN_BYTES:
            self._in_use = max(self._in_use - memory.nbytes, 0)
            self._keep(memory)

    def renew(self, dropped: list[Any]) -> None:
        """A version's log is gone: keep its memory for the next ones.

        `dropped` is emptied, because the list must not hold on to the values.
        """
        self._version += 1
        oldest = self._version - KEPT_VERSIONS
        for shelf in self._free.values():
            while shelf and shelf[0][0] <= oldest:
                shelf.popleft()
        self._free = {size: shelf for size, shelf in self._free.items() if shelf}
        self._lent = [lent for lent in self._lent if lent[0] > oldest]
        dropped.reverse()  # the newest last: it may still be in a cache, and is taken first
        while dropped:
            self.give(dropped.pop())
        self._in_use = 0  # also what calls had taken that came to nothing
        self._peaks.next_version(0)
        self._shed()

    def _left_over(self, size: int) -> np.ndarray[Any, Any] | None:
        """The best of the buffers that nobody uses."""
        sizes = [free for free, shelf in self._free.items() if shelf and size <= free <= 2 * size]
        if sizes:
            return self._free[min(sizes)].pop()[1]
        if not self._lent:
            return None
        fitting = [
            (lent[1].nbytes, index)
            for index, lent in enumerate(self._lent)
            if size <= lent[1].nbytes <= 2 * size and _references_to(lent) == _RELEASE
        ]
        return self._lent.pop(min(fitting)[1])[1] if fitting else None

    def _keep(self, memory: np.ndarray[Any, Any]) -> None:
        self._free.setdefault(memory.nbytes, deque()).append((self._version, memory))

    def _shed(self) -> None:
        """Give back what is above the allowance, of the oldest versions first."""
        excess = self.nbytes + self._in_use - self._peaks.allowance
        while excess > 0 and (shelves := [shelf for shelf in self._free.values() if shelf]):
            oldest = min(shelves, key=lambda shelf: shelf[0][0])
            excess -= oldest.popleft()[1].nbytes

    def _replace_lent(self, nbytes: int) -> None:
        """Forget as much as is about to be lent, of what users have released."""
        kept: list[_Lent] = []
        for lent in self._lent:
            if nbytes > 0 and _references_to(lent) == _RELEASE:
                nbytes -= lent[1].nbytes
            else:
                kept.append(lent)
        self._lent = kept

    def _forget_lent(self) -> None:
        total = sum(memory.nbytes for _, memory in self._lent)
        while len(self._lent) > self.MAX_LENT or total > self.MAX_LENT_BYTES:
            total -= self._lent.pop(0)[1].nbytes
