"""LightGBM's network on a communicator: the two callbacks of ``LGBM_NetworkInitWithFunctions``.

LightGBM reduces bytes by functions of its own.  One that adds numbers of a dtype, which a trial
shows, is an ``allreduce`` by name in the compiled core.  Any other one is called on whole arrays,
in rank order.  Results are logged whole, so a restarted rank need not give the same bytes again.

No error can leave a callback, for LightGBM's code is between it and the script.  The first one is
kept, and raised behind LightGBM's call.  Until then callbacks answer without the communicator, by
bytes that have LightGBM stop: sizes of -1, which it refuses, or splits without a gain.
"""

import contextlib
import ctypes
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from traceback import walk_stack
from types import FrameType
from typing import Any

import numpy as np
from lightgbm.basic import _LIB, _log_callback, _safe_call

import ftcomm

Array = np.ndarray[Any, Any]
Operation = tuple[Any, Any]  # what `allreduce` takes, and the dtype of what it reduces
_INT, _POINTER = ctypes.c_int32, ctypes.c_void_p
_INTS = ctypes.POINTER(_INT)
# (source, destination, bytes of an element, bytes): the destination gets the result.
_REDUCER = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, ctypes.c_int, _INT)
_REDUCE_SCATTER = ctypes.CFUNCTYPE(
    None, _POINTER, _INT, ctypes.c_int, _INTS, _INTS, ctypes.c_int, _POINTER, _INT,
    ctypes.POINTER(_POINTER),
)  # fmt: skip
_ALLGATHER = ctypes.CFUNCTYPE(None, _POINTER, _INT, _INTS, _INTS, ctypes.c_int, _POINTER, _INT)
_BYTE = np.dtype(np.uint8)
_SUMMED = tuple(map(np.dtype, ("f8", "i8", "i4", "f4")))
_NUMBERS = (2, 4, 8)  # bytes of an element that may be a number, and no struct
TRIED_BYTES = 512  # another function than a sum differs from it in some of so many
VIEWS_KEPT = 256  # of memory that LightGBM uses again


class BoostingNetwork:
    """The network of one training.

    Attributes:
        calls: callbacks so far.
    """

    def __init__(self, comm: ftcomm.Communicator) -> None:
        self.calls = 0
        self._comm, self._rank, self._size = comm, comm.rank, comm.world_size
        self._error: BaseException | None = None  # the first one of a callback
        self._inside = False  # a callback runs, which keeps what is raised in it
        self._stop_by = 0xFF  # in each byte of an answer behind an error: sizes of -1
        self._views: dict[tuple[int, int, Any], Array] = {}
        self._operations: dict[tuple[int, int], Operation] = {}
        self._tape: Tape | None = None
        # LightGBM has their addresses alone.
        self._callbacks = _REDUCE_SCATTER(self._reduce_scatter), _ALLGATHER(self._allgather)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Have LightGBM use this network in the calling thread; in a group of one it needs none.

        Raises:
            BaseException: the kept error, in place of what LightGBM says of it.
        """
        addresses = [ctypes.cast(each, _POINTER) for each in self._callbacks]
        try:
            with self._signals_kept():
                try:
                    if self._size > 1:
                        words = self._size, self._rank, *addresses
                        _safe_call(_LIB.LGBM_NetworkInitWithFunctions(*words))
                    yield
                finally:
                    _safe_call(_LIB.LGBM_NetworkFree())
        except Exception:
            self.check()
            raise
        self.check()

    def check(self) -> None:
        """Raise the kept error, if there is one."""
        if self._error is not None:
            raise self._error from None

    def begin_training(self) -> None:
        """Trees are grown from now on: they end by splits without a gain."""
        self._stop_by = 0

    @contextlib.contextmanager
    def taped(self, tape: "Tape") -> Iterator[None]:
        """Answer by what is on the tape, and by the communicator behind its end."""
        tape.rewind()
        self._tape = tape
        try:
            yield
        finally:
            self._tape = None

    # --- callbacks ------------------------------------------------------------------------------

    def _reduce_scatter(
        self,
        source: int,
        nbytes: int,
        itemsize: int,
        starts: Any,
        lengths: Any,
        _blocks: int,
        target: int,
        _capacity: int,
        reducer: Any,
    ) -> None:
        """Reduce all blocks, and write this rank's own."""
        length = lengths[self._rank]
        try:
            self._inside = True
            if self._error is None:
                self.calls += 1
                op, dtype = self._operation(reducer[0], itemsize)
                x = self._view(source, nbytes, dtype)
                if self._tape is None:
                    found = self._comm.allreduce(x, op, copy=False)
                else:
                    found = self._tape.answer(x, lambda: self._comm.allreduce(x, op, copy=False))
                lo = starts[self._rank] // dtype.itemsize
                own = self._view(target, length, dtype)
                own[...] = found[lo : lo + len(own)]
                return
        except BaseException as error:  # noqa: BLE001 - it may not leave a callback
            self._error = error
        finally:
            self._inside = False
        ctypes.memset(target, self._stop_by, length)

    def _allgather(
        self,
        source: int | None,
        nbytes: int,
        starts: Any,
        lengths: Any,
        blocks: int,
        target: int,
        capacity: int,
    ) -> None:
        """Write the blocks of all ranks one after the other; some may be empty."""
        try:
            self._inside = True
            if self._error is None:
                self.calls += 1
                counts = tuple(lengths[:blocks])
                x = self._view(source or 0, nbytes, _BYTE)
                if self._tape is None:
                    found = self._gathered(x, counts)
                else:
                    found = self._tape.answer(x, lambda: self._gathered(x, counts))
                self._view(target + starts[0], len(found), _BYTE)[...] = found
                return
        except BaseException as error:  # noqa: BLE001 - likewise
            self._error = error
        finally:
            self._inside = False
        ctypes.memset(target, self._stop_by, capacity)

    def _gathered(self, x: Array, counts: tuple[int, ...]) -> Array:
        if len(set(counts)) == 1:  # nearly always; within a host it is one exchange
            return self._comm.allgather(x, copy=False).reshape(-1)
        return self._comm.allgatherv(x, counts, copy=False)

    # --- memory and operations of LightGBM ------------------------------------------------------

    def _view(self, address: int, nbytes: int, dtype: Any) -> Array:
        """LightGBM's memory as an array, which is used in this callback alone."""
        key = address, nbytes, dtype
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= VIEWS_KEPT:
                self._views.clear()
            memory: Any = (ctypes.c_char * nbytes).from_address(address) if nbytes else b""
            view = self._views[key] = np.frombuffer(memory, dtype)
        return view

    def _operation(self, reducer: int, itemsize: int) -> Operation:
        """The operation that stands for a reduction function of LightGBM at an address."""
        known = self._operations.get((reducer, itemsize))
        if known is None:
            known = self._operations[reducer, itemsize] = operation(_REDUCER(reducer), itemsize)
        return known

    # --- signals --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals_kept(self) -> Iterator[None]:
        """Keep what handlers of signals raise as a callback begins, such as KeyboardInterrupt.

        That is where Python calls them for a signal that came in LightGBM's own code, and what is
        raised there would be lost, as in LightGBM's callback for its log.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        found = {number: signal.getsignal(number) for number in signal.valid_signals()}
        before = {number: each for number, each in found.items() if callable(each)}
        keeping = {number: self._keeping(each) for number, each in before.items()}
        try:
            for number, handler in keeping.items():
                signal.signal(number, handler)
            yield
        finally:
            self._restore_all(keeping, before)

    def _restore_all(self, keeping: dict[Any, Any], before: Mapping[Any, Any]) -> None:
        """Set the script's handlers again, but for those that the script has set meanwhile."""
        while keeping:
            try:
                for number, handler in list(keeping.items()):
                    if signal.getsignal(number) is handler:
                        signal.signal(number, before[number])
                    del keeping[number]
            except BaseException as error:  # noqa: BLE001 - of a handler; raised behind the rest
                self._error = self._error or error

    def _keeping(self, handler: Callable[..., Any]) -> Callable[..., None]:
        own = BoostingNetwork._reduce_scatter, BoostingNetwork._allgather
        codes = [each.__code__ for each in (*own, _log_callback)]

        def handle(number: int, frame: FrameType | None) -> None:
            try:
                handler(number, frame)
            except BaseException as error:
                frames = () if frame is None else walk_stack(frame)
                if self._inside or not any(each.f_code in codes for each, _ in frames):
                    raise
                self._error = self._error or error

        return handle


