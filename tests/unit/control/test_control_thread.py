"""The control thread: it can be ended from the moment in which it is started."""

import contextlib
import threading
from typing import Any

import pytest
import trio

from ftcomm.config.environment import WorkerOptions
from ftcomm.control.hub import Hub
from ftcomm.control.thread import ControlThread
from ftcomm.errors import ConfigError
from ftcomm.recovery.machine import WorkerMachine
from ftcomm.recovery.states import Identity, MachineLimits


def test_a_thread_that_has_yet_to_begin_is_waited_for_and_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C comes while `init` waits for it."""
    may_begin = threading.Event()
    begin = ControlThread._main

    async def begin_late(control: ControlThread) -> None:
        await trio.to_thread.run_sync(may_begin.wait)
        await begin(control)

    class Ready(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            may_begin.set()
            return super().wait(timeout)

    monkeypatch.setattr(ControlThread, "_main", begin_late)
    identity = Identity("0", b"n" * 16, "here", "127.0.0.1", 1)
    core = WorkerMachine(identity, MachineLimits(), now=0.0)
    with contextlib.closing(Hub(core, WorkerOptions(), b"")) as hub:
        control = ControlThread(hub)
        control._ready = Ready()
        control._thread.start()
        try:
            control.stop()
        finally:
            may_begin.set()
        assert not control._thread.is_alive()
        assert core.view.error is None


def test_a_core_that_is_not_here_is_refused_before_the_thread_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FTCOMM_CORE", "fast")
    hub: Any = None
    control = ControlThread(hub)
    with pytest.raises(ConfigError, match="FTCOMM_CORE is 'fast'"):
        control.start()
    assert not control._thread.is_alive()
