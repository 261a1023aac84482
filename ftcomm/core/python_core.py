"""The core in Python: the protocol of `core.c` on the same segment, and so mixed groups work.

It runs where no compiler built the other one, and it is what that one is tested against.  `core.c`
says how a call works and why no wake-up is lost.  Python has no fence, so this core needs
processors that show stores in order (x86-64); taking a free lock is a locked instruction there,
which keeps a later load behind an earlier store.
"""

import ctypes
import mmap
import os
import struct
import sys
import threading
import time
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ftcomm.core.segment import (
    ASLEEP_AT,
    BELL_AT,
    CELL_BYTES,
    DEPTH,
    DONE,
    FOLDED_AT,
    HEAD_BYTES,
    INTERRUPTED,
    LINE_BYTES,
    MAX_RANKS,
    RANK_BYTES,
    READY_AT,
    SMALL_BYTES,
    chunk_starts,
    cut,
    reduced_at,
    segment_bytes,
    slot_at,
    window_at,
)
from ftcomm.protocol.frame_header import (
    COMPARED_BYTES,
    DATA_FRAME,
    FRAME_MAGIC,
    PREFIX,
    SUFFIX_BYTES,
)

Bytes = npt.NDArray[np.uint8]

SPIN_S: Final = 50e-6  # as long as going to sleep and being woken
LOOKS: Final = 30  # a few us; then another process may need this processor
SLEEP_S: Final = 0.1  # a signal that came just before the sleep waits for no longer
CARRIED: Final = "?bBhHiIlLqQefdFD"  # no long doubles: their padding would be compared and logged

_SYS_FUTEX: Final = 202  # of x86-64
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_WORDS = RANK_BYTES // 8
_READY, _FOLDED = READY_AT // 8, FOLDED_AT // 8  # words of a rank
_BELLS = RANK_BYTES // 4


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_SLEEP = _Timespec(0, int(SLEEP_S * 1e9))


