"""Groups of ranks by host: from hosts to numbers and back."""

from hypothesis import given
from hypothesis import strategies as st

from ftcomm.protocol.host_groups import (
    grouping_of,
    has_two_levels,
    is_grouping,
    largest_level,
    members_of,
    ranks_by_host,
)


def test_hosts_are_numbered_by_their_lowest_ranks_whatever_they_are_called() -> None:
    assert grouping_of(["z", "a", "z", "b"]) == (0, 1, 0, 2)
    assert grouping_of(["a", "z", "a", "b"]) == (0, 1, 0, 2)
    assert members_of((0, 1, 0, 2)) == ((0, 2), (1,), (3,))


def test_hosts_are_numbered_zone_by_zone_each_in_the_zone_of_its_lowest_rank() -> None:
    assert grouping_of(["a", "b", "c", "d"], ["x", "y", "x", "y"]) == (0, 2, 1, 3)
    assert grouping_of(["a", "a", "b", "c"], ["x", "y", "y", "x"]) == (0, 0, 2, 1)
    assert grouping_of(["a", "b"], ["", ""]) == (0, 1)


def test_ranks_are_ordered_host_by_host_from_the_first_one_on() -> None:
    interleaved = grouping_of(["a", "a", "b", "b", "c", "c"], ["x", "x", "y", "y", "x", "x"])
    assert interleaved == (0, 0, 2, 2, 1, 1)
    assert ranks_by_host(interleaved) == (0, 1, 4, 5, 2, 3)
    assert ranks_by_host(interleaved, 5) == (5, 4, 2, 3, 0, 1)
    assert ranks_by_host(range(4), 2) == (2, 3, 0, 1)


def test_two_levels_are_several_hosts_and_several_ranks_on_one() -> None:
    flat = [(), (0,), (0, 0, 0), (0, 1, 2)]
    assert [has_two_levels(grouping) for grouping in flat] == [False] * 4
    assert has_two_levels((0, 1, 1))


def test_the_largest_level_is_a_host_or_one_rank_of_each() -> None:
    of = {(): 7, (0,) * 7: 7, (*range(7),): 7, (0, 0, 0, 1): 3, (0, 0, 1, 2): 3, (0, 1, 0, 1): 2}
    assert {grouping: largest_level(grouping, 7) for grouping in of} == of


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from("xyz")), max_size=20))
def test_only_numbers_that_hosts_can_give_are_a_grouping(ranks: list[tuple[str, str]]) -> None:
    hosts = [host for host, _ in ranks]
    grouping = grouping_of(hosts, [zone for _, zone in ranks])
    assert is_grouping(grouping)
    assert sorted(rank for ranks in members_of(grouping) for rank in ranks) == [*range(len(hosts))]
    assert not is_grouping([number + 1 for number in grouping]) or not hosts
