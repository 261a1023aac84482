"""Regions: who gets which part of shared window, and when somebody else may have it."""

import random
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ftcomm.config.peak_usage import KEPT_VERSIONS, SLACK_PARTS
from ftcomm.transport.address_ranges import Span
from ftcomm.transport.shared_window_allocator import (
    PAGE,
    SPIN_LIMIT,
    Allocation,
    NewAllocation,
    WindowAllocator,
)

MANY_ROWS = 100


def pages(first: int, count: int) -> Span:
    return Span(first * PAGE, count * PAGE)


class Held:
    """Regions of so many pages, and the rows that other ranks still look into."""

    def __init__(self, pages: int, rows: int = MANY_ROWS) -> None:
        self.rows: set[int] = set()
        self.looks = 0
        self.released: deque[int] = deque()
        self.allocations = WindowAllocator(pages * PAGE, rows, self._is_free, self.released)

    def _is_free(self, row: int) -> bool:
        self.looks += 1
        return row not in self.rows

    def take(self, pages: int) -> NewAllocation:
        taken = self.allocations.take(pages * PAGE)
        assert taken is not None
        return taken

    def new(self, pages: int) -> Allocation:
        taken = self.take(pages)
        assert taken.fresh.nbytes == pages * PAGE
        return taken.allocation

    def used_again(self, pages: int) -> Allocation:
        taken = self.take(pages)
        assert (taken.fresh.nbytes, taken.emptied) == (0, [])
        return taken.allocation

    def release(self, *allocations: Allocation) -> None:
        self.released.extend(allocation.row for allocation in allocations)

    def released_ones(self, pages: int, count: int) -> list[Allocation]:
        """So many new allocations, which nobody holds any more."""
        allocations = [self.new(pages) for _ in range(count)]
        self.release(*allocations)
        return allocations


@pytest.mark.parametrize(("nbytes", "count"), [(1, 1), (PAGE, 1), (PAGE + 1, 2), (3 * PAGE, 3)])
def test_a_allocation_is_of_whole_pages_all_of_them_new(nbytes: int, count: int) -> None:
    allocations = Held(8).allocations
    taken = [allocations.take(nbytes) for _ in range(2)]
    places = pages(0, count), pages(count, count)
    assert taken == [
        NewAllocation(Allocation(*place, row), [], place) for row, place in enumerate(places)
    ]


def test_a_allocation_is_used_again_when_rank_0_and_all_others_have_released_it() -> None:
    held = Held(8)
    first = held.new(2)
    second = held.new(2)  # rank 0 holds the first one
    held.rows.add(first.row)
    held.release(first)
    third = held.new(2)  # another rank does
    held.rows.clear()
    assert held.used_again(2).start == first.start
    assert len({first, second, third}) == 3


def test_what_the_flags_say_before_rank_0_has_released_it_makes_nothing_free() -> None:
    held = Held(2)
    assert held.new(2)
    assert held.allocations.take(PAGE) is None
    assert held.looks == 0


def test_neighbours_that_are_free_serve_results_of_any_size() -> None:
    held = Held(8)
    held.released_ones(2, 3)
    assert [held.used_again(count).start for count in (3, 1, 2)] == [0, 3 * PAGE, 4 * PAGE]
    assert held.allocations.nbytes == 6 * PAGE


def test_a_version_uses_first_what_the_last_one_used_last() -> None:
    held = Held(8)
    first = held.released_ones(2, 3)
    for earlier in (first[::-1], first):
        assert held.allocations.next_version() == []
        again = [held.used_again(2) for _ in range(3)]
        assert [allocation.start for allocation in again] == [
            allocation.start for allocation in earlier
        ]
        held.release(*again)


def test_a_result_that_is_larger_than_what_is_free_takes_new_pages_beside_it() -> None:
    held = Held(8)
    held.released_ones(2, 1)
    taken = held.take(3)
    assert (taken.allocation[:2], taken.fresh, taken.emptied) == (pages(0, 3), pages(2, 1), [])


def test_new_pages_before_a_free_allocation_are_taken_too() -> None:
    held = Held(6)
    left, right = held.new(2), held.new(4)
    held.release(left)
    assert held.allocations.give_back() == [pages(0, 2)]
    held.release(right)
    held.allocations.next_version()
    taken = held.take(5)
    assert (taken.allocation[:2], taken.fresh, taken.emptied) == (pages(1, 5), pages(1, 1), [])


def test_of_several_places_that_with_the_fewest_new_pages_is_taken() -> None:
    held = Held(20)
    sizes = (6, 1, 4, 4, 1)
    allocations = [held.new(count) for count in sizes]
    held.release(allocations[0], allocations[3])
    held.allocations.give_back()
    held.release(allocations[2])
    taken = held.take(6)
    assert (taken.allocation[:2], taken.fresh) == (pages(7, 6), pages(11, 2))


