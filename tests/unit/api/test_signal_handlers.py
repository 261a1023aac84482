"""Calls out of a signal handler, on a thread of their own."""

import threading
from typing import Any, NoReturn

import pytest

import ftcomm
from ftcomm.api import session, signal_handlers
from ftcomm.api.signal_handlers import may_be_in_handler, run_beside
from ftcomm.errors import ThreadLimitError


def called_by(*modules: str) -> Any:
    """A function that asks, below frames of `modules`; the last one calls the others."""
    function: Any = may_be_in_handler
    for module in modules:
        space = {"__name__": module, "inner": function}
        exec("def call():\n    return inner()", space)
        function = space["call"]
    return function


@pytest.mark.parametrize(
    ("modules", "is_one"),
    [
        ((), False),
        (("ftcomm.api.session", "ftcomm.communicator"), False),
        (("ftcomm.communicator", "script"), False),
        (("ftcomm.communicator", "script", "ftcomm.api.session"), True),
        (("ftcomm.communicator", "script", "numpy", "ftcomm", "script"), True),
        (("ftcomm.communicator", "script", "ftcomm_of_others"), False),
    ],
    ids=["test", "exit hook", "script", "handler", "far below", "other package"],
)
def test_a_handler_runs_above_frames_of_the_library(modules: tuple[str, ...], is_one: bool) -> None:
    assert called_by(*modules)() is is_one


def test_a_block_that_an_error_leaves_is_ended_by_its_own_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in a function that the library runs, as `ftcomm.launch` does."""

    beside: list[object] = []

    def leave() -> None:
        with ftcomm.init("none"):
            raise KeyError("of the script's")

    monkeypatch.setattr(session, "run_beside", beside.append)
    space: dict[str, Any] = {"__name__": "ftcomm.launching", "inner": leave}
    exec("def call():\n    return inner()", space)
    with pytest.raises(KeyError, match="of the script's"):
        space["call"]()
    assert beside == []


def test_other_threads_run_no_handlers() -> None:
    found: list[bool] = []
    call = called_by("script", "ftcomm")
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    assert (found, call()) == ([False], True)


def test_the_work_is_done_on_another_thread() -> None:
    threads: list[int] = []
    run_beside(lambda: threads.append(threading.get_ident()))
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_work_that_needs_a_lock_of_this_thread_goes_on_behind_the_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signal_handlers, "WAIT_S", 0.0)
    lock, done = threading.Lock(), threading.Event()

    def work() -> None:
        with lock:
            done.set()

    with lock:
        run_beside(work)
        assert not done.is_set()
    assert done.wait(10.0)


def test_where_no_thread_can_start_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(signal_handlers, "start_new_thread", full)
    with pytest.raises(ThreadLimitError, match="cannot leave the job: can't start new thread"):
        run_beside(lambda: None)
