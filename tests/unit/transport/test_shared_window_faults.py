"""How a call in common memory ends when a peer dies or lies, and that nothing of it is kept."""

import contextlib

import numpy as np
import pytest
import ranks_in_threads as rig

from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.schedules.halving_doubling import halving_allreduce
from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.execution.prepared_steps import SMALL_BYTES
from ftcomm.protocol.frame_header import HEADER_BYTES
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.transport.interruptions import Interrupted, LinkLost, SignatureMismatch

pytestmark = [rig.needs_shared_memory, pytest.mark.usefixtures("no_collector")]
HALF = SMALL_BYTES // 4 + 1  # elements of a block, just too large for a small step
BLOCK = np.full(HALF, 2, "f4").tobytes()
COUNT = 2 * HALF
NBYTES = 4 * COUNT
SUM = make_reducer("sum", np.dtype("f4"))
OTHER = Signature(Kind.BARRIER).encode()


class Scripted:
    """One rank of two, and its peer's end of a link in which a whole call has room."""

    def __init__(self, rank: int, room: int = NBYTES + 4096) -> None:
        self.memories = rig.common_memory(2, room)
        self.memory = self.memories[rank]
        self.rank = rig.Rank(rank)
        near, self.far = rig.shared_pair(1 << 20, (rank, 1 - rank))
        self.rank.links[1 - rank] = near

    def hears(self, payload: bytes = b"", **changes: object) -> None:
        rig.send_all(self.far, rig.frame(payload, **changes))

    def run(self, build=ring_allreduce, count=COUNT):
        schedule = build(2, self.rank.rank, count)
        return self.rank.run_in_common(self.memory, schedule, np.ones(count, "f4"), SUM)

    def flags(self) -> bytes:
        self.memory.let_go()
        return self.memory._map[self.memory._layout.flags(0)]

    def said(self) -> bytes:
        return rig.take(self.far, 1 << 20)


@contextlib.contextmanager
def scripted(*arguments: int):
    story = Scripted(*arguments)
    try:
        yield story
    finally:
        story.rank.close()
        story.far.close()


def test_blocks_go_out_once_and_nothing_but_headers_afterwards():
    with scripted(0) as story:
        story.hears(BLOCK, step=0)  # a peer that has not heard of the place
        story.hears(step=1, common=True)
        result = story.run()
        assert result[HALF:].tolist() == [3] * HALF
        theirs = story.memories[1].placed(rig.POSITION, NBYTES).view("f4")
        assert theirs[HALF:].tolist() == [3] * HALF
        theirs[:HALF] = 7
        assert result[:HALF].tolist() == [7] * HALF
        ones = np.ones(HALF, "f4").tobytes()
        first = rig.frame(ones, step=0, common=True)
        assert story.said() == first + rig.frame(step=1, common=True)


def test_another_rank_says_it_is_in_common_when_it_has_heard_so():
    with scripted(1) as story:
        placed = story.memories[0].place(rig.POSITION, NBYTES)
        story.hears(BLOCK, step=0, common=True)
        story.hears(step=1, common=True)
        result = story.run()
        assert placed.view("f4")[:HALF].tolist() == result[:HALF].tolist() == [3] * HALF
        said = story.said()
        assert said[HEADER_BYTES + len(BLOCK) :] == rig.frame(step=1, common=True)


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([(BLOCK, {"step": 0}), (b"", {"step": 1})], "made in a place of each rank's own"),
        ([(BLOCK, {"step": 0}), (BLOCK, {"step": 1})], "expected step 1 with 0"),
        ([(BLOCK, {"step": 0}), (BLOCK, {"step": 1, "common": True})], "expected step 1 with 0"),
        ([(b"", {"step": 0, "common": True})], f"expected step 0 with {len(BLOCK)}"),
        ([(BLOCK, {"step": 1, "common": True})], "expected step 0"),
        ([(BLOCK, {"step": 0, "epoch": 2, "common": True})], "of epoch 2"),
    ],
    ids=["unflagged", "block", "flagged-block", "bare", "early", "epoch"],
)
def test_a_frame_that_does_not_fit_a_call_in_common_is_a_lost_link(frames, complaint):
    with scripted(0) as story:
        for payload, changes in frames:
            story.hears(payload, **changes)
        with pytest.raises(LinkLost, match=complaint) as caught:
            story.run()
        assert caught.value.rank == 1


