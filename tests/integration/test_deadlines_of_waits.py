"""Deadlines of calls that have not had their turn: they wait for calls, or for functions."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.testing import local_group

WITHIN_S = 60.0  # a hang is a failure; nothing here takes a second
SETTINGS = {"call_deadline": 0}
X = np.ones(3)


def allowed(event: threading.Event) -> None:
    assert event.wait(WITHIN_S)


def overdue(words: str) -> Any:
    return pytest.raises(ftcomm.CollectiveTimeoutError, match=words)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("a collective", lambda comm: comm.barrier(deadline=0.3)),
        (r"checkpoint\(\)", lambda comm: comm.checkpoint(X, deadline=0.3)),
        (r"close\(\)", lambda comm: comm.close(deadline=0.3)),
    ],
)
def test_a_blocking_call_behind_a_blocked_one_ends_at_its_own_deadline(
    name: str, call: Callable[[ftcomm.Communicator], object]
) -> None:
    """Rank 1 makes no such call until it has heard of that: it waits for a message."""

    def run(comm: ftcomm.Communicator) -> None:
        comm.load_checkpoint()
        if comm.rank:
            with overdue("rank 0 gave"):
                comm.recv(0)
            with overdue("rank 0 gave"):
                comm.allreduce(X)
            return
        handle = comm.iallreduce(X)
        with overdue(f"rank 0 gave {name} at test_deadlines_of_waits.py.* 0.3 s.* behind earlier"):
            call(comm)
        with overdue("rank 0 gave"):
            handle.wait()

    with local_group(2, settings=SETTINGS) as group:
        group.run(run)


def test_a_collective_that_waits_for_its_input_ends_at_its_own_deadline() -> None:
    """The function that fills it goes on until both ranks have heard of that."""
    have_ended, door = threading.Barrier(2), threading.Event()

    def run(comm: ftcomm.Communicator) -> None:
        engine, x = comm.engine(), np.ones(3)
        if comm.rank == 0:
            engine.push(lambda: allowed(door), mutate=[x])
            engine.allreduce(x, deadline=0.3)
        with overdue("rank 0 gave allreduce.* it was waiting for the tasks that fill its array"):
            comm.allreduce(X) if comm.rank else comm.barrier()
        have_ended.wait(WITHIN_S)
        door.set()
        if comm.rank == 0:
            with overdue("rank 0 gave"):
                engine.wait()

    with local_group(2, settings=SETTINGS) as group:
        group.run(run)


def test_a_close_that_waits_for_a_function_ends_at_its_own_deadline() -> None:
    has_ended = threading.Event()

    def run(comm: ftcomm.Communicator) -> None:
        if comm.rank:
            with overdue(r"rank 0 gave close\(\) .* waiting for what its task engines run"):
                comm.close()
            has_ended.set()
        else:
            comm.engine().push(lambda: allowed(has_ended))
            with overdue("rank 0 gave close"):
                comm.close(deadline=0.3)

    with local_group(2, settings=SETTINGS) as group:
        group.run(run)
