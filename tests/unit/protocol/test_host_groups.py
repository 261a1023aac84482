"""Groups of ranks by host: from hosts to numbers and back."""

from hypothesis import given
from hypothesis import strategies as st

from ftcomm.protocol.host_groups import (
    are_neighbours,
    grouping_of,
    is_grouping,
    is_hierarchical,
    members_of,
)


def test_hosts_are_numbered_by_their_lowest_ranks_whatever_they_are_called() -> None:
    assert grouping_of(["z", "a", "z", "b"]) == (0, 1, 0, 2)
    assert grouping_of(["a", "z", "a", "b"]) == (0, 1, 0, 2)
    assert members_of((0, 1, 0, 2)) == ((0, 2), (1,), (3,))


def test_hosts_are_numbered_zone_by_zone_each_in_the_zone_of_its_lowest_rank() -> None:
    assert grouping_of(["a", "b", "c", "d"], ["x", "y", "x", "y"]) == (0, 2, 1, 3)
    assert grouping_of(["a", "a", "b", "c"], ["x", "y", "y", "x"]) == (0, 0, 2, 1)
    assert grouping_of(["a", "b"], ["", ""]) == (0, 1)


def test_ranks_of_a_host_are_neighbours_in_whatever_zone_the_next_host_is() -> None:
    interleaved = grouping_of(["a", "a", "b", "b", "c", "c"], ["x", "x", "y", "y", "x", "x"])
    assert interleaved == (0, 0, 2, 2, 1, 1)
    assert are_neighbours(interleaved)
    assert not are_neighbours((0, 1, 0))


def test_a_hierarchy_has_several_hosts_and_several_ranks_on_one() -> None:
    flat = [(), (0,), (0, 0, 0), (0, 1, 2)]
    assert [is_hierarchical(grouping) for grouping in flat] == [False] * 4
    assert is_hierarchical((0, 1, 1))


def test_a_host_too_small_beside_the_largest_makes_a_grouping_flat() -> None:
    """One rank beside many may drive the shares of all of them; many such hosts may not."""
    assert is_hierarchical((*(0,) * 63, 1))
    assert not is_hierarchical((*(0,) * 8, *range(1, 9)))


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from("xyz")), max_size=20))
def test_only_numbers_that_hosts_can_give_are_a_grouping(ranks: list[tuple[str, str]]) -> None:
    hosts = [host for host, _ in ranks]
    grouping = grouping_of(hosts, [zone for _, zone in ranks])
    assert is_grouping(grouping)
    assert sorted(rank for ranks in members_of(grouping) for rank in ranks) == [*range(len(hosts))]
    assert not is_grouping([number + 1 for number in grouping]) or not hosts
