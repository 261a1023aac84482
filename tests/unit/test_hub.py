"""The hub's links: whose they are, and of which epoch."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ftcomm.config import WorkerOptions
from ftcomm.control.hub import Hub
from ftcomm.recovery.states import Identity, Limits, State
from ftcomm.recovery.worker import WorkerCore


@pytest.fixture
def hub() -> Iterator[Hub]:
    identity = Identity("0", b"n" * 16, "here", "127.0.0.1", 1)
    hub = Hub(WorkerCore(identity, Limits(), now=0.0), WorkerOptions(), b"")
    hub.core.state, hub.core.epoch = State.RUNNING, 3
    yield hub
    hub.close()


def a_link(rank: int) -> Any:
    """A link that says what was done to it."""
    done: list[str] = []
    return SimpleNamespace(
        rank=rank,
        done=done,
        shutdown=lambda: done.append("shut down"),
        close=lambda: done.append("closed"),
    )


def test_a_link_is_taken_in_its_own_epoch_alone_and_once_for_a_pair(hub: Hub) -> None:
    """Between its handshake and here the epoch may have changed."""
    taken = {epoch: hub.add_link(epoch, a_link(1)) for epoch in (2, 4)}
    taken[3] = hub.add_link(3, a_link(1))
    again = hub.add_link(3, a_link(1))
    hub.core.state = State.STOPPED
    stopped = hub.add_link(3, a_link(2))
    assert (taken, again, stopped) == ({2: False, 4: False, 3: True}, False, False)


def test_the_control_thread_shuts_links_down_and_the_users_thread_closes_them(hub: Hub) -> None:
    """The number of a closed socket is free for the next file, to which the user would write."""
    link = a_link(1)
    hub.add_link(3, link)
    hub.retire_links()
    assert (link.done, hub.links) == (["shut down"], {})
    hub.close_retired()
    assert link.done == ["shut down", "closed"]
