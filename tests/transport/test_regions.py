"""Regions: who gets which part of common memory, and when somebody else may have it."""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ftcomm.transport.regions import KEPT_VERSIONS, LOOKS, PAGE, Region, Regions

MANY_ROWS = 100


class Held:
    """Regions of so many pages, and the rows that other ranks still look into."""

    def __init__(self, pages: int, rows: int = MANY_ROWS) -> None:
        self.rows: set[int] = set()
        self.looks = 0
        self.released: deque[int] = deque()
        self.regions = Regions(pages * PAGE, rows, self._is_free, self.released)

    def _is_free(self, row: int) -> bool:
        self.looks += 1
        return row not in self.rows

    def take(self, pages: int) -> tuple[Region, bool]:
        taken = self.regions.take(pages * PAGE)
        assert taken is not None
        return taken[0], taken[1] is not None

    def new(self, pages: int) -> Region:
        region, is_new = self.take(pages)
        assert is_new
        return region

    def let_go(self, pages: int, count: int) -> list[Region]:
        """So many new regions, which nobody holds any more."""
        regions = [self.new(pages) for _ in range(count)]
        for region in regions:
            self.released.append(region.row)
        return regions


@pytest.mark.parametrize(("nbytes", "pages"), [(1, 1), (PAGE, 1), (PAGE + 1, 2), (3 * PAGE, 3)])
def test_a_region_is_of_whole_pages(nbytes: int, pages: int) -> None:
    regions = Held(8).regions
    taken = [regions.take(nbytes) for _ in range(2)]
    assert taken == [
        (Region(0, pages * PAGE, 0), []),
        (Region(pages * PAGE, pages * PAGE, 1), []),
    ]


def test_a_region_is_used_again_when_rank_0_and_all_others_have_let_go_of_it() -> None:
    held = Held(8)
    first = held.new(2)
    second = held.new(2)  # rank 0 holds the first one
    held.rows.add(first.row)
    held.released.append(first.row)
    third = held.new(2)  # another rank does
    held.rows.clear()
    assert held.take(2) == (first, False)
    assert len({first, second, third}) == 3


def test_what_the_flags_say_before_rank_0_has_let_go_makes_nothing_free() -> None:
    held = Held(2)
    assert held.new(2)
    assert held.regions.take(PAGE) is None
    assert held.looks == 0


def test_the_newest_free_region_comes_first() -> None:
    held = Held(8)
    oldest, middle, newest = held.let_go(2, 3)
    assert [held.take(2) for _ in range(3)] == [(newest, False), (middle, False), (oldest, False)]


def test_another_size_does_not_take_a_free_region_while_there_is_room() -> None:
    held = Held(8)
    (two,) = held.let_go(2, 1)
    assert held.new(1).start == two.nbytes
    assert held.take(2) == (two, False)


def test_regions_that_others_hold_for_long_keep_none_from_being_used_again() -> None:
    held = Held(3 * LOOKS)
    kept = held.let_go(1, 2 * LOOKS)
    held.rows = {region.row for region in kept}
    (free,) = held.let_go(1, 1)
    looked_before = held.looks
    found = [held.take(1) for _ in range(3)]
    assert found.count((free, False)) == 1
    assert held.looks - looked_before <= 3 * LOOKS


def test_when_nothing_fits_free_regions_are_cut_anew() -> None:
    held = Held(4)
    small = held.let_go(1, 4)
    taken = held.regions.take(4 * PAGE)
    assert taken == (Region(0, 4 * PAGE, 3), small)
    assert held.regions.take(1) is None


def test_no_room_is_not_looked_for_again_until_something_is_free() -> None:
    held = Held(2 * LOOKS)
    kept = held.let_go(1, 2 * LOOKS)
    held.rows = {region.row for region in kept}
    assert held.regions.take(2 * PAGE) is None
    before = held.looks
    assert held.regions.take(2 * PAGE) is None
    assert held.looks - before == LOOKS
    held.rows.clear()
    assert held.regions.take(2 * PAGE) is not None


def test_holes_are_joined_whatever_the_order_in_which_they_came() -> None:
    held = Held(6)
    regions = [held.new(2), held.new(1), held.new(3)]
    for region in (regions[2], regions[0], regions[1]):
        held.released.append(region.row)
    assert held.new(6)[:2] == (0, 6 * PAGE)


