"""The hub's links: whose they are, and of which epoch."""

import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ftcomm.config.environment import WorkerOptions
from ftcomm.control.hub import Hub, Recovered
from ftcomm.diagnostics.exit_hook import use_exit_codes
from ftcomm.recovery.machine import WorkerMachine
from ftcomm.recovery.states import Identity, MachineLimits, WorkerState
from ftcomm.transport.socket_link import SocketLink


@pytest.fixture
def hub() -> Iterator[Hub]:
    identity = Identity("0", b"n" * 16, "here", "127.0.0.1", 1)
    hub = Hub(WorkerMachine(identity, MachineLimits(), now=0.0), WorkerOptions(), b"")
    hub.core.view.state, hub.core.view.epoch = WorkerState.RUNNING, 3
    yield hub
    hub.close()


def a_link(rank: int) -> Any:
    """A link that says what was done to it."""
    done: list[str] = []
    return SimpleNamespace(
        rank=rank,
        kind="tcp",
        done=done,
        shutdown=lambda: done.append("shut down"),
        close=lambda: done.append("closed"),
    )


def test_a_link_is_taken_in_its_own_epoch_alone_and_once_for_a_pair(hub: Hub) -> None:
    """Between its handshake and here the epoch may have changed."""
    taken = {epoch: hub.add_link(epoch, a_link(1)) for epoch in (2, 4)}
    taken[3] = hub.add_link(3, a_link(1))
    again = hub.add_link(3, a_link(1))
    hub.core.view.state = WorkerState.STOPPED
    stopped = hub.add_link(3, a_link(2))
    assert (taken, again, stopped) == ({2: False, 4: False, 3: True}, False, False)


def test_the_control_thread_shuts_links_down_and_the_users_thread_closes_them(hub: Hub) -> None:
    """The number of a closed socket is free for the next file, to which the user would write."""
    link = a_link(1)
    hub.add_link(3, link)
    assert hub.recovered.links == {1: "tcp"}
    hub.retire_links()
    assert (link.done, hub.links, hub.recovered.links) == (["shut down"], {}, {})
    hub.close_retired()
    assert link.done == ["shut down", "closed"]


def test_damage_that_two_threads_find_is_counted_twice() -> None:
    """One finds it on a link of the data plane while the other one fetches."""

    class Count(int):
        """A count that sees how it is added to."""

        def __add__(self, more: int) -> int:
            assert recovered._lock.locked()
            return int(self) + more

    recovered = Recovered(corrupted=Count(2))
    recovered.note_corrupted()
    assert recovered.corrupted == 3


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # the child runs little
def test_a_forked_child_keeps_no_connection_open(hub: Hub) -> None:
    """As long as it did, a peer and the tracker would not see that its parent has died."""
    use_exit_codes()  # as `init` does
    (link, peer), (control, tracker) = socket.socketpair(), socket.socketpair()
    messages, source = socket.socketpair()
    hub.add_link(3, SocketLink(link, 1))
    hub.message_links.add(SocketLink(messages, 1))
    ended, end = os.pipe()
    with hub.kept_from_children(trio.socket.from_stdlib_socket(control)), peer, tracker, source:
        child = os.fork()
        if child == 0:
            os.close(end)
            os.read(ended, 1)
            os._exit(0)
        hub.links.pop(1).close()  # as the kernel does at the parent's death: without a shutdown
        os.close(control.fileno())
        control.detach()
        hub.message_links.pop().close()
        for other_end in (peer, tracker, source):
            other_end.settimeout(30.0)
            assert other_end.recv(1) == b""
    os.close(ended)
    os.close(end)
    assert os.waitpid(child, 0)[1] == 0
