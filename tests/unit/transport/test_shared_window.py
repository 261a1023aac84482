"""shared window: who sees it, who keeps a result in it, and when its place is free again."""

import _thread
import mmap
import os
import signal
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import ranks_in_threads as harness

from ftcomm.config.peak_usage import KEPT_VERSIONS
from ftcomm.protocol.position import Position
from ftcomm.transport import shared_window
from ftcomm.transport import shared_window_mappings as mappings
from ftcomm.transport.address_ranges import Span
from ftcomm.transport.shared_window import SharedWindow, create_shared_window, receive_shared_window
from ftcomm.transport.shared_window_allocator import PAGE, Allocation
from ftcomm.transport.shared_window_layout import (
    MAX_RANKS,
    ROWS,
    WindowLayout,
    gaps,
    pack_extent,
    pack_window_head,
    placed_part,
)

pytestmark = harness.needs_shared_memory
HERE = Position(0, 2, 5)
PAGES = 8
LAYOUT = WindowLayout(2, PAGES * PAGE)
HEAD = pack_window_head(LAYOUT, harness.NONCE)


@pytest.fixture
def pair() -> list[SharedWindow]:
    return harness.shared_window(2, PAGES * PAGE)


def place(memory: SharedWindow, nbytes: int = PAGE) -> shared_window.Bytes:
    placed = memory.place(HERE, nbytes)
    assert placed is not None
    return placed


def address(array: shared_window.Bytes) -> int:
    return int(array.__array_interface__["data"][0])


def flags(pair: list[SharedWindow]) -> bytes:
    """Of the first place, once both ranks are between two calls."""
    for memory in pair:
        memory.release()
    return pair[0]._map[LAYOUT.flags(0)]


# --- seen by all ----------------------------------------------------------------------------------


def test_all_ranks_see_one_place(pair: list[SharedWindow]) -> None:
    ours = place(pair[0], 2 * PAGE)
    theirs = pair[1].placed(HERE, 2 * PAGE)
    assert address(ours) != address(theirs)
    ours[:3] = 1, 2, 3
    theirs[-1] = 4
    assert theirs[:3].tolist() == [1, 2, 3]
    assert ours[-1] == 4
    assert len(ours) == len(theirs) == 2 * PAGE


def test_a_place_has_the_results_own_size() -> None:
    maker, taker = harness.shared_window(2, PAGES * PAGE)
    assert len(place(maker, PAGE + 1)) == PAGE + 1
    assert len(taker.placed(HERE, PAGE + 1)) == PAGE + 1


def test_it_is_complete_when_all_have_joined() -> None:
    memories = harness.shared_window(3, PAGE, join=False)
    for rank in (2, 0, 1):
        assert [memory.is_complete for memory in memories] == [False] * 3
        memories[rank].join()
    assert [memory.is_complete for memory in memories] == [True] * 3


def test_it_has_no_name_and_a_fixed_size_and_its_pages_are_taken_when_they_are_needed() -> None:
    (maker,) = harness.shared_window(1, 64 << 20, join=False, keep_fd=True)
    for size in (0, (64 << 20) + (1 << 20)):
        with pytest.raises(PermissionError):
            os.ftruncate(maker.fd, size)
    assert os.fstat(maker.fd).st_nlink == 0
    assert not os.get_inheritable(maker.fd)
    assert os.fstat(maker.fd).st_blocks * 512 <= 4 << 20
    maker.forget_fd()
    assert maker.fd == -1
    maker.forget_fd()


def test_a_mapping_goes_with_its_last_user_not_when_somebody_collects(
    no_collector: None,
) -> None:
    before = harness.open_descriptors()
    memories = harness.shared_window(2, PAGE)
    array = place(memories[0])
    mappings = [weakref.ref(memory._map) for memory in memories]
    memories.clear()
    assert [mapped() is None for mapped in mappings] == [False, True]
    del array
    assert mappings[0]() is None
    assert harness.open_descriptors() == before


