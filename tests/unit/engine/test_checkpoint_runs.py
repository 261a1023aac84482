"""A checkpoint of the user's thread, beside a plan."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ftcomm.config.environment import WorkerOptions
from ftcomm.control.background import BACKGROUND
from ftcomm.control.hub import Hub
from ftcomm.engine.runs.checkpoint import CheckpointRuns
from ftcomm.engine.runs.cut_check import CutCheck
from ftcomm.protocol.messages import Report, Revoke
from ftcomm.protocol.position import PRELUDE
from ftcomm.recovery.events import Effect, SendControl
from ftcomm.recovery.states import Completion
from ftcomm.requests.request import CheckpointPayload
from tests.unit.recovery.worker_scenario import a_member, hear

SITE = "t.py:1"


class Saved(Exception):  # noqa: N818 - a place in the call
    """The call has come to where a fault may happen."""


@pytest.mark.parametrize(("has_threads", "reported"), [(False, 1), (True, PRELUDE)])
def test_what_is_reported_before_the_exchange_says_whether_messages_may_move(
    has_threads: bool, reported: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, everyone = threading.enumerate()[1:], threading.enumerate  # other tests' threads
    monkeypatch.setattr(threading, "enumerate", lambda: [t for t in everyone() if t not in before])
    done, core, effects = threading.Event(), a_member(), list[Effect]()
    threading.Thread(target=done.wait, name="" if has_threads else BACKGROUND).start()
    core.progress.begin_load(b"", SITE)
    assert core.progress.complete_load(1, "zero", b"", now=0.0) is Completion.DONE
    hub = Hub(core, WorkerOptions(), b"")

    def stop(point: str) -> None:
        assert point == "saved"
        effects.extend(hear(core, Revoke(2, "lost worker 1")))
        raise Saved

    no: Any = SimpleNamespace(end_cut=core.messages.hold.end_cut)
    cut = CutCheck(hub, no, no, no, no)
    runs = CheckpointRuns(hub, no, no, cut, stop)
    try:
        with pytest.raises(Saved):
            runs.checkpoint(CheckpointPayload("one", b"d", None), no)
    finally:
        done.set()
        hub.close()
    reports = [e.message for e in effects if isinstance(e, SendControl)]
    assert [r.tentative for r in reports if isinstance(r, Report)] == [reported]
