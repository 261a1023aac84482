"""A tracker in a thread: what it leaves, and what its thread is asked."""

import datetime as dt
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import ftcomm
from ftcomm_tracker.embedding.tracker_thread import TrackerThread
from ftcomm_tracker.operator.job_registry import read_registry
from ftcomm_tracker.server.open_job import ServeOptions
from ftcomm_tracker.server.server import Server

pytestmark = pytest.mark.process


def served(state_dir: Path) -> TrackerThread:
    thread = TrackerThread(ServeOptions(1, state_dir=state_dir))
    thread.start()
    return thread


def time_out() -> NoReturn:
    raise TimeoutError("the function's own")


def test_an_error_may_be_the_reason_why_a_worker_is_given_up() -> None:
    with ftcomm.Tracker(2) as tracker:
        tracker.give_up(1, ValueError("no machine"))
        with pytest.raises(ftcomm.RankLostError, match=r"^no machine"):
            tracker.wait()


@pytest.mark.parametrize("timeout", [math.nan, math.inf, 10**400, -1, "5", True])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(timeout: Any) -> None:
    with ftcomm.Tracker(2) as tracker:
        with pytest.raises(ftcomm.ConfigError, match=r"^timeout is "):
            tracker.wait(timeout)
        assert not tracker.wait(np.float32(0))
        assert not tracker.wait(dt.timedelta())


@pytest.mark.timeout(30)  # the thread was asked for ever
def test_a_function_that_times_out_in_the_trackers_thread_raises_that(tmp_path: Path) -> None:
    thread = served(tmp_path)
    try:
        with pytest.raises(TimeoutError, match="the function's own"):
            thread.ask(time_out)
        assert thread.ask(lambda: 7) == 7
    finally:
        thread.stop("the test is over")
    assert thread.ask(lambda: 7) is None


def test_a_block_that_ends_before_its_job_is_not_taken_for_the_jobs_good_end() -> None:
    with ftcomm.Tracker(1) as tracker:
        assert not tracker.wait(0)
    with pytest.raises(ftcomm.JobStoppedError, match="has ended before the job"):
        tracker.wait()


def test_a_tracker_that_fails_leaves_neither_a_lock_nor_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(server: Server) -> NoReturn:
        await server._connections.close()
        raise ZeroDivisionError("a defect")

    with monkeypatch.context() as defect:
        defect.setattr(Server, "run", fail)
        thread = served(tmp_path)
        assert thread.over.wait(60)
    assert str(thread.failure) == "a defect"
    left = [entry for entry in read_registry().entries if entry.state_dir == str(tmp_path)]
    served(tmp_path).stop("the test is over")  # it would be refused while the first has the lock
    assert left == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # the child only waits
def test_a_forked_child_keeps_nobody_from_taking_the_job_up(tmp_path: Path) -> None:
    thread = served(tmp_path)
    port = thread.job.server.address[1]
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writable)
        os.read(readable, 1)  # until the test ends
        os._exit(0)
    thread.stop("the test takes it up")
    again = served(tmp_path)  # refused while another process has the lock
    again.stop("the test is over")
    for end in (readable, writable):
        os.close(end)
    os.waitpid(child, 0)
    assert again.job.server.address[1] == port  # the same, so nobody listens there any more


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # the child asks nobody
def test_a_forked_child_is_refused_what_its_parents_thread_would_do() -> None:
    readable, writable = os.pipe()
    with ftcomm.Tracker(1) as tracker:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)  # it waited for ever
            tracker.__exit__(None, None, None)
            heard = [*refusals(tracker), tracker.environment(0)["FTCOMM_TRACKER"]]
            os.write(writable, "\n".join(heard).encode())
            os._exit(0)
        os.close(writable)
        with os.fdopen(readable) as pipe:
            heard = pipe.read().splitlines()
        os.waitpid(child, 0)
        assert heard == ["this tracker belongs to the parent process"] * 4 + [tracker.address]
        assert not tracker.wait(0)


def refusals(tracker: ftcomm.Tracker) -> list[str]:
    asks: list[Callable[[], object]] = [
        tracker.status,
        lambda: tracker.stop("done"),
        lambda: tracker.give_up(0, "gone"),
        tracker.wait,
    ]
    heard = []
    for ask in asks:
        try:
            heard.append(str(ask()))
        except ftcomm.ForkError as error:
            heard.append(error.cause)
    return heard
