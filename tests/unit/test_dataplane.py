"""A call that proves what came before to be stable ends with what proves it (rule R3)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ftcomm.collectives.choose import schedule_for
from ftcomm.collectives.schedule import Schedule
from ftcomm.config import WorkerOptions
from ftcomm.control.hub import Hub
from ftcomm.dataplane import DataPlane
from ftcomm.forms import Call, Form
from ftcomm.protocol.frames import make_suffix
from ftcomm.protocol.position import START
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.recovery.states import Identity, Limits
from ftcomm.recovery.worker import WorkerCore

SIGNATURE = Signature(Kind.BROADCAST, count=3).encode()
TURN = (1, START)


class Noting(DataPlane):
    """Runs nothing: as rank 0, it notes which schedules it should run."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub, None)  # type: ignore[arg-type]  # asked only for links
        self.ran: list[tuple[int, Kind]] = []

    def _run(self, schedule: Schedule, *_: Any, stage: int = 0) -> bool:
        self.ran.append((stage, schedule.kind))
        return True


@pytest.fixture
def plane() -> Iterator[Noting]:
    identity = Identity("0", b"n" * 16, "here", "127.0.0.1", 1)
    core = WorkerCore(identity, Limits(), now=0.0)
    core.rank, core.world_size, core.keep_order = 0, 3, (0, 1, 2)
    core.keep_local = lambda *_: True  # type: ignore[method-assign]  # what is kept is not the point
    hub = Hub(core, WorkerOptions(), b"")
    yield Noting(hub)
    hub.close()


def test_a_load_ends_with_a_barrier(plane: Noting) -> None:
    assert plane.broadcast_default(b"state", SIGNATURE, "t.py:1", TURN) == b"state"
    assert plane.ran == [(0, Kind.BROADCAST), (1, Kind.BROADCAST), (2, Kind.BARRIER)]


def test_local_states_are_held_by_all_their_keepers_before_the_commit(plane: Noting) -> None:
    assert plane.copy_locals(b"mine", [4, 5, 6], SIGNATURE, "t.py:1", TURN)
    stages, kinds = zip(*plane.ran, strict=True)
    assert (stages, kinds[-1], Kind.BARRIER in kinds[:-1]) == ((1, 2, 3), Kind.BARRIER, False)


@pytest.mark.parametrize("flush", [False, True])
def test_one_of_many_broadcasts_ends_with_a_barrier(plane: Noting, flush: bool) -> None:
    dtype = np.dtype("f4")
    schedule = schedule_for(Kind.BROADCAST, 3, 0, 3, dtype.itemsize, root=0)
    suffix = make_suffix(SIGNATURE, "t.py:1")
    form = Form(Kind.BROADCAST, SIGNATURE, "t.py:1", suffix, schedule, dtype, (3,), 3, 12, root=0)
    call = Call(form, np.arange(3, dtype=dtype), flush=flush)
    assert plane.execute(call, TURN) is not None
    assert plane.ran == [(0, Kind.BROADCAST), *([(1, Kind.BARRIER)] * flush)]
    assert call.synchronising == flush
