"""An error that is one object and is raised by each call: it does not grow, nor keep batches."""

import gc
import weakref
from collections.abc import Callable

import pytest

import ftcomm
from ftcomm.api.call_guard import CallGuard
from ftcomm.errors import JobLostError
from ftcomm_tracker.embedding.tracker_thread import TrackerThread
from ftcomm_tracker.server.open_job import ServeOptions

TRIES = 50
Call = Callable[[], object]


class Batch:
    """An object that a step has in its frame."""


def fails() -> None:
    raise ValueError("an error of a function of the script's")


def closed_guard() -> tuple[Call, int]:
    guard = CallGuard(lambda _: None)
    guard.is_closed, guard.error = True, JobLostError("gone")
    return lambda: guard.run(lambda: None), 0


def failed_handle() -> tuple[Call, int]:
    with ftcomm.init("none") as comm:
        handle = comm.iallreduce(fails)
        assert handle.exception() is not None
    return handle.wait, 1


def failed_tracker() -> tuple[Call, int]:
    thread = TrackerThread(ServeOptions(1))
    try:
        fails()
    except ValueError as error:
        thread.failure = error
    return lambda: thread.ask(lambda: None), 1


@pytest.mark.parametrize("begin", [closed_guard, failed_handle, failed_tracker])
def test_an_error_that_is_raised_again_does_not_grow(begin: Callable[[], tuple[Call, int]]) -> None:
    check(*begin())


def test_the_error_of_a_variable_does_not_grow() -> None:
    with ftcomm.init("none") as comm:
        engine = comm.engine(1)
        variable = engine.var()
        engine.push(fails, mutate=[variable])
        check(lambda: engine.wait_for(variable), 1)
        with pytest.raises(ValueError, match="of the script"):
            engine.wait()


def check(call: Call, origin: int) -> None:
    """Call again and again; the error has `origin` frames of the function that raised it."""
    batches: list[weakref.ref[Batch]] = []

    def step() -> None:
        batch = Batch()
        batches.append(weakref.ref(batch))
        call()

    frames: list[list[str]] = []
    for _ in range(TRIES):
        with pytest.raises((JobLostError, ValueError)) as found:
            step()
        frames.append([entry.name for entry in found.traceback])
    del found
    gc.collect()
    assert len(frames[-1]) <= len(frames[0])
    assert frames[-1].count("fails") == origin  # what led to it is still there
    assert sum(batch() is not None for batch in batches) <= 1
