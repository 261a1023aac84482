"""The pool hands out memory again only when nothing refers to it."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ftcomm.config.peak_usage import KEPT_VERSIONS
from ftcomm.errors import ProtocolError
from ftcomm.memory.pool import LoggedResult, Pool, dtype_from_wire, size_class, stored_from_wire

F32 = np.dtype(np.float32)
COUNT = Pool.MIN_BYTES // 4
LENT = Pool.MIN_LENT_BYTES // 4


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def logged(pool: Pool, count: int = COUNT) -> LoggedResult:
    return LoggedResult(pool.take(count, F32), (count,))


def test_a_dropped_result_s_memory_is_taken_again() -> None:
    pool = Pool()
    dropped = [logged(pool)]
    where = address(dropped[0].flat)
    pool.give(dropped.pop())
    assert address(pool.take(COUNT // 2, np.dtype(np.float64))) == where


def test_memory_that_a_user_looks_at_is_not_taken_again() -> None:
    pool = Pool()
    dropped = [logged(pool)]
    view = dropped[0].flat.reshape(2, -1)
    view.flags.writeable = False
    pool.give(dropped.pop())
    assert not np.shares_memory(pool.take(COUNT, F32), view)


def test_memory_that_is_being_served_is_not_taken_again() -> None:
    pool = Pool()
    dropped = [logged(pool)]
    raw = dropped[0].raw()
    pool.give(dropped.pop())
    assert not np.shares_memory(pool.take(COUNT, F32), np.asarray(raw))


def test_a_small_part_of_somebody_else_s_memory_is_not_taken() -> None:
    pool = Pool()
    foreign = [LoggedResult(np.zeros(16 * COUNT, np.uint8)[: 4 * COUNT].view(F32), (COUNT,))]
    pool.give(foreign.pop())
    assert pool.nbytes == 0


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros((4, COUNT), np.uint8).reshape(-1),
        lambda: read_only(np.zeros(4 * COUNT, np.uint8)).view(F32),
    ],
    ids=["of two dimensions", "read-only"],
)
def test_memory_of_a_user_that_is_no_writable_row_of_bytes_is_not_taken(
    make: Callable[[], Any],
) -> None:
    pool = Pool()
    sent = [LoggedResult(make(), (4 * COUNT,))]
    pool.give(sent.pop())
    taken = pool.take(COUNT, F32)
    taken[:] = 1
    assert taken.shape == (COUNT,)


def test_nothing_is_taken_again_where_references_are_not_counted_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ftcomm.memory.pool._COUNTS_ARE_EXACT", False)
    pool = Pool()
    dropped = [logged(pool)]
    pool.give(dropped.pop())
    assert pool.nbytes == 0


def test_small_results_are_left_to_the_allocator() -> None:
    pool = Pool()
    dropped = [logged(pool, COUNT - 1)]
    pool.give(dropped.pop())
    assert pool.nbytes == 0


def test_the_memory_of_a_versions_newest_result_is_taken_first() -> None:
    pool = Pool()
    log = [logged(pool) for _ in range(3)]
    addresses = [address(stored.flat) for stored in log]
    pool.renew(log)
    taken = [logged(pool) for _ in range(3)]
    assert [address(stored.flat) for stored in taken] == addresses[::-1]


def test_memory_goes_when_some_versions_have_not_needed_it() -> None:
    pool = Pool()
    pool.renew([logged(pool), logged(pool)])
    held = []
    for _ in range(KEPT_VERSIONS):
        pool.renew([logged(pool)])
        held.append(pool.nbytes // (4 * COUNT))
    assert held == [2, 2, 2, 1]


@given(st.integers(Pool.MIN_BYTES, 1 << 40))
def test_a_buffer_is_at_most_an_eighth_larger_than_what_it_is_made_for(nbytes: int) -> None:
    size = size_class(nbytes)
    assert nbytes <= size <= 1.125 * nbytes
    assert size_class(size) == size


def test_a_result_takes_the_best_buffer_of_up_to_twice_its_class() -> None:
    pool = Pool()
    sizes = (COUNT, 2 * COUNT, 3 * COUNT, 4 * COUNT)
    where = {}
    for held in [[logged(pool, count)] for count in sizes]:
        where[held[0].flat.size] = address(held[0].flat)
        pool.give(held.pop())
    results = [logged(pool, count) for count in (COUNT + 1, COUNT + 1, 3 * COUNT, 2 * COUNT)]
    addresses = [address(result.flat) for result in results]
    assert addresses[:1] + addresses[2:] == [where[count * COUNT] for count in (2, 3, 4)]
    assert addresses[1] not in where.values()


def test_a_smaller_result_in_a_larger_buffer_gives_all_of_it_back() -> None:
    pool = Pool()
    pool.renew([logged(pool, 2 * COUNT)])
    pool.renew([logged(pool, COUNT + COUNT // 2)])
    assert pool.nbytes == 8 * COUNT


SMALLEST, LARGEST, RESULTS, VERSIONS = COUNT, 3 * COUNT // 2, 20, 30


@pytest.mark.parametrize("seed", range(5))
def test_sizes_that_vary_need_a_quarter_more_than_what_is_in_use_at_once(seed: int) -> None:
    """Each version logs 20 results and takes a place for a while beside each."""
    pool, sizes = Pool(), random.Random(seed)
    needed, held = [0], []
    for _ in range(VERSIONS):
        counts = [sizes.randint(SMALLEST, LARGEST) for _ in range(RESULTS)]
        log = []
        for count in counts:
            scratch = pool.take(count, F32).base
            log.append(logged(pool, count))
            assert isinstance(scratch, np.ndarray)
            pool.put(scratch)
            del scratch
            in_use = sum(stored.raw().nbytes for stored in log)
            held.append((pool.nbytes + in_use, max(*needed[-KEPT_VERSIONS:], in_use)))
        needed.append(sum(4 * count for count in counts) + 4 * LARGEST)
        pool.renew(log)
    assert all(have <= 1.125 * 1.25 * (need + 4 * LARGEST) for have, need in held)


@pytest.mark.parametrize(("limit", "buffers"), [(1 << 40, 1), (4 * 4 * COUNT, 0)])
def test_what_is_too_small_for_others_is_held_as_slack_below_the_limit(
    limit: int, buffers: int
) -> None:
    pool = Pool()
    pool.keep_within(limit)
    pool.renew([logged(pool) for _ in range(4)])
    assert pool.nbytes == 4 * 4 * COUNT
    large = logged(pool, 4 * COUNT)
    assert (pool.nbytes, large.flat.nbytes) == (buffers * 4 * COUNT, 4 * 4 * COUNT)


def test_of_what_does_not_fit_the_oldest_goes_first() -> None:
    pool = Pool()
    for count in (COUNT, 16 * COUNT):
        pool.renew([logged(pool, count)])
    assert pool.nbytes == 17 * 4 * COUNT
    assert logged(pool, 4 * COUNT)
    assert pool.nbytes == 16 * 4 * COUNT


def test_what_the_user_was_lent_is_taken_again_when_nothing_refers_to_it() -> None:
    pool = Pool()
    result = pool.lend(LENT, F32).reshape(2, -1)
    where, row = address(result), result[1]
    del result
    other = pool.lend(LENT, F32)
    assert not np.shares_memory(other, row)
    del row
    assert address(pool.take(LENT, F32)) == where


def test_what_a_user_has_released_gives_way_to_what_is_lent() -> None:
    pool = Pool()
    held = [pool.lend(count, F32) for count in (LENT, LENT, 8 * LENT)]
    del held[0], held[0]
    larger = pool.lend(4 * LENT, F32)
    assert [memory.nbytes for _, memory in pool._lent] == [32 * LENT, 16 * LENT]
    assert not np.shares_memory(larger, held[0])


def test_little_is_remembered_of_what_users_were_lent() -> None:
    pool = Pool()
    held = [pool.lend(count, F32) for count in range(LENT, LENT + 2 * Pool.MAX_LENT)]
    assert len(pool._lent) == Pool.MAX_LENT < len(held)
    held.append(pool.lend(Pool.MAX_LENT_BYTES, np.dtype(np.uint8)))
    assert len(pool._lent) == 1
    pool.lend(Pool.MAX_LENT_BYTES + 1, np.dtype(np.uint8))
    assert pool._lent == []


def test_lent_memory_goes_when_some_versions_have_not_needed_it() -> None:
    pool = Pool()
    pool.lend(LENT, F32)
    held = []
    for _ in range(KEPT_VERSIONS):
        pool.renew([])
        held.append(len(pool._lent))
    assert held == [1, 1, 1, 0]


@given(st.lists(st.integers(0, 9), max_size=40))
@example([0, 1, 0, 0])  # what one dropped may go to one only
def test_no_two_results_in_use_share_memory(moves: list[int]) -> None:
    """Each number takes a buffer (even) or drops one (odd), and now and then a view is kept."""
    pool = Pool()
    held: list[LoggedResult] = []
    views: list[np.ndarray[Any, Any]] = []
    for move in moves:
        if move in (2, 3):
            views.append(pool.lend(LENT + move, F32).reshape(-1, 1))
            del views[: -move - 1]
        elif move % 2 == 0:
            held.append(logged(pool, LENT + move % 3))
        elif held:
            index = move % len(held)
            if move > 5:
                views.append(held[index].flat[1:])
            pool.give(held.pop(index))
    arrays = sorted([*(stored.flat for stored in held), *views], key=address)
    assert all(address(a) + a.nbytes <= address(b) for a, b in itertools.pairwise(arrays))


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [(99, (1,), 4), (0, (1,), 1), (11, (2,), 4), (11, (-1,), -4), (11, (1 << 40,), 1 << 42)],
)
def test_an_announcement_that_contradicts_itself_is_refused(
    dtype: int, shape: tuple[int, ...], nbytes: int
) -> None:
    with pytest.raises(ProtocolError):
        dtype_from_wire(dtype, shape, nbytes, 1 << 30)


def test_an_announced_result_above_the_limit_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a result of 24 bytes announced as float32"):
        dtype_from_wire(11, (2, 3), 24, 23)


def test_a_result_that_came_owns_its_bytes() -> None:
    raw = np.arange(24, dtype=np.uint8)
    stored = stored_from_wire(dtype_from_wire(11, (2, 3), 24, 24), (2, 3), raw)
    assert (stored.flat.dtype, stored.raw(), stored.dtype) == (F32, raw.data, 11)
    assert np.shares_memory(stored.flat, raw)