def test_regions_that_others_hold_for_long_keep_none_from_being_used_again() -> None:
    held = Held(3 * SPIN_LIMIT)
    kept = held.released_ones(1, 2 * SPIN_LIMIT)
    held.rows = {allocation.row for allocation in kept}
    (free,) = held.released_ones(1, 1)
    looked_before = held.looks
    found = [held.take(1) for _ in range(3)]
    assert [taken.allocation.start for taken in found].count(free.start) == 1
    assert held.looks - looked_before <= 3 * SPIN_LIMIT


def test_when_nothing_fits_what_is_free_is_emptied_and_cut_anew() -> None:
    held = Held(7)
    allocations = [held.new(1) for _ in range(7)]
    held.release(*allocations[:2], *allocations[3:5])
    assert held.allocations.give_back() == [pages(0, 2), pages(3, 2)][::-1]
    held.release(allocations[2])
    taken = held.take(5)
    assert (taken.allocation[:2], taken.emptied, taken.fresh) == (
        pages(0, 5),
        [pages(2, 1)],
        pages(0, 5),
    )
    assert held.allocations.take(1) is None


def test_what_is_free_keeps_its_pages_where_to_empty_it_would_not_help() -> None:
    held = Held(4)
    allocations = [held.new(1) for _ in range(4)]
    held.release(allocations[0], allocations[2])
    assert held.allocations.take(2 * PAGE) is None
    assert held.allocations.nbytes == 4 * PAGE
    assert held.used_again(1)


def test_no_room_is_not_looked_for_again_until_something_is_free() -> None:
    held = Held(2 * SPIN_LIMIT)
    kept = held.released_ones(1, 2 * SPIN_LIMIT)
    held.rows = {allocation.row for allocation in kept}
    assert held.allocations.take(2 * PAGE) is None
    before = held.looks
    assert held.allocations.take(2 * PAGE) is None
    assert held.looks - before == SPIN_LIMIT
    held.rows.clear()
    assert held.allocations.take(2 * PAGE) is not None


def test_a_allocation_in_use_parts_two_that_are_free() -> None:
    held = Held(5)
    left, middle, right = held.new(2), held.new(1), held.new(2)
    held.release(left, right)
    assert held.allocations.take(3 * PAGE) is None
    held.release(middle)
    assert held.used_again(5)[:2] == pages(0, 5)


def test_what_no_version_needed_is_given_back_after_so_many() -> None:
    held = Held(16)
    often, rare = held.new(SLACK_PARTS), held.new(2 * SLACK_PARTS)
    held.release(often, rare)
    given = []
    for _ in range(KEPT_VERSIONS + 1):
        given.append(held.allocations.next_version())
        held.release(held.used_again(SLACK_PARTS))
    most = often.nbytes // PAGE + 1  # and a part for slack
    assert given == [[]] * KEPT_VERSIONS + [[pages(most, 3 * SLACK_PARTS - most)]]


def test_what_others_still_hold_is_not_given_back() -> None:
    held = Held(8)
    (kept,) = held.released_ones(2, 1)
    held.rows.add(kept.row)
    versions = range(2 * KEPT_VERSIONS)
    assert [held.allocations.next_version() for _ in versions] == [[] for _ in versions]
    held.rows.clear()
    given = [held.allocations.next_version() for _ in range(KEPT_VERSIONS + 1)]
    assert [*held.allocations.give_back(), *(span for spans in given for span in spans)] == [
        pages(0, 2)
    ]


def test_there_are_no_more_regions_than_rows() -> None:
    held = Held(8, rows=2)
    first = held.new(1)
    assert [first.row, held.new(1).row] == [0, 1]
    assert held.allocations.take(PAGE) is None
    held.release(first)
    assert held.used_again(1) == first


def test_a_allocation_without_memory_is_a_hole() -> None:
    held = Held(4, rows=1)
    allocation = held.new(4)
    held.allocations.put_back(allocation)
    assert held.allocations.take(4 * PAGE) is None, "the system will have no more the next moment"
    held.allocations.next_version()
    assert held.new(4) == allocation


def test_one_that_is_larger_than_the_memory_has_no_room() -> None:
    held = Held(4)
    assert held.allocations.take(5 * PAGE) is None
    assert held.new(4)


SMALLEST, LARGEST, RESULTS, VERSIONS = 80, 120, 20, 30  # pages of results of different sizes


