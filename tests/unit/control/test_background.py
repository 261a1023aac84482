"""Errors of functions in the background, as their callers hear of them."""

import threading
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import pytest
import trio
import trio.testing

from ftcomm.control.background import (
    BACKGROUND,
    SHOWN_LENGTH,
    BackgroundError,
    keep_reserve,
    run_in_background,
)
from ftcomm.durable.store import StoreError

pytestmark = pytest.mark.trio


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def function() -> NoReturn:
        raise error

    return function


async def test_it_runs_on_another_thread_and_returns_what_the_function_returns() -> None:
    assert await run_in_background(divmod, 7, 2) == (3, 1)
    thread = await run_in_background(threading.current_thread)
    thread.join()  # it ends with its work: a checkpoint asks which threads are the user's
    assert (thread is not threading.current_thread(), thread.name) == (True, BACKGROUND)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (MemoryError("of 3 TiB"), "this process has no memory left for it: of 3 TiB"),
        (ZeroDivisionError("of the user's"), "ZeroDivisionError: of the user's"),
        (ValueError("x" * 1000), f"ValueError: {'x' * 1000}"[:SHOWN_LENGTH]),
    ],
    ids=["no memory", "of the user's", "long"],
)
async def test_what_nobody_expects_becomes_one_error(error: Exception, cause: str) -> None:
    with pytest.raises(BackgroundError) as raised:
        await run_in_background(raising(error))
    assert (raised.value.cause, raised.value.__cause__) == (cause, error)


@pytest.mark.parametrize("error", [StoreError("away"), OSError(28, "full")], ids=["ours", "system"])
async def test_errors_that_callers_know_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        await run_in_background(raising(error))
    assert raised.value is error


def not_started(_: threading.Thread) -> NoReturn:
    raise RuntimeError("can't start new thread")


async def test_where_no_thread_can_be_started_the_one_in_reserve_does_the_work(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """One after another, whatever they raise, and those too for which nobody waits any more."""
    nursery.start_soon(keep_reserve)
    await trio.testing.wait_all_tasks_blocked()
    monkeypatch.setattr(threading.Thread, "start", not_started)
    may_end, threads = threading.Event(), list[int]()

    def note() -> None:
        threads.append(threading.get_ident())
        may_end.wait()

    async with trio.open_nursery() as abandoned:
        abandoned.start_soon(partial(run_in_background, note, abandon_on_cancel=True))
        await trio.testing.wait_all_tasks_blocked()
        abandoned.cancel_scope.cancel()
    nursery.start_soon(run_in_background, note)
    may_end.set()
    with pytest.raises(BackgroundError, match="ZeroDivisionError"):
        await run_in_background(divmod, 7, 0)
    assert threads == 2 * [await run_in_background(threading.get_ident)]
    assert threads[0] != threading.get_ident()


async def test_a_reserve_that_cannot_be_started_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", not_started)
    await keep_reserve()
    with pytest.raises(BackgroundError, match="can't start new thread"):
        await run_in_background(list)


async def test_a_thread_that_cannot_be_started_is_a_failure_of_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", not_started)
    with pytest.raises(BackgroundError, match="can't start new thread"):
        await run_in_background(list)
