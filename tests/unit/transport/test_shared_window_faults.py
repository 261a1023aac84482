"""Calls in the shared window whose peer dies or sends wrong data; nothing of them is kept."""

import contextlib

import numpy as np
import pytest
import ranks_in_threads as harness

from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.schedules.halving_doubling import halving_allreduce
from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.execution.executor import SMALL_BYTES
from ftcomm.protocol.frame_header import HEADER_BYTES
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.transport.interruptions import Interrupted, LinkLost, SignatureMismatch

pytestmark = [harness.needs_shared_memory, pytest.mark.usefixtures("no_collector")]
HALF = SMALL_BYTES // 4 + 1  # elements of a block, just too large for a small step
BLOCK = np.full(HALF, 2, "f4").tobytes()
COUNT = 2 * HALF
NBYTES = 4 * COUNT
SUM = make_reducer("sum", np.dtype("f4"))
OTHER = Signature(Kind.BARRIER).encode()


class Scripted:
    """One rank of two, and its peer's end of a link in which a whole call has room."""

    def __init__(self, rank: int, room: int = NBYTES + 4096) -> None:
        self.memories = harness.shared_window(2, room)
        self.memory = self.memories[rank]
        self.rank = harness.Rank(rank)
        near, self.far = harness.shared_pair(1 << 20, (rank, 1 - rank))
        self.rank.links[1 - rank] = near

    def hears(self, payload: bytes = b"", **changes: object) -> None:
        harness.send_all(self.far, harness.frame(payload, **changes))

    def run(self, build=ring_allreduce, count=COUNT):
        schedule = build(2, self.rank.rank, count)
        return self.rank.run_in_shared_window(self.memory, schedule, np.ones(count, "f4"), SUM)

    def flags(self) -> bytes:
        self.memory.release()
        return self.memory._map[self.memory._layout.flags(0)]

    def said(self) -> bytes:
        return harness.take(self.far, 1 << 20)


@contextlib.contextmanager
def scripted(*arguments: int):
    scenario = Scripted(*arguments)
    try:
        yield scenario
    finally:
        scenario.rank.close()
        scenario.far.close()


def test_blocks_go_out_once_and_nothing_but_headers_afterwards():
    with scripted(0) as scenario:
        scenario.hears(BLOCK, step=0)  # a peer that has not heard of the place
        scenario.hears(step=1, shared_window=True)
        result = scenario.run()
        assert result[HALF:].tolist() == [3] * HALF
        theirs = scenario.memories[1].placed(harness.POSITION, NBYTES).view("f4")
        assert theirs[HALF:].tolist() == [3] * HALF
        theirs[:HALF] = 7
        assert result[:HALF].tolist() == [7] * HALF
        ones = np.ones(HALF, "f4").tobytes()
        first = harness.frame(ones, step=0, shared_window=True)
        assert scenario.said() == first + harness.frame(step=1, shared_window=True)


def test_another_rank_says_it_is_in_common_when_it_has_heard_so():
    with scripted(1) as scenario:
        placed = scenario.memories[0].place(harness.POSITION, NBYTES)
        scenario.hears(BLOCK, step=0, shared_window=True)
        scenario.hears(step=1, shared_window=True)
        result = scenario.run()
        assert placed.view("f4")[:HALF].tolist() == result[:HALF].tolist() == [3] * HALF
        said = scenario.said()
        assert said[HEADER_BYTES + len(BLOCK) :] == harness.frame(step=1, shared_window=True)


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([(BLOCK, {"step": 0}), (b"", {"step": 1})], "made in a place of each rank's own"),
        ([(BLOCK, {"step": 0}), (BLOCK, {"step": 1})], "expected step 1 with 0"),
        (
            [(BLOCK, {"step": 0}), (BLOCK, {"step": 1, "shared_window": True})],
            "expected step 1 with 0",
        ),
        ([(b"", {"step": 0, "shared_window": True})], f"expected step 0 with {len(BLOCK)}"),
        ([(BLOCK, {"step": 1, "shared_window": True})], "expected step 0"),
        ([(BLOCK, {"step": 0, "epoch": 2, "shared_window": True})], "of epoch 2"),
    ],
    ids=["unflagged", "block", "flagged-block", "bare", "early", "epoch"],
)
def test_a_frame_that_does_not_fit_a_call_in_common_is_a_lost_link(frames, complaint):
    with scripted(0) as scenario:
        for payload, changes in frames:
            scenario.hears(payload, **changes)
        with pytest.raises(LinkLost, match=complaint) as caught:
            scenario.run()
        assert caught.value.rank == 1