class Tape:
    """Results of the collectives of a piece of work that one rank may do again without the others.

    The work makes the same calls with the same bytes each time.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[bytes, Array]] = []
        self._at = 0

    def rewind(self) -> None:
        """The work begins."""
        self._at = 0

    def answer(self, x: Array, call: Callable[[], Array]) -> Array:
        """The result for `x` that is kept, or else that of the call, which is kept."""
        if self._at == len(self._kept):
            self._kept.append((x.tobytes(), np.array(call())))
        given, result = self._kept[self._at]
        self._at += 1
        if given != x.tobytes():
            raise RuntimeError("LightGBM has not made the same Booster again of the same Dataset")
        return result


def operation(reducer: Any, itemsize: int) -> Operation:
    """The operation by name that does what a reduction function of LightGBM does, or the function.

    Args:
        reducer: called with two addresses, the bytes of an element and the bytes of all.
        itemsize: bytes of an element; those of a histogram are in pairs, which may be one number.
    """
    if itemsize in _NUMBERS:  # a struct of a trial's bytes may have lengths of more than is there
        for dtype in _SUMMED:
            if _adds(reducer, itemsize, dtype):
                return "sum", dtype

    def fold(source: Array, target: Array) -> None:
        reducer(source.ctypes.data, target.ctypes.data, itemsize, target.nbytes)

    name = f"lightgbm's reducer of {itemsize} bytes"
    return ftcomm.reduction(fold, name=name, in_place=True, itemsize=itemsize), _BYTE


def _adds(reducer: Any, itemsize: int, dtype: Any) -> bool:
    rng = np.random.default_rng(0)
    if dtype.kind == "f":
        shape = 2, TRIED_BYTES // dtype.itemsize
        scaled = rng.standard_normal(shape) * np.exp2(rng.integers(-20, 20, shape))
        source, target = scaled.astype(dtype)
    else:
        source, target = np.frombuffer(rng.bytes(2 * TRIED_BYTES), dtype).reshape(2, -1).copy()
    expected = source + target
    reducer(source.ctypes.data, target.ctypes.data, itemsize, TRIED_BYTES)
    return bool(target.tobytes() == expected.tobytes())
