"""The core: exchanges between the ranks of one host through one shared segment.

There are two, with one protocol: compiled (`core.c`) and in Python (`python_core.py`).  Ranks of
one segment may have different ones.  The compiled core is used only if it gives numpy's bits in
this process, which is tried once.
"""

import functools
import importlib
import logging
import mmap
from array import array
from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np

from ftcomm.config.environment import CORE, core_choice
from ftcomm.config.platforms import why_no_shared_memory
from ftcomm.core.known_answers import first_difference
from ftcomm.core.segment import DONE, INTERRUPTED
from ftcomm.errors import ConfigError

__all__ = ["DONE", "INTERRUPTED", "Core", "Form", "exchange_of_frames", "open_core", "which"]

ExchangeFrames = Callable[[Any, Any, Any, Any, Any, int], tuple[int, int, bytes] | None]

_log = logging.getLogger("ftcomm")


class Form(Protocol):
    """Calls of one kind, dtype and length."""

    def run(
        self,
        x: Any,
        out: Any,
        epoch: int,
        branch: int,
        version: int,
        seqno: int,
        step: int,
        also: Any = None,
        /,
    ) -> int:
        """Exchange this rank's payload with those of all ranks of the host.

        Nothing is logged, and `x` is never written.  A call of up to SMALL_BYTES that does not
        return DONE has written neither `out` nor `also`; a larger one may have written parts.

        Args:
            x: C-contiguous buffer of `nbytes`; None will do for 0 bytes.
            out: writable C-contiguous buffer outside of the segment, which may be `x` itself
                up to SMALL_BYTES.  It
                gets the left fold of all payloads in rank order, `nbytes`; without a ufunc the
                payloads one behind the other, ranks * `nbytes`.
            epoch: of the segment; this and what follows must be the same on all ranks.
            branch: of the call's position.
            version: likewise.
            seqno: likewise.
            step: of the call.
            also: None, or another buffer like `out`, which gets the same.

        Returns:
            DONE, INTERRUPTED, or 1 + the first rank whose header differs; `Core.header` has it.

        Raises:
            ValueError: a buffer has another length, or a number does not fit into the header.
            RuntimeError: another call of this core is running.
            KeyboardInterrupt: or whatever a signal's handler raises in a wait.  Then the segment
                can no longer be used: all later calls return INTERRUPTED.
        """

    def prepare(
        self,
        call: object,
        pattern: np.ndarray[Any, Any],
        share: int,
        words: "array[int]",  # Python 3.11 cannot evaluate it
        calls: list[Any],
        holder: dict[int, Any],
        holding: object,
        /,
    ) -> bool:
        """Let this thread repeat calls; False where this core does not.

        Args:
            call: what these calls are, for `calls`.
            pattern: an array like all inputs and results: its dtype, its shape.
            share: bytes of the log's limit that one takes.
            words: of `ftcomm.recovery.unasked_calls`.
            calls: likewise.
            holder: of the lock around calls; empty while no call runs.
            holding: what a call puts there, under 0.

        Raises:
            ValueError: only reductions of 1 to SMALL_BYTES bytes are repeated; or, prepared before.
        """

    def repeat(self, x: Any, out: Any, /) -> Any:
        """Make a call as prepared, and complete it if nothing is in the way.

        Args:
            x: the input, which is never written.
            out: array that gets the result, which may be `x`; None for the bytes alone.

        Returns:
            Of a complete call `out`, or the result as bytes.  Of one that was made, but is yet to
            be completed, a tuple of its bytes and the epoch.  None if it is to be made by `run`.
            Else a number above DONE, as from `run`.

        Raises:
            KeyboardInterrupt: as from `run`.
        """