def test_flags_and_head_lie_apart_from_the_data() -> None:
    for ranks in (1, 2, MAX_RANKS):
        layout = WindowLayout(ranks, PAGE)
        assert layout.joined().start >= len(HEAD)
        assert layout.joined().stop <= placed_part().start
        assert placed_part().stop <= layout.flags(0).start
        assert layout.flags(0).stop == layout.flags(1).start
        assert layout.flags(ROWS - 1).stop <= layout.data_at
        assert layout.data_at % PAGE == 0
        assert layout.total == layout.data_at + PAGE


# --- kept and free again --------------------------------------------------------------------------


def test_a_place_that_all_have_dropped_is_used_again(pair: list[SharedWindow]) -> None:
    ours = place(pair[0])
    theirs = pair[1].placed(HERE, PAGE)
    was = address(ours)
    assert flags(pair) == b"\1\1"
    del ours
    assert flags(pair) == b"\0\1"
    del theirs
    assert flags(pair) == b"\0\0"
    assert address(place(pair[0])) == was


@pytest.mark.parametrize("replica_holder", [0, 1])
@pytest.mark.parametrize(
    "look",
    [
        lambda array: array,
        lambda array: array[:],
        lambda array: array[5:7].view(np.int16),
        lambda array: array.view(np.float32).reshape(2, -1),
        lambda array: memoryview(array[1:]),
    ],
    ids=["array", "slice", "dtype", "shape", "memoryview"],
)
def test_whatever_looks_into_a_place_keeps_it(
    pair: list[SharedWindow], replica_holder: int, look: Callable[[shared_window.Bytes], object]
) -> None:
    arrays = [place(pair[0]), pair[1].placed(HERE, PAGE)]
    was = address(arrays[0])
    view = look(arrays[replica_holder])
    arrays.clear()
    assert flags(pair)[replica_holder] == 1
    second = place(pair[0])
    assert address(second) != was
    del view
    assert flags(pair) == b"\0\0"
    assert address(place(pair[0])) == was


def test_a_rank_that_has_not_looked_yet_keeps_its_place(pair: list[SharedWindow]) -> None:
    was = address(place(pair[0]))
    assert flags(pair) == b"\0\1"
    assert address(place(pair[0])) != was


def test_only_rank_0_keeps_account_of_what_was_released(pair: list[SharedWindow]) -> None:
    for _ in range(3 * PAGES):
        place(pair[0])
        pair[1].placed(HERE, PAGE)
        flags(pair)
    assert len(pair[0]._flags.released) == 1
    assert len(pair[1]._flags.released) == 0


def test_a_place_outlives_the_memory_it_is_in() -> None:
    maker, taker = harness.shared_window(2, PAGE)
    ours, theirs = place(maker), taker.placed(HERE, PAGE)
    del maker
    ours[0] = 7
    del ours
    assert theirs[0] == 7


def test_without_room_there_is_no_place(pair: list[SharedWindow]) -> None:
    whole = place(pair[0], PAGES * PAGE)
    said = pair[0]._map[placed_part()]
    assert pair[0].place(HERE._replace(seqno=6), PAGE) is None
    assert pair[0]._map[placed_part()] == said
    assert len(whole) == PAGES * PAGE


def test_a_forked_child_that_drops_an_array_frees_nothing(pair: list[SharedWindow]) -> None:
    ours, theirs = [place(pair[0])], [pair[1].placed(HERE, PAGE)]
    child = os.fork()
    if child == 0:
        ours.clear()
        theirs.clear()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert flags(pair) == b"\1\1"
    ours.clear()
    theirs.clear()
    assert flags(pair) == b"\0\0"


class _CtrlC:
    """It comes when this is dropped, before the next step of Python."""

    __del__ = _thread.interrupt_main  # of C, or it would come inside


