"""Arrays of users: accepted unchanged, or refused by name with the position unchanged."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ftcomm

REDUCING = ("allreduce", "reduce")
CALLS = ["allreduce", "broadcast", "allgather", "allgatherv", "reduce", "gather", "gatherv"]


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


def read_only(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    x.flags.writeable = False
    return x


TAKEN = {
    "every other column": np.arange(12.0).reshape(3, 4)[:, ::2],
    "reversed": np.arange(5)[::-1],
    "transposed": np.arange(6, dtype="f4").reshape(2, 3).T,
    "Fortran order": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "read-only": read_only(np.arange(3.0)),
    "big-endian": np.arange(3, dtype=">f8"),
    "broadcast view": np.broadcast_to(np.float32(2), (3, 2)),
    "empty": np.zeros((0, 4), np.int8),
    "list of lists": [[1, 2], [3, 4]],
    "tuple of bools": (True, False),
    "range": range(4),
    "bytearray": bytearray(b"abc"),
    "memoryview": memoryview(b"abc"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", TAKEN)
def test_what_is_an_array_is_taken(comm: ftcomm.Communicator, call: str, name: str) -> None:
    x = TAKEN[name]
    plain = np.asarray(x)
    before = plain.copy()
    result = getattr(comm, call)(x, **({"op": "max"} if call in REDUCING else {}))
    got = result[0] if call in ("allgather", "gather") else result
    assert (got.shape, got.tolist()) == (plain.shape, before.tolist())
    assert got.dtype == plain.dtype.newbyteorder("=")
    assert np.asarray(x).tobytes() == before.tobytes()


@pytest.mark.parametrize("call", ["allreduce", "broadcast", "allgather", "reduce", "gather"])
def test_what_has_no_dimension_stays_so(comm: ftcomm.Communicator, call: str) -> None:
    shapes = [np.shape(getattr(comm, call)(x)) for x in (3, 2.5, np.float32(1), np.array(1j))]
    assert set(shapes) == ({(1,)} if call in ("allgather", "gather") else {()})


def test_a_file_in_memory_and_a_matrix_become_arrays(
    comm: ftcomm.Communicator, tmp_path: Path
) -> None:
    mapped = np.memmap(tmp_path / "x", np.float64, "w+", shape=(3,))
    mapped[:] = [1, 2, 3]
    matrix = np.ones((2, 2)).view(np.matrix)
    for x, wanted in ((mapped, [1.0, 2.0, 3.0]), (matrix, [[1.0, 1.0], [1.0, 1.0]])):
        result = comm.allreduce(x)
        assert (type(result), result.tolist()) == (np.ndarray, wanted)


class Sparse:
    """As the matrices of scipy: no array, and numpy takes it as one object."""

    shape = (3, 3)

    def toarray(self) -> np.ndarray[Any, Any]:
        return np.zeros(self.shape)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "none": (None, TypeError, "the input is None; pass an array"),
    "masked": (np.ma.masked_less([1, 2], 2), TypeError, "masked array, whose mask .* x.filled"),
    "ragged": ([[1], [1, 2]], ValueError, "a list, does not become one array: .* allgather_object"),
    "objects": ([1, None], TypeError, "is a list, which numpy takes as dtype object"),
    "sparse": (Sparse(), TypeError, "is a Sparse, which numpy takes as dtype object"),
    "dict": ({"a": 1}, TypeError, "is a dict, which numpy takes as dtype object"),
    "set": ({1, 2}, TypeError, "is a set, which numpy takes as dtype object"),
    "generator": ((i for i in range(3)), TypeError, "is a generator, which"),
    "text": ("abc", TypeError, "dtype str96 is not carried"),
    "strings": (["a", "b"], TypeError, "dtype str32 is not carried"),
    "bytes": (b"abc", TypeError, "dtype bytes24 is not carried"),
    "dates": (np.zeros(2, "datetime64[s]"), TypeError, "is not carried"),
    "durations": (np.zeros(2, "timedelta64[s]"), TypeError, "is not carried"),
    "records": (np.zeros(2, "i4,f4"), TypeError, "is not carried"),
    "long double": (np.zeros(2, np.longdouble), TypeError, "is not carried"),
    "huge": ([2**70], TypeError, "is a list, which numpy takes as dtype object"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_none_is_refused_by_name_and_the_position_stays(
    comm: ftcomm.Communicator, call: str, name: str
) -> None:
    x, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        getattr(comm, call)(x)
    assert (comm.seqno, comm.is_usable) == (0, True)


def test_stats_count_calls_bytes_and_time(comm: ftcomm.Communicator) -> None:
    comm.allreduce(np.zeros(4))
    comm.allreduce(lambda: np.zeros(2))
    comm.barrier()
    with pytest.raises(TypeError):
        comm.allreduce(None)
    comm.load_checkpoint([1])
    comm.checkpoint([1, 2])
    stats = comm.stats()
    document = stats.to_dict()
    counts = {kind: (row["count"], row["nbytes"]) for kind, row in document["kinds"].items()}
    assert counts == {
        "allreduce": (2, 48),
        "barrier": (1, 0),
        "load": (1, 10),
        "checkpoint": (1, 11),
    }
    assert all(row["seconds"] > 0 for row in document["kinds"].values())
    assert (stats.replays, stats.fetched, stats.epochs) == (0, 0, 1)
    comm.barrier()
    assert stats.kinds["barrier"].count == 1  # a snapshot


class Celsius:
    def __init__(self, degrees: list[float]) -> None:
        self.degrees = degrees


class Frost(Celsius):
    pass


def test_a_registered_type_whose_content_is_an_array_is_one(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftcomm.state.registered_types._by_type", {})
    monkeypatch.setattr("ftcomm.state.registered_types._by_name", {})
    ftcomm.register(Celsius, lambda c: np.array(c.degrees), lambda a: Celsius(a.tolist()))
    assert comm.allreduce(Frost([1.0, 2.0])).tolist() == [1.0, 2.0]
    ftcomm.register(Celsius, lambda c: c.degrees, Celsius)
    with pytest.raises(TypeError, match="the input is a Celsius, which numpy takes as dtype obj"):
        comm.allreduce(Celsius([1.0]))
