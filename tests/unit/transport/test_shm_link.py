"""Links over shared memory: the bytes, the ends, and a peer that writes nonsense."""

import random
import select
import socket
import weakref

import numpy as np
import pytest
import ranks_in_threads as harness
from test_executor import assert_same_bits, floats, run_group

from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.schedules.binomial_tree import binomial_broadcast
from ftcomm.collectives.schedules.recursive_doubling import doubling_allreduce
from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.collectives.schedules.schedule import REDUCE_SEGMENT_BYTES
from ftcomm.execution.executor import SMALL_BYTES
from ftcomm.testing.in_memory import run_in_memory
from ftcomm.transport.interruptions import Interrupted, LinkLost
from ftcomm.transport.shm_layout import words_of
from tests.helpers.descriptors import open_descriptors

pytestmark = harness.needs_shared_memory
SMALL_RING = 4096
SUM = make_reducer("sum", np.dtype("f4"))
SIZES = [2, 2_000_000]  # elements: below and above what the rings hold


@pytest.fixture
def pair():
    near, far = harness.shared_pair(SMALL_RING)
    yield near, far
    near.close()
    far.close()


@pytest.fixture
def peer_of_one():
    """A rank 0 of two, and its peer's end of their link."""
    with harness.group(1) as (rank,):
        rank.links[1], far = harness.shared_pair()
        yield rank, far
        far.close()


# --- bytes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_what_goes_in_comes_out_in_order_whatever_the_pieces(pair, seed):
    near, far = pair
    dice = random.Random(seed)
    said, heard, total = bytearray(), bytearray(), 40 * SMALL_RING
    while len(heard) < total:
        pieces = [dice.randbytes(dice.choice([most, 7, 96, 1000, 5000])) for most in (0, 1)]
        try:
            sent = near.sendmsg(pieces, (), 0)
            said += b"".join(pieces)[:sent]
        except BlockingIOError:
            assert len(said) - len(heard) > 0
        try:
            heard += harness.take(far, dice.choice([1, 96, 3000, 10_000]))
        except BlockingIOError:
            assert heard == said
    assert heard == said[: len(heard)]


def test_both_directions_are_independent_and_each_takes_what_its_ring_holds(pair):
    near, far = pair
    for one, other, letter in ((near, far, b"a"), (far, near, b"b")):
        assert one.sendmsg((letter * 5000, b"more"), (), 0) == SMALL_RING
        with pytest.raises(BlockingIOError):
            one.sendmsg((b"x",), (), 0)
        assert harness.take(other, 2 * SMALL_RING) == letter * SMALL_RING
        with pytest.raises(BlockingIOError):
            harness.take(other, 1)


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "c8", "c16"])
@pytest.mark.parametrize("skip", [1, SMALL_RING - 100])
def test_elements_of_every_kind_are_bytes_here_also_over_the_rings_end(pair, dtype, skip):
    near, far = pair
    harness.send_all(near, bytes(skip))
    harness.take(far, SMALL_RING)
    block = np.arange(60).astype(dtype)
    total = 96 + block.nbytes
    assert near.sendmsg((bytearray(96), block.data), (), 0) == total
    heard = b""
    while len(heard) < total:
        heard += harness.take(far, total)
    assert heard == bytes(96) + block.tobytes()