@pytest.mark.parametrize("seed", range(5))
def test_sizes_that_vary_need_a_quarter_more_than_what_is_in_use_at_once(seed: int) -> None:
    """In each version 20 results of 8 to 12 MB, say, of which none is released before its end."""
    held, sizes = Held(100 * LARGEST * RESULTS, rows=RESULTS), random.Random(seed)
    needed, pages_held, new = [], [], 0
    for version in range(VERSIONS):
        wanted = [sizes.randint(SMALLEST, LARGEST) for _ in range(RESULTS)]
        taken = [held.take(count) for count in wanted]
        needed.append(sum(wanted))
        pages_held.append(held.allocations.nbytes // PAGE)
        new += sum(each.fresh.nbytes for each in taken) // PAGE if version >= KEPT_VERSIONS else 0
        held.release(*(each.allocation for each in taken))
        held.allocations.next_version()
    most = [max(needed[max(i - KEPT_VERSIONS, 0) : i + 1]) for i in range(VERSIONS)]
    assert all(have <= 1.25 * need for have, need in zip(pages_held, most, strict=True))
    assert new < 0.1 * sum(needed), "pages are used again"


def test_results_of_one_size_take_pages_once() -> None:
    held, fresh, emptied = Held(1000), 0, []
    for _ in range(VERSIONS):
        taken = [held.take(7) for _ in range(RESULTS)]
        fresh += sum(each.fresh.nbytes for each in taken)
        held.release(*(each.allocation for each in taken))
        emptied += held.allocations.next_version()
    assert (fresh, emptied) == (7 * RESULTS * PAGE, [])


class ScenarioRun(RuleBasedStateMachine):
    """Takes, releases and versions in any order; `looking` are the rows that others hold."""

    PAGES, ROWS = 24, 7

    def __init__(self) -> None:
        super().__init__()
        self.looking: set[int] = set()
        self.held: dict[int, Allocation] = {}  # by rank 0
        self.left: dict[int, Allocation] = {}  # by rank 0, and perhaps not by others
        self.paged: set[int] = set()  # pages that have memory
        self.released: deque[int] = deque()
        self.allocations = WindowAllocator(
            self.PAGES * PAGE, self.ROWS, self._is_free, self.released
        )

    def _is_free(self, row: int) -> bool:
        assert row in self.left, "rank 0 itself looks there"
        is_free = row not in self.looking
        if is_free:
            del self.left[row]
        return is_free

    def _empty(self, spans: list[Span]) -> None:
        for span in spans:
            emptied = numbers(span)
            assert emptied <= self.paged
            assert not any(emptied & numbers(allocation) for allocation in self._in_use())
            self.paged -= emptied

    def _in_use(self) -> list[Allocation]:
        return [*self.held.values(), *self.left.values()]

    @rule(nbytes=st.integers(1, PAGES * PAGE), populated=st.booleans())
    def take(self, nbytes: int, populated: bool) -> None:
        taken = self.allocations.take(nbytes)
        if taken is None:
            return
        allocation, emptied, fresh = taken
        self._empty(emptied)
        assert 0 <= allocation.nbytes - nbytes < PAGE
        assert allocation.row not in {other.row for other in self._in_use()}
        assert numbers(fresh) == numbers(allocation) - self.paged
        if fresh.nbytes and not populated:
            self.allocations.put_back(allocation)
            self.paged -= numbers(allocation)
            return
        self.paged |= numbers(allocation)
        self.held[allocation.row] = allocation
        self.looking.add(allocation.row)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(self.held)))
        self.left[row] = self.held.pop(row)
        self.released.append(row)

    @precondition(lambda self: self.looking)
    @rule(data=st.data())
    def look_away(self, data: st.DataObject) -> None:
        self.looking.discard(data.draw(st.sampled_from(sorted(self.looking))))

    @rule()
    def next_version(self) -> None:
        self._empty(self.allocations.next_version())

    @invariant()
    def no_two_in_use_overlap(self) -> None:
        in_use = sorted(self._in_use())
        assert all(one.start + one.nbytes <= two.start for one, two in pairwise(in_use))
        assert len({allocation.row for allocation in in_use}) == len(in_use)
        assert all(numbers(allocation) <= self.paged for allocation in in_use)

    @invariant()
    def what_has_pages_is_counted(self) -> None:
        assert self.allocations.nbytes == len(self.paged) * PAGE

    def teardown(self) -> None:
        self.looking.clear()
        for row in list(self.held):
            self.left[row] = self.held.pop(row)
            self.released.append(row)
        self._empty(self.allocations.next_version())
        self._empty(self.allocations.give_back())
        assert self.paged == set()
        whole = self.allocations.take(self.PAGES * PAGE)
        assert whole is not None, "not all of it came back"
        assert whole.allocation[:2] == (0, self.PAGES * PAGE)


def numbers(span: Span | Allocation) -> set[int]:
    """Of its pages."""
    return set(range(span.start // PAGE, (span.start + span.nbytes) // PAGE))


TestStory = ScenarioRun.TestCase
TestStory.settings = settings(max_examples=60, stateful_step_count=40)