def test_ctrl_c_where_the_last_view_is_dropped_loses_no_place(pair: list[SharedWindow]) -> None:
    """It would leave a function there by an exception that goes nowhere."""
    dropped = [place(pair[0]), _CtrlC()]  # a list drops its last item first
    with pytest.raises(KeyboardInterrupt):
        dropped.clear()
    assert flags(pair) == b"\0\1"


def used_bytes(memory: SharedWindow) -> int:
    return os.fstat(memory.fd).st_blocks * 512


def test_what_versions_have_not_used_goes_back_to_the_system() -> None:
    nbytes = 8 << 20
    (maker,) = harness.shared_window(1, 2 * nbytes, keep_fd=True)
    empty = used_bytes(maker)
    kept = place(maker)
    was = address(place(maker, nbytes))
    full = used_bytes(maker)
    assert full - empty >= nbytes
    for _ in range(KEPT_VERSIONS):
        maker.next_version()
    assert used_bytes(maker) == full
    maker.next_version()
    assert used_bytes(maker) <= full - nbytes
    again = place(maker, nbytes)
    assert (address(again), int(again.max())) == (was, 0)
    assert kept[0] == 0
    maker.forget_fd()


def test_what_is_emptied_for_a_place_has_pages_again_before_it_is_used() -> None:
    (maker,) = harness.shared_window(1, 3 * PAGE, keep_fd=True)
    arrays = [place(maker) for _ in range(3)]
    full = used_bytes(maker)
    del arrays[2], arrays[0]
    maker.release()
    maker._remove(maker._allocator.give_back())
    arrays.clear()
    maker.release()
    whole = place(maker, 3 * PAGE)
    assert (used_bytes(maker), int(whole.max())) == (full, 0)
    maker.forget_fd()


class Full(mmap.mmap):
    """Of a system that has so many pages for results."""

    room = 0

    def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
        if option == shared_window._POPULATE and start + length > LAYOUT.data_at + self.room * PAGE:
            raise OSError(14, "Bad address")


def test_a_place_without_pages_is_none_and_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", Full)
    (maker, _) = harness.shared_window(2, PAGES * PAGE)
    for _ in range(2):
        assert maker.place(HERE, PAGES * PAGE) is None
    assert flags([maker]) == b"\0\0"
    monkeypatch.setattr(Full, "room", PAGES)
    maker.next_version()
    assert len(place(maker, PAGES * PAGE)) == PAGES * PAGE


def test_a_place_that_is_used_again_needs_no_new_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", Full)
    monkeypatch.setattr(Full, "room", PAGES)
    maker, taker = harness.shared_window(2, PAGES * PAGE)
    was = address(place(maker))
    taker.placed(HERE, PAGE)
    flags([maker, taker])
    monkeypatch.setattr(Full, "room", 0)
    assert address(place(maker)) == was


# --- when its epoch is over -----------------------------------------------------------------------

RESULTS = 3


def results(memories: list[SharedWindow], nbytes: int = PAGE) -> list[list[shared_window.Bytes]]:
    """Of each rank some results, complete and filled with their numbers."""
    found: list[list[shared_window.Bytes]] = [[] for _ in memories]
    for number in range(RESULTS):
        for rank, memory in enumerate(memories):
            array = memory.placed(HERE, nbytes) if rank else place(memory, nbytes)
            array[:] = number
            found[rank].append(array)
    return found


@pytest.fixture
def three() -> list[SharedWindow]:
    return harness.shared_window(3, PAGES * PAGE, keep_fd=True)


def test_a_view_keeps_its_own_pages_and_not_those_beside_it(three: list[SharedWindow]) -> None:
    first, second, third = results(three)
    empty = used_bytes(three[0]) - RESULTS * PAGE
    view = second[1]
    for arrays in (first, second, third):
        arrays.clear()
    assert [memory.shrink() for memory in three] == [False, True, False]
    assert (used_bytes(three[0]), set(view.tolist())) == (empty + PAGE, {1})
    del view
    assert not three[1].shrink()
    assert used_bytes(three[0]) == empty
    three[0].forget_fd()