@pytest.mark.parametrize("ring_bytes", [SMALL_RING, 1 << 20])
@pytest.mark.parametrize("build", [ring_allreduce, doubling_allreduce])
def test_collectives_have_the_bits_of_the_reference(ring_bytes, build):
    counts = [0, 1, 7, SMALL_BYTES // 4, 3 * REDUCE_SEGMENT_BYTES // 4 + 3, 400_001]
    with harness.group(3, ring_bytes=ring_bytes) as ranks:
        for count in counts:
            sources = floats(3, count)
            schedules = [build(3, rank, count) for rank in range(3)]
            wanted = run_in_memory(schedules, sources, SUM)
            assert_same_bits(run_group(ranks, schedules, sources, SUM), wanted)
            cast = [binomial_broadcast(3, rank, count, 2) for rank in range(3)]
            assert_same_bits(run_group(ranks, cast, sources), [sources[2]] * 3)


def test_a_probe_in_the_middle_of_each_transfer_changes_nothing():
    count, seen = 5000, []
    with harness.group(2, ring_bytes=SMALL_RING) as ranks:
        for rank in ranks:
            rank.executor.probe = lambda point, step: seen.append(point)
        sources = floats(2, count)
        schedules = [ring_allreduce(2, rank, count) for rank in range(2)]
        wanted = run_in_memory(schedules, sources, SUM)
        assert_same_bits(run_group(ranks, schedules, sources, SUM), wanted)
    assert sorted(seen) == ["half_received"] * 4 + ["half_sent"] * 4


# --- ends -------------------------------------------------------------------------------------


def run(rank, count):
    sendbuf = np.ones(count, "f4")
    return rank.run(doubling_allreduce(2, 0, count), sendbuf, SUM)


@pytest.mark.parametrize("end", ["close", "shutdown", "reset"])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("said", [b"", harness.frame()[:50]], ids=["nothing", "half a header"])
def test_an_end_of_the_peer_anywhere_is_a_lost_link(count, said, end):
    with harness.group(1) as (rank,):
        rank.links[1], far = harness.shared_pair()
        if said:
            far.sendmsg((said,), (), 0)
        waiting = harness.when_it_waits(rank, getattr(far, end))
        outcome, _ = harness.together(lambda: run(rank, count), waiting)
        assert isinstance(outcome, LinkLost)
        assert outcome.rank == 1
        far.close()


def test_what_a_peer_had_said_before_its_end_is_still_given(pair):
    near, far = pair
    far.sendmsg((b"last words",), (), 0)
    far.shutdown()
    assert near.poll_for(reading=True, writing=False) == ()
    assert harness.take(near, 4) + harness.take(near, 100) == b"last words"
    near.poll_for(reading=True, writing=False)
    assert harness.take(near, 100) == b""
    with pytest.raises(BrokenPipeError):
        near.sendmsg((b"x",), (), 0)


@pytest.mark.parametrize("end", ["shutdown", "reset"])
def test_who_ended_a_link_finds_that_at_the_next_send(pair, end):
    near, far = pair
    getattr(near, end)()
    getattr(near, end)()
    with pytest.raises(BrokenPipeError):
        near.sendmsg((b"x",), (), 0)
    assert harness.take(near, 1) == b""
    assert far.poll_for(reading=True, writing=False)
    assert harness.take(far, 1) == b""


@pytest.mark.parametrize("count", SIZES)
def test_an_interrupt_ends_a_blocked_run(peer_of_one, count):
    rank, _ = peer_of_one
    outcome, _ = harness.together(
        lambda: run(rank, count), harness.when_it_waits(rank, rank.waker.set)
    )
    assert isinstance(outcome, Interrupted)
    assert rank.waker.is_set


def test_a_link_that_this_side_shut_down_is_an_interrupt_not_a_suspicion(peer_of_one):
    rank, _ = peer_of_one

    def stop():
        rank.waker.set()
        rank.links[1].shutdown()

    outcome, _ = harness.together(lambda: run(rank, 8), harness.when_it_waits(rank, stop))
    assert isinstance(outcome, Interrupted)


def test_what_had_arrived_is_lost_in_a_reset(pair):
    near, far = pair
    harness.send_all(far, b"first" + b"second")
    assert harness.take(near, 5) == b"first"
    near.reset()
    harness.send_all(far, b"third")
    assert harness.take(near, 100) == b""
    with pytest.raises(BrokenPipeError):
        near.sendmsg((b"fourth",), (), 0)


def test_closing_gives_everything_back():
    before = open_descriptors()
    near, far = harness.shared_pair()
    memory = weakref.ref(near._map)
    for link in (near, far, near):
        link.close()
    assert memory() is None, "no closed link keeps the segment"
    assert open_descriptors() == before


# --- waiting ----------------------------------------------------------------------------------


def may_sleep(link, **wishes):
    """Tell whether `link` lets its owner sleep, and whether it would be woken at once."""
    wanted = link.poll_for(**wishes)
    poll = select.poll()
    for fd, mask in wanted:
        poll.register(fd, mask)
    return bool(wanted), bool(poll.poll(0))


def test_one_bell_for_each_sleep_and_none_for_who_is_awake(pair):
    near, far = pair
    for _ in range(3):
        near.sendmsg((b"x",), (), 0)
    with pytest.raises(BlockingIOError):
        far._sock.recv(10)
    harness.take(far, 10)
    for _ in range(2):
        assert may_sleep(far, reading=True, writing=False) == (True, False)
        for _ in range(3):
            near.sendmsg((b"x",), (), 0)
        assert far._sock.recv(10, socket.MSG_PEEK) == b"\1"
        assert harness.take(far, 10) == b"xxx"
    near.sendmsg((b"x",), (), 0)
    assert may_sleep(far, reading=True, writing=False) == (False, False)
    harness.take(far, 10)
    near.sendmsg((b"x",), (), 0)
    with pytest.raises(BlockingIOError):
        far._sock.recv(10)


def test_nobody_sleeps_when_there_is_something_to_do(pair):
    near, far = pair
    assert may_sleep(near, reading=True, writing=False) == (True, False)
    assert may_sleep(near, reading=False, writing=True) == (False, False)
    harness.send_all(near, bytes(SMALL_RING))
    assert may_sleep(near, reading=False, writing=True) == (True, False)
    assert may_sleep(far, reading=True, writing=False) == (False, False)
    harness.take(far, SMALL_RING // 2)
    assert near._sock.recv(10, socket.MSG_PEEK) == b"\1"
    assert may_sleep(near, reading=False, writing=True) == (False, False)


def test_bells_that_are_not_heard_block_nobody(pair):
    """A peer that is stopped, or asks for bells all the time, reads none of them."""
    near, far = pair
    far.poll_for(reading=True, writing=False)
    word = words_of(1).waits_for_data
    for sleep_number in range(1, 2000):
        far._counters[word] = sleep_number
        near.sendmsg((b"x",), (), 0)
    assert len(harness.take(far, SMALL_RING)) == 1999


# --- a peer that writes nonsense --------------------------------------------------------------


@pytest.mark.parametrize("value", [SMALL_RING + 1, 2**63, 2**64 - 1])
def test_a_counter_that_cannot_be_is_a_broken_link(pair, value):
    near, far = pair
    words = words_of(0)
    near._counters[words.their_written] = value
    with pytest.raises(ConnectionAbortedError, match="what it has written is wrong"):
        harness.take(near, 10)
    far._counters[words.their_read] = value
    with pytest.raises(ConnectionAbortedError, match="what it has read is wrong"):
        near.sendmsg((bytes(SMALL_RING), b"x"), (), 0)


def test_a_counter_that_goes_back_is_a_broken_link(pair):
    near, far = pair
    far.sendmsg((b"twelve bytes",), (), 0)
    harness.take(near, 12)
    near._counters[words_of(0).their_written] = 11
    with pytest.raises(ConnectionAbortedError):
        harness.take(near, 1)


@pytest.mark.parametrize("back_to", [250, 350], ids=["from what is copied", "from what is free"])
def test_room_that_is_taken_back_is_a_broken_link(pair, back_to):
    """Of 400 bytes told to be free 200 are published and 100 copied when the counter goes back."""
    near, far = pair
    harness.send_all(near, bytes(SMALL_RING))
    far._counters[words_of(1).read] = 400
    near.sendmsg((bytes(200),), (), 0)
    far._counters[words_of(1).read] = back_to
    with pytest.raises(ConnectionAbortedError, match="what it has read is wrong"):
        near.sendmsg((bytes(100), bytes(200)), (), 0)