class Core(Protocol):
    """One rank's end of a segment.  It belongs to one epoch; only one thread may run calls."""

    def form(
        self, suffix: bytes, ufunc: np.ufunc | None, dtype: np.dtype[Any] | None, nbytes: int, /
    ) -> Form:
        """Prepare calls.

        Args:
            suffix: of the header, 72 bytes: signature, which must be the same on all ranks, and
                call site.
            ufunc: what folds the payloads; None to gather them.
            dtype: of the payload's elements; None without a ufunc.
            nbytes: of one rank's payload, at most SMALL_BYTES.

        Raises:
            TypeError: the ufunc has no inner loop for the dtype.
            ValueError: a length is wrong.
        """

    def interrupt(self) -> None:
        """End the running call, and all later ones, with INTERRUPTED; from any thread."""

    def missing(self) -> tuple[int, ...]:
        """Ranks that the running call waits for, in order; from any thread."""

    def sleeps_since(self) -> float:
        """Time at which the running call went to sleep, of `time.monotonic`; from any thread.

        0 while it does not: a call that moves waits for microseconds again and again.
        """

    def header(self, rank: int, /) -> bytes:
        """The 104 bytes with which `rank` made the newest call; raises ValueError."""


def exchange_of_frames() -> ExchangeFrames | None:
    """The compiled exchange over sockets; None where steps in Python have to do.

    It takes a table of frames (`execution.frames`), which says how far they are and forgets it
    once all are whole; the header of all, to whose step each adds its tag; the buffers that frames
    name by number, of which all but the first are written; and how often it tries without a byte.
    It returns None once all frames are whole.  Else the number of one that cannot go on, or -1 if
    it has tried often enough; an errno, or 0 where the peer has closed; and a header that is
    another one than was expected, or nothing.  A frame outside of its buffer is a ValueError.
    """
    return _compiled().exchange_frames if which()[0] == "compiled" else None


def open_core(segment: mmap.mmap, ranks: int, rank: int) -> Core:
    """Open this rank's end of a segment, which stays mapped while the core exists.

    Args:
        segment: of `segment_bytes(ranks)`, writable, and zeros when it was made.
        ranks: of this host, at most MAX_RANKS.
        rank: of this process among them.

    Raises:
        ConfigError: there is no core here (`which`), or not the one that FTCOMM_CORE asks for.
        ValueError: the segment is too small, or there is no such rank.
    """
    kind, why = which()
    if kind == "none":
        raise ConfigError(f"ranks of this host cannot share a segment: {why}")
    maker = _compiled().CompiledCore if kind == "compiled" else _python().PythonCore
    return cast(Core, maker(segment, ranks, rank))


def which() -> tuple[str, str]:
    """The core of this process, `compiled`, `python` or `none`, and why.

    Raises:
        ConfigError: FTCOMM_CORE is no choice, or asks for a compiled core that is not here.
    """
    choice = core_choice()
    lacking = f"{CORE}=python" if choice == "python" else _why_not_compiled()
    if not lacking:
        return "compiled", "its results are numpy's"
    if choice == "compiled":
        raise ConfigError(
            f"{CORE} is 'compiled', and this process has no compiled core: {lacking}",
            remedy=f"install ftcomm with a C compiler (cc) at hand, or unset {CORE}",
        )
    unable = why_no_shared_memory()
    return ("none", unable) if unable else ("python", lacking)


@functools.cache
def _why_not_compiled() -> str:
    """Explain in a few words why the compiled core cannot be used; empty if it can."""
    try:
        compiled = _compiled()
    except ModuleNotFoundError:  # free-threaded Python has no stable ABI, and so no binary either
        return "no C compiler built the core"
    except ImportError as error:
        return f"the compiled core cannot be loaded: {error}"
    difference = first_difference(compiled.CompiledCore)
    if not difference:
        return ""
    _log.warning("the compiled core is not used: %s", difference)
    return difference


def _compiled() -> Any:
    return importlib.import_module("ftcomm.core._core")


def _python() -> Any:
    return importlib.import_module("ftcomm.core.python_core")  # whose libc is Linux's
