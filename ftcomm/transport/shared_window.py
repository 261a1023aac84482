"""Shared window: one place for a result of all ranks of one host, instead of one for each.

Rank 0 makes it, places results in it, and finds their places free again when every rank has
released
them: the log's entry, and each view that a user was given.  It belongs to one epoch; what lies in
it stays until the last of its users drops it, also when the others are dead.

Who has written a part of a result says so by a frame, and never writes there again.  A result is
complete when every rank has said so, so no rank that hangs or comes back can change it.
"""

import contextlib
import mmap
import os
import weakref
from collections import deque

import numpy as np

from ftcomm.config.platforms import why_no_shared_memory
from ftcomm.errors import ProtocolError
from ftcomm.protocol.position import Position
from ftcomm.transport.address_ranges import Span
from ftcomm.transport.shared_window_allocator import PAGE, Allocation, WindowAllocator
from ftcomm.transport.shared_window_layout import (
    JOINED,
    LOCKED,
    MAX_RANKS,
    ROWS,
    WindowLayout,
    gaps,
    pack_extent,
    pack_placed,
    pack_window_head,
    placed_part,
    unpack_extent,
    unpack_placed,
    unpack_window_head,
)
from ftcomm.transport.shared_window_mappings import is_locked, lock, reopened
from ftcomm.transport.shm_segment import NoSharedMemory, must_be_sealed, sealed_memfd

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

_HUGE_PAGES, _REMOVE, _POPULATE = 14, 9, 23  # numbers for madvise, the last one since Linux 5.14
# At a time, because the interpreter is held meanwhile: the heartbeats' thread must get its turn.
_ADVISED_BYTES = 4 << 20


class _Watch(weakref.ref[Bytes]):
    """Knows when nothing refers to an array any more.

    Its callback may be called anywhere, also where Ctrl-C comes, so that is one step of C: it puts
    this into a queue.
    """

    __slots__ = ("row",)

    row: int


class _Flags:
    """Flags of the ranks for each allocation: set while the rank may still read it.

    Apart from the memory, so that nothing here refers to that in a circle: its pages go with its
    last user, and not when a collector of garbage comes.

    Attributes:
        released: rows that rank 0 has released.
    """

    __slots__ = ("_gone", "_layout", "_map", "_rank", "_watches", "released")

    def __init__(self, mapped: mmap.mmap, layout: WindowLayout, rank: int) -> None:
        self._map = mapped
        self._layout = layout
        self._rank = rank
        self._watches: dict[int, _Watch] = {}  # by row
        self._gone: deque[_Watch] = deque()
        self.released: deque[int] = deque()

    def hold(self, row: int) -> None:
        """All ranks may look into an allocation from now on."""
        self._map[self._layout.flags(row)] = b"\1" * self._layout.ranks

    def is_free(self, row: int) -> bool:
        """Tell whether no rank reads an allocation any more."""
        return not any(self._map[self._layout.flags(row)])

    def looked_at(self, ranks: list[int]) -> list[int]:
        """Rows of allocations into which one of these ranks may still look."""
        flags = np.frombuffer(self._map, np.uint8, ROWS * self._layout.ranks, PAGE)
        rows: list[int] = np.flatnonzero(flags.reshape(ROWS, -1)[:, ranks].any(axis=1)).tolist()
        return rows

    def drop_unheard(self) -> bool:
        """Nothing is placed any more: drop what this rank never looked at, in a call that failed.

        Returns:
            Whether it looks anywhere.
        """
        held = False
        for row in self.looked_at([self._rank]):
            watch = self._watches.get(row)
            if watch is None or watch() is None:
                self._map[self._layout.flags(row).start + self._rank] = 0
            else:
                held = True
        return held

    def watch(self, row: int, array: Bytes) -> None:
        """This rank may look there as long as something refers to `array`, and to that alone."""
        watch = _Watch(array, self._gone.append)
        watch.row = row
        self._watches[row] = watch

    def release(self) -> None:
        """Say of what is gone that this rank looks there no more.

        Not by the arrays' last users: a forked child's arrays go too, and nobody asks there.
        """
        while self._gone:
            row = self._gone.popleft().row
            self._map[self._layout.flags(row).start + self._rank] = 0
            if self._rank == 0:  # which alone asks
                self.released.append(row)


