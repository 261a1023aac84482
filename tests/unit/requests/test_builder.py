"""Counting broadcasts towards a flush: alike on all ranks, whatever went wrong locally."""

import numpy as np
import pytest

from ftcomm.collectives.op_argument import reduction
from ftcomm.protocol.frame_header import make_suffix
from ftcomm.protocol.signature import (
    NO_TAG,
    Algorithm,
    Kind,
    Signature,
    is_compatible,
    tag_code,
    with_tag,
)
from ftcomm.requests.builder import FLUSH_BROADCASTS, FLUSH_BYTES, UnprovenBroadcasts
from ftcomm.requests.request import CallOptions, DeferredInput, Request, anything
from tests.helpers.group import builder

SITE = "train.py:1"


def counted(broadcasts: UnprovenBroadcasts, kind: Kind = Kind.BROADCAST, nbytes: int = 24) -> bool:
    """A call that ends well; True if it had to flush."""
    flush = kind is Kind.BROADCAST and broadcasts.must_flush(nbytes)
    broadcasts.completed(kind, nbytes)
    return flush


def test_the_last_of_many_broadcasts_flushes_and_the_count_begins_again() -> None:
    broadcasts = UnprovenBroadcasts()
    flushes = [counted(broadcasts) for _ in range(2 * FLUSH_BROADCASTS + 1)]
    numbers = [number for number, flush in enumerate(flushes) if flush]
    assert numbers == [FLUSH_BROADCASTS - 1, 2 * FLUSH_BROADCASTS - 1]


def test_many_bytes_flush_before_the_number_does() -> None:
    broadcasts = UnprovenBroadcasts()
    flushes = [counted(broadcasts, nbytes=FLUSH_BYTES // 2) for _ in range(4)]
    assert flushes == [False, True, False, True]


def test_a_call_that_did_not_complete_is_not_counted() -> None:
    one, other = UnprovenBroadcasts(), UnprovenBroadcasts()
    for _ in range(10):
        one.must_flush(24)  # raised locally: an interrupted call, no room in the log
    for _ in range(FLUSH_BROADCASTS - 1):
        counted(one)
        counted(other)
    assert one.must_flush(24) is other.must_flush(24) is True


def test_a_synchronising_call_starts_the_count_again() -> None:
    broadcasts = UnprovenBroadcasts()
    for _ in range(FLUSH_BROADCASTS - 1):
        counted(broadcasts)
    counted(broadcasts, Kind.ALLGATHER)
    assert broadcasts.must_flush(24) is False


def test_an_object_that_is_called_needs_a_name() -> None:
    class Adder:
        __hash__ = None  # type: ignore[assignment]  # that is the point

        def __call__(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return a + b

    with pytest.raises(TypeError, match="op is an object of type Adder, which is not declared"):
        builder().allreduce(np.zeros(3), CallOptions(Adder()), SITE)
    named = reduction(Adder(), name="adder")
    call = builder().allreduce(np.zeros(3), CallOptions(named), SITE)
    assert call.form.reducer is not None


def test_an_unknown_algorithm_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no algorithm is called 'star'; use one of auto, ring"):
        builder().allreduce(np.zeros(3), CallOptions(algorithm="star"), SITE)


def test_a_wish_of_the_whole_job_is_not_for_reductions_that_go_one_way_only() -> None:
    op = reduction(np.matmul, name="matmul", elementwise=False, commutative=False)
    call = builder(algorithm="ring").allreduce(np.zeros((2, 2)), CallOptions(op), SITE)
    assert call.form.schedule is not None
    assert call.form.schedule.algorithm is Algorithm.DIRECT
    with pytest.raises(ValueError, match="ring does not fit this allreduce"):
        builder().allreduce(np.zeros((2, 2)), CallOptions(op, algorithm="ring"), SITE)


def test_the_job_chooses_and_a_call_may_wish_otherwise() -> None:
    factory, array = builder(algorithm="recursive_doubling"), np.zeros(3)

    def chosen(call: Request) -> Algorithm:
        assert call.form.schedule is not None
        return call.form.schedule.algorithm

    assert chosen(factory.allreduce(array, CallOptions(), SITE)) is Algorithm.RECURSIVE_DOUBLING
    assert chosen(factory.allreduce(array, CallOptions(algorithm="ring"), SITE)) is Algorithm.RING
    assert chosen(factory.broadcast(array, CallOptions(root=0), SITE)) is Algorithm.TREE
    wished = factory.broadcast(array, CallOptions(root=0, algorithm="chain"), SITE)
    assert chosen(wished) is Algorithm.CHAIN
    known = factory.known(Kind.BROADCAST, CallOptions(root=0, algorithm="chain"))
    assert is_compatible(known, wished.form.signature)
    with pytest.raises(ValueError, match="ring does not fit this broadcast"):
        factory.broadcast(array, CallOptions(root=0, algorithm="ring"), SITE)
    with pytest.raises(ValueError, match="chain does not fit this allreduce"):
        factory.allreduce(array, CallOptions(algorithm="chain"), SITE)


def signatures(tag: int | str | None) -> list[Signature]:
    """Of one allreduce with that tag: as built, as known of an input function, and as it makes."""
    factory, options = builder(), CallOptions(tag=tag)

    def make(x: np.ndarray) -> Request:
        return factory.allreduce(x, options, SITE)

    found = []
    for x in (np.zeros(3), lambda: np.zeros(3)):
        request = factory.submission(Kind.ALLREDUCE, x, make, anything, SITE, options).request
        found.append(Signature.decode(request.known))
        if isinstance(request, DeferredInput):
            found.append(Signature.decode(request.make().form.signature))
    return found


def test_a_tag_is_part_of_the_signature_however_the_input_comes() -> None:
    assert [found.tag for found in signatures("bucket")] == [tag_code("bucket")] * 3
    assert [found.tag for found in signatures(None)] == [NO_TAG] * 3


def test_the_frames_of_a_call_carry_its_tag_and_its_line() -> None:
    factory = builder()
    plain = factory.plain(Kind.BARRIER, SITE)
    form = plain.form
    tagged = factory.submitted(Kind.BARRIER, plain, anything, CallOptions(tag=5)).request
    assert isinstance(tagged, Request)
    assert tagged.form.suffix == make_suffix(with_tag(form.signature, tag_code(5)), SITE)
    again = factory.submitted(Kind.BARRIER, Request(form), anything, CallOptions(tag=5)).request
    assert isinstance(again, Request)
    assert again.form is tagged.form


def test_a_rank_that_learns_dtype_and_shape_knows_the_tag() -> None:
    factory, options = builder(), CallOptions(root=0, tag="w")
    opened = factory.broadcast_from(options, SITE)
    known = factory.submitted(Kind.BROADCAST, opened, anything, options).request.known
    root = with_tag(factory.broadcast(np.zeros(3), options, SITE).form.signature, tag_code("w"))
    assert is_compatible(known, root)
    assert not is_compatible(known, with_tag(root, NO_TAG))
