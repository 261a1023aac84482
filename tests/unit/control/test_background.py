"""Errors of functions in the background, as their callers hear of them."""

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import trio

from ftcomm.control.background import SHOWN_LENGTH, BackgroundError, run_in_background
from ftcomm.durable.store import StoreError

pytestmark = pytest.mark.trio


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def function() -> NoReturn:
        raise error

    return function


async def test_it_runs_on_another_thread_and_returns_what_the_function_returns() -> None:
    assert await run_in_background(divmod, 7, 2) == (3, 1)
    assert await run_in_background(threading.get_ident) != threading.get_ident()


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


async def test_a_thread_that_cannot_be_started_is_a_failure_of_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_thread(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.to_thread, "run_sync", no_thread)
    with pytest.raises(BackgroundError, match="can't start new thread"):
        await run_in_background(list)