def test_a_block_as_long_as_the_one_that_leaves_is_not_the_one_that_was_expected():
    with scripted(0) as scenario:
        longer = BLOCK + BLOCK[:4]
        scenario.hears(longer, step=0, shared_window=True)
        scenario.hears(step=1, shared_window=True)
        with pytest.raises(LinkLost, match=f"{len(longer)} bytes, expected step 0 with"):
            scenario.run(count=COUNT + 1)


def test_a_flag_for_a_result_that_rank_0_has_placed_nowhere_is_a_lost_link():
    with scripted(0, 4096) as scenario:
        scenario.hears(BLOCK, step=0, shared_window=True)
        with pytest.raises(LinkLost, match="shared window has a place for 0 bytes"):
            scenario.run()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_flag_that_comes_after_the_place_was_needed_is_a_lost_link(rank):
    with scripted(rank, 4096) as scenario:
        scenario.hears(BLOCK, step=0)
        scenario.hears(BLOCK, step=1, shared_window=True)
        with pytest.raises(LinkLost, match="made in shared window, which was not expected"):
            scenario.run()


def test_a_flag_in_a_call_that_is_none_in_common_is_a_lost_link():
    with scripted(0) as scenario:
        scenario.hears(b"1234" * HALF, step=0, shared_window=True)
        sendbuf = np.ones(COUNT, "f4")
        with pytest.raises(LinkLost, match="made in shared window, which was not expected"):
            scenario.rank.run(ring_allreduce(2, 0, COUNT), sendbuf, SUM)


@pytest.mark.parametrize(
    ("position", "nbytes"),
    [(harness.POSITION._replace(seqno=4), NBYTES), (harness.POSITION, NBYTES - 4)],
    ids=["position", "size"],
)
def test_a_place_that_contradicts_the_flag_is_a_lost_link(position, nbytes):
    with scripted(1) as scenario:
        placed = scenario.memories[0].place(position, nbytes)
        scenario.hears(BLOCK, step=0, shared_window=True)
        with pytest.raises(LinkLost, match="shared window has a place for") as caught:
            scenario.run()
        assert caught.value.rank == 0
        assert not placed.any()


FRAME = HEADER_BYTES + len(BLOCK)


@pytest.mark.parametrize(
    "end",
    [0, 50, FRAME - 1000, FRAME, FRAME + 50],
    ids=["nothing", "half-a-header", "half-a-block", "a-block", "half-the-word"],
)
@pytest.mark.parametrize("build", [ring_allreduce, halving_allreduce])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_peer_that_closes_is_a_lost_link_and_no_place_is_kept(rank, build, end):
    first, second = (step.tag for step in build(2, rank, COUNT).steps)
    said = harness.frame(BLOCK, step=first, shared_window=True) + harness.frame(
        step=second, shared_window=True
    )
    with scripted(rank) as scenario:
        placed = None if rank == 0 else scenario.memories[0].place(harness.POSITION, NBYTES)
        harness.send_all(scenario.far, said[:end])
        scenario.far.close()
        with pytest.raises(LinkLost, match=r"closed|failed") as caught:
            scenario.run(build)
        assert caught.value.rank == 1 - rank
        assert scenario.flags() == b"\1\1"
        del caught
        heard_of_place = rank == 0 or end >= HEADER_BYTES
        assert scenario.flags()[rank] == (not heard_of_place)
        assert scenario.flags()[1 - rank] == 1
        assert (placed is None) == (rank == 0)


@pytest.mark.parametrize("frames", [0, 1])
def test_another_collective_is_still_a_mismatch(frames):
    with scripted(0) as scenario:
        for step in range(frames):
            scenario.hears(BLOCK, step=step, shared_window=True)
        scenario.hears(step=frames, signature=OTHER)
        with pytest.raises(SignatureMismatch) as caught:
            scenario.run()
        assert (caught.value.rank, caught.value.signature) == (1, OTHER)
        del caught
        assert scenario.flags() == b"\0\1"


@pytest.mark.parametrize("frames", [0, 1])
def test_an_interrupt_ends_a_blocked_call_in_either_half(frames):
    with scripted(0) as scenario:
        for step in range(frames):
            scenario.hears(BLOCK, step=step, shared_window=True)
        interrupt = harness.when_it_waits(scenario.rank, scenario.rank.waker.set)
        outcome, _ = harness.together(scenario.run, interrupt)
        assert isinstance(outcome, Interrupted)
        outcome.__traceback__ = None
        assert scenario.flags() == b"\0\1"
