"""The pool hands out memory again only when nothing refers to it."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ftcomm.errors import ProtocolError
from ftcomm.values import Pool, Stored, dtype_from_wire, stored_from_wire

F32 = np.dtype(np.float32)
COUNT = Pool.MIN_BYTES // 4


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def logged(pool: Pool, count: int = COUNT) -> Stored:
    return Stored(pool.take(count, F32), (count,))


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


def test_part_of_somebody_else_s_memory_is_not_taken() -> None:
    pool = Pool()
    foreign = [Stored(np.zeros(8 * COUNT, np.uint8)[: 4 * COUNT].view(F32), (COUNT,))]
    pool.give(foreign.pop())
    assert pool.nbytes == 0


def test_nothing_is_taken_again_where_references_are_not_counted_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ftcomm.values._COUNTS_ARE_EXACT", False)
    pool = Pool()
    dropped = [logged(pool)]
    pool.give(dropped.pop())
    assert pool.nbytes == 0


def test_small_results_are_left_to_the_allocator() -> None:
    pool = Pool()
    dropped = [logged(pool, COUNT - 1)]
    pool.give(dropped.pop())
    assert pool.nbytes == 0


def test_memory_goes_when_some_versions_have_not_needed_it() -> None:
    pool = Pool()
    pool.renew([logged(pool), logged(pool)])
    held = []
    for _ in range(Pool.KEPT_VERSIONS):
        pool.renew([logged(pool)])
        held.append(pool.nbytes // (4 * COUNT))
    assert held == [2, 2, 2, 1]


def test_what_the_user_was_lent_is_taken_again_when_nothing_refers_to_it() -> None:
    pool = Pool()
    result = pool.lend(COUNT, F32).reshape(2, -1)
    where, row = address(result), result[1]
    del result
    other = pool.lend(COUNT, F32)
    assert not np.shares_memory(other, row)
    del row
    assert address(pool.take(COUNT, F32)) == where


def test_little_is_remembered_of_what_users_were_lent() -> None:
    pool = Pool()
    for count in range(COUNT, COUNT + 2 * Pool.MAX_LENT):
        pool.lend(count, F32)
    assert len(pool._lent) == Pool.MAX_LENT
    pool.lend(Pool.MAX_LENT_BYTES, np.dtype(np.uint8))
    assert len(pool._lent) == 1
    pool.lend(Pool.MAX_LENT_BYTES + 1, np.dtype(np.uint8))
    assert pool._lent == []


def test_lent_memory_goes_when_some_versions_have_not_needed_it() -> None:
    pool = Pool()
    pool.lend(COUNT, F32)
    held = []
    for _ in range(Pool.KEPT_VERSIONS):
        pool.renew([])
        held.append(len(pool._lent))
    assert held == [1, 1, 1, 0]


@given(st.lists(st.integers(0, 9), max_size=40))
@example([0, 1, 0, 0])  # what one dropped may go to one only
def test_no_two_results_in_use_share_memory(moves: list[int]) -> None:
    """Each number takes a buffer (even) or drops one (odd), and now and then a view is kept."""
    pool = Pool()
    held: list[Stored] = []
    views: list[np.ndarray[Any, Any]] = []
    for move in moves:
        if move in (2, 3):
            views.append(pool.lend(COUNT + move, F32).reshape(-1, 1))
            del views[: -move - 1]
        elif move % 2 == 0:
            held.append(logged(pool, COUNT + move % 3))
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