def test_a_region_in_use_parts_two_holes() -> None:
    held = Held(5)
    left, middle, right = held.new(2), held.new(1), held.new(2)
    held.released.append(left.row)
    held.released.append(right.row)
    assert held.regions.take(3 * PAGE) is None
    held.released.append(middle.row)
    assert held.new(5)[:2] == (0, 5 * PAGE)


def test_what_no_version_has_asked_for_is_given_back_after_so_many() -> None:
    held = Held(8)
    (rare,) = held.let_go(2, 1)
    (frequent,) = held.let_go(1, 1)
    for _ in range(KEPT_VERSIONS - 1):
        assert held.regions.next_version() == []
        assert held.take(1) == (frequent, False)
        held.released.append(frequent.row)
    assert held.regions.next_version() == [rare]
    assert held.regions.next_version() == []
    assert held.new(2).start == rare.start


def test_what_others_still_hold_is_not_given_back() -> None:
    held = Held(8)
    (kept,) = held.let_go(2, 1)
    held.rows.add(kept.row)
    assert [held.regions.next_version() for _ in range(KEPT_VERSIONS + 1)] == [[]] * (
        KEPT_VERSIONS + 1
    )
    held.rows.clear()
    assert held.regions.next_version() == [kept]


def test_there_are_no_more_regions_than_rows() -> None:
    held = Held(8, rows=2)
    first = held.new(1)
    assert [first.row, held.new(1).row] == [0, 1]
    assert held.regions.take(PAGE) is None
    held.released.append(first.row)
    assert held.regions.take(2 * PAGE) == (Region(2 * PAGE, 2 * PAGE, first.row), [first])


def test_a_region_without_memory_is_put_back() -> None:
    held = Held(4, rows=1)
    region = held.new(4)
    held.regions.put_back(region)
    assert held.regions.take(4 * PAGE) is None, "the system will have no more the next moment"
    held.regions.next_version()
    assert held.new(4) == region


def test_one_that_is_larger_than_the_memory_has_no_room() -> None:
    held = Held(4)
    assert held.regions.take(5 * PAGE) is None
    assert held.new(4)


class Story(RuleBasedStateMachine):
    """Takes, releases and versions in any order; `looking` are the rows that others hold."""

    PAGES, ROWS = 24, 7

    def __init__(self) -> None:
        super().__init__()
        self.looking: set[int] = set()
        self.held: dict[int, Region] = {}  # by rank 0
        self.left: dict[int, Region] = {}  # by rank 0, and perhaps not by others
        self.released: deque[int] = deque()
        self.regions = Regions(self.PAGES * PAGE, self.ROWS, self._is_free, self.released)

    def _is_free(self, row: int) -> bool:
        assert row in self.left, "rank 0 itself looks there"
        return row not in self.looking

    def _in_use(self) -> list[Region]:
        looked_into = [region for row, region in self.left.items() if row in self.looking]
        return [*self.held.values(), *looked_into]

    @rule(nbytes=st.integers(1, PAGES * PAGE), populated=st.booleans())
    def take(self, nbytes: int, populated: bool) -> None:
        taken = self.regions.take(nbytes)
        if taken is None:
            return
        region, emptied = taken
        is_new = emptied is not None
        assert 0 <= region.nbytes - nbytes < PAGE
        assert region.row not in {other.row for other in self._in_use()}
        self.left.pop(region.row, None)
        if is_new and not populated:
            self.regions.put_back(region)
            return
        self.held[region.row] = region
        self.looking.add(region.row)

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
        in_use = self._in_use()
        for region in self.regions.next_version():
            assert region not in in_use
            assert self.left.pop(region.row) == region

    @invariant()
    def no_two_in_use_overlap(self) -> None:
        in_use = sorted(self._in_use())
        ends = [0, *(region.start + region.nbytes for region in in_use)]
        starts = [*(region.start for region in in_use), self.PAGES * PAGE]
        assert all(end <= start for end, start in zip(ends, starts, strict=True))
        assert len({region.row for region in in_use}) == len(in_use)

    def teardown(self) -> None:
        self.looking.clear()
        for row in list(self.held):
            self.left[row] = self.held.pop(row)
            self.released.append(row)
        self.regions.next_version()
        whole = self.regions.take(self.PAGES * PAGE)
        assert whole is not None, "not all of it came back"
        assert whole[0][:2] == (0, self.PAGES * PAGE)


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=60, stateful_step_count=40)
