"""Processes in which a library has replaced what the control thread needs of Python."""

import sys
import threading
from types import SimpleNamespace

import pytest

import ftcomm
from ftcomm.config.platforms import require_groups
from ftcomm.errors import ConfigError


def patch(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Let these modules be patched by gevent, as it tells."""
    gevent = SimpleNamespace(is_module_patched=modules.__contains__)
    monkeypatch.setitem(sys.modules, "gevent.monkey", gevent)


def patch_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what `eventlet.monkey_patch` does, whatever it is told to leave alone."""
    monkeypatch.setitem(sys.modules, "eventlet", SimpleNamespace())
    monkeypatch.setattr(threading, "RLock", threading._PyRLock)  # type: ignore[attr-defined]  # private


@pytest.mark.parametrize("module", ["select", "threading"])
def test_gevents_monkey_patching_is_refused(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    patch(monkeypatch, module)
    text = r"monkey patching by gevent.*patch_all\(select=False, thread=False\)"
    with pytest.raises(ConfigError, match=text):
        require_groups("joining a job's tracker")


def test_eventlets_monkey_patching_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_locks(monkeypatch)
    with pytest.raises(ConfigError, match="monkey patching by eventlet"):
        require_groups("joining a job's tracker")


def test_libraries_that_patch_nothing_needed_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch, "socket", "time")
    monkeypatch.setitem(sys.modules, "eventlet", SimpleNamespace())
    require_groups("joining a job's tracker")


def test_eventlet_is_refused_before_its_sockets_keep_trio_from_being_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patch_locks(monkeypatch)
    monkeypatch.delitem(vars(ftcomm), "init", raising=False)
    with pytest.raises(ConfigError, match="monkey patching by eventlet"):
        ftcomm.init  # noqa: B018 - it is looked up
