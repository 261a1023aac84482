"""Errors that the check of a cut names, of two ranks whose messages do not match."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ftcomm.engine.runs.cut_check import CutCheck, _OpenPair
from ftcomm.errors import CollectiveMismatchError, JobLostError
from ftcomm.protocol.signature import USUAL_CAUSE
from ftcomm.recovery.events import FatalFound
from ftcomm.recovery.states import Checkpoint

RECEIVED = "at close() (job.py:9) rank 1 has received "
OTHERS = "after its restart it has sent others than before"


@pytest.mark.parametrize(
    ("incarnation", "digest", "sent", "taken", "found"),
    [
        (
            1,
            b"",
            3,
            2,
            FatalFound(
                CollectiveMismatchError.__name__,
                f"{RECEIVED}2 of 3 messages from rank 0 since the last checkpoint; the first"
                " missing one was sent at job.py:2: receive it before",
            ),
        ),
        (
            2,  # it has made a checkpoint since its restart: its messages are its own
            b"d",
            3,
            2,
            FatalFound(
                CollectiveMismatchError.__name__,
                f"{RECEIVED}2 of 3 messages from rank 0 since the last checkpoint; the first"
                " missing one was sent at job.py:2: receive it before",
            ),
        ),
        (
            2,
            b"",
            3,
            2,
            FatalFound(
                CollectiveMismatchError.__name__,
                f"{RECEIVED}2 of 3 messages from rank 0 since the last checkpoint; the first"
                " missing one was sent at job.py:2; rank 0, restarted, may have sent"
                f" others; {USUAL_CAUSE}",
            ),
        ),
        (
            2,
            b"",
            1,
            2,
            FatalFound(
                JobLostError.__name__,
                f"{RECEIVED}2 messages from rank 0 since the last checkpoint, and rank 0 has sent"
                f" 1: {OTHERS}",
            ),
        ),
    ],
    ids=["not-received", "not-received-later", "sent-more", "sent-anew"],
)
def test_an_open_pair_names_both_ranks_and_the_lines(
    incarnation: int, digest: bytes, sent: int, taken: int, found: FatalFound
) -> None:
    core = SimpleNamespace(
        messages=SimpleNamespace(site_of=lambda _destination, index: f"job.py:{index}"),
        contact=SimpleNamespace(incarnation=incarnation, identity=SimpleNamespace(spare=False)),
        archive=SimpleNamespace(committed=Checkpoint(3, "state", digest)),
    )
    hub: Any = SimpleNamespace(lock=threading.Lock(), core=core)
    unused: Any = None
    check = CutCheck(hub, unused, unused, unused, unused)
    assert check._found(_OpenPair(0, 1, sent, taken), "close()", "job.py:9") == found


def test_a_thread_that_a_signal_s_handler_has_started_is_noted_before_the_balance_leaves() -> None:
    """In an epoch of which a report has said how it was, what is noted stays."""
    noted: list[bool] = []
    hold = SimpleNamespace(note_threads=lambda *, others: noted.append(others), may_change=True)
    view = SimpleNamespace(allows_completion=lambda epoch: epoch == 1)
    core = SimpleNamespace(messages=SimpleNamespace(balance=5, hold=hold), view=view)
    hub: Any = SimpleNamespace(lock=threading.Lock(), core=core)
    unused: Any = None
    check = CutCheck(hub, unused, unused, unused, unused)
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert [check.opening(epoch) for epoch in (1, 2)] == [(5, True)] * 2
    finally:
        done.set()
        other.join()
    assert noted == [True]
