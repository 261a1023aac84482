"""Results are with their holders before anybody enters the barrier (rule R20)."""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ftcomm.collectives.schedules.schedule import Schedule
from ftcomm.errors import LogLimitError
from ftcomm.execution.copied_results import _TOLD, COPY_STAGE, CopiedResults, Told
from ftcomm.execution.header_check import CallHeader
from ftcomm.memory.packed_result import pack_result, packed_bytes, result_digest, unpack_result
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.signature import Kind
from tests.unit.recovery.worker_scenario import at

RANKS, RANK = 4, 0
HEADER = CallHeader(7, at(0, 3), b"")


def result(rank: int) -> LoggedResult:
    return LoggedResult(np.full(rank + 2, float(rank)), (rank + 2,))


def packed(rank: int) -> Array:
    place: Array = np.empty(packed_bytes(result(rank)), np.uint8)
    pack_result(result(rank), place)
    return place


def told(rank: int) -> Told:
    raw = packed(rank)
    return Told(result_digest(raw), len(raw), result(rank).flat.nbytes)


class OneRank:
    """Rank 0 of four, whose links bring what the others send; it notes what it does in order.

    Attributes:
        holds: whether the epoch goes on, so that copies may be held.
    """

    rank, world_size, holds = RANK, RANKS, True

    def __init__(self, **limits: Any) -> None:
        self.done: list[Any] = []
        self.told = [told(rank) for rank in range(RANKS)]
        limits = {"replicas": 2, **limits}
        core = SimpleNamespace(
            contact=SimpleNamespace(limits=SimpleNamespace(**limits)),
            view=SimpleNamespace(keep_order=tuple(range(RANKS))),
            copied=self,
        )
        hub: Any = SimpleNamespace(core=core, lock=contextlib.nullcontext(), fault=self.done.append)
        plane: Any = self
        self.copies = CopiedResults(hub, plane)

    def spread(self, admit: Callable[[int], None] = lambda _: None) -> Any:
        call: Any = SimpleNamespace(admit_input=admit)
        return self.copies.spread(call, result(RANK), HEADER)

    def take(self, count: int, dtype: Any) -> Array:
        return np.empty(count, dtype)

    def gather(self, record: bytes, header: CallHeader, *, stage: int) -> bytes:
        assert (Told(*_TOLD.unpack(record)), header) == (told(RANK), HEADER)
        self.done.append(("told", stage))
        return b"".join(_TOLD.pack(*each) for each in self.told)

    def schedule(self, kind: Kind, count: int, itemsize: int) -> Kind:
        assert (count, itemsize) == (0, 1)
        return kind

    def run(self, schedule: Any, _: CallHeader, sent: Array, came: Array, *, stage: int) -> bool:
        if not isinstance(schedule, Schedule):
            self.done.append((schedule.name, stage))
            return True
        (step,) = schedule.steps
        assert sent.tobytes() == packed(RANK).tobytes()
        came[:] = packed(step.recv_from)
        self.done.append((f"to {step.send_to}, from {step.recv_from}", stage))
        return True

    def keep(self, epoch: int, owner: int, digest: bytes, value: LoggedResult) -> bool:
        assert (epoch, digest) == (7, told(owner).digest)
        assert unpack_result(value.flat).flat.tobytes() == result(owner).flat.tobytes()
        self.done.append(f"holds {owner}")
        return self.holds

    def suspect(self, rank: int, cause: str, header: CallHeader) -> None:
        self.done.append((rank, cause, header))


def test_a_rank_enters_the_barrier_when_it_holds_what_it_should() -> None:
    one = OneRank()
    spread = one.spread()
    assert one.done == [
        ("told", COPY_STAGE - 1),
        "holds 0",
        ("to 1, from 3", COPY_STAGE),
        "holds 3",
        ("to 2, from 2", COPY_STAGE + 1),
        "holds 2",
        "copied",
        ("BARRIER", COPY_STAGE + 2),
    ]
    assert spread.digests == b"".join(each.digest for each in one.told)
    assert spread.logged == 3 * (5 * 8 + 32)  # the largest as packed, of its owner and two holders


def test_a_rank_whose_epoch_is_over_enters_no_barrier() -> None:
    one = OneRank()
    one.holds = False
    assert one.spread() is None
    assert one.done[1:] == ["holds 0"]


def test_without_room_nothing_is_copied() -> None:
    def refuse(nbytes: int) -> None:
        raise LogLimitError(f"{nbytes} bytes")

    one = OneRank()
    with pytest.raises(LogLimitError, match="216 bytes"):
        one.spread(refuse)
    assert one.done == [("told", COPY_STAGE - 1)]


@pytest.mark.parametrize("packed_in", [3, 1 << 40])
def test_a_rank_that_contradicts_itself_is_suspected(packed_in: int) -> None:
    one = OneRank()
    one.told[2] = Told(bytes(16), packed_in, 32)
    assert one.spread() is None
    cause = f"it announces a result of 32 bytes in {packed_in}"
    assert one.done[1:] == [(2, cause, HEADER)]
