"""Functions that combine one array into the other, and elements that are no dtype's."""

from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.collectives.op_argument import Array, reduction
from ftcomm.collectives.reductions import make_reducer
from ftcomm.testing import local_group

ENTRY = np.dtype([("count", "<i4"), ("low", "<f4"), ("high", "<f4")])  # 12 bytes


def subtract(source: Array, destination: Array) -> None:
    """Not commutative, so it tells which operand is which."""
    np.subtract(destination, source, out=destination)


def add_into(source: Array, destination: Array) -> Array:
    return np.add(destination, source, out=destination)


def merge(source: Array, destination: Array) -> None:
    source, destination = source.view(ENTRY), destination.view(ENTRY)
    destination["count"] += source["count"]
    np.minimum(destination["low"], source["low"], out=destination["low"])
    np.maximum(destination["high"], source["high"], out=destination["high"])


MERGE = ftcomm.reduction(merge, name="merge", in_place=True, itemsize=ENTRY.itemsize)


def entries(rank: int, count: int = 5) -> np.ndarray[Any, Any]:
    made = np.zeros(count, ENTRY)
    made["count"] = np.arange(count) + 100 * rank
    made["low"] = (np.arange(count) * 7 + 3 * rank) % 5
    made["high"] = made["low"] + rank % 2
    return made


@pytest.mark.parametrize("place", ["new", "accumulator", "operand"])
@pytest.mark.parametrize("shape", [None, (2, 2)])
def test_the_accumulator_is_the_destination_wherever_the_result_goes(
    place: str, shape: tuple[int, ...] | None
) -> None:
    op = reduction(subtract, name="subtract", in_place=True, elementwise=shape is None)
    accumulator, operand = np.array([9.0, 8, 7, 6]), np.array([1.0, 2, 3, 4])
    out = {"new": np.empty(4), "accumulator": accumulator, "operand": operand}[place]
    make_reducer(op, np.dtype(float), shape=shape).combine(accumulator, operand, out)
    assert out.tolist() == [8, 6, 4, 2]
    if place == "new":
        assert (accumulator[0], operand[0]) == (9, 1)


def test_the_source_is_read_only_and_has_the_shape_of_the_input() -> None:
    seen: list[Any] = []

    def look(source: Array, destination: Array) -> None:
        seen.append((source.shape, destination.shape, source.flags.writeable))
        with pytest.raises(ValueError, match="WRITEABLE"):
            source.setflags(write=True)

    op = reduction(look, in_place=True, elementwise=False, name="look")
    make_reducer(op, np.dtype(float), shape=(3, 2)).combine(*np.ones((3, 6)))
    assert seen == [((3, 2), (3, 2), False)]


@pytest.mark.parametrize(
    "returns",
    [lambda a, b: a + b, lambda a, _: a, lambda *_: 3],
    ids=["new", "source", "other"],
)
def test_a_function_that_returns_its_result_is_not_in_place(returns: Any) -> None:
    op = reduction(returns, name="returns", in_place=True)
    with pytest.raises(TypeError, match="declared in_place: it must write into its second array"):
        make_reducer(op, np.dtype(float)).combine(*np.ones((3, 4)))


@pytest.mark.parametrize(
    ("itemsize", "error", "words"),
    [
        (0, ValueError, "itemsize is 0, must be at least 1"),
        (-8, ValueError, "itemsize is -8"),
        (True, TypeError, "itemsize is a bool, must be an int"),
        (8.0, TypeError, "itemsize is a float"),
    ],
)
def test_an_itemsize_that_means_nothing_is_refused(
    itemsize: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ftcomm.reduction(merge, name="merge", itemsize=itemsize)


def test_an_input_that_has_no_whole_elements_is_refused() -> None:
    with ftcomm.init("none") as comm:
        with pytest.raises(TypeError, match=r"elements of 12 bytes in arrays of uint8, .* float"):
            comm.allreduce(np.ones(3), MERGE)
        with pytest.raises(ValueError, match="elements of 12 bytes, and the input has 13 bytes"):
            comm.allreduce(np.ones(13, np.uint8), MERGE)
        with pytest.raises(ValueError, match="and a row of the input has 6 bytes"):
            comm.reduce_scatter(np.ones((6, 6), np.uint8), MERGE)
        assert comm.seqno == 0
        assert comm.allreduce(entries(0).view(np.uint8), MERGE).tobytes() == entries(0).tobytes()


@pytest.mark.parametrize("count", [5, 40_000])
def test_ranks_combine_elements_that_are_no_dtypes(count: int) -> None:
    """Large ones too: no call sees a part of an element."""
    want = entries(0, count)
    for rank in (1, 2):
        merge(entries(rank, count), want)
    with local_group(3) as group:

        def on_a_rank(comm: ftcomm.Communicator) -> list[bytes]:
            mine = entries(comm.rank, count).view(np.uint8)
            reduced = comm.reduce(mine, MERGE, root=1)
            return [
                comm.allreduce(mine, MERGE).tobytes(),
                b"" if reduced is None else bytes(reduced),
            ]

        results = group.run(on_a_rank)
    assert [of_all for of_all, _ in results] == [want.tobytes()] * 3
    assert [of_root for _, of_root in results] == [b"", want.tobytes(), b""]


@pytest.mark.parametrize("count", [3, 300_000])
def test_an_in_place_sum_is_that_of_the_function_that_returns(count: int) -> None:
    x = np.random.default_rng(5).standard_normal((3, count))
    into = ftcomm.reduction(add_into, name="into", in_place=True)
    with local_group(3) as group:
        sums = group.run(
            lambda comm: [
                comm.allreduce(x[comm.rank], op).tobytes()
                for op in (into, ftcomm.reduction(np.add, name="add"))
            ]
        )
    assert len({result for of_rank in sums for result in of_rank}) == 1