class SharedWindow:
    """One rank's mapping of it; used by the thread that runs collectives.

    Attributes:
        epoch: in which results are placed here.
        fd: its descriptor, at rank 0, which gives it to the others; else -1.
        nonce: what its head says, by which the others know it.
    """

    __slots__ = (
        "_allocator",
        "_flags",
        "_is_complete",
        "_kept",
        "_layout",
        "_lock_fd",
        "_map",
        "_newest",
        "_rank",
        "_read_only",
        "epoch",
        "fd",
        "nonce",
    )

    def __init__(
        self,
        mapped: mmap.mmap,
        layout: WindowLayout,
        *,
        lock_fd: int,
        rank: int,
        epoch: int,
        nonce: bytes,
    ) -> None:
        self.epoch = epoch
        self._map = mapped
        self._lock_fd = lock_fd  # closed with the mapping; -1 for none
        self._read_only = memoryview(mapped).toreadonly()
        self._layout = layout
        self._rank = rank
        self._newest: tuple[Allocation, int] | None = None  # and the result's own size
        self._flags = flags = _Flags(mapped, layout, rank)
        self._allocator = WindowAllocator(layout.nbytes, ROWS, flags.is_free, flags.released)
        self._is_complete = False
        self._kept: list[Span] | None = None  # what had pages when this rank last looked
        self.fd = -1
        self.nonce = nonce

    def join(self) -> None:
        """From now on this rank makes every call in the window that suits it and is flagged so.

        Said by the thread that makes the calls, between two of them: one that has begun without
        this memory could not make sense of the flag.
        """
        locked = self._lock_fd >= 0 and lock(self._lock_fd, self._rank)
        self._map[self._layout.joined().start + self._rank] = LOCKED if locked else JOINED

    @property
    def is_complete(self) -> bool:
        """True once all ranks have joined."""
        if not self._is_complete:
            self._is_complete = 0 not in self._map[self._layout.joined()]
        return self._is_complete

    # --- rank 0 -----------------------------------------------------------------------------------

    def place(self, position: Position, nbytes: int) -> Bytes | None:
        """A place for the result of `position`, announced to all; None if there is no room."""
        taken = self._allocator.take(nbytes)
        if taken is None:
            return None
        allocation, emptied, fresh = taken
        self._remove(emptied)  # before: what is fresh may have been among it
        if not self._populate(fresh):
            self._allocator.put_back(allocation)
            self._remove([Span(allocation.start, allocation.nbytes)])
            return None
        self._map[self._layout.extent(allocation.row)] = pack_extent(allocation)
        self._flags.hold(allocation.row)
        self._map[placed_part()] = pack_placed(position, allocation, nbytes)
        return self._begun(allocation, nbytes)

    def next_version(self) -> None:
        """A checkpoint dropped what was logged: give back what programs have not used for long."""
        self.release()
        self._remove(self._allocator.next_version())

    def forget_fd(self) -> None:
        """Close the descriptor; the mapping stays."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _populate(self, fresh: Span) -> bool:
        """Take pages now: at the first touch only a signal could say that there are none."""
        if not fresh.nbytes:
            return True
        try:
            self._advise(_POPULATE, fresh)
        except OSError:
            return False
        return True

    def _remove(self, spans: list[Span]) -> None:
        for span in spans:
            with contextlib.suppress(OSError):  # then the pages stay as long as the memory
                self._advise(_REMOVE, span)

    def _advise(self, advice: int, span: Span) -> None:
        for start in range(span.start, span.end, _ADVISED_BYTES):
            nbytes = min(_ADVISED_BYTES, span.end - start)
            self._map.madvise(advice, self._layout.data_at + start, nbytes)

    # --- the others -------------------------------------------------------------------------------

    def placed(self, position: Position, nbytes: int) -> Bytes:
        """Return the result of `position`, which rank 0 has placed and announced in a frame.

        Raises:
            ProtocolError: what it has written contradicts that.
        """
        raw = self._map[placed_part()]
        return self._begun(unpack_placed(raw, self._layout, position, nbytes), nbytes)

    # --- all --------------------------------------------------------------------------------------

    def release(self) -> None:
        """Between two calls: let the places be used again at which nothing looks any more here."""
        self._flags.release()

    def shrink(self) -> bool:
        """Its epoch is over for this rank: give back all pages at which nobody looks any more.

        Any rank does that for all, also where rank 0 is dead.  No call that this rank did not take
        part in is ever completed here, so whoever still places something does it for nothing.
        What a rank looks at is kept as long as it has the memory mapped: a stopped one may go on.

        Returns:
            Whether this rank still looks somewhere; else it need not ask again.
        """
        self.release()
        looks = self._flags.drop_unheard()
        ranks = [rank for rank in range(self._layout.ranks) if self._may_look(rank)]
        said = (self._map[self._layout.extent(row)] for row in self._flags.looked_at(ranks))
        try:
            kept = sorted(unpack_extent(raw, self._layout) for raw in said)
        except ProtocolError:  # nobody knows what is looked at
            return looks
        if kept != self._kept:
            self._kept = kept
            self._remove(gaps(kept, self._layout.nbytes))
        return looks

    def _may_look(self, rank: int) -> bool:
        says = self._map[self._layout.joined().start + rank]
        if rank == self._rank or says != LOCKED or self._lock_fd < 0:
            return True
        return is_locked(self._lock_fd, rank)

    def sealed(self) -> Bytes:
        """The newest place, now that the result is there; nobody can make this array writable.

        Who has the array of `place` or `placed` drops it: from now on this one holds the
        allocation.
        """
        assert self._newest is not None, "a result was placed"
        allocation, nbytes = self._newest
        self._newest = None
        return self._array(self._read_only, allocation, nbytes)

    def _begun(self, allocation: Allocation, nbytes: int) -> Bytes:
        self._newest = allocation, nbytes
        return self._array(self._map, allocation, nbytes)

    def _array(self, memory: mmap.mmap | memoryview, allocation: Allocation, nbytes: int) -> Bytes:
        """The allocation, which is released when nothing refers to the array any more."""
        at = self._layout.data_at + allocation.start
        array: Bytes = np.frombuffer(memory, np.uint8, nbytes, at)
        self._flags.watch(allocation.row, array)
        return array


def create_shared_window(ranks: int, nbytes: int, *, epoch: int, nonce: bytes) -> SharedWindow:
    """New shared window of so many ranks, at rank 0; its pages are taken when they are needed.

    Raises:
        NoSharedMemory: this machine has none.
    """
    lacking = why_no_shared_memory()
    if lacking is None and ranks > MAX_RANKS:
        lacking = f"{ranks} ranks, at most {MAX_RANKS} have shared memory"
    if lacking is not None:
        raise NoSharedMemory(lacking)
    layout = WindowLayout(ranks, -(-nbytes // PAGE) * PAGE)
    try:
        fd = sealed_memfd(layout.total, at_once=False)
    except OSError as error:
        raise NoSharedMemory(f"making shared window failed: {error}") from error
    try:
        mapped, lock_fd = _mapped(fd, layout.total)
        mapped.madvise(_POPULATE, 0, layout.data_at)
    except (OSError, ValueError) as error:
        os.close(fd)
        raise NoSharedMemory(f"mapping shared window failed: {error}") from error
    _ask_for_large_pages(mapped)
    head = pack_window_head(layout, nonce)
    mapped[: len(head)] = head
    memory = SharedWindow(mapped, layout, lock_fd=lock_fd, rank=0, epoch=epoch, nonce=nonce)
    memory.fd = fd
    return memory


def receive_shared_window(
    fd: int, ranks: int, *, rank: int, epoch: int, nonce: bytes
) -> SharedWindow:
    """The shared window of so many ranks behind rank 0's descriptor, which this closes.

    Raises:
        NoSharedMemory: it cannot be used here; the text says why.
    """
    try:
        lacking = why_no_shared_memory()
        if lacking is not None:
            raise NoSharedMemory(lacking)
        must_be_sealed(fd)
        nbytes = os.fstat(fd).st_size
        with mmap.mmap(fd, PAGE) as head:
            layout = unpack_window_head(head[:], nbytes, ranks, nonce)
        mapped, lock_fd = _mapped(fd, nbytes)
    except (OSError, ValueError, ProtocolError) as error:  # ValueError: smaller than its map
        raise NoSharedMemory(f"rank 0's shared window is of no use: {error}") from error
    finally:
        os.close(fd)
    _ask_for_large_pages(mapped)
    return SharedWindow(mapped, layout, lock_fd=lock_fd, rank=rank, epoch=epoch, nonce=nonce)


def _mapped(fd: int, nbytes: int) -> tuple[mmap.mmap, int]:
    """A mapping, and the descriptor for its locks, which goes with it."""
    lock_fd = reopened(fd)
    try:
        mapped = mmap.mmap(fd if lock_fd < 0 else lock_fd, nbytes)
    except BaseException:
        if lock_fd >= 0:
            os.close(lock_fd)
        raise
    if lock_fd >= 0:
        weakref.finalize(mapped, os.close, lock_fd).atexit = False
    return mapped, lock_fd


def _ask_for_large_pages(mapped: mmap.mmap) -> None:
    with contextlib.suppress(OSError):  # a system without them
        mapped.madvise(_HUGE_PAGES)