if sys.platform == "linux":
    let_others_run = os.sched_yield
    _syscall = ctypes.CDLL(None).syscall
    _syscall.argtypes = (
        *(ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
    )

    def processors() -> int:
        """Number that this process may use."""
        return len(os.sched_getaffinity(0))

    def futex_wait(address: int, value: int) -> None:
        """Sleep if the word has the value: until `futex_wake`, a signal, or SLEEP_S."""
        _syscall(_SYS_FUTEX, address, _FUTEX_WAIT, value, ctypes.byref(_SLEEP), None, 0)

    def futex_wake(address: int) -> None:
        """Wake the thread that sleeps at the word."""
        _syscall(_SYS_FUTEX, address, _FUTEX_WAKE, 1, None, None, 0)

else:

    def let_others_run() -> None:
        """Do nothing: no core runs on this system."""

    def processors() -> int:
        """None is counted."""
        return 1

    def futex_wait(address: int, value: int) -> None:
        """There is no such call."""
        raise NotImplementedError(f"no futex {address:#x} of {value} on {sys.platform}")

    def futex_wake(address: int) -> None:
        """There is no such call."""
        raise NotImplementedError(f"no futex {address:#x} on {sys.platform}")


class PythonCore:
    """One rank's end of a segment; see `ftcomm.core.Core`.

    Attributes:
        rank: of this end.
        ranks: of the host.
        call: number of the newest call.
        chunk: number of the newest chunk of the large calls so far.
        is_running: true while a thread is in `run`.
        is_interrupted: true for good after `interrupt`.
    """

    def __init__(self, segment: mmap.mmap, ranks: int, rank: int) -> None:
        """Use the segment, and keep it mapped for as long as this object exists.

        Raises:
            ValueError: it is too small, or there is no such rank.
        """
        if not (1 <= ranks <= MAX_RANKS and 0 <= rank < ranks):
            raise ValueError(f"rank {rank} of {ranks}")
        if len(segment) < segment_bytes(ranks):
            raise ValueError(f"segment of {len(segment)} bytes, must have {segment_bytes(ranks)}")
        self.rank, self.ranks = rank, ranks
        self.call = self.chunk = self._filled = self._rings = 0
        self._awaited = _READY, 0  # counter and value
        self._sleeps_since = 0.0
        self.is_running = self.is_interrupted = False
        self.memory: Bytes = np.frombuffer(segment, np.uint8)
        self._view = memoryview(segment)
        self._counters = self._view[: ranks * RANK_BYTES].cast("Q")
        self._bells = self._view[: ranks * RANK_BYTES].cast("I")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(segment))
        self._peers = [peer for peer in range(ranks) if peer != rank]
        self._looks = LOOKS if ranks <= processors() else 0
        fence = threading.Lock()
        self._fence_in, self._fence_out = fence.acquire, fence.release

    def form(
        self, suffix: bytes, ufunc: np.ufunc | None, dtype: np.dtype[Any] | None, nbytes: int
    ) -> "PythonForm":
        """See `ftcomm.core.Core`."""
        return PythonForm(self, suffix, ufunc, dtype, nbytes)

    def interrupt(self) -> None:
        """See `ftcomm.core.Core`."""
        self.is_interrupted = True
        self._ring(self.rank)

    def sleeps_since(self) -> float:
        """See `ftcomm.core.Core`."""
        return self._sleeps_since

    def outcome(self, status: int) -> int:
        """The status of a call that ends now."""
        return INTERRUPTED if self.is_interrupted else status

    def missing(self) -> tuple[int, ...]:
        """See `ftcomm.core.Core`."""
        if not self.is_running:
            return ()
        counter, value = self._awaited
        counters = self._counters
        return tuple(
            rank for rank in range(self.ranks) if counters[rank * _WORDS + counter] < value
        )

    def header(self, rank: int) -> bytes:
        """See `ftcomm.core.Core`."""
        if not 0 <= rank < self.ranks:
            raise ValueError(f"rank {rank} of {self.ranks}")
        at = slot_at(self.ranks, rank, self.call)
        return bytes(self._view[at : at + HEAD_BYTES])

    def payload(self, rank: int, nbytes: int) -> Bytes:
        """Payload of the rank in the newest call."""
        at = slot_at(self.ranks, rank, self.call) + HEAD_BYTES
        return self.memory[at : at + nbytes]

    def exchange(self, head: bytes, x: Bytes | None) -> int:
        """Give header and payload, wait for all ranks, and compare the headers."""
        self.fill_slot(head, x)
        self.fill()
        return self.compare(head) if self.wait_filled(self._filled) else INTERRUPTED

    def fill_slot(self, head: bytes, x: Bytes | None) -> None:
        """Begin a call; a large one has no payload in its slot."""
        self.call += 1
        at = slot_at(self.ranks, self.rank, self.call)
        self._view[at : at + HEAD_BYTES] = head
        if x is not None:
            self.payload(self.rank, len(x))[:] = x

    def fill(self) -> int:
        """The slot, or the next window, is filled; the counter's value."""
        self._filled += 1
        self._publish(_READY, self._filled)
        return self._filled

    def fold(self, chunk: int) -> None:
        """The own block of that chunk is reduced."""
        self._publish(_FOLDED, chunk)

    def wait_filled(self, value: int) -> bool:
        """Wait for all ranks; False after `interrupt`."""
        return self._wait(_READY, value)

    def wait_folded(self, chunk: int) -> bool:
        """Likewise."""
        return self._wait(_FOLDED, chunk)

    def compare(self, head: bytes) -> int:
        """DONE, or 1 + the first rank whose header differs."""
        for rank in self._peers:
            at = slot_at(self.ranks, rank, self.call)
            if self._view[at : at + COMPARED_BYTES] != head[:COMPARED_BYTES]:
                return 1 + rank
        return DONE

    def _publish(self, counter: int, value: int) -> None:
        self._counters[self.rank * _WORDS + counter] = value
        self._fence_in()
        self._fence_out()
        for rank in self._peers:
            if self._bells[rank * _BELLS + ASLEEP_AT // 4]:
                self._ring(rank)

    def _ring(self, rank: int) -> None:
        """Wake the rank; the bell's value is one that was never there before."""
        self._rings += 1
        self._bells[rank * _BELLS + BELL_AT // 4] = (self._rings * MAX_RANKS + self.rank) % (
            1 << 32
        )
        futex_wake(self._address + rank * RANK_BYTES + BELL_AT)

    def _wait(self, counter: int, value: int) -> bool:
        counters, looks = self._counters, self._looks
        self._awaited = counter, value
        until = time.monotonic() + SPIN_S
        for rank in self._peers:
            word = rank * _WORDS + counter
            while counters[word] < value:
                if self.is_interrupted:
                    self._sleeps_since = 0.0
                    return False
                looks -= 1
                if looks < 0:
                    let_others_run()
                if time.monotonic() > until:
                    self._sleeps_since = self._sleeps_since or time.monotonic()
                    self._sleep(word, value)
        self._sleeps_since = 0.0
        return not self.is_interrupted

    def _sleep(self, word: int, value: int) -> None:
        """Sleep until the bell, a signal, or SLEEP_S."""
        asleep = self.rank * _BELLS + ASLEEP_AT // 4
        bell = self._bells[self.rank * _BELLS + BELL_AT // 4]
        self._bells[asleep] = 1
        self._fence_in()
        self._fence_out()
        if self._counters[word] < value and not self.is_interrupted:
            futex_wait(self._address + self.rank * RANK_BYTES + BELL_AT, bell)
        self._bells[asleep] = 0


class PythonForm:
    """Calls of one kind, dtype and length; see `ftcomm.core.Form`."""

    __slots__ = ("_core", "_dtype", "_nbytes", "_out_bytes", "_suffix", "_ufunc")

    def __init__(
        self,
        core: PythonCore,
        suffix: bytes,
        ufunc: np.ufunc | None,
        dtype: np.dtype[Any] | None,
        nbytes: int,
    ) -> None:
        is_small = 0 <= nbytes <= SMALL_BYTES
        if len(suffix) != SUFFIX_BYTES or not (is_small or (ufunc is not None and nbytes > 0)):
            raise ValueError(
                f"suffix of {len(suffix)} and payload of {nbytes} bytes, must be {SUFFIX_BYTES} "
                f"and at most {SMALL_BYTES}"
            )
        if ufunc is not None:
            _check_loop(ufunc, dtype)
            if dtype is not None and nbytes % dtype.itemsize:
                raise ValueError(f"{nbytes} bytes are no array of {dtype!r}")
        self._core, self._suffix, self._nbytes = core, bytes(suffix), nbytes
        self._ufunc, self._dtype = ufunc, np.dtype(np.uint8) if dtype is None else dtype
        self._out_bytes = nbytes if ufunc is not None else nbytes * core.ranks

    def prepare(self, *_: object) -> bool:
        """Return False: who makes a call of this core completes it."""
        return False

    def repeat(self, *_: object) -> None:
        """Return None: nothing was prepared."""

    def run(
        self,
        x: object,
        out: object,
        epoch: int,
        branch: int,
        version: int,
        seqno: int,
        step: int,
        also: object = None,
    ) -> int:
        """See `ftcomm.core.Form`."""
        core = self._core
        if core.is_running:  # by another thread, or below a signal's handler
            raise RuntimeError("a call of this core is running")
        try:
            core.is_running = True
            head = self._head(epoch, branch, version, seqno, step)
            given = _as_bytes("x", x, self._nbytes)
            to = self._writable("out", out)
            second = None if also is None else self._writable("also", also)
            return self._run(head, given, to, second)
        finally:
            core.is_running = False

    def _writable(self, name: str, given: object) -> Bytes | None:
        array = _as_bytes(name, given, self._out_bytes)
        if array is not None and not array.flags.writeable:
            raise ValueError(f"{name} is read-only")
        if array is not None and np.may_share_memory(array, self._core.memory):
            raise ValueError("out lies in the segment")
        return array

    def _run(self, head: bytes, x: Bytes | None, out: Bytes | None, also: Bytes | None) -> int:
        core = self._core
        if core.is_interrupted:
            return INTERRUPTED
        try:
            if self._nbytes > SMALL_BYTES:
                assert x is not None
                assert out is not None
                return core.outcome(self._reduce(head, x, out, also))
            status = core.exchange(head, x)
            if status != DONE or out is None:
                return status
            result = self._fold() if self._ufunc is not None else self._gathered()
        except BaseException:  # as Ctrl-C: this rank cannot take part in the call again
            core.is_interrupted = True
            raise
        # The interpreter changes threads between any two lines: only now is the call complete.
        status = core.outcome(status)
        if status == DONE:
            out[:] = result
            if also is not None:
                also[:] = result
        return status

    def _reduce(self, head: bytes, x: Bytes, out: Bytes, also: Bytes | None) -> int:
        """A large reduction, in chunks; see `core.c`."""
        core = self._core
        core.fill_slot(head, None)
        starts = [*chunk_starts(len(x), core.ranks), len(x)]
        outs = [out] if also is None else [out, also]
        chunks = [
            _Chunk(core, x[at:end], [to[at:end] for to in outs]) for at, end in pairwise(starts)
        ]
        status = DONE
        for index in range(len(chunks) + 2):
            if status == DONE and index < len(chunks):
                status = chunks[index].fill_window()
            if status == DONE and 1 <= index <= len(chunks):
                status = chunks[index - 1].reduce_block(self, head if index == 1 else None)
            if status == DONE and index >= 2:
                status = chunks[index - 2].copy_out()
        return status

    def _head(self, epoch: int, branch: int, version: int, seqno: int, step: int) -> bytes:
        fields = (epoch, branch, version, seqno, step, self._nbytes)
        try:
            return PREFIX.pack(FRAME_MAGIC, DATA_FRAME, 0, *fields) + self._suffix
        except struct.error as error:
            raise ValueError(f"{fields}: {error}") from None

    def _fold(self) -> Bytes:
        """The left fold, outside of the segment and of the user's array."""
        core = self._core
        parts = [core.payload(rank, self._nbytes) for rank in range(core.ranks)]
        result = np.empty_like(parts[0])
        self.fold_into(parts, result)
        return result

    def fold_into(self, parts: list[Bytes], result: Bytes) -> None:
        """The left fold of all ranks' parts in rank order."""
        ufunc, dtype = self._ufunc, self._dtype
        assert ufunc is not None
        assert dtype is not None
        left, to = parts[0].view(dtype), result.view(dtype)
        with np.errstate(all="ignore"):
            for part in parts[1:]:
                right = part.view(dtype)
                if len(right) == 1:  # never in place: numpy would prefer the other of two NaN
                    to[:] = ufunc(left, right)
                else:
                    ufunc(left, right, out=to)
                left = to
        if len(parts) == 1:
            to[:] = left

    def _gathered(self) -> Bytes:
        core = self._core
        return np.concatenate([core.payload(rank, self._nbytes) for rank in range(core.ranks)])


class _Chunk:
    """One chunk of a large reduction, as one rank sees it."""

    __slots__ = ("_bounds", "_core", "_filled", "_number", "_outs", "_x")

    def __init__(self, core: PythonCore, x: Bytes, outs: list[Bytes]) -> None:
        core.chunk += 1
        self._core, self._x, self._outs, self._number, self._filled = core, x, outs, core.chunk, 0
        self._bounds = [cut(len(x), core.ranks, rank) for rank in range(core.ranks + 1)]

    def fill_window(self) -> int:
        """Give the others their blocks, once all have read what was there."""
        core, x = self._core, self._x
        if not core.wait_folded(self._number - DEPTH):
            return INTERRUPTED
        window = self._window(core.rank)
        lo, hi = self._bounds[core.rank : core.rank + 2]
        window[:lo], window[hi:] = x[:lo], x[hi:]
        self._filled = core.fill()
        return DONE

    def reduce_block(self, form: PythonForm, head: bytes | None) -> int:
        """Reduce the own block; with the `head` of a call whose first chunk this is."""
        core, (lo, hi) = self._core, self._bounds[self._core.rank : self._core.rank + 2]
        if not core.wait_filled(self._filled):
            return INTERRUPTED
        status = DONE if head is None else core.compare(head)
        if status == DONE and not core.wait_folded(self._number - DEPTH + 2):
            status = INTERRUPTED
        if status != DONE:
            return status
        parts = [self._x if of == core.rank else self._window(of) for of in range(core.ranks)]
        to = self._reduced(core.rank)
        at = lo
        while at < hi:
            end = hi if hi - at < CELL_BYTES + LINE_BYTES else at + CELL_BYTES
            form.fold_into([part[at:end] for part in parts], to[at - lo : end - lo])
            at = end
        for out in self._outs:
            out[lo:hi] = to
        core.fold(self._number)
        return DONE

    def copy_out(self) -> int:
        """Take the blocks that the others have reduced."""
        core = self._core
        if not core.wait_folded(self._number):
            return INTERRUPTED
        for rank in range(core.ranks):
            if rank != core.rank:
                for out in self._outs:
                    out[self._bounds[rank] : self._bounds[rank + 1]] = self._reduced(rank)
        return DONE

    def _window(self, rank: int) -> Bytes:
        at = window_at(self._core.ranks, rank, self._number)
        return self._core.memory[at : at + len(self._x)]

    def _reduced(self, rank: int) -> Bytes:
        at = reduced_at(self._core.ranks, rank, self._number)
        return self._core.memory[at : at + self._bounds[rank + 1] - self._bounds[rank]]


def _as_bytes(name: str, given: Any, nbytes: int) -> Bytes | None:
    """The bytes of an argument; None where there are none."""
    if nbytes == 0:
        array, found = None, 0 if given is None else memoryview(given).nbytes
    else:
        array = np.frombuffer(given, np.uint8)
        found = len(array)
    if found != nbytes:
        raise ValueError(f"{name} has {found} bytes, must have {nbytes}")
    return array


def _check_loop(ufunc: object, dtype: object) -> None:
    """Return if the ufunc has an inner loop of which all operands have the dtype."""
    if not (isinstance(ufunc, np.ufunc) and isinstance(dtype, np.dtype)):
        raise TypeError("form() takes a numpy.ufunc and a numpy.dtype")
    loop = f"{dtype.char}{dtype.char}->{dtype.char}"
    if not (dtype.isnative and dtype.char in CARRIED and loop in ufunc.types):
        raise TypeError(f"{ufunc!r} has no inner loop for {dtype!r}")
