"""Ranks of one host, in threads or in forked processes, each with a core on one segment."""

import importlib
import mmap
import os
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ftcomm.config.platforms import why_no_shared_memory
from ftcomm.core.known_answers import PATTERNS
from ftcomm.core.segment import ASLEEP_AT, BELL_AT, RANK_BYTES, READY_AT, segment_bytes
from ftcomm.protocol.frame_header import make_suffix
from ftcomm.protocol.signature import Kind, Signature

KINDS = ("compiled", "python", "mixed")
SIGNATURE = Signature(Kind.ALLREDUCE, count=8).encode()
SUFFIX = make_suffix(SIGNATURE, "train.py:12")
POSITION = (3, 0, 2, 5, 0)  # epoch, branch, version, seqno, step
JOIN_S = 30.0  # a hang is a failure; nothing here takes a second
WORD_FORMATS = {READY_AT: "<Q", BELL_AT: "<I", ASLEEP_AT: "<I"}

needs_a_core = pytest.mark.skipif(
    why_no_shared_memory() is not None, reason="no core in Python on this system"
)


def compiled() -> Any:
    """The compiled module, None where it was not built."""
    try:
        return importlib.import_module("ftcomm.core._core")
    except ImportError:
        return None


def require_compiled() -> Any:
    module = compiled()
    if module is None:
        pytest.skip("no C compiler built the core")
    return module


def maker_of(kind: str, rank: int) -> Callable[[Any, int, int], Any]:
    """The class of a rank's core in a group of that kind."""
    if kind == "compiled" or (kind == "mixed" and rank % 2 == 0):
        return require_compiled().CompiledCore
    return importlib.import_module("ftcomm.core.python_core").PythonCore


class Host:
    """The ranks of one host, in threads.

    Attributes:
        segment: that they share.
        cores: one for each rank.
    """

    def __init__(self, kind: str, ranks: int) -> None:
        self.segment = mmap.mmap(-1, segment_bytes(ranks))
        self.cores = [maker_of(kind, rank)(self.segment, ranks, rank) for rank in range(ranks)]

    def word(self, rank: int, at: int) -> int:
        return struct.unpack_from(WORD_FORMATS[at], self.segment, rank * RANK_BYTES + at)[0]

    def set_word(self, rank: int, at: int, value: int) -> None:
        struct.pack_into(WORD_FORMATS[at], self.segment, rank * RANK_BYTES + at, value)

    def together(self, act: Callable[[int, Any], Any]) -> list[Any]:
        """Results or errors of `act`, called with each rank and its core in a thread of its own."""
        return together(*(lambda rank=rank: act(rank, self.cores[rank]) for rank in self.ranks))

    @property
    def ranks(self) -> range:
        return range(len(self.cores))

    def fold(self, ufunc: np.ufunc, parts: Sequence[Any]) -> list[Any]:
        """Each rank's result, which every second rank gets twice."""

        def act(rank: int, core: Any) -> Any:
            part = parts[rank]
            out = np.empty_like(part)
            also = np.empty_like(part) if rank % 2 else None
            form = core.form(SUFFIX, ufunc, part.dtype, part.nbytes)
            status = form.run(part, out, *POSITION, also)
            assert status or also is None or also.tobytes() == out.tobytes()
            return out if status == 0 else status

        return self.together(act)


class Background:
    """A call in a thread.

    Attributes:
        outcome: what it has returned or raised, None before.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self.outcome: Any = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self._call()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.outcome = error

    def result(self) -> Any:
        self._thread.join(JOIN_S)
        assert not self._thread.is_alive()
        return self.outcome


def together(*calls: Callable[[], Any]) -> list[Any]:
    return [background.result() for background in [Background(call) for call in calls]]


def await_condition(condition: Callable[[], bool]) -> None:
    """Give the processor away until the condition holds; the suite's limit ends it."""
    while not condition():
        os.sched_yield()


def operands(seed: int, ranks: int, dtype: np.dtype[Any], count: int) -> list[Any]:
    """Arrays of random bits, of which every second word is a special number of float32."""
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(ranks):
        words = random.integers(0, 1 << 32, -(-count * dtype.itemsize // 4), np.uint32)
        special = random.random(len(words)) < 0.5
        words[special] = random.choice(np.array(PATTERNS, np.uint32), int(special.sum()))
        raw = words.view(np.uint8)[: count * dtype.itemsize]
        parts.append((raw & 1 if dtype.kind == "b" else raw).view(dtype))
    return parts


def left_fold(ufunc: np.ufunc, parts: Sequence[Any]) -> Any:
    result = parts[0]
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            result = ufunc(result, part)
    return result