def test_what_another_rank_may_look_at_keeps_its_pages(three: list[SharedWindow]) -> None:
    """It has not left the epoch yet, or hangs, and may go on an hour later."""
    first, second, third = results(three)
    full = used_bytes(three[0])
    first.clear()
    second.clear()
    assert not any(memory.shrink() for memory in three[:2])
    assert used_bytes(three[0]) == full
    assert [set(array.tolist()) for array in third] == [{0}, {1}, {2}]
    three[0].forget_fd()


def test_what_only_the_dead_looked_at_keeps_no_pages(three: list[SharedWindow]) -> None:
    """Rank 0 is among them: who placed results is not needed."""
    fd = os.dup(three[0].fd)
    three[0].forget_fd()
    first, second, third = results(three)
    del first, third, three[2], three[0]  # their flags stay
    view = second.pop()
    second.clear()
    before = os.fstat(fd).st_blocks
    assert three[0].shrink()
    assert before - os.fstat(fd).st_blocks == (RESULTS - 1) * PAGE // 512
    assert set(view.tolist()) == {RESULTS - 1}
    os.close(fd)


def test_a_process_that_is_killed_looks_no_more() -> None:
    maker = create_shared_window(2, PAGES * PAGE, epoch=harness.CALL.epoch, nonce=harness.NONCE)
    maker.join()
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        fd = os.dup(maker.fd)
        taker = receive_shared_window(fd, 2, rank=1, epoch=harness.CALL.epoch, nonce=harness.NONCE)
        taker.join()
        os.write(tell, b"1")
        signal.pause()
    os.read(ready, 1)
    empty = used_bytes(maker)
    assert maker.is_complete
    place(maker)
    shrunk = []
    for _ in range(2):
        assert not maker.shrink()
        shrunk.append(used_bytes(maker) - empty)
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert shrunk == [PAGE, 0]
    os.waitpid(child, 0)
    os.close(ready)
    os.close(tell)
    maker.forget_fd()


@pytest.mark.parametrize("lacking", [[0], [1], [0, 1]])
def test_a_rank_is_taken_for_alive_where_locks_cannot_say(
    lacking: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = iter(range(2))
    monkeypatch.setattr(
        shared_window,
        "reopened",
        lambda fd: -1 if next(ranks) in lacking else mappings.reopened(fd),
    )
    memories = harness.shared_window(2, PAGES * PAGE, keep_fd=True)
    for arrays in results(memories):
        arrays.clear()
    full = used_bytes(memories[0])
    del memories[1]
    assert not memories[0].shrink()
    assert used_bytes(memories[0]) == full
    memories[0].forget_fd()


def test_a_place_of_a_call_that_failed_is_not_kept(pair: list[SharedWindow]) -> None:
    """Rank 1 has not heard of it, and its flag is up."""
    assert place(pair[0]).nbytes
    assert not pair[1].shrink()
    assert pair[1]._map[LAYOUT.flags(0)] == b"\1\0"
    assert not pair[0].shrink()


def test_where_extents_make_no_sense_all_pages_are_kept(three: list[SharedWindow]) -> None:
    arrays = results(three)
    full = used_bytes(three[0])
    three[2]._map[three[2]._layout.extent(1)] = pack_extent(Allocation(PAGES * PAGE, PAGE, 1))
    del arrays[0][0], arrays[1][0], arrays[2][0]
    assert all(memory.shrink() for memory in three)
    assert used_bytes(three[0]) == full
    three[0].forget_fd()


@pytest.mark.parametrize(
    ("kept", "between"),
    [
        ([], [Span(0, 10)]),
        ([Span(0, 10)], []),
        ([Span(4, 2), Span(1, 2)], [Span(0, 1), Span(3, 1), Span(6, 4)]),
        ([Span(1, 6), Span(2, 2)], [Span(0, 1), Span(7, 3)]),
    ],
)
def test_what_is_kept_is_not_in_between(kept: list[Span], between: list[Span]) -> None:
    assert gaps(kept, 10) == between
