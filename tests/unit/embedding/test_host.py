"""The process that runs a launched job: how it ends with its caller."""

import os
import signal
import time

import pytest

from ftcomm_tracker.embedding import host


def test_a_host_whose_caller_is_gone_ends_once_its_launcher_takes_signals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    handlers = iter([signal.SIG_DFL, signal.SIG_DFL, done.append])
    monkeypatch.setattr(signal, "getsignal", lambda _: next(handlers))
    monkeypatch.setattr(time, "sleep", lambda _: done.append("waited"))
    monkeypatch.setattr(os, "kill", lambda _, number: done.append(signal.Signals(number).name))
    host._end_with_caller(parent=0, watched=0)
    assert done == ["waited", "waited", "SIGTERM"]
