"""Links over shared memory to another process: one that is killed, and one that is stopped."""

import functools
import os
import signal

import numpy as np
import pytest
import ranks_in_threads as harness

from ftcomm.transport.interruptions import Interrupted

pytestmark = [harness.needs_shared_memory, pytest.mark.process]


def in_a_child(act):
    """A process that owns the far end of a link; returns its number and the near end."""
    near, far = harness.shared_pair()
    child = os.fork()
    if child == 0:
        near._sock.close()
        act(far)
        os._exit(0)
    far.close()
    return child, near


def count_for_ever(link):
    number = 0
    while True:
        block = np.arange(number, number + 5000, dtype="u4")
        while link._new_limit() - link._written < block.nbytes:
            os.sched_yield()
        link.sendmsg((block.data,), (), 0)
        number += 5000


def drain(rank, link):
    """Read numbers until the peer ends; sleep as the executor does."""
    buffer, heard = memoryview(bytearray(100_000)), bytearray()
    while True:
        try:
            got = link.recv_into(buffer)
        except BlockingIOError:
            rank.executor.waiter.wait(link, None)
            continue
        if got == 0:
            return heard
        heard += buffer[:got]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("megabytes", [0, 1, 3, 10])
def test_a_peer_that_is_killed_in_the_middle_has_said_what_it_had_said(megabytes):
    child, near = in_a_child(count_for_ever)
    with harness.group(1) as (rank,):
        rank.links[1] = near
        buffer, heard = memoryview(bytearray(1 << 16)), bytearray()
        while len(heard) < megabytes << 20:
            try:
                heard += buffer[: near.recv_into(buffer)]
            except BlockingIOError:
                rank.executor.waiter.wait(near, None)
        os.kill(child, signal.SIGKILL)
        (rest,) = harness.together(functools.partial(drain, rank, near))
        heard += rest
    os.waitpid(child, 0)
    heard = heard[: len(heard) // 4 * 4]
    assert (np.frombuffer(heard, "u4") == np.arange(len(heard) // 4)).all()


def wait_until_interrupted(rank, link):
    """A bell may have been rung for what has been taken already: a wait may end for nothing."""
    while True:
        rank.executor.waiter.wait(link, None)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_peer_that_is_stopped_is_waited_for_and_goes_on():
    def echo(link):
        waiter = harness.Rank(0).executor.waiter
        while True:
            try:
                raw = harness.take(link, 100)
            except BlockingIOError:
                waiter.wait(link, None)
                continue
            if not raw:
                return
            harness.send_all(link, raw)

    child, near = in_a_child(echo)
    with harness.group(1) as (rank,):
        rank.links[1] = near
        for stopped in (False, True, False):
            if stopped:
                os.kill(child, signal.SIGSTOP)
                os.waitpid(child, os.WUNTRACED)
            near.sendmsg((b"still there?",), (), 0)
            if stopped:
                wait = functools.partial(wait_until_interrupted, rank, near)
                waiting = harness.when_it_waits(rank, rank.waker.set)
                outcome, _ = harness.together(wait, waiting)
                assert isinstance(outcome, Interrupted)
                rank.waker.clear()
                os.kill(child, signal.SIGCONT)
            heard = b""
            while len(heard) < 12:
                try:
                    heard += harness.take(near, 100)
                except BlockingIOError:
                    rank.executor.waiter.wait(near, None)
            assert heard == b"still there?"
    assert os.waitpid(child, 0)[1] == 0
