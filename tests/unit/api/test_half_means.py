"""Means of float16 are added up in float32 and rounded once, by every way that a call takes."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.testing import local_group

Array = np.ndarray[Any, Any]
RANKS = 3
LOGS = ("whole", "contributions", "copies")
ALGORITHMS = ("auto", "ring", "recursive_doubling")


def given(rank: int, rows: int) -> Array:
    """Numbers near the end of float16, whose sums are exact in float32."""
    rng = np.random.default_rng(rank)
    return (rng.integers(30000, 65504, (rows, 2)) // 32 * 32).astype(np.float16)


def mean(rows: int) -> Array:
    """Return what every call must give."""
    total = sum(given(rank, rows).astype(np.float64) for rank in range(RANKS))
    return np.asarray(total / RANKS).astype(np.float32).astype(np.float16)


Call = Callable[[ftcomm.Communicator, Array], Any]
WHOLE: dict[str, Call] = {
    "nonblocking": lambda comm, x: comm.iallreduce(x, "mean").wait(),
    "function": lambda comm, x: comm.allreduce(lambda: x, "mean"),
    "in place": lambda comm, x: comm.allreduce(x, "mean", out=x),
    "view": lambda comm, x: comm.allreduce(x, "mean", copy=False),
    "bucketed": lambda comm, x: comm.bucketed([x, x[:1]], "mean")[0],
    "strided": lambda comm, x: comm.allreduce(np.repeat(x, 2, axis=1)[:, ::2], np.mean),
}
for name in ALGORITHMS:
    WHOLE[name] = lambda comm, x, name=name: comm.allreduce(x, "mean", algorithm=name)
PARTED: dict[str, Call] = {
    f"{kind} {log}": lambda comm, x, kind=kind, log=log: getattr(comm, kind)(x, "mean", log=log)
    for kind in ("reduce", "reduce_scatter")
    for log in LOGS
}
PARTED["reduce_scatter into out"] = lambda comm, x: comm.reduce_scatter(
    x, "mean", out=np.empty((len(x) // RANKS, 2), np.float16), log="contributions"
)
PARTED["reduce into out"] = lambda comm, x: comm.reduce(
    x, "mean", out=np.empty_like(x), log="contributions"
)


@pytest.fixture(scope="module")
def communicators() -> Iterator[Any]:
    with local_group(RANKS) as group:
        group.run(lambda comm: comm.load_checkpoint(default=None))
        yield group


@pytest.mark.parametrize("rows", [3, 300_000])
@pytest.mark.parametrize("call", WHOLE)
def test_a_mean_that_fits_is_given_to_all(communicators: Any, call: str, rows: int) -> None:
    results = communicators.run(lambda comm: WHOLE[call](comm, given(comm.rank, rows)))
    wanted = mean(rows)
    assert {(r.dtype.name, r.shape, r.tobytes()) for r in results} == {
        ("float16", wanted.shape, wanted.tobytes())
    }


@pytest.mark.parametrize("rows", [3, 300_000])
@pytest.mark.parametrize("call", PARTED)
def test_a_mean_that_fits_is_given_to_each(communicators: Any, call: str, rows: int) -> None:
    results = communicators.run(lambda comm: PARTED[call](comm, given(comm.rank, rows)))
    parts = [part for part in results if part is not None]
    joined = np.concatenate(parts)
    assert (joined.dtype, joined.tobytes()) == (np.float16, mean(rows).tobytes())


@pytest.mark.parametrize("call", ["allreduce", "reduce", "reduce_scatter"])
def test_a_group_of_one_gets_its_own_number(call: str) -> None:
    x = np.array([65504, 6e-8, np.nan, -0.0], np.float16)
    with ftcomm.init("none") as comm, np.errstate(all="raise"):
        result = getattr(comm, call)(x, "mean")
    assert (result.dtype, result.tobytes()) == (x.dtype, x.tobytes())


def test_numbers_keep_their_type(communicators: Any) -> None:
    results = communicators.run(lambda comm: comm.allreduce(np.float16(60000), "mean"))
    assert [(type(each), float(each)) for each in results] == [(np.float16, 60000.0)] * RANKS


def test_an_out_of_another_dtype_is_refused() -> None:
    with ftcomm.init("none") as comm, pytest.raises(ValueError, match=r"result is float16\[3\]"):
        comm.allreduce(np.zeros(3, np.float16), "mean", out=np.zeros(3, np.float32))


def test_forms_of_float16_and_float32_from_one_line_differ() -> None:
    with ftcomm.init("none") as comm:
        found = [comm.allreduce(np.ones(2, d), "mean").dtype for d in ("f2", "f4", "f2")]
    assert found == [np.float16, np.float32, np.float16]


def test_a_sum_of_float16_is_one_of_float16(communicators: Any) -> None:
    results = communicators.run(lambda comm: comm.allreduce(np.full(2, 60000, "f2")))
    assert [float(each[0]) for each in results] == [np.inf] * RANKS