def test_a_block_as_long_as_the_one_that_leaves_is_not_the_one_that_was_expected():
    with scripted(0) as story:
        longer = BLOCK + BLOCK[:4]
        story.hears(longer, step=0, common=True)
        story.hears(step=1, common=True)
        with pytest.raises(LinkLost, match=f"{len(longer)} bytes, expected step 0 with"):
            story.run(count=COUNT + 1)


def test_a_flag_for_a_result_that_rank_0_has_placed_nowhere_is_a_lost_link():
    with scripted(0, 4096) as story:
        story.hears(BLOCK, step=0, common=True)
        with pytest.raises(LinkLost, match="common memory has a place for 0 bytes"):
            story.run()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_flag_that_comes_after_the_place_was_needed_is_a_lost_link(rank):
    with scripted(rank, 4096) as story:
        story.hears(BLOCK, step=0)
        story.hears(BLOCK, step=1, common=True)
        with pytest.raises(LinkLost, match="made in common memory, which was not expected"):
            story.run()


def test_a_flag_in_a_call_that_is_none_in_common_is_a_lost_link():
    with scripted(0) as story:
        story.hears(b"1234" * HALF, step=0, common=True)
        source = np.ones(COUNT, "f4")
        with pytest.raises(LinkLost, match="made in common memory, which was not expected"):
            story.rank.run(ring_allreduce(2, 0, COUNT), source, SUM)


@pytest.mark.parametrize(
    ("position", "nbytes"),
    [(rig.POSITION._replace(seqno=4), NBYTES), (rig.POSITION, NBYTES - 4)],
    ids=["position", "size"],
)
def test_a_place_that_contradicts_the_flag_is_a_lost_link(position, nbytes):
    with scripted(1) as story:
        placed = story.memories[0].place(position, nbytes)
        story.hears(BLOCK, step=0, common=True)
        with pytest.raises(LinkLost, match="common memory has a place for") as caught:
            story.run()
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
    said = rig.frame(BLOCK, step=first, common=True) + rig.frame(step=second, common=True)
    with scripted(rank) as story:
        placed = None if rank == 0 else story.memories[0].place(rig.POSITION, NBYTES)
        rig.send_all(story.far, said[:end])
        story.far.close()
        with pytest.raises(LinkLost, match=r"closed|failed") as caught:
            story.run(build)
        assert caught.value.rank == 1 - rank
        assert story.flags() == b"\1\1"
        del caught
        heard_of_place = rank == 0 or end >= HEADER_BYTES
        assert story.flags()[rank] == (not heard_of_place)
        assert story.flags()[1 - rank] == 1
        assert (placed is None) == (rank == 0)


@pytest.mark.parametrize("frames", [0, 1])
def test_another_collective_is_still_a_mismatch(frames):
    with scripted(0) as story:
        for step in range(frames):
            story.hears(BLOCK, step=step, common=True)
        story.hears(step=frames, signature=OTHER)
        with pytest.raises(SignatureMismatch) as caught:
            story.run()
        assert (caught.value.rank, caught.value.signature) == (1, OTHER)
        del caught
        assert story.flags() == b"\0\1"


@pytest.mark.parametrize("frames", [0, 1])
def test_an_interrupt_ends_a_blocked_call_in_either_half(frames):
    with scripted(0) as story:
        for step in range(frames):
            story.hears(BLOCK, step=step, common=True)
        interrupt = rig.when_it_waits(story.rank, story.rank.waker.set)
        outcome, _ = rig.together(story.run, interrupt)
        assert isinstance(outcome, Interrupted)
        outcome.__traceback__ = None
        assert story.flags() == b"\0\1"
