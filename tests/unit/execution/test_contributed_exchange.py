"""Told sizes are limited before memory is taken for them (rule R20)."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ftcomm.errors import LogLimitError
from ftcomm.execution.contributed_exchange import ContributedExchange
from ftcomm.execution.copied_results import CopiedResults
from ftcomm.memory.pool import Array
from ftcomm.protocol.signature import Kind, LogMode
from tests.unit.recovery.worker_scenario import at

RANKS = 4
ROWS = (1, 1_000_000, 1, 1)  # that the ranks tell, of one byte each


class Plane:
    """The links of rank 0, over which the others tell their rows; it has memory for nothing."""

    rank, world_size = 0, RANKS

    def schedule(self, kind: Kind, count: int, itemsize: int) -> Kind:
        assert (count, itemsize) == (1, 8)
        return kind

    def run(self, schedule: Kind, header: Any, sent: Array, came: Array) -> bool:
        assert (schedule, sent.tolist()) == (Kind.ALLGATHER, [ROWS[0]])
        came[:] = ROWS
        return True

    def lend(self, count: int, dtype: Any) -> Array:
        raise AssertionError(f"memory for {count} of {dtype}")


class Own:
    """This rank's input, which nobody may log."""

    def log(self) -> bytes:
        raise AssertionError("logged")


@pytest.mark.parametrize(
    ("log", "least"),
    [
        (LogMode.CONTRIBUTIONS, max(ROWS)),
        # The quarter that some rank gets of it, held by itself and twice for others.
        (LogMode.COPIES, max(ROWS) // RANKS * 3),
    ],
)
def test_a_rank_that_tells_more_than_the_log_has_room_for_takes_no_memory(
    log: LogMode, least: int
) -> None:
    def refuse(nbytes: int) -> None:
        raise LogLimitError(f"{nbytes} bytes")

    plane: Any = Plane()
    limits = SimpleNamespace(replicas=2)
    hub: Any = SimpleNamespace(
        core=SimpleNamespace(contact=SimpleNamespace(world_size=RANKS, limits=limits))
    )
    form = SimpleNamespace(
        kind=Kind.GATHERV, root=0, schedule=None, suffix=b"", shape=(), dtype=np.dtype(np.uint8),
        contributed=SimpleNamespace(log=log),
    )  # fmt: skip
    call: Any = SimpleNamespace(form=form, rows=ROWS[0], admit_input=refuse)
    turn: Any = (1, at(0, 0))
    with pytest.raises(LogLimitError, match=rf"^.*\b{least} bytes"):
        ContributedExchange(plane, CopiedResults(hub, plane)).run(call, turn, Own())
