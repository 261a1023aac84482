"""Kinds beyond allreduce, broadcast and allgather: in a group of one, and what they refuse."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.errors import LogLimitError, ProtocolError
from ftcomm.requests.object_payload import array_blobs, array_of, pack_item, unpack_items


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


def test_a_group_of_one_gets_its_own_back_as_its_own(comm: ftcomm.Communicator) -> None:
    x = np.arange(6.0).reshape(2, 3)
    results: list[Any] = [
        comm.allgatherv(x),
        comm.gatherv(x),
        comm.reduce(x, "mean"),
        comm.gather(x)[0],  # type: ignore[index]  # this rank is the root
        comm.scatter([x]),
        comm.scatter(x[None]),
        comm.broadcast_object(x),
        comm.allgather_object(x)[0],
    ]
    for result in results:
        assert (result.tolist(), result.dtype, result.flags.writeable) == (
            x.tolist(),
            x.dtype,
            True,
        )
        result += 1
    assert x[0, 0] == 0
    assert comm.seqno == len(results)


def test_allgatherv_without_a_copy_is_read_only(comm: ftcomm.Communicator) -> None:
    assert not comm.allgatherv(np.ones(2), copy=False).flags.writeable


def test_no_rows_and_no_columns_keep_their_shape(comm: ftcomm.Communicator) -> None:
    shapes = [comm.allgatherv(np.ones(shape)).shape for shape in [(0,), (0, 3), (3, 0)]]
    assert shapes == [(0,), (0, 3), (3, 0)]


@pytest.mark.parametrize("kind", ["allgatherv", "gatherv"])
def test_what_has_no_first_dimension_is_refused_by_name(
    comm: ftcomm.Communicator, kind: str
) -> None:
    with pytest.raises(ValueError, match=f"{kind} joins arrays .* x has none"):
        getattr(comm, kind)(3.0)
    assert comm.seqno == 0


@pytest.mark.parametrize("kind", ["reduce", "gather", "gatherv", "scatter", "broadcast_object"])
@pytest.mark.parametrize(("root", "error"), [(1, ValueError), (-1, ValueError), (0.5, TypeError)])
def test_a_root_that_is_no_rank_is_refused(
    comm: ftcomm.Communicator, kind: str, root: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="root is"):
        getattr(comm, kind)([1.0], root=root)
    assert comm.seqno == 0


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (None, TypeError, "the input is None"),
        (np.zeros((2, 3)), ValueError, r"x has shape \(2, 3\), must be \(3, ...\)"),
        (5, ValueError, r"x has shape \(\)"),
        ([np.zeros(1)] * 2, ValueError, "one part for each of 3 ranks, got 2"),
        ([np.zeros(1), np.zeros(1), 0.0], ValueError, "part 2 has no dimension"),
        ([np.zeros(1), np.zeros((1, 1)), [1.0]], ValueError, r"part 1 is float64\[1, 1\]"),
        ([np.zeros(1), np.zeros(1), [1]], ValueError, "part 2 is int64"),
        ([["a"], ["b"], ["c"]], TypeError, "dtype str"),
    ],
)
def test_parts_that_cannot_be_scattered_are_refused_by_name(
    x: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        array_blobs(x, 3, "scatter")


@pytest.mark.parametrize(
    "x",
    [
        np.arange(3),
        np.arange(12, dtype=">i2").reshape(3, 2, 2),
        [1, 2, 3],
        np.zeros((3, 0)),
        np.array_split(np.arange(7) * 1j, 3),
        [np.zeros((0, 2), bool), np.ones((4, 2), bool), np.ones((1, 2), bool)],
    ],
)
def test_each_rank_gets_its_part_and_nothing_else(x: Any) -> None:
    for rank, blob in enumerate(array_blobs(x, 3, "scatter")):
        part, wanted = array_of(blob), np.asarray(x[rank])
        assert (part.shape, part.dtype) == (wanted.shape, wanted.dtype.newbyteorder("="))
        assert part.tolist() == wanted.tolist()


def test_a_damaged_blob_is_called_so() -> None:
    with pytest.raises(ProtocolError, match="damaged scatter"):
        array_of(array_blobs(np.arange(3), 3, "scatter")[0][:-3])


def test_objects_follow_each_other() -> None:
    things = [{}, [1, (2,)], "ü" * 300, None, b""]
    blob = np.concatenate([pack_item(thing) for thing in things])
    assert list(unpack_items(blob)) == things


@pytest.mark.parametrize("call", ["broadcast_object", "allgather_object"])
def test_what_is_no_plain_data_is_refused_by_name(comm: ftcomm.Communicator, call: str) -> None:
    with pytest.raises(TypeError, match=r"obj\['a'\] is a set: pass sorted\(\) of it$"):
        getattr(comm, call)({"a": {1}})
    assert comm.seqno == 0


def weights() -> list[float]:
    raise AssertionError("it is not called")


@pytest.mark.parametrize("call", ["broadcast_object", "allgather_object", "ibroadcast_object"])
@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (weights, "obj is the function weights: functions and classes are"),
        (
            {"a": [1, weights]},
            r"obj\['a'\]\[1\] is the function weights: functions and classes are",
        ),
        (
            (lambda: 3,),
            r"obj\[0\] is the function .*<lambda>: functions and classes are",
        ),
        (
            {"loss": max},
            r"obj\['loss'\] is the function max: functions and classes are",
        ),
        ([dict], r"obj\[0\] is the class dict: functions and classes are"),
    ],
    ids=["itself", "inside", "lambda", "builtin", "class"],
)
def test_a_function_is_refused_by_name_and_path(
    comm: ftcomm.Communicator, call: str, obj: Any, words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        getattr(comm, call)(obj)
    assert comm.seqno == 0


@pytest.mark.parametrize("lazy", [False, True])
def test_a_state_with_a_function_is_refused_too(comm: ftcomm.Communicator, lazy: bool) -> None:
    with pytest.raises(TypeError, match="state is the function weights: functions and classes are"):
        comm.load_checkpoint(weights)
    comm.load_checkpoint()
    with pytest.raises(
        TypeError,
        match=r"state\['w'\] is the function weights: functions and classes are",
    ):
        comm.checkpoint({"w": weights}, lazy=lazy)
    with pytest.raises(TypeError, match="local is the function weights: functions and classes are"):
        comm.checkpoint(None, weights)


@pytest.mark.parametrize("call", ["allgatherv", "broadcast_object", "allgather_object", "gatherv"])
def test_a_result_whose_size_only_the_ranks_together_know_has_the_same_limit(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setenv("FTCOMM_LOG_LIMIT", "1000")
    with ftcomm.init("none") as comm:
        getattr(comm, call)(np.zeros(100, np.uint8))
        with pytest.raises(LogLimitError, match="the limit is 1000"):
            getattr(comm, call)(np.zeros(950, np.uint8))
        assert comm.seqno == 1
