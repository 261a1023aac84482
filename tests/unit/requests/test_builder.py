"""Counting broadcasts towards a flush: alike on all ranks, whatever went wrong locally."""

from dataclasses import dataclass

import numpy as np
import pytest

from ftcomm.collectives.op_argument import reduction
from ftcomm.config.algorithm_table import DEFAULT_TABLE, AlgorithmTable, table_in_text
from ftcomm.protocol.signature import Algorithm, Kind, is_compatible
from ftcomm.requests.builder import FLUSH_BROADCASTS, RequestBuilder
from ftcomm.requests.request import Request

SITE = "train.py:1"


@dataclass
class Group:
    rank: int = 0
    world_size: int = 3
    algorithm: str = "auto"
    table: AlgorithmTable = DEFAULT_TABLE
    grouping: tuple[int, ...] = ()
    pythons: tuple[str, ...] = ()


def broadcast(factory: RequestBuilder) -> Request:
    return factory.broadcast(np.zeros(3), 0, SITE)


def counted(factory: RequestBuilder, call: Request) -> None:
    """What a communicator does when a call has ended well."""
    factory.completed(call.kind, call.form.nbytes)


def test_the_last_of_many_broadcasts_flushes_and_the_count_begins_again() -> None:
    factory = RequestBuilder(Group())
    flushes = []
    for number in range(2 * FLUSH_BROADCASTS + 1):
        call = broadcast(factory)
        counted(factory, call)
        if call.flush:
            flushes.append(number)
    assert flushes == [FLUSH_BROADCASTS - 1, 2 * FLUSH_BROADCASTS - 1]


def test_a_call_that_did_not_complete_is_not_counted() -> None:
    one, other = RequestBuilder(Group()), RequestBuilder(Group(rank=1))
    for _ in range(10):
        broadcast(one)  # raised locally: an interrupted call, a wrong out, no room in the log
    for _ in range(FLUSH_BROADCASTS - 1):
        counted(one, broadcast(one))
        counted(other, broadcast(other))
    assert broadcast(one).flush is broadcast(other).flush is True


def test_a_synchronising_call_starts_the_count_again() -> None:
    factory = RequestBuilder(Group())
    for _ in range(FLUSH_BROADCASTS - 1):
        counted(factory, broadcast(factory))
    counted(factory, factory.allgather(np.zeros(1), SITE))
    assert broadcast(factory).flush is False


def test_an_object_that_is_called_needs_a_name() -> None:
    class Adder:
        __hash__ = None  # type: ignore[assignment]  # that is the point

        def __call__(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return a + b

    with pytest.raises(TypeError, match="op is an object of type Adder, which has no Python code"):
        RequestBuilder(Group()).allreduce(np.zeros(3), Adder(), None, SITE)
    named = reduction(Adder(), name="adder")
    call = RequestBuilder(Group()).allreduce(np.zeros(3), named, None, SITE)
    assert call.form.reducer is not None


def test_an_unknown_algorithm_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no algorithm is called 'tree'; use one of auto, ring"):
        RequestBuilder(Group()).allreduce(np.zeros(3), "sum", "tree", SITE)


def test_a_wish_of_the_whole_job_is_not_for_reductions_that_go_one_way_only() -> None:
    op = reduction(np.matmul, elementwise=False, commutative=False)
    call = RequestBuilder(Group(algorithm="ring")).allreduce(np.zeros((2, 2)), op, None, SITE)
    assert call.form.schedule is not None
    assert call.form.schedule.algorithm is Algorithm.RECURSIVE_DOUBLING
    with pytest.raises(ValueError, match="ring does not fit this allreduce"):
        RequestBuilder(Group()).allreduce(np.zeros((2, 2)), op, "ring", SITE)


def test_the_jobs_table_chooses_and_a_call_may_wish_otherwise() -> None:
    table = table_in_text("allreduce 8:0=halving_doubling; broadcast 8:0=chain")
    factory, array = RequestBuilder(Group(table=table)), np.zeros(3)

    def chosen(call: Request) -> Algorithm:
        assert call.form.schedule is not None
        return call.form.schedule.algorithm

    assert chosen(factory.allreduce(array, "sum", None, SITE)) is Algorithm.HALVING_DOUBLING
    assert chosen(factory.allreduce(array, "sum", "ring", SITE)) is Algorithm.RING
    assert chosen(factory.broadcast(array, 0, SITE)) is Algorithm.CHAIN
    wished = factory.broadcast(array, 0, SITE, "binomial")
    assert chosen(wished) is Algorithm.BINOMIAL
    known = factory.known(Kind.BROADCAST, root=0, algorithm="binomial")
    assert is_compatible(known, wished.form.signature)
    with pytest.raises(ValueError, match="ring does not fit this broadcast"):
        factory.broadcast(array, 0, SITE, "ring")
    with pytest.raises(ValueError, match="chain does not fit this allreduce"):
        factory.allreduce(array, "sum", "chain", SITE)
